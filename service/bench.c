/* SPDX-License-Identifier: Apache-2.0 */
#include "service/bench.h"

#include "base/checked.h"
#include "base/clock.h"
#include "base/philox.h"
#include "service/stepper.h"

#include <stdlib.h>

#define WARM_TOKENS 32u
#define WARM_STEPS  4u

typedef struct bench {
    mr_exec *exec; /* the runtime's */
    mr_stepper *stepper;
    uint32_t vocab_size;
    uint32_t max_tokens; /* of a step */
    bool takes_two;      /* steps at a time */
    double *rates;       /* [repeat] */
    mr_bench_result *result;
} bench;

/* A timed run. */
typedef struct timed {
    uint64_t begin_ns;
    mr_exec_times before;
} timed;

/* The same token at the same place in every run; text would make no difference in cost. */
static uint32_t token_at(const bench *b, uint32_t sequence, uint32_t position)
{
    static const uint32_t key[2] = {0x6d696c6c, 0x72616365};
    const uint32_t counter[4] = {sequence, position, 0, 0};
    uint32_t out[4];
    mr_philox4x32(counter, key, out);
    return out[0] % b->vocab_size;
}

static mr_row_params greedy_row(void)
{
    return (mr_row_params){.top_p = 1.0f, .repetition_penalty = 1.0f, .target = MR_NO_TARGET};
}

static double rate(uint64_t tokens, uint64_t ns)
{
    return (double)tokens * 1e9 / (double)(ns > 0 ? ns : 1);
}

static timed start_run(const bench *b)
{
    timed run;
    b->exec->vt->times(b->exec, &run.before);
    run.begin_ns = mr_monotonic_ns();
    return run;
}

/* The rate of run `index` that computed `tokens`, and what it spent on each kind of operator. */
static void end_run(bench *b, const timed *run, uint32_t index, uint64_t tokens)
{
    b->rates[index] = rate(tokens, mr_monotonic_ns() - run->begin_ns);
    mr_exec_times after;
    b->exec->vt->times(b->exec, &after);
    mr_exec_times *spent = &b->result->spent;
    spent->steps += after.steps - run->before.steps;
    for (size_t kind = 0; kind <= MR_OP_SAMPLE; kind++) {
        const mr_op_time *old = &run->before.by_kind[kind];
        const mr_op_time *new = &after.by_kind[kind];
        spent->by_kind[kind].ns += new->ns - old->ns;
        spent->by_kind[kind].bytes += new->bytes - old->bytes;
        spent->by_kind[kind].operations += new->operations - old->operations;
        spent->by_kind[kind].calls += new->calls - old->calls;
    }
}

static mr_status open_bench(bench *b, mr_runtime *runtime, uint32_t sequences, uint32_t tokens,
                            uint32_t repeat, mr_error *err)
{
    *b = (bench){
        .exec = mr_runtime_exec(runtime),
        .vocab_size = mr_model_config_get(mr_runtime_model(runtime))->vocab_size,
        .max_tokens = mr_runtime_exec_options(runtime)->max_tokens,
        .takes_two = mr_runtime_backend(runtime)->takes_two,
        .rates = mr_calloc(repeat, sizeof(double)),
    };
    if (b->rates == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory");
    }
    return mr_stepper_create(runtime, sequences, tokens, &b->stepper, err);
}

static void close_bench(bench *b)
{
    mr_stepper_destroy(b->stepper);
    free(b->rates);
}

/* Computes positions 0 … tokens − 1 of a sequence, and the logits of the last. */
static mr_status prefill(bench *b, uint32_t sequence, uint32_t tokens, mr_error *err)
{
    const mr_row_params row = greedy_row();
    mr_stepper_rewind(b->stepper, sequence, 0);
    for (uint32_t begin = 0; begin < tokens;) {
        const uint32_t left = tokens - begin;
        const uint32_t end = begin + (left < b->max_tokens ? left : b->max_tokens);
        mr_stepper_begin(b->stepper);
        MR_TRY(mr_stepper_sequence(b->stepper, sequence, end - begin));
        for (; begin < end; begin++) {
            MR_TRY(mr_stepper_token(b->stepper, (int32_t)token_at(b, sequence, begin),
                                    begin + 1 == tokens ? &row : NULL));
        }
        mr_step_output output;
        MR_TRY(mr_stepper_run(b->stepper, &output, err));
    }
    return MR_OK;
}

