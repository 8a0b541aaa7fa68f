/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention, called through the table, against sums in double over the same cache. */
#include "attention_scene.h"
#include "kernels/cuda/internal.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void name(const scene_shape *s, const char *of, char *out, size_t bytes)
{
    (void)snprintf(out, bytes,
                   "%s: %s, kv %s, D %u, %u × %u heads, blocks of %u, window %u, cap %g", of,
                   mr_dtype_info_get(s->type)->name, mr_dtype_info_get(s->kv)->name, s->width,
                   s->kv_heads, s->share, s->block_size, s->window, (double)s->soft_cap);
}

/* What takes a GPU seconds takes its emulation hours: with MILLRACE_TEST_EVERY=N this run looks, of
 * each large table, at shape MILLRACE_TEST_FROM and then at every N-th that is taken, in smaller
 * steps and fewer launches. */
static struct {
    uint32_t every;
    uint32_t from;
    uint32_t shapes; /* of the test so far */
    uint32_t next;   /* to be looked at */
    uint32_t looked; /* at so many */
} part = {.every = 1};

static uint32_t fewer(uint32_t n)
{
    return part.every > 1 ? n / 4 : n;
}

static void close_bench(gpu_bench *b)
{
    gpu_bench_close(b);
    assert_true(part.looked > 0);
    part.shapes = part.looked = 0;
    part.next = part.from;
}

/* As graphs launch it, again, and in launches of some tokens; with the same bits again, and
 * everywhere where nothing but its keys may decide about a row. */
static void check(gpu_bench *b, const scene_shape *s, const scene_rows *r, const char *of)
{
    char what[160];
    name(s, of, what, sizeof(what));
    scene c;
    scene_make(b, s, r, &c);
    const size_t bytes = c.out_bytes / c.p.tokens * r->count;
    const uint32_t most[] = {0, c.n_items, c.n_items / 3 + 1, r->count <= 10 ? 1 : c.n_items / 8};
    uint8_t *out = gpu_array(c.out_bytes, 1);
    uint8_t *again = gpu_array(c.out_bytes, 1);
    part.looked++;
    for (int invariant = 0; invariant < 2; invariant++) {
        c.p.invariant = invariant != 0;
        scene_run(b, &c, 0, out, what);
        scene_compare(&c, out, what);
        for (size_t i = 0; i < sizeof(most) / sizeof(most[0]); i++) {
            if (part.every > 1 && i % 2 != part.looked % 2) {
                continue;
            }
            scene_run(b, &c, most[i], again, what);
            scene_compare(&c, again, what);
            if ((invariant != 0 || i == 0) && memcmp(out, again, bytes) != 0) {
                fail_msg("%s: other bits in launches of %u items", what, most[i]);
            }
        }
    }
    free(out);
    free(again);
    scene_free(&c);
}

static void check_some(gpu_bench *b, const scene_shape *s, const scene_rows *r, const char *of)
{
    if (part.shapes++ >= part.next) {
        check(b, s, r, of);
        part.next = part.shapes - 1 + part.every;
    }
}

/* ---- steps ---- */

/* Contexts at the borders of splits and blocks. */
static scene_rows border_rows(void)
{
    static const uint32_t positions[] = {0, 255, 1, 30, 256, 254, 700, 512, 511, 1290};
    scene_rows r = {0};
    for (uint32_t i = 0; i < sizeof(positions) / sizeof(positions[0]); i++) {
        scene_add_row(&r, i, positions[i]);
    }
    return r;
}

static const mr_dtype halves[] = {MR_DTYPE_BF16, MR_DTYPE_F16};
static const uint32_t widths[] = {64, 128};

/* Of the computation, or of one byte. */
static mr_dtype kv_type(mr_dtype compute, uint32_t i)
{
    return i == 0 ? compute : i == 1 ? MR_DTYPE_F8_E4M3 : MR_DTYPE_I8;
}

