/* SPDX-License-Identifier: Apache-2.0 */
/* The scalar reference of the CPU backend (compute=f32), on small random models. */
#include "kernels/cpu/cpu_backend.h"

#include "naive_model.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PROMPT 53

/* Allocations while `counting`; the linker routes them here (-Wl,--wrap). */
static bool counting;
static size_t allocations;

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__real_realloc(void *ptr, size_t bytes);
void *__wrap_realloc(void *ptr, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    allocations += counting;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    allocations += counting;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *ptr, size_t bytes)
{
    allocations += counting;
    return __real_realloc(ptr, bytes);
}

void *__real_mr_alloc_aligned(size_t bytes);
void *__wrap_mr_alloc_aligned(size_t bytes);

void *__wrap_mr_alloc_aligned(size_t bytes)
{
    allocations += counting;
    return __real_mr_alloc_aligned(bytes);
}

static mr_backend *reference(uint32_t threads)
{
    mr_backend *backend = NULL;
    const mr_cpu_options options = {.compute = MR_COMPUTE_F32, .threads = threads};
    assert_int_equal(mr_cpu_backend_create(&options, &backend, NULL), MR_OK);
    return backend;
}

static void make_prompt(int32_t *tokens, uint32_t count, uint32_t vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)(tiny_random(&seed) % vocab);
    }
}

/* Largest distance between logits and the naive model's, relative to the largest naive logit. */
static double distance(const float *logits, const double *naive, size_t count)
{
    double worst = 0.0;
    double largest = 0.0;
    for (size_t i = 0; i < count; i++) {
        worst = fmax(worst, fabs((double)logits[i] - naive[i]));
        largest = fmax(largest, fabs(naive[i]));
    }
    return worst / largest;
}

/* From the naive model with keys and values rounded to naive_dtype. */
static double distance_of(const tiny_dims *dims, mr_dtype kv_dtype, mr_dtype naive_dtype)
{
    tiny_plan tiny;
    tiny_plan_create(dims, &tiny);
    mr_backend *backend = reference(2);
    mr_exec_options options = tiny_options();
    options.kv_dtype = kv_dtype;
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, dims->vocab, 3);
    mr_batch_reset(session.storage);
    tiny_feed(&session, 1, prompt, 0, PROMPT, true);
    mr_step_output out;
    tiny_run(&session, &out);
    double *naive = naive_logits(&tiny, prompt, PROMPT, naive_dtype);
    assert_int_equal(out.n_rows, PROMPT);
    const double result = distance(out.logits, naive, (size_t)PROMPT * dims->vocab);
    free(naive);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    return result;
}

static void test_matches_naive_every_dtype(void **state)
{
    (void)state;
    for (mr_dtype dtype = MR_DTYPE_F32; dtype < MR_DTYPE_COUNT; dtype++) {
        const tiny_dims dims = tiny_dims_of(dtype);
        assert_true(distance_of(&dims, MR_DTYPE_F32, MR_DTYPE_F32) < 1e-5);
    }
}

static void test_matches_naive_variants(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 8; variant++) {
        tiny_dims dims = tiny_dims_default();
        dims.seed = 100 + variant;
        dims.pairing = variant & 1 ? MR_ROPE_HALVES : MR_ROPE_INTERLEAVED;
        dims.norm = variant & 2 ? MR_NORM_LAYER : MR_NORM_RMS;
        dims.biases = variant & 4;
        dims.tied = variant & 1;
        dims.activation = (mr_activation)(variant % 4);
        dims.window = variant & 2 ? 11 : 0;
        dims.soft_cap = variant & 4 ? 2.5f : 0.0f;
        dims.embed_scale = variant & 1 ? 1.0f : 3.5f;
        dims.kv_heads = variant & 1 ? 1 : 4;
        dims.layers = 1 + variant % 3;
        dims.width = 72; /* no whole number of lanes, tiles or vectors */
        dims.ffn = 43;
        dims.vocab = 101;
        dims.head_width = 14;
        assert_true(distance_of(&dims, MR_DTYPE_F32, MR_DTYPE_F32) < 1e-5);
    }
}

