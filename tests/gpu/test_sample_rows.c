/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling by itself against kernels/sample.c, of logits of every shape and of vocabularies so
 * large that searches begin over the whole row. */
#include "gpu.h"
#include "kernels/cuda/internal.h"
#include "sample_rows.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 20, WORKERS = 7, HISTORY = 60 };

static const struct kind {
    const char *what;
    float low, high; /* logits are drawn from here, */
    float step;      /* rounded to multiples of it, unless 0, */
    float peaks;     /* and every 997th is larger by so much */
    float odd;       /* one logit, unless 0 */
    bool banned;     /* every other is impossible */
} kinds[] = {
    {"flat", -0.1f, 0.1f, 0.0f, 0.0f, 0.0f, false},
    {"wide", -40.0f, 10.0f, 0.0f, 0.0f, 0.0f, false},
    {"peaks", -8.0f, 0.0f, 0.0f, 9.0f, 0.0f, false},
    {"ties", -2.0f, 2.0f, 0.5f, 0.0f, 0.0f, false},
    {"all equal", 1.0f, 1.0f, 0.0f, 0.0f, 0.0f, false},
    {"half impossible", -3.0f, 3.0f, 0.0f, 0.0f, 0.0f, true},
    {"far apart", -3e38f, 3e38f, 0.0f, 0.0f, 0.0f, false},
    {"one is no number", -3.0f, 3.0f, 0.0f, 0.0f, NAN, false},
    {"one is infinite", -3.0f, 3.0f, 0.0f, 0.0f, INFINITY, false},
};

static void make_logits(uint64_t *state, const struct kind *k, float *logits, uint32_t vocab)
{
    for (uint32_t v = 0; v < vocab; v++) {
        float x = tiny_uniform(state, k->low, k->high);
        x = k->step > 0.0f ? roundf(x / k->step) * k->step : x;
        logits[v] = v % 997 == 5 ? x + k->peaks : x;
        if (k->banned && v % 2 == 0 && v + 1 < vocab) {
            logits[v] = -INFINITY;
        }
    }
    if (k->odd != 0.0f) {
        logits[tiny_random(state) % vocab] = k->odd;
    }
}

/* A call's rows: on the host, and on the GPU as the call has them. */
typedef struct rows_of {
    uint32_t vocab;
    float *logits; /* [ROWS][vocab] */
    sample_asked asked[ROWS];
    mr_cuda_row rows[ROWS];
    uint32_t tokens[ROWS * SAMPLE_BIAS];
    float values[ROWS * SAMPLE_BIAS];
    uint32_t history[ROWS][HISTORY];
} rows_of;

static void make_rows(uint64_t *state, rows_of *r)
{
    for (uint32_t i = 0; i < ROWS; i++) {
        make_logits(state, &kinds[i % (sizeof(kinds) / sizeof(kinds[0]))],
                    r->logits + (size_t)i * r->vocab, r->vocab);
        sample_random_row(state, r->vocab, HISTORY, &r->asked[i]);
        for (uint32_t j = 0; j < HISTORY; j++) {
            r->history[i][j] = (uint32_t)(tiny_random(state) % (j % 2 == 0 ? 2 : r->vocab));
        }
        mr_row_params *p = &r->asked[i].params;
        p->bias_offset = i * SAMPLE_BIAS;
        memcpy(r->tokens + p->bias_offset, r->asked[i].tokens, sizeof(r->asked[i].tokens));
        memcpy(r->values + p->bias_offset, r->asked[i].values, sizeof(r->asked[i].values));
        r->rows[i] = (mr_cuda_row){
            .params = *p,
            .slot = i,
            .min_p_cut = p->min_p > 0.0f ? mr_sample_min_p_bound(p->min_p) : 0.0f,
            .penalties =
                p->history_len > 0 && (p->repetition_penalty != 1.0f ||
                                       p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f),
        };
    }
}

typedef struct results_of {
    uint32_t tokens[ROWS];
    float logprobs[ROWS];
    uint8_t n_top[ROWS];
    uint8_t corrupt[ROWS];
    mr_alternative top[ROWS * MR_MAX_TOP];
} results_of;

