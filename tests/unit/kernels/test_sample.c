/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler against a plain double-precision implementation that sorts the whole vocabulary. */
#include "kernels/sample.h"

#include "base/philox.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_VOCAB 512

typedef struct ranked {
    double value;
    uint32_t id;
} ranked;

static int compare(const void *a, const void *b)
{
    const ranked *x = a;
    const ranked *y = b;
    if (x->value != y->value) {
        return x->value > y->value ? -1 : 1;
    }
    return x->id < y->id ? -1 : 1;
}

typedef struct naive_result {
    double logprob[MAX_VOCAB]; /* −∞ for what is filtered out */
    ranked order[MAX_VOCAB];   /* by log-probability */
    uint32_t n_kept;
    uint32_t token;
    double margin; /* of the best token's noisy logit over the second's */
} naive_result;

static void naive_softmax(const double *logits, const bool *keep, uint32_t n, naive_result *out)
{
    double max = -HUGE_VAL;
    double sum = 0.0;
    for (uint32_t v = 0; v < n; v++) {
        max = keep[v] && logits[v] > max ? logits[v] : max;
    }
    for (uint32_t v = 0; v < n; v++) {
        sum += keep[v] ? exp(logits[v] - max) : 0.0;
    }
    out->n_kept = 0;
    for (uint32_t v = 0; v < n; v++) {
        out->logprob[v] = keep[v] ? logits[v] - max - log(sum) : -HUGE_VAL;
        out->order[v] = (ranked){out->logprob[v], v};
        out->n_kept += keep[v] && logits[v] > -HUGE_VAL;
    }
    qsort(out->order, n, sizeof(out->order[0]), compare);
}

static void naive_penalties(double *logits, uint32_t n, const mr_sample_row *row)
{
    const mr_row_params *p = row->params;
    for (uint32_t i = 0; i < p->bias_count; i++) {
        logits[row->bias_tokens[i]] += (double)row->bias_values[i];
    }
    for (uint32_t v = 0; v < n; v++) {
        uint32_t seen = 0;
        uint32_t output = 0;
        for (uint32_t i = 0; i < p->history_len; i++) {
            seen += row->history[i] == v;
            output += row->history[i] == v && i >= p->prompt_len;
        }
        if (seen > 0) {
            const double penalty = (double)p->repetition_penalty;
            logits[v] = logits[v] > 0 ? logits[v] / penalty : logits[v] * penalty;
        }
        if (output > 0) {
            logits[v] -= (double)p->presence_penalty + output * (double)p->frequency_penalty;
        }
    }
}

/* Clears `keep` for what top_k, then top_p, then min_p drop. */
static void naive_filter(const double *scaled, uint32_t n, const mr_row_params *p, bool *keep)
{
    naive_result all;
    naive_softmax(scaled, keep, n, &all);
    const double top = all.order[0].value;
    double mass = 0.0;
    for (uint32_t i = 0; i < n && (p->top_k == 0 || i < p->top_k); i++) {
        mass += exp(all.order[i].value);
    }
    double before = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        const double probability = exp(all.order[i].value);
        const bool in_k = p->top_k == 0 || i < p->top_k;
        const bool in_p = p->top_p >= 1.0f || i == 0 || before < (double)p->top_p * mass;
        const bool in_min = probability >= (double)p->min_p * exp(top);
        keep[all.order[i].id] = keep[all.order[i].id] && in_k && in_p && in_min;
        before += probability;
    }
}

/* Distribution that is sampled, and the draw from it. */
static void naive_sample(const mr_sample_row *row, uint32_t n, naive_result *out)
{
    const mr_row_params *p = row->params;
    double logits[MAX_VOCAB];
    bool keep[MAX_VOCAB];
    for (uint32_t v = 0; v < n; v++) {
        logits[v] = (double)row->logits[v];
        keep[v] = true;
    }
    naive_penalties(logits, n, row);
    for (uint32_t v = 0; v < n && p->temperature > 0; v++) {
        logits[v] /= (double)p->temperature;
    }
    if (p->temperature > 0) {
        naive_filter(logits, n, p, keep);
    }
    naive_softmax(logits, keep, n, out);
    double best = -HUGE_VAL;
    double second = -HUGE_VAL;
    for (uint32_t v = 0; v < n; v++) {
        const double u = (double)mr_token_uniform(p->key, p->position, p->choice, v);
        const double noise = p->temperature > 0 ? -log(-log(u)) : 0.0;
        const double value = keep[v] ? out->logprob[v] + noise : -HUGE_VAL;
        if (value > best) {
            second = best;
            best = value;
            out->token = v;
        } else if (value > second) {
            second = value;
        }
    }
    out->margin = best - second;
}