/* Layers with windows of their own, as Gemma and Qwen have them, need one table of blocks only. */
static void test_windows_of_every_other_layer(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.layers = 4;
    dims.window = 7;
    dims.every_other = true;
    assert_true(distance_of(&dims, MR_DTYPE_F32, MR_DTYPE_F32) < 1e-5);
}

/* The four types, each near the model with the same rounding, over odd widths. A value on the edge
 * between two steps may fall to the other side, so that it is not nearer. */
static void test_kv_types(void **state)
{
    (void)state;
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16, MR_DTYPE_I8};
    static const double near[] = {1e-5, 5e-4, 4e-3, 4e-3};
    static const uint32_t widths[] = {16, 14, 36, 2, 66};
    for (size_t w = 0; w < sizeof(widths) / sizeof(widths[0]); w++) {
        tiny_dims dims = tiny_dims_default();
        dims.head_width = widths[w];
        dims.window = w % 2 == 0 ? 0 : 13;
        for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
            const double found = distance_of(&dims, types[i], types[i]);
            if (!(found < near[i])) {
                fail_msg("%s, D %u: %g", mr_dtype_info_get(types[i])->name, widths[w], found);
            }
        }
    }
    const tiny_dims dims = tiny_dims_default();
    const double f16 = distance_of(&dims, MR_DTYPE_F16, MR_DTYPE_F32);
    const double bf16 = distance_of(&dims, MR_DTYPE_BF16, MR_DTYPE_F32);
    const double int8 = distance_of(&dims, MR_DTYPE_I8, MR_DTYPE_F32);
    assert_true(f16 > 1e-6 && f16 < 2e-3);
    assert_true(bf16 > f16 && bf16 < 2e-2);
    assert_true(int8 > f16 && int8 < 2e-2);
}

/* Feeds `prompt` in chunks of `chunk` beside a neighbour sequence that gets `neighbour` tokens a
 * step (0: none), and copies the logits of every prompt position. */
static void collect(tiny_session *session, const int32_t *prompt, uint32_t chunk,
                    uint32_t neighbour, float *logits)
{
    const uint32_t vocab = session->exec != NULL ? 96 : 0;
    int32_t other[80];
    make_prompt(other, 80, vocab, 1234);
    uint32_t fed = 0;
    for (uint32_t start = 0; start < PROMPT; start += chunk) {
        const uint32_t count = PROMPT - start < chunk ? PROMPT - start : chunk;
        const uint32_t more = fed + neighbour <= 80 ? neighbour : 0;
        mr_batch_reset(session->storage);
        if (more > 0) {
            tiny_feed(session, 3, other + fed, fed, more, true);
            fed += more;
        }
        tiny_feed(session, 0, prompt + start, start, count, true);
        mr_step_output out;
        tiny_run(session, &out);
        memcpy(logits + (size_t)start * vocab, out.logits + (size_t)more * vocab,
               (size_t)count * vocab * sizeof(*logits));
    }
}

static void test_D4_bits_do_not_depend_on_batch_or_threads(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {PROMPT, 1, 7, 16, 32};
    static const uint32_t neighbours[] = {0, 3, 5, 1, 9};
    tiny_dims dims = tiny_dims_default();
    dims.dtype = MR_DTYPE_Q4_1;
    dims.window = 20;
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    int32_t prompt[PROMPT];
    make_prompt(prompt, PROMPT, dims.vocab, 9);
    const size_t bytes = (size_t)PROMPT * dims.vocab * sizeof(float);
    float *first = malloc(bytes);
    float *logits = malloc(bytes);
    assert_true(first != NULL && logits != NULL);
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16, MR_DTYPE_I8};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        for (uint32_t run = 0; run < 15; run++) {
            mr_backend *backend = reference(1 + run % 3);
            mr_exec_options options = tiny_options();
            options.kv_dtype = types[i];
            tiny_session session;
            tiny_session_create(&tiny, backend, &options, &session);
            collect(&session, prompt, chunks[run / 3], neighbours[run / 3],
                    run == 0 ? first : logits);
            if (run > 0) {
                assert_memory_equal(logits, first, bytes);
            }
            tiny_session_destroy(&session);
            backend->vt->destroy(backend);
        }
    }
    free(first);
    free(logits);
    tiny_plan_destroy(&tiny);
}