/* Submits the step of every sequence's token at its position: what the step before drew, but for
 * the first. */
static mr_status submit_decode(bench *b, uint32_t batch, uint32_t position, bool first,
                               mr_error *err)
{
    const mr_row_params row = greedy_row();
    mr_stepper_begin(b->stepper);
    for (uint32_t s = 0; s < batch; s++) {
        const int32_t src = first ? (int32_t)token_at(b, s, position) : mr_token_src_row(s);
        MR_TRY(mr_stepper_sequence(b->stepper, s, 1));
        MR_TRY(mr_stepper_token(b->stepper, src, &row));
    }
    return mr_stepper_submit(b->stepper, err);
}

/* `steps` steps that compute a token of every sequence, from `position` on; as the engine runs
 * them, two at a time where the backend takes them. */
static mr_status decode(bench *b, uint32_t batch, uint32_t position, uint32_t steps, mr_error *err)
{
    mr_step_output output;
    uint32_t under_way = 0;
    for (uint32_t s = 0; s < batch; s++) {
        mr_stepper_rewind(b->stepper, s, position);
    }
    for (uint32_t step = 0; step < steps; step++) {
        MR_TRY(submit_decode(b, batch, position + step, step == 0, err));
        under_way++;
        if (under_way == (b->takes_two ? 2 : 1)) {
            MR_TRY(mr_stepper_wait(b->stepper, &output, err));
            under_way--;
        }
    }
    return under_way > 0 ? mr_stepper_wait(b->stepper, &output, err) : MR_OK;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

double mr_bench_median(double *runs, uint32_t count)
{
    qsort(runs, count, sizeof(*runs), compare);
    return count % 2 == 1 ? runs[count / 2] : (runs[count / 2 - 1] + runs[count / 2]) / 2;
}

static mr_status run_prefill(bench *b, uint32_t tokens, uint32_t repeat, mr_error *err)
{
    MR_TRY(prefill(b, 0, tokens < WARM_TOKENS ? tokens : WARM_TOKENS, err));
    for (uint32_t i = 0; i < repeat; i++) {
        const timed run = start_run(b);
        MR_TRY(prefill(b, 0, tokens, err));
        end_run(b, &run, i, tokens);
    }
    return MR_OK;
}

mr_status mr_bench_prefill(mr_runtime *runtime, uint32_t tokens, uint32_t repeat,
                           mr_bench_result *out, mr_error *err)
{
    bench b;
    mr_status status = open_bench(&b, runtime, 1, tokens, repeat, err);
    *out = (mr_bench_result){0};
    b.result = out;
    if (status == MR_OK) {
        status = run_prefill(&b, tokens, repeat, err);
    }
    if (status == MR_OK) {
        out->tokens_per_s = mr_bench_median(b.rates, repeat);
    }
    close_bench(&b);
    return status;
}

static mr_status run_decode(bench *b, const mr_bench_decode_spec *spec, mr_error *err)
{
    for (uint32_t s = 0; s < spec->batch; s++) {
        MR_TRY(prefill(b, s, spec->prompt, err));
    }
    const uint32_t warm = spec->generate < WARM_STEPS ? spec->generate : WARM_STEPS;
    MR_TRY(decode(b, spec->batch, spec->prompt, warm, err));
    for (uint32_t i = 0; i < spec->repeat; i++) {
        const timed run = start_run(b);
        MR_TRY(decode(b, spec->batch, spec->prompt, spec->generate, err));
        end_run(b, &run, i, (uint64_t)spec->batch * spec->generate);
    }
    return MR_OK;
}

mr_status mr_bench_decode(mr_runtime *runtime, const mr_bench_decode_spec *spec,
                          mr_bench_result *out, mr_error *err)
{
    bench b;
    mr_status status =
        open_bench(&b, runtime, spec->batch, spec->prompt + spec->generate, spec->repeat, err);
    *out = (mr_bench_result){0};
    b.result = out;
    if (status == MR_OK) {
        status = run_decode(&b, spec, err);
    }
    if (status == MR_OK) {
        out->tokens_per_s = mr_bench_median(b.rates, spec->repeat);
    }
    close_bench(&b);
    return status;
}