static mr_row_params plain(void)
{
    return (mr_row_params){.temperature = 1.0f,
                           .top_p = 1.0f,
                           .repetition_penalty = 1.0f,
                           .key = 0x1234567890abcdefull,
                           .target = MR_NO_TARGET,
                           .n_top = MR_MAX_TOP,
                           .want_logprob = true,
                           .processed = true};
}

static void random_logits(float *logits, uint32_t n, float spread, uint64_t *seed)
{
    for (uint32_t v = 0; v < n; v++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < 4; i++) {
            sum += tiny_uniform(seed, -spread, spread);
        }
        logits[v] = sum;
    }
}

static mr_sample_result sample(mr_sampler *sampler, const mr_sample_row *row, uint32_t n)
{
    float copy[MAX_VOCAB];
    memcpy(copy, row->logits, n * sizeof(*copy));
    mr_sample_row call = *row;
    call.logits = copy;
    mr_sample_result result;
    mr_sample(sampler, &call, &result);
    return result;
}

/* Everything of a result against the naive distribution. */
static void check(const mr_sample_result *result, const naive_result *naive,
                  const mr_row_params *params)
{
    assert_false(result->corrupt);
    if (naive->margin > 1e-4) {
        assert_int_equal(result->token, naive->token);
    }
    assert_true(fabs((double)result->logprob - naive->logprob[result->token]) < 2e-5);
    const uint32_t n_top = naive->n_kept < params->n_top ? naive->n_kept : params->n_top;
    assert_int_equal(result->n_top, n_top);
    for (uint32_t i = 0; i < n_top; i++) {
        assert_true(fabs((double)result->top[i].logprob - naive->order[i].value) < 2e-5);
        assert_true(i == 0 || result->top[i].logprob <= result->top[i - 1].logprob);
    }
}

static void test_matches_naive(void **state)
{
    (void)state;
    const uint32_t n = 301;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(n, &sampler), MR_OK);
    static const float temperatures[] = {0.0f, 0.3f, 0.8f, 1.0f, 2.0f};
    static const uint32_t top_ks[] = {0, 1, 2, 7, 40, 300, 301, 1000};
    static const float top_ps[] = {1.0f, 0.95f, 0.5f, 0.05f};
    static const float min_ps[] = {0.0f, 0.02f, 0.3f, 1.0f};
    uint64_t seed = 42;
    float logits[MAX_VOCAB];
    for (uint32_t i = 0; i < 3000; i++) {
        random_logits(logits, n, 2.5f, &seed);
        const uint32_t bias_tokens[4] = {3, 77, 200, 300};
        const float bias_values[4] = {2.0f, -INFINITY, -1.5f, 0.25f};
        uint32_t history[60];
        for (uint32_t j = 0; j < 60; j++) {
            history[j] = (uint32_t)(tiny_random(&seed) % 40);
        }
        mr_row_params p = plain();
        p.temperature = temperatures[tiny_random(&seed) % 5];
        p.top_k = top_ks[tiny_random(&seed) % 8];
        p.top_p = top_ps[tiny_random(&seed) % 4];
        p.min_p = min_ps[tiny_random(&seed) % 4];
        p.position = i;
        p.choice = i % 3;
        p.n_top = (uint8_t)(tiny_random(&seed) % (MR_MAX_TOP + 1));
        p.bias_count = i % 2 ? 4 : 0;
        if (i % 3 == 0) {
            p.history_len = 60;
            p.prompt_len = 25;
            p.repetition_penalty = 1.3f;
            p.presence_penalty = 0.4f;
            p.frequency_penalty = i % 2 ? 0.15f : -0.1f;
        }
        const mr_sample_row row = {.logits = logits,
                                   .params = &p,
                                   .bias_tokens = bias_tokens,
                                   .bias_values = bias_values,
                                   .history = history};
        naive_result naive;
        naive_sample(&row, n, &naive);
        const mr_sample_result result = sample(sampler, &row, n);
        check(&result, &naive, &p);
    }
    mr_sampler_destroy(sampler);
}

