/* SPDX-License-Identifier: Apache-2.0 */
#include "service/profile.h"

#include <stdio.h>

static uint64_t total_ns(const mr_exec_times *spent)
{
    uint64_t total = 0;
    for (size_t kind = 0; kind <= MR_OP_SAMPLE; kind++) {
        total += spent->by_kind[kind].ns;
    }
    return total > 0 ? total : 1;
}

static double per_s(uint64_t amount, uint64_t ns)
{
    return ns > 0 ? (double)amount * 1e9 / (double)ns : 0.0;
}

static double per_step(uint64_t amount, uint64_t steps)
{
    return (double)amount / (double)(steps > 0 ? steps : 1);
}

/* Without memory for it the key is left out. */
static void put(json_t *object, const char *key, double value)
{
    (void)json_object_set_new(object, key, json_real(value));
}

static json_t *op_object(mr_op_kind kind, const mr_exec_times *spent, const mr_ceilings *ceilings)
{
    const mr_op_time *time = &spent->by_kind[kind];
    json_t *op = json_pack("{s:s, s:I, s:I, s:I, s:I}", "op", mr_op_name(kind), "calls",
                           (json_int_t)time->calls, "ns", (json_int_t)time->ns, "bytes",
                           (json_int_t)time->bytes, "operations", (json_int_t)time->operations);
    if (op == NULL) {
        return NULL;
    }
    const double bytes = per_s(time->bytes, time->ns);
    const double operations = per_s(time->operations, time->ns);
    put(op, "share", (double)time->ns / (double)total_ns(spent));
    put(op, "bytes_per_s", bytes);
    put(op, "operations_per_s", operations);
    if (ceilings->read_bytes_per_s > 0) {
        put(op, "of_read_bandwidth", bytes / ceilings->read_bytes_per_s);
    }
    if (ceilings->int8_per_s > 0) {
        put(op, "of_int8_peak", operations / ceilings->int8_per_s);
    }
    return op;
}

json_t *mr_profile_object(const mr_exec_times *spent, const mr_ceilings *ceilings)
{
    json_t *ops = json_array();
    for (size_t kind = 0; kind <= MR_OP_SAMPLE; kind++) {
        if (spent->by_kind[kind].calls == 0) {
            continue;
        }
        if (json_array_append_new(ops, op_object((mr_op_kind)kind, spent, ceilings)) != 0) {
            json_decref(ops);
            return NULL;
        }
    }
    return json_pack("{s:I, s:o}", "steps", (json_int_t)spent->steps, "ops", ops);
}

static void print_fraction(double value, double ceiling)
{
    if (value > 0 && ceiling > 0) {
        printf("  %5.1f %%", 100 * value / ceiling);
    } else {
        printf("  %7s", "-");
    }
}

void mr_profile_print(const mr_exec_times *spent, const mr_ceilings *ceilings)
{
    printf("    %-12s %10s %7s %9s %8s %9s %8s\n", "operator", "us a step", "share", "GB/s",
           "of read", "GOP/s", "of int8");
    for (size_t kind = 0; kind <= MR_OP_SAMPLE; kind++) {
        const mr_op_time *time = &spent->by_kind[kind];
        if (time->calls == 0) {
            continue;
        }
        const double bytes = per_s(time->bytes, time->ns);
        const double operations = per_s(time->operations, time->ns);
        printf("    %-12s %10.1f %5.1f %% %9.1f", mr_op_name((mr_op_kind)kind),
               per_step(time->ns, spent->steps) / 1e3,
               100 * (double)time->ns / (double)total_ns(spent), bytes / 1e9);
        print_fraction(bytes, ceilings->read_bytes_per_s);
        printf(" %9.1f", operations / 1e9);
        print_fraction(operations, ceilings->int8_per_s);
        putchar('\n');
    }
}
