/* SPDX-License-Identifier: Apache-2.0 */
#include "sample_call.h"

#include "kernels/cuda/internal.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const sample_kind sample_kinds[] = {
    {"flat", -0.1f, 0.1f, 1.0f, 0.0f, 0.0f, 0.0f, false},
    {"wide", -40.0f, 10.0f, 1.0f, 0.0f, 0.0f, 0.0f, false},
    {"peaks", -8.0f, 0.0f, 1.0f, 0.0f, 9.0f, 0.0f, false},
    {"ties", -2.0f, 2.0f, 1.0f, 0.5f, 0.0f, 0.0f, false},
    {"all equal", 1.0f, 1.0f, 1.0f, 0.0f, 0.0f, 0.0f, false},
    {"half impossible", -3.0f, 3.0f, 1.0f, 0.0f, 0.0f, 0.0f, true},
    {"far apart", -1.0f, 1.0f, 1.6e38f, 0.0f, 0.0f, 0.0f, false},
    {"neighbours", 1.0f, 1.000002f, 1.0f, 0.0f, 0.0f, 0.0f, false},
    {"zeroes of both signs", -2.4f, 0.4f, 1.0f, 1.0f, 0.0f, 0.0f, false},
    {"one is no number", -3.0f, 3.0f, 1.0f, 0.0f, 0.0f, NAN, false},
    {"one is infinite", -3.0f, 3.0f, 1.0f, 0.0f, 0.0f, INFINITY, false},
};
const uint32_t sample_n_kinds = sizeof(sample_kinds) / sizeof(sample_kinds[0]);

void sample_make_logits(uint64_t *state, const sample_kind *k, float *logits, uint32_t vocab)
{
    for (uint32_t v = 0; v < vocab; v++) {
        float x = tiny_uniform(state, k->low, k->high) * k->scale;
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

/* Rows and bias lists as an executor stages them. */
typedef struct staged {
    mr_cuda_row rows[SAMPLE_ROWS];
    uint32_t tokens[SAMPLE_ROWS * SAMPLE_BIAS];
    float values[SAMPLE_ROWS * SAMPLE_BIAS];
} staged;

static void put_rows(const sample_call *c, staged *out)
{
    *out = (staged){0};
    for (uint32_t i = 0; i < c->count; i++) {
        const sample_asked *asked = &c->asked[i];
        memcpy(out->tokens + (size_t)i * SAMPLE_BIAS, asked->tokens, sizeof(asked->tokens));
        memcpy(out->values + (size_t)i * SAMPLE_BIAS, asked->values, sizeof(asked->values));
        out->rows[i] = mr_cuda_stage_row(&asked->params, i);
        out->rows[i].params.bias_offset = i * SAMPLE_BIAS;
    }
}

static void get_results(gpu_bench *b, const mr_cuda_sample *p, sample_results *out)
{
    gpu_get(b, out->tokens, p->tokens, sizeof(out->tokens));
    gpu_get(b, out->logprobs, p->logprobs, sizeof(out->logprobs));
    gpu_get(b, out->n_top, p->n_top, sizeof(out->n_top));
    gpu_get(b, out->corrupt, p->corrupt, sizeof(out->corrupt));
    gpu_get(b, out->top, p->top, sizeof(out->top));
}

static void check_the_rest(gpu_bench *b, const mr_cuda_sample *p, const sample_call *c,
                           const sample_results *out)
{
    const uint64_t scratch = (uint64_t)SAMPLE_WORKERS * c->vocab;
    uint32_t *counts = gpu_array(scratch, sizeof(*counts));
    gpu_get(b, counts, p->counts, scratch * sizeof(*counts));
    for (uint64_t i = 0; i < scratch; i++) {
        assert_int_equal(counts[i], 0); /* as the next launch wants them */
    }
    free(counts);
    const size_t bytes = (size_t)c->count * c->vocab * sizeof(float);
    float *logits = gpu_array(bytes, 1);
    gpu_get(b, logits, p->logits, bytes);
    assert_memory_equal(logits, c->logits, bytes);
    free(logits);
    for (uint32_t i = c->count; i < SAMPLE_ROWS; i++) {
        assert_int_equal(out->tokens[i], UINT32_MAX);
        assert_int_equal(out->corrupt[i], UINT8_MAX);
        assert_int_equal(out->n_top[i], UINT8_MAX);
    }
}

void sample_run(gpu_bench *b, const sample_call *c, sample_results *out)
{
    static staged s;
    const mr_cuda_step_header header = {.n_tokens = c->count, .n_rows = c->count};
    const uint64_t scratch = (uint64_t)SAMPLE_WORKERS * c->vocab * 4;
    put_rows(c, &s);
    b->used = 0;
    const mr_cuda_sample p = {
        .header = gpu_put(b, &header, sizeof(header)),
        .logits = gpu_put(b, c->logits, (uint64_t)c->count * c->vocab * 4),
        .rows = gpu_put(b, s.rows, sizeof(s.rows)),
        .bias_tokens = gpu_put(b, s.tokens, sizeof(s.tokens)),
        .bias_values = gpu_put(b, s.values, sizeof(s.values)),
        .history = gpu_put(b, c->history, sizeof(c->history)),
        .scaled = gpu_room(b, scratch),
        .counts = gpu_room(b, scratch),
        .tokens = gpu_room(b, sizeof(out->tokens)),
        .logprobs = gpu_room(b, sizeof(out->logprobs)),
        .n_top = gpu_room(b, sizeof(out->n_top)),
        .corrupt = gpu_room(b, sizeof(out->corrupt)),
        .top = gpu_room(b, sizeof(out->top)),
        .vocab = c->vocab,
        .max_context = SAMPLE_HISTORY,
        .max_rows = SAMPLE_ROWS,
        .workers = SAMPLE_WORKERS,
    };
    assert_int_equal(b->api->fill(b->context, p.counts, 0, scratch), 0);
    const int code = b->api->sample(b->context, &p);
    if (code != 0) {
        fail_msg("%s", b->api->error_text(code));
    }
    get_results(b, &p, out);
    check_the_rest(b, &p, c, out);
}