/* ---- tests on one session ---- */

typedef struct fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
    int32_t prompt[PROMPT];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    const tiny_dims dims = tiny_dims_default();
    tiny_plan_create(&dims, &f->tiny);
    f->backend = reference(2);
    const mr_exec_options options = tiny_options();
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    make_prompt(f->prompt, PROMPT, dims.vocab, 21);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
    free(f);
    return 0;
}

static void feed_one(tiny_session *session, uint32_t slot, int32_t token, uint32_t position,
                     mr_step_output *out)
{
    mr_batch_reset(session->storage);
    tiny_feed(session, slot, &token, position, 1, false);
    tiny_run(session, out);
}

static void test_token_src_names_drawn_rows(void **state)
{
    fixture *f = *state;
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 2, f->prompt, 0, 9, true);
    tiny_feed(&f->session, 0, f->prompt, 0, 10, false);
    tiny_run(&f->session, &out);
    assert_int_equal(out.step, 1);
    assert_int_equal(out.n_rows, 10);
    const int32_t last = (int32_t)out.tokens[9];
    feed_one(&f->session, 0, mr_token_src_row(9), 10, &out);
    float by_row[96];
    memcpy(by_row, out.logits, sizeof(by_row));
    feed_one(&f->session, 0, last, 10, &out);
    assert_memory_equal(by_row, out.logits, sizeof(by_row));
}

static void test_greedy_output(void **state)
{
    fixture *f = *state;
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, f->prompt, 0, 20, true);
    tiny_run(&f->session, &out);
    for (uint32_t row = 0; row < out.n_rows; row++) {
        const float *logits = out.logits + (size_t)row * 96;
        uint32_t best = 0;
        double sum = 0.0;
        for (uint32_t v = 0; v < 96; v++) {
            best = logits[v] > logits[best] ? v : best;
            sum += exp((double)logits[v]);
        }
        assert_int_equal(out.tokens[row], best);
        assert_true(fabs((double)out.logprobs[row] - ((double)logits[best] - log(sum))) < 1e-5);
        assert_int_equal(out.n_top[row], 3);
        assert_int_equal(out.top[row * MR_MAX_TOP].token, best);
        assert_int_equal(out.corrupt[row], 0);
    }
}

static void test_bias_history_and_target(void **state)
{
    fixture *f = *state;
    mr_step_output out;
    mr_batch_storage *s = f->session.storage;
    feed_one(&f->session, 1, 5, 0, &out);
    const uint32_t free_choice = out.tokens[0];
    float before[96];
    memcpy(before, out.logits, sizeof(before));

    mr_batch_reset(s);
    const uint32_t kv_slot = 0; /* a padding row of the null block */
    const uint32_t history[3] = {7, free_choice, free_choice};
    assert_int_equal(mr_batch_add_history(s, 1, 0, history, 3), MR_OK);
    assert_int_equal(mr_batch_add_seq(s, 1, 1, 0), MR_OK);
    assert_int_equal(mr_batch_add_token(s, 5, 0, &kv_slot), MR_OK);
    mr_row_params banned = tiny_greedy();
    banned.bias_count = 1;
    const float ban = -INFINITY;
    assert_int_equal(mr_batch_add_row(s, &banned, &free_choice, &ban), MR_OK);
    mr_row_params target = tiny_greedy();
    target.target = 17;
    assert_int_equal(mr_batch_add_row(s, &target, NULL, NULL), MR_OK);
    mr_row_params penalised = tiny_greedy();
    penalised.processed = true;
    penalised.history_len = 3;
    penalised.prompt_len = 1;
    penalised.frequency_penalty = 1000.0f;
    assert_int_equal(mr_batch_add_row(s, &penalised, NULL, NULL), MR_OK);
    tiny_run(&f->session, &out);
    assert_int_not_equal(out.tokens[0], free_choice);
    assert_int_equal(out.tokens[1], 17);
    assert_int_equal(out.tokens[2], out.tokens[0]); /* the second best */
    assert_memory_equal(out.logits, before, sizeof(before));
    assert_memory_equal(out.logits + 2 * 96, before, sizeof(before));
}