static void test_raw_logprobs(void **state)
{
    (void)state;
    const uint32_t n = 64;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(n, &sampler), MR_OK);
    uint64_t seed = 5;
    float logits[MAX_VOCAB];
    random_logits(logits, n, 2.0f, &seed);
    logits[9] = -INFINITY;
    mr_row_params p = plain();
    const mr_sample_row row = {.logits = logits, .params = &p};
    naive_result model; /* temperature 1, nothing else: the model's own distribution */
    naive_sample(&row, n, &model);

    p.processed = false;
    p.temperature = 0.5f;
    p.top_k = 3;
    p.n_top = 5;
    for (p.position = 0; p.position < 50; p.position++) {
        const mr_sample_result result = sample(sampler, &row, n);
        assert_true(fabs((double)result.logprob - model.logprob[result.token]) < 1e-5);
        assert_int_equal(result.n_top, 5);
        for (uint32_t i = 0; i < 5; i++) {
            assert_int_equal(result.top[i].token, model.order[i].id);
            assert_true(fabs((double)result.top[i].logprob - model.order[i].value) < 1e-5);
        }
    }
    /* Scoring: the target is handed back with its own log-probability. */
    p.target = 41;
    mr_sample_result result = sample(sampler, &row, n);
    assert_int_equal(result.token, 41);
    assert_true(fabs((double)result.logprob - model.logprob[41]) < 1e-5);
    p.target = 9;
    result = sample(sampler, &row, n);
    assert_true(isinf(result.logprob) && result.logprob < 0);
    /* Filtered out: no probability after the sampling steps. */
    p.target = model.order[4].id;
    p.processed = true;
    result = sample(sampler, &row, n);
    assert_true(isinf(result.logprob));
    assert_int_equal(result.n_top, 3);
    p.want_logprob = false;
    p.n_top = 0;
    result = sample(sampler, &row, n);
    assert_int_equal(result.n_top, 0);
    mr_sampler_destroy(sampler);
}

/* By hand: 2 was in the prompt, 0 twice and 1 once in the output. */
static void test_penalties_by_hand(void **state)
{
    (void)state;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(4, &sampler), MR_OK);
    float logits[4] = {4.0f, -1.0f, 3.0f, 0.0f};
    const uint32_t history[4] = {2, 0, 1, 0};
    mr_row_params p = plain();
    p.temperature = 0.0f;
    p.repetition_penalty = 2.0f;
    p.presence_penalty = 0.5f;
    p.frequency_penalty = 0.25f;
    p.history_len = 4;
    p.prompt_len = 1;
    const mr_sample_row row = {.logits = logits, .params = &p, .history = history};
    /* → 4/2 − .5 − .5 = 1 · −1·2 − .5 − .25 = −2.75 · 3/2 = 1.5 · 0 */
    const double after[4] = {1.0, -2.75, 1.5, 0.0};
    const double log_sum = log(exp(1.0) + exp(-2.75) + exp(1.5) + 1.0);
    for (uint32_t again = 0; again < 2; again++) { /* the scratch is clean afterwards */
        const mr_sample_result result = sample(sampler, &row, 4);
        assert_int_equal(result.token, 2);
        assert_int_equal(result.n_top, 4);
        for (uint32_t i = 0; i < 4; i++) {
            assert_true(fabs((double)result.top[i].logprob -
                             (after[result.top[i].token] - log_sum)) < 1e-6);
        }
    }
    mr_sampler_destroy(sampler);
}