static void sample_on_gpu(gpu_bench *b, const rows_of *r, results_of *out)
{
    b->used = 0;
    const mr_cuda_step_header header = {.n_tokens = ROWS, .n_rows = ROWS};
    const uint64_t scratch = (uint64_t)WORKERS * r->vocab * 4;
    const mr_cuda_sample p = {
        .header = gpu_put(b, &header, sizeof(header)),
        .logits = gpu_put(b, r->logits, (uint64_t)ROWS * r->vocab * 4),
        .rows = gpu_put(b, r->rows, sizeof(r->rows)),
        .bias_tokens = gpu_put(b, r->tokens, sizeof(r->tokens)),
        .bias_values = gpu_put(b, r->values, sizeof(r->values)),
        .history = gpu_put(b, r->history, sizeof(r->history)),
        .scaled = gpu_room(b, scratch),
        .counts = gpu_room(b, scratch),
        .tokens = gpu_room(b, sizeof(out->tokens)),
        .logprobs = gpu_room(b, sizeof(out->logprobs)),
        .n_top = gpu_room(b, sizeof(out->n_top)),
        .corrupt = gpu_room(b, sizeof(out->corrupt)),
        .top = gpu_room(b, sizeof(out->top)),
        .vocab = r->vocab,
        .max_context = HISTORY,
        .max_rows = ROWS,
        .workers = WORKERS,
    };
    assert_int_equal(b->api->fill(b->context, p.counts, 0, scratch), 0);
    const int code = b->api->sample(b->context, &p);
    if (code != 0) {
        fail_msg("%s", b->api->error_text(code));
    }
    gpu_get(b, out->tokens, p.tokens, sizeof(out->tokens));
    gpu_get(b, out->logprobs, p.logprobs, sizeof(out->logprobs));
    gpu_get(b, out->n_top, p.n_top, sizeof(out->n_top));
    gpu_get(b, out->corrupt, p.corrupt, sizeof(out->corrupt));
    gpu_get(b, out->top, p.top, sizeof(out->top));
    uint32_t *counts = gpu_array(1, scratch);
    gpu_get(b, counts, p.counts, scratch);
    for (uint64_t i = 0; i < scratch / 4; i++) {
        assert_int_equal(counts[i], 0); /* as the next launch wants them */
    }
    free(counts);
}

static void check_rows(const rows_of *r, const results_of *got)
{
    const mr_step_output out = {.n_rows = ROWS,
                                .tokens = got->tokens,
                                .logprobs = got->logprobs,
                                .n_top = got->n_top,
                                .top = got->top,
                                .corrupt = got->corrupt};
    mr_sampler *sampler = NULL;
    assert_int_equal(mr_sampler_create(r->vocab, &sampler), MR_OK);
    for (uint32_t i = 0; i < ROWS; i++) {
        const mr_row_params *p = &r->asked[i].params;
        print_message("%u: %s; temperature %g, top_k %u, top_p %g, min_p %g\n", r->vocab,
                      kinds[i % (sizeof(kinds) / sizeof(kinds[0]))].what, (double)p->temperature,
                      p->top_k, (double)p->top_p, (double)p->min_p);
        const mr_sample_row row = {.logits = r->logits + (size_t)i * r->vocab,
                                   .params = p,
                                   .bias_tokens = r->asked[i].tokens,
                                   .bias_values = r->asked[i].values,
                                   .history = r->history[i]};
        mr_sample_result want;
        mr_sample(sampler, &row, &want);
        sample_check_row(&out, i, p, &want);
    }
    mr_sampler_destroy(sampler);
}

static void test_rows_of_every_shape_D2(void **state)
{
    (void)state;
    static const uint32_t vocabs[] = {2, 97, 1024, 16384, 20484, 50001};
    static rows_of r;
    static results_of out;
    gpu_bench b;
    gpu_bench_open(&b, MR_DTYPE_F32, (uint64_t)64 << 20);
    for (size_t i = 0; i < sizeof(vocabs) / sizeof(vocabs[0]); i++) {
        r.vocab = vocabs[i];
        r.logits = gpu_array((size_t)ROWS * r.vocab, sizeof(float));
        for (uint32_t times = 0; times < 2; times++) {
            make_rows(&b.state, &r);
            sample_on_gpu(&b, &r, &out);
            check_rows(&r, &out);
        }
        free(r.logits);
    }
    gpu_bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_of_every_shape_D2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