/* A copied block carries keys and values: a fork from it goes on with the same bits. */
static void test_copy_blocks(void **state)
{
    fixture *f = *state;
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, f->prompt, 0, 13, false);
    tiny_run(&f->session, &out);
    feed_one(&f->session, 0, 50, 13, &out);
    float expected[96];
    memcpy(expected, out.logits, sizeof(expected));

    const mr_exec_vtable *vt = f->session.exec->vt;
    /* Slot 0 has the blocks 10, 9, …; slot 2 has 30, 29, … */
    const mr_block_copy copies[2] = {{.from = 10, .to = 30}, {.from = 9, .to = 29}};
    assert_int_equal(vt->copy_blocks(f->session.exec, copies, 2, NULL), MR_OK);
    mr_batch_storage *s = f->session.storage;
    mr_batch_reset(s);
    for (uint32_t i = 0; i < 2; i++) {
        const mr_block_delta delta = {.slot = 2, .index = i, .block = 30 - i};
        assert_int_equal(mr_batch_add_block(s, &delta), MR_OK);
    }
    const int32_t token = 50;
    tiny_feed(&f->session, 2, &token, 13, 1, false);
    tiny_run(&f->session, &out);
    assert_memory_equal(out.logits, expected, sizeof(expected));

    mr_error err = {0};
    const mr_block_copy bad[2] = {{.from = 41, .to = 1}, {.from = 1, .to = 0}};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(vt->copy_blocks(f->session.exec, bad + i, 1, &err), MR_INVALID_ARGUMENT);
    }
}

static void test_no_allocation_in_a_step(void **state)
{
    fixture *f = *state;
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, f->prompt, 0, PROMPT, true);
    allocations = 0;
    counting = true;
    tiny_run(&f->session, &out);
    counting = false;
    assert_int_equal(allocations, 0);
}

static void test_info_memory_and_times(void **state)
{
    fixture *f = *state;
    mr_backend_info info;
    f->backend->vt->info(f->backend, &info);
    assert_string_equal(info.name, "cpu-reference");
    assert_int_equal(info.threads, 2);
    assert_false(info.asynchronous);
    assert_true(info.memory_bytes > 0);
    mr_exec_memory memory;
    f->session.exec->vt->memory(f->session.exec, &memory);
    /* 41 blocks of 8 tokens · 2 layers · keys, values · 2 heads · 16 wide · 4 bytes */
    assert_int_equal(memory.kv_bytes, 41 * 8 * 2 * 2 * 2 * 16 * 4);
    uint64_t weights = 0;
    for (uint32_t i = 0; i < f->tiny.plan->n_weights; i++) {
        weights += f->tiny.plan->weights[i].bytes;
    }
    assert_int_equal(memory.weights_bytes, weights);
    assert_true(memory.activation_bytes > 64 * 64 * 4);

    mr_step_output out;
    feed_one(&f->session, 0, 1, 0, &out);
    feed_one(&f->session, 0, 2, 1, &out);
    mr_exec_times times;
    f->session.exec->vt->times(f->session.exec, &times);
    assert_int_equal(times.steps, 2);
    assert_int_equal(times.by_kind[MR_OP_ATTENTION].calls, 4);
    /* 1 and 2 keys in 2 layers: · 4 · 4 heads · 16 */
    assert_int_equal(times.by_kind[MR_OP_ATTENTION].operations, 3 * 2 * 4 * 4 * 16);
    assert_true(times.by_kind[MR_OP_LINEAR].ns > 0);
}