/* The smallest penalty there is makes a logit very large, not infinite; a banned token stays so. */
static void test_tiny_penalties_keep_numbers_finite_D5(void **state)
{
    (void)state;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(3, &sampler), MR_OK);
    float logits[3] = {20.0f, 30.0f, 1.0f};
    const uint32_t history[2] = {0, 1};
    const uint32_t banned = 1;
    const float ban = -INFINITY;
    mr_row_params p = plain();
    p.repetition_penalty = 0x1p-126f;
    p.history_len = 2;
    p.prompt_len = 2;
    p.bias_count = 1;
    const mr_sample_row row = {.logits = logits,
                               .params = &p,
                               .bias_tokens = &banned,
                               .bias_values = &ban,
                               .history = history};
    const mr_sample_result result = sample(sampler, &row, 3);
    assert_false(result.corrupt);
    assert_int_equal(result.token, 0);
    assert_true(isfinite(result.logprob));
    mr_sampler_destroy(sampler);
}

static void test_ties_take_the_lower_id(void **state)
{
    (void)state;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(8, &sampler), MR_OK);
    float logits[8] = {0.0f, 2.0f, 1.0f, 2.0f, 1.0f, 2.0f, 1.0f, 0.0f};
    mr_row_params p = plain();
    p.temperature = 0.0f;
    const mr_sample_row row = {.logits = logits, .params = &p};
    mr_sample_result result = sample(sampler, &row, 8);
    const uint32_t order[8] = {1, 3, 5, 2, 4, 6, 0, 7};
    assert_int_equal(result.token, 1);
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(result.top[i].token, order[i]);
    }
    /* top_k 5 keeps 1, 3, 5, 2, 4; top_p then 1 and 3, whose mass first reaches half of it. */
    p.temperature = 1.0f;
    p.top_k = 5;
    result = sample(sampler, &row, 8);
    assert_int_equal(result.n_top, 5);
    assert_int_equal(result.top[4].token, 4);
    p.top_p = 0.5f;
    result = sample(sampler, &row, 8);
    assert_int_equal(result.n_top, 2);
    assert_int_equal(result.top[1].token, 3);
    mr_sampler_destroy(sampler);
}

static void test_extreme_parameters(void **state)
{
    (void)state;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(6, &sampler), MR_OK);
    float logits[6] = {1.0f, 30000.0f, -30000.0f, 29990.0f, -INFINITY, 5.0f};
    mr_row_params p = plain();
    p.temperature = 1e-38f; /* the quotient overflows for everything but the largest */
    const mr_sample_row row = {.logits = logits, .params = &p};
    mr_sample_result result = sample(sampler, &row, 6);
    assert_int_equal(result.token, 1);
    assert_true(result.logprob == 0.0f);
    assert_int_equal(result.n_top, 1);
    p.temperature = 1e30f; /* flat over the five that are possible */
    result = sample(sampler, &row, 6);
    assert_int_equal(result.n_top, 5);
    assert_true(fabs((double)result.logprob + log(5.0)) < 1e-5);
    p.temperature = 1.0f;
    p.top_p = 1e-30f;
    p.min_p = 1.0f;
    p.top_k = 6;
    result = sample(sampler, &row, 6);
    assert_int_equal(result.token, 1);
    mr_sampler_destroy(sampler);
}

static void test_corrupt_rows(void **state)
{
    (void)state;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(4, &sampler), MR_OK);
    mr_row_params p = plain();
    const uint32_t ban_tokens[4] = {0, 1, 2, 3};
    const float ban_values[4] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};
    const float rows[4][4] = {
        {0.0f, 1.0f, 2.0f, NAN},
        {NAN, 1.0f, 2.0f, 3.0f},
        {-INFINITY, -INFINITY, -INFINITY, -INFINITY},
        {0.0f, INFINITY, 0.0f, 0.0f},
    };
    for (uint32_t i = 0; i < 4; i++) {
        for (p.temperature = 0.0f; p.temperature <= 1.0f; p.temperature += 1.0f) {
            float logits[4];
            memcpy(logits, rows[i], sizeof(logits));
            const mr_sample_row row = {.logits = logits, .params = &p};
            assert_true(sample(sampler, &row, 4).corrupt);
        }
    }
    float good[4] = {0.0f, 1.0f, 2.0f, 3.0f};
    p.bias_count = 4;
    const mr_sample_row banned = {
        .logits = good, .params = &p, .bias_tokens = ban_tokens, .bias_values = ban_values};
    assert_true(sample(sampler, &banned, 4).corrupt);
    p.bias_count = 3; /* one is left */
    const mr_sample_result result = sample(sampler, &banned, 4);
    assert_false(result.corrupt);
    assert_int_equal(result.token, 3);
    mr_sampler_destroy(sampler);
}