/* The i-th of the ways in which keys, values and queries are stored and how wide they are; 12 in
 * all. */
static scene_shape shape_of(uint32_t i)
{
    const mr_dtype type = halves[i % 2];
    return (scene_shape){.type = type,
                         .kv = kv_type(type, i / 4 % 3),
                         .width = widths[i / 2 % 2],
                         .kv_heads = 2,
                         .share = 4,
                         .block_size = 16};
}

static void test_groups_of_query_heads(void **state)
{
    (void)state;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (uint32_t share = 1; share <= 18; share++) {
        for (uint32_t i = 0; i < 12; i++) {
            scene_shape s = shape_of(i);
            s.share = share;
            check_some(&b, &s, &r, "groups");
        }
    }
    close_bench(&b);
}

static void test_block_sizes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 5, 8, 12, 16, 24, 32, 48, 64, 100, 128, 256, 512};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
        for (uint32_t i = 0; i < 12; i++) {
            scene_shape s = shape_of(i);
            s.kv_heads = 3;
            s.share = i % 3 == 0 ? 3 : 4;
            s.block_size = sizes[n];
            check_some(&b, &s, &r, "block sizes");
        }
    }
    close_bench(&b);
}

static void test_windows_and_soft_caps(void **state)
{
    (void)state;
    static const uint32_t windows[] = {0, 1, 9, 150, 255, 256, 257, 1000, 4000};
    static const float caps[] = {0.0f, 4.0f, 30.0f};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (size_t w = 0; w < sizeof(windows) / sizeof(windows[0]); w++) {
        for (uint32_t i = 0; i < 12; i++) {
            for (size_t n = 0; n < sizeof(caps) / sizeof(caps[0]); n++) {
                scene_shape s = shape_of(i);
                s.kv_heads = 1;
                s.window = windows[w];
                s.soft_cap = caps[n];
                check_some(&b, &s, &r, "windows and caps");
            }
        }
    }
    close_bench(&b);
}

/* Full steps of decoding: short and long contexts in any order. */
static void test_many_ragged_rows(void **state)
{
    (void)state;
    static const uint32_t shares[] = {5, 4, 1};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    scene_rows r = {0};
    for (uint32_t i = 0; i < fewer(SCENE_ROWS); i++) {
        const uint32_t most = i % 16 == 5 ? 3000 : i % 3 == 0 ? 700 : 200;
        scene_add_row(&r, i, (uint32_t)(tiny_random(&b.state) % most));
    }
    for (uint32_t i = 0; i < 12; i++) {
        scene_shape s = shape_of(i);
        s.share = shares[i % 3];
        s.block_size = i % 3 == 0 ? 32 : 16;
        check_some(&b, &s, &r, "many rows");
    }
    close_bench(&b);
}

/* Proposed tokens are verified: consecutive rows of one sequence, beside others. */
static void test_consecutive_rows(void **state)
{
    (void)state;
    static const uint32_t ends[] = {0,   1,   7,   15,  16,   254,  255,  256, 257,
                                    259, 511, 512, 513, 1027, 1282, 2050, 300, 40};
    static const uint32_t windows[] = {0, 3, 260};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    scene_rows r = {0};
    for (uint32_t i = 0; i<sizeof(ends) / sizeof(ends[0]); i += part.every> 1 ? 3 : 1) {
        const uint32_t proposed = i % 8 + 1;
        for (uint32_t n = ends[i] + 1 > proposed ? ends[i] + 1 - proposed : 0; n <= ends[i]; n++) {
            scene_add_row(&r, i, n);
        }
    }
    for (uint32_t i = 0; i < 36; i++) {
        scene_shape s = shape_of(i);
        s.window = windows[i / 12];
        check_some(&b, &s, &r, "consecutive rows");
    }
    close_bench(&b);
}

