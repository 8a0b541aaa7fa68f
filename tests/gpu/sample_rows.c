/* SPDX-License-Identifier: Apache-2.0 */
#include "sample_rows.h"

#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static float pick(uint64_t *state, const float *values, uint32_t count)
{
    return values[tiny_random(state) % count];
}

void sample_random_row(uint64_t *state, uint32_t vocab, uint32_t history, sample_asked *out)
{
    static const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 1.7f, 100.0f};
    static const float top_ps[] = {1.0f, 1.0f, 0.95f, 0.5f, 0.01f};
    static const float min_ps[] = {0.0f, 0.0f, 0.05f, 0.5f, 1.0f};
    static const float repetitions[] = {1.0f, 1.0f, 1.3f, 0.7f};
    static const float penalties[] = {0.0f, 0.0f, 0.6f, -0.4f};
    const float top_ks[] = {0.0f, 0.0f, 1.0f, 7.0f, 50.0f, (float)(vocab - 1), 2.0f * (float)vocab};
    mr_row_params *p = &out->params;
    *p = (mr_row_params){
        .temperature = pick(state, temperatures, 6),
        .top_p = pick(state, top_ps, 5),
        .min_p = pick(state, min_ps, 5),
        .top_k = (uint32_t)pick(state, top_ks, 7),
        .repetition_penalty = pick(state, repetitions, 4),
        .presence_penalty = pick(state, penalties, 4),
        .frequency_penalty = pick(state, penalties, 4),
        .key = tiny_random(state),
        .position = (uint32_t)tiny_random(state) % 5000,
        .choice = (uint32_t)tiny_random(state) % 3,
        .target =
            tiny_random(state) % 5 == 0 ? (uint32_t)(tiny_random(state) % vocab) : MR_NO_TARGET,
        .bias_count = tiny_random(state) % 3 == 0 ? SAMPLE_BIAS : 0,
        .history_len = (uint32_t)tiny_random(state) % (history + 1),
        .n_top = (uint8_t)(tiny_random(state) % (MR_MAX_TOP + 1)),
        .want_logprob = tiny_random(state) % 2 == 0,
        .processed = tiny_random(state) % 2 == 0,
    };
    p->prompt_len = p->history_len / 2;
    for (uint32_t i = 0; i < SAMPLE_BIAS; i++) {
        /* Some twice, one banned. */
        out->tokens[i] = i == 1 ? out->tokens[0] : (uint32_t)(tiny_random(state) % vocab);
        out->values[i] = i == 2 ? -INFINITY : tiny_uniform(state, -3.0f, 6.0f);
    }
}

static void check_logprobs(const mr_step_output *out, uint32_t r, const mr_row_params *p,
                           const mr_sample_result *want)
{
    if (!p->want_logprob && p->n_top == 0) {
        return;
    }
    if (isinf(want->logprob)) {
        assert_true(isinf(out->logprobs[r]));
    } else {
        assert_true(fabsf(out->logprobs[r] - want->logprob) < 2e-4f);
    }
    assert_int_equal(out->n_top[r], want->n_top);
    for (uint32_t i = 0; i < want->n_top; i++) {
        const mr_alternative *got = &out->top[(size_t)r * MR_MAX_TOP + i];
        assert_int_equal(got->token, want->top[i].token);
        assert_true(fabsf(got->logprob - want->top[i].logprob) < 2e-4f);
    }
}

void sample_check_row(const mr_step_output *out, uint32_t r, const mr_row_params *p,
                      const mr_sample_result *want)
{
    assert_int_equal(out->corrupt[r], want->corrupt);
    assert_int_equal(out->tokens[r], want->token);
    check_logprobs(out, r, p, want);
}