/* Pearson's statistic of 20,000 draws against the naive distribution, cells under 5 expected
 * draws pooled. The bound is far beyond the 1 − 10^-6 quantile for these degrees of freedom. */
static void check_frequencies(mr_row_params p)
{
    const uint32_t n = 50;
    const uint32_t draws = 20000;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(n, &sampler), MR_OK);
    uint64_t seed = 77;
    float logits[MAX_VOCAB];
    random_logits(logits, n, 1.2f, &seed);
    const mr_sample_row row = {.logits = logits, .params = &p};
    naive_result naive;
    naive_sample(&row, n, &naive);
    uint32_t counts[MAX_VOCAB] = {0};
    p.want_logprob = false;
    p.n_top = 0;
    for (uint32_t i = 0; i < draws; i++) {
        p.position = i;
        counts[sample(sampler, &row, n).token]++;
    }
    double statistic = 0.0;
    double pooled_expected = 0.0;
    double pooled_count = 0.0;
    int freedom = -1;
    for (uint32_t v = 0; v < n; v++) {
        const double expected = draws * exp(naive.logprob[v]);
        if (expected == 0.0) {
            assert_int_equal(counts[v], 0);
        } else if (expected < 5.0) {
            pooled_expected += expected;
            pooled_count += counts[v];
        } else {
            statistic += (counts[v] - expected) * (counts[v] - expected) / expected;
            freedom++;
        }
    }
    if (pooled_expected > 0.0) {
        const double off = pooled_count - pooled_expected;
        statistic += off * off / pooled_expected;
        freedom++;
    }
    assert_true(freedom >= 2);
    assert_true(statistic < freedom + 6.0 * sqrt(2.0 * freedom) + 10.0);
    mr_sampler_destroy(sampler);
}

static void test_draw_frequencies(void **state)
{
    (void)state;
    mr_row_params p = plain();
    check_frequencies(p);
    p.choice = 3;
    p.key = 1;
    check_frequencies(p);
    p.temperature = 0.6f;
    check_frequencies(p);
    p.temperature = 1.7f;
    check_frequencies(p);
    p = plain();
    p.top_k = 12;
    check_frequencies(p);
    p = plain();
    p.top_p = 0.8f;
    check_frequencies(p);
    p = plain();
    p.min_p = 0.1f;
    check_frequencies(p);
    p.temperature = 0.9f;
    p.top_k = 20;
    p.top_p = 0.95f;
    check_frequencies(p);
}

/* A draw is a function of key, position and choice, and differs with each. */
static void test_D2_draw_depends_on_the_counter_only(void **state)
{
    (void)state;
    const uint32_t n = 256;
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(n, &sampler), MR_OK);
    float logits[MAX_VOCAB] = {0};
    mr_row_params p = plain();
    p.n_top = 0;
    const mr_sample_row row = {.logits = logits, .params = &p};
    uint32_t same[3] = {0};
    for (uint32_t i = 0; i < 500; i++) {
        p = plain();
        p.position = i;
        const uint32_t token = sample(sampler, &row, n).token;
        assert_int_equal(sample(sampler, &row, n).token, token);
        p.choice = 1;
        same[0] += sample(sampler, &row, n).token == token;
        p.choice = 0;
        p.key ^= 1ull << 40;
        same[1] += sample(sampler, &row, n).token == token;
        p.key ^= 1ull << 40;
        p.position = i + 1000;
        same[2] += sample(sampler, &row, n).token == token;
    }
    assert_true(same[0] < 20 && same[1] < 20 && same[2] < 20);
    mr_sampler_destroy(sampler);
    mr_sampler_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches_naive),
        cmocka_unit_test(test_raw_logprobs),
        cmocka_unit_test(test_penalties_by_hand),
        cmocka_unit_test(test_tiny_penalties_keep_numbers_finite_D5),
        cmocka_unit_test(test_ties_take_the_lower_id),
        cmocka_unit_test(test_extreme_parameters),
        cmocka_unit_test(test_corrupt_rows),
        cmocka_unit_test(test_draw_frequencies),
        cmocka_unit_test(test_D2_draw_depends_on_the_counter_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