static void test_long_contexts(void **state)
{
    (void)state;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    scene_rows r = {0};
    scene_add_row(&r, 0, 5);
    scene_add_row(&r, 1, fewer(33000));
    scene_add_row(&r, 2, 8191);
    scene_add_row(&r, 3, 270);
    for (uint32_t i = 0; i < 12; i++) {
        scene_shape s = shape_of(i);
        s.share = i % 3 == 0 ? 8 : 3;
        s.block_size = i % 3 == 1 ? 64 : 16;
        s.window = i % 2 == 0 ? 0 : fewer(9000);
        check_some(&b, &s, &r, "long contexts");
    }
    close_bench(&b);
}

/* What matrix units do not take. */
static void test_other_types_and_widths(void **state)
{
    (void)state;
    static const uint32_t others[] = {16, 36, 64, 96, 128, 256};
    static const uint32_t shares[] = {1, 3, 6};
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16, MR_DTYPE_F8_E4M3,
                                     MR_DTYPE_I8};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (size_t w = 0; w < sizeof(others) / sizeof(others[0]); w++) {
        for (uint32_t i = 0; i < 15; i++) {
            const scene_shape s = {.type = i / 5 == 0 ? MR_DTYPE_F32 : halves[i / 5 - 1],
                                   .kv = types[i % 5],
                                   .width = others[w],
                                   .kv_heads = 2,
                                   .share = shares[i % 3],
                                   .block_size = i % 2 == 0 ? 16 : 10,
                                   .window = i % 4 == 3 ? 40 : 0,
                                   .soft_cap = i % 5 == 4 ? 4.0f : 0.0f};
            check_some(&b, &s, &r, "other types and widths");
        }
    }
    close_bench(&b);
}

/* A NaN in a sequence's own past must reach its row, for that is how it is found out; and only
 * that row, in the heads that share the key. */
static void check_own_nan(gpu_bench *b, const scene_shape *s, const scene_rows *r, uint32_t plane)
{
    char what[160];
    name(s, plane == 0 ? "a NaN among keys" : "a NaN among values", what, sizeof(what));
    const uint32_t row = 6; /* of border_rows(): position 700 */
    const uint32_t position = 300;
    scene c;
    scene_make(b, s, r, &c);
    const uint32_t block = c.tables[(size_t)row * c.max_blocks + position / s->block_size];
    const size_t size = mr_dtype_info_get(s->kv)->block_bytes;
    const size_t in = s->kv == MR_DTYPE_I8 ? (size_t)(position % s->block_size) * 4
                                           : (size_t)(position % s->block_size) * s->width * size;
    const uint64_t at = ((uint64_t)block * s->kv_heads + 1) * scene_piece_bytes(s) + in;
    const mr_cuda_ptr to = plane == 0 ? c.p.kv.keys : c.p.kv.values;
    assert_int_equal(b->api->fill(b->context, to + at, 0xff, s->kv == MR_DTYPE_I8 ? 4 : size), 0);
    uint8_t *out = gpu_array(c.out_bytes, 1);
    part.looked++;
    scene_run(b, &c, 0, out, what);
    for (uint32_t i = 0; i < r->count * scene_heads(&c) * s->width; i++) {
        const uint32_t head = i / s->width % scene_heads(&c);
        const bool hit = i / s->width / scene_heads(&c) == row && head / s->share == 1 &&
                         (plane == 0 || s->kv == MR_DTYPE_I8 || i % s->width == 0);
        if (isnan(scene_number(s->type, out, i)) != hit) {
            fail_msg("%s: element %u of %u a row is %s", what, i, scene_heads(&c) * s->width,
                     hit ? "a number" : "NaN");
        }
    }
    free(out);
    scene_free(&c);
}

/* Older GPUs widen codes by hand, and their NaN is a number. */
static bool has_e4m3(const gpu_bench *b)
{
    const mr_cuda_properties *p = &((const mr_cuda_backend *)b->base)->properties;
    return p->major > 8 || (p->major == 8 && p->minor == 9);
}

