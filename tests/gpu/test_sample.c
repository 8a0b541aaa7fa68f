/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling on the GPU against kernels/sample.c, on the logits that the GPU itself gives. */
#include "gpu.h"
#include "sample_rows.h"
#include "tiny_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { VOCAB = 5003, HISTORY = 60, ROWS = 24, STEPS = 40 };

/* Rows of one sequence, whose last token has as many rows as are asked for. */
static void run_step(tiny_session *session, mr_sampler *sampler, const uint32_t *history,
                     uint64_t *state)
{
    static sample_asked rows[ROWS];
    static float copy[VOCAB];
    const int32_t tokens[3] = {(int32_t)(tiny_random(state) % VOCAB), 5, 6};
    mr_batch_reset(session->storage);
    tiny_feed(session, 0, tokens, 0, 3, false);
    assert_int_equal(mr_batch_add_history(session->storage, 0, 0, history, HISTORY), MR_OK);
    uint32_t biased = 0;
    for (uint32_t r = 0; r < ROWS; r++) {
        sample_random_row(state, VOCAB, HISTORY, &rows[r]);
        /* The session's storage has room for few biases. */
        rows[r].params.bias_count = biased < 1 ? rows[r].params.bias_count : 0;
        biased += rows[r].params.bias_count > 0;
        assert_int_equal(
            mr_batch_add_row(session->storage, &rows[r].params, rows[r].tokens, rows[r].values),
            MR_OK);
    }
    mr_step_output out;
    tiny_run(session, &out);
    assert_int_equal(out.n_rows, ROWS + 1);
    for (uint32_t r = 0; r < ROWS; r++) {
        memcpy(copy, out.logits + (size_t)(r + 1) * VOCAB, sizeof(copy));
        const mr_sample_row row = {.logits = copy,
                                   .params = &rows[r].params,
                                   .bias_tokens = rows[r].tokens,
                                   .bias_values = rows[r].values,
                                   .history = history};
        mr_sample_result want;
        mr_sample(sampler, &row, &want);
        sample_check_row(&out, r + 1, &rows[r].params, &want);
    }
}

static void test_sampler_equals_the_host_D2(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.vocab = VOCAB;
    const mr_exec_options options = tiny_options();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    mr_backend *backend = gpu_backend(MR_DTYPE_F32);
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(VOCAB, &sampler), MR_OK);
    uint64_t seed = 11;
    uint32_t history[HISTORY];
    for (uint32_t i = 0; i < HISTORY; i++) {
        history[i] = (uint32_t)(tiny_random(&seed) % (i % 2 == 0 ? 20 : VOCAB));
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        run_step(&session, sampler, history, &seed);
    }
    mr_sampler_destroy(sampler);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

/* Ties: the lower id is the larger one, and top_k keeps it. */
static void test_ties_take_the_lower_id(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    /* Rows of the vocabulary projection in groups of eight equal ones. */
    float *head = tiny.data[tiny.head];
    for (uint32_t v = 0; v < dims.vocab; v++) {
        memcpy(head + (size_t)v * dims.width, head + (size_t)(v / 8 * 8) * dims.width,
               dims.width * sizeof(*head));
    }
    const mr_exec_options options = tiny_options();
    mr_backend *backend = gpu_backend(MR_DTYPE_F32);
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(dims.vocab, &sampler), MR_OK);
    for (uint32_t k = 1; k < 30; k++) {
        const int32_t token = (int32_t)k;
        mr_row_params p = tiny_greedy();
        p.temperature = 2.0f;
        p.top_k = k;
        p.top_p = k % 3 == 0 ? 0.7f : 1.0f;
        p.processed = true;
        p.n_top = MR_MAX_TOP;
        p.key = k;
        mr_batch_reset(session.storage);
        tiny_feed(&session, 0, &token, 0, 1, false);
        assert_int_equal(mr_batch_add_row(session.storage, &p, NULL, NULL), MR_OK);
        mr_step_output out;
        tiny_run(&session, &out);
        float copy[96];
        memcpy(copy, out.logits + dims.vocab, sizeof(copy));
        const mr_sample_row row = {.logits = copy, .params = &p};
        mr_sample_result want;
        mr_sample(sampler, &row, &want);
        sample_check_row(&out, 1, &p, &want);
    }
    mr_sampler_destroy(sampler);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sampler_equals_the_host_D2),
        cmocka_unit_test(test_ties_take_the_lower_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