static void test_submit_and_wait_alternate(void **state)
{
    fixture *f = *state;
    mr_exec *exec = f->session.exec;
    mr_step_output out;
    assert_int_equal(exec->vt->wait(exec, &out, NULL), MR_FAILED_PRECONDITION);
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, 0, f->prompt, 0, 2, false);
    const mr_batch *batch = mr_batch_get(f->session.storage);
    assert_int_equal(exec->vt->submit(exec, batch, NULL), MR_OK);
    assert_int_equal(exec->vt->submit(exec, batch, NULL), MR_FAILED_PRECONDITION);
    assert_int_equal(exec->vt->wait(exec, &out, NULL), MR_OK);
}

static void test_compile_refuses(void **state)
{
    fixture *f = *state;
    const mr_backend_vtable *vt = f->backend->vt;
    mr_exec *exec = NULL;
    mr_error err = {0};
    mr_exec_options options = tiny_options();
    options.kv_dtype = MR_DTYPE_Q8_0;
    assert_int_equal(
        vt->compile(f->backend, f->tiny.plan, f->session.weights, &options, &exec, &err),
        MR_INVALID_ARGUMENT);
    options = tiny_options();
    options.block_size = 0;
    assert_int_equal(
        vt->compile(f->backend, f->tiny.plan, f->session.weights, &options, &exec, &err),
        MR_INVALID_ARGUMENT);
    options = tiny_options();
    options.max_seqs = 1u << 31;
    assert_int_equal(
        vt->compile(f->backend, f->tiny.plan, f->session.weights, &options, &exec, &err),
        MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "from 1 to 2^31 - 1"));
    options = tiny_options();
    options.n_blocks = 500u << 20; /* 2 TB */
    assert_int_equal(
        vt->compile(f->backend, f->tiny.plan, f->session.weights, &options, &exec, &err),
        MR_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(err.message, "memory available hold"));
    tiny_dims dims = tiny_dims_default();
    dims.layers = 1;
    tiny_plan other;
    tiny_plan_create(&dims, &other);
    options = tiny_options();
    assert_int_equal(vt->compile(f->backend, other.plan, f->session.weights, &options, &exec, &err),
                     MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "another plan"));
    other.plan->weights[0].bytes++;
    mr_weights *weights = NULL;
    assert_int_equal(vt->upload(f->backend, other.plan, NULL, NULL, &weights, &err),
                     MR_INVALID_ARGUMENT);
    tiny_plan_destroy(&other);
}

static void count_progress(void *ctx, uint64_t done, uint64_t total)
{
    uint64_t *last = ctx;
    assert_true(done > *last && done <= total);
    *last = done == total ? UINT64_MAX : done;
}

static void test_upload_reports_progress(void **state)
{
    fixture *f = *state;
    uint64_t last = 0;
    mr_weights *weights = NULL;
    assert_int_equal(
        f->backend->vt->upload(f->backend, f->tiny.plan, count_progress, &last, &weights, NULL),
        MR_OK);
    assert_true(last == UINT64_MAX);
    f->backend->vt->weights_destroy(f->backend, weights);
}

static void test_backend_options(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    const mr_cpu_options options = {.compute = (mr_compute)9};
    assert_int_equal(mr_cpu_backend_create(&options, &backend, NULL), MR_INVALID_ARGUMENT);
}

#define SESSION_TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_naive_every_dtype),
        cmocka_unit_test(test_matches_naive_variants),
        cmocka_unit_test(test_windows_of_every_other_layer),
        cmocka_unit_test(test_kv_types),
        cmocka_unit_test(test_D4_bits_do_not_depend_on_batch_or_threads),
        SESSION_TEST(test_token_src_names_drawn_rows),
        SESSION_TEST(test_greedy_output),
        SESSION_TEST(test_bias_history_and_target),
        SESSION_TEST(test_copy_blocks),
        SESSION_TEST(test_no_allocation_in_a_step),
        SESSION_TEST(test_info_memory_and_times),
        SESSION_TEST(test_submit_and_wait_alternate),
        SESSION_TEST(test_compile_refuses),
        SESSION_TEST(test_upload_reports_progress),
        cmocka_unit_test(test_backend_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