static void test_a_nan_of_ones_own_stays(void **state)
{
    (void)state;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (uint32_t i = 0; i < 24; i++) {
        const scene_shape s = shape_of(i);
        if (s.kv == MR_DTYPE_F8_E4M3 && !has_e4m3(&b)) {
            continue;
        }
        check_own_nan(&b, &s, &r, i / 12);
    }
    close_bench(&b);
}

/* One in a head's query is that row's, and no other's. */
static void test_a_nan_in_a_query_stays(void **state)
{
    (void)state;
    const uint32_t row = 6; /* position 700 */
    const uint32_t head = 5;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    const scene_rows r = border_rows();
    for (uint32_t n = 0; n < 12; n++) {
        const mr_dtype type = halves[n % 2];
        const scene_shape s = {.type = type,
                               .kv = kv_type(type, n / 4),
                               .width = widths[n / 2 % 2],
                               .kv_heads = 2,
                               .share = 4,
                               .block_size = 16};
        char what[160];
        name(&s, "a NaN in a query", what, sizeof(what));
        scene c;
        scene_make(&b, &s, &r, &c);
        const uint32_t lines = row * (scene_heads(&c) + 2 * s.kv_heads) + head;
        const mr_cuda_ptr at = c.p.qkv + ((uint64_t)lines * s.width + n) * 2;
        assert_int_equal(b.api->fill(b.context, at, 0xff, 2), 0);
        uint8_t *out = gpu_array(c.out_bytes, 1);
        part.looked++;
        scene_run(&b, &c, 0, out, what);
        for (uint32_t i = 0; i < r.count * scene_heads(&c) * s.width; i++) {
            const bool hit = i / s.width == row * scene_heads(&c) + head;
            if (isnan(scene_number(type, out, i)) != hit) {
                fail_msg("%s: element %u of head %u is %s", what, i % s.width, i / s.width,
                         hit ? "a number" : "NaN");
            }
        }
        free(out);
        scene_free(&c);
    }
    close_bench(&b);
}

/* A key with nearly all of the weight and no value: what the others add is the result, and their
 * probabilities are small, times an int8 cache's scales smaller than any number of f16. */
static void test_what_is_behind_a_sink_counts(void **state)
{
    (void)state;
    static const float sizes[] = {0.3f, 0.03f};
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_BF16, (uint64_t)512 << 20);
    scene_rows r = {0};
    scene_add_row(&r, 0, 699);
    scene_add_row(&r, 1, 200);
    scene_add_row(&r, 2, 1100);
    for (uint32_t i = 0; i < 24; i++) {
        const mr_dtype type = halves[i % 2];
        const scene_shape s = {.type = type,
                               .kv = kv_type(type, i / 4 % 3),
                               .width = widths[i / 2 % 2],
                               .kv_heads = 1,
                               .share = 4,
                               .block_size = 16,
                               .behind_sink = sizes[i / 12]};
        check(&b, &s, &r, sizes[i / 12] > 0.1f ? "behind a sink" : "small behind a sink");
    }
    close_bench(&b);
}

int main(int argc, char **argv)
{
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    part.every = gpu_number_of("MILLRACE_TEST_EVERY", 1);
    part.from = part.next = gpu_number_of("MILLRACE_TEST_FROM", 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_of_query_heads),
        cmocka_unit_test(test_block_sizes),
        cmocka_unit_test(test_windows_and_soft_caps),
        cmocka_unit_test(test_many_ragged_rows),
        cmocka_unit_test(test_consecutive_rows),
        cmocka_unit_test(test_long_contexts),
        cmocka_unit_test(test_other_types_and_widths),
        cmocka_unit_test(test_a_nan_of_ones_own_stays),
        cmocka_unit_test(test_a_nan_in_a_query_stays),
        cmocka_unit_test(test_what_is_behind_a_sink_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
