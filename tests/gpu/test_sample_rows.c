/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling by itself against kernels/sample.c, of logits of every shape and of vocabularies so
 * large that searches begin over the whole row. */
#include "sample_call.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ROWS = 22 }; /* of a call: two of every kind, and fewer than it has room for */

static const sample_kind *kind_of(uint32_t row)
{
    return &sample_kinds[row % sample_n_kinds];
}

/* Fills in logits and what is asked of c->count rows; looks at what came of it. */
typedef void (*make_fn)(uint64_t *state, sample_call *c);
typedef void (*check_fn)(const sample_call *c, const sample_results *got);

/* `times` calls of `count` rows, of each vocabulary. */
static void look_at(const uint32_t *vocabs, size_t n, uint32_t times, uint32_t count, make_fn make,
                    check_fn check)
{
    static sample_call c;
    static sample_results out;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_F32, (uint64_t)64 << 20);
    c.count = count;
    for (size_t i = 0; i < n; i++) {
        c.vocab = vocabs[i];
        c.logits = gpu_array((size_t)count * c.vocab, sizeof(float));
        for (uint32_t j = 0; j < times; j++) {
            make(&b.state, &c);
            sample_run(&b, &c, &out);
            check(&c, &out);
        }
        free(c.logits);
    }
    gpu_bench_close(&b);
}

static void make_rows(uint64_t *state, sample_call *c)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        sample_make_logits(state, kind_of(i), c->logits + (size_t)i * c->vocab, c->vocab);
        sample_random_row(state, c->vocab, SAMPLE_HISTORY, &c->asked[i]);
        for (uint32_t j = 0; j < SAMPLE_HISTORY; j++) {
            c->history[i][j] = (uint32_t)(tiny_random(state) % (j % 2 == 0 ? 2 : c->vocab));
        }
    }
}

static void check_rows(const sample_call *c, const sample_results *got)
{
    const mr_step_output out = {.n_rows = ROWS,
                                .tokens = got->tokens,
                                .logprobs = got->logprobs,
                                .n_top = got->n_top,
                                .top = got->top,
                                .corrupt = got->corrupt};
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(c->vocab, &sampler), MR_OK);
    for (uint32_t i = 0; i < ROWS; i++) {
        const mr_row_params *p = &c->asked[i].params;
        print_message("%u: %s; temperature %g, top_k %u, top_p %g, min_p %g\n", c->vocab,
                      kind_of(i)->what, (double)p->temperature, p->top_k, (double)p->top_p,
                      (double)p->min_p);
        const mr_sample_row row = {.logits = c->logits + (size_t)i * c->vocab,
                                   .params = p,
                                   .bias_tokens = c->asked[i].tokens,
                                   .bias_values = c->asked[i].values,
                                   .history = c->history[i]};
        mr_sample_result want;
        mr_sample(sampler, &row, &want);
        sample_check_row(&out, i, p, &want);
    }
    mr_sampler_destroy(sampler);
}

static void test_rows_of_every_shape_D2(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {1, 2, 97, 1024, 16384, 20484, 50001};
    look_at(vocabs, sizeof(vocabs) / sizeof(vocabs[0]), 2, ROWS, make_rows, check_rows);
}

static uint32_t lowest[SAMPLE_ROWS]; /* of the largest, of each row */

static void make_ties(uint64_t *state, sample_call *c)
{
    /* The first and the last ones, those behind a round of a block, and any. */
    const uint32_t places[] = {0, c->vocab - 1, 4096 % c->vocab, 1023 % c->vocab};
    for (uint32_t i = 0; i < c->count; i++) {
        float *logits = c->logits + (size_t)i * c->vocab;
        lowest[i] = i / 2 < 4 ? places[i / 2] : (uint32_t)(tiny_random(state) % c->vocab);
        for (uint32_t v = 0; v < c->vocab; v++) {
            const bool largest = v == lowest[i] || (v > lowest[i] && tiny_random(state) % 3);
            logits[v] = largest ? -3.5f : i % 2 == 0 ? -INFINITY : -3.5000002f;
        }
        c->asked[i].params = tiny_greedy();
        c->asked[i].params.want_logprob = i % 3 == 0;
    }
}

static void check_ties(const sample_call *c, const sample_results *got)
{
    for (uint32_t i = 0; i < c->count; i++) {
        assert_int_equal(got->corrupt[i], 0);
        assert_int_equal(got->tokens[i], lowest[i]);
    }
}

/* Of a row whose largest logit several tokens have, wherever they are, the lowest; and of one with
 * no other number at all. */
static void test_greedy_takes_the_lowest_of_the_largest(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {3, 31, 1027, 4100, 40001};
    look_at(vocabs, sizeof(vocabs) / sizeof(vocabs[0]), 1, SAMPLE_ROWS, make_ties, check_ties);
}

/* Nothing is possible: all logits are -inf, or, of few tokens, a bias bans each. */
static void ban_all(sample_asked *asked, float *logits, uint32_t vocab, bool by_bias)
{
    for (uint32_t v = 0; v < vocab; v++) {
        logits[v] = by_bias ? 1.0f : -INFINITY;
    }
    asked->params.bias_count = by_bias ? vocab : 0;
    for (uint32_t v = 0; v < asked->params.bias_count; v++) {
        asked->tokens[v] = v;
        asked->values[v] = -INFINITY;
    }
}

/* Row i: sound, with a NaN, with an infinity, with nothing possible, in turn. */
static void make_corrupt_row(uint64_t *state, uint32_t i, sample_call *c)
{
    const uint32_t places[] = {0, c->vocab - 1, c->vocab / 2};
    const uint32_t place = places[i / 4 % 3];
    float *logits = c->logits + (size_t)i * c->vocab;
    sample_make_logits(state, &sample_kinds[0], logits, c->vocab);
    mr_row_params *p = &c->asked[i].params;
    *p = tiny_greedy();
    p->temperature = i / 4 % 2 == 0 ? 0.0f : 0.9f;
    p->top_p = 0.9f;
    p->want_logprob = i % 5 == 0;
    switch (i % 4) {
    case 1:
        logits[place] = NAN;
        break;
    case 2:
        logits[place] = INFINITY;
        break;
    case 3:
        ban_all(&c->asked[i], logits, c->vocab, c->vocab <= SAMPLE_BIAS && i > 12);
        break;
    default:
        break;
    }
}

static void make_corrupt(uint64_t *state, sample_call *c)
{
    for (uint32_t i = 0; i < c->count; i++) {
        make_corrupt_row(state, i, c);
    }
}

static void check_corrupt(const sample_call *c, const sample_results *got)
{
    for (uint32_t i = 0; i < c->count; i++) {
        assert_int_equal(got->corrupt[i], i % 4 != 0);
    }
}

/* A number that is none, or infinite, wherever it is; and rows with no possible token, of the
 * model's or because a bias bans all. Those beside them are as ever. */
static void test_corrupt_rows_are_told(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {5, 1024, 4097};
    look_at(vocabs, sizeof(vocabs) / sizeof(vocabs[0]), 1, SAMPLE_ROWS, make_corrupt,
            check_corrupt);
}

int main(int argc, char **argv)
{
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_every_shape_D2),
        cmocka_unit_test(test_greedy_takes_the_lowest_of_the_largest),
        cmocka_unit_test(test_corrupt_rows_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
