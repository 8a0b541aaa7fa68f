/* SPDX-License-Identifier: Apache-2.0 */
#include "naive_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double *zeros(size_t count)
{
    double *data = calloc(count, sizeof(*data));
    assert_non_null(data);
    return data;
}

/* A weight as doubles [n][k]; the caller frees it. */
static double *weight(const tiny_plan *tiny, mr_weight_id id)
{
    const mr_plan_weight *w = &tiny->plan->weights[id];
    const size_t count = (size_t)w->n * w->k;
    float *floats = malloc(count * sizeof(*floats));
    assert_non_null(floats);
    mr_dequantize(w->dtype, w->data, floats, count);
    double *doubles = zeros(count);
    for (size_t i = 0; i < count; i++) {
        doubles[i] = (double)floats[i];
    }
    free(floats);
    return doubles;
}

/* out[count][n] = x · Wᵀ + bias */
static double *linear(const tiny_plan *tiny, mr_weight_id id, mr_weight_id bias, const double *x,
                      uint32_t count)
{
    const uint32_t n = tiny->plan->weights[id].n;
    const uint32_t k = tiny->plan->weights[id].k;
    double *w = weight(tiny, id);
    double *b = bias == MR_NO_WEIGHT ? zeros(n) : weight(tiny, bias);
    double *out = zeros((size_t)count * n);
    for (uint32_t t = 0; t < count; t++) {
        for (uint32_t i = 0; i < n; i++) {
            double sum = b[i];
            for (uint32_t j = 0; j < k; j++) {
                sum += w[(size_t)i * k + j] * x[(size_t)t * k + j];
            }
            out[(size_t)t * n + i] = sum;
        }
    }
    free(w);
    free(b);
    return out;
}

static double *norm(const tiny_plan *tiny, mr_weight_id gain, mr_weight_id bias, const double *x,
                    uint32_t count)
{
    const uint32_t n = tiny->dims.width;
    double *g = weight(tiny, gain);
    double *b = bias == MR_NO_WEIGHT ? zeros(n) : weight(tiny, bias);
    double *out = zeros((size_t)count * n);
    for (uint32_t t = 0; t < count; t++) {
        const double *row = x + (size_t)t * n;
        double mean = 0.0;
        double square = 0.0;
        for (uint32_t i = 0; i < n && tiny->dims.norm == MR_NORM_LAYER; i++) {
            mean += row[i] / n;
        }
        for (uint32_t i = 0; i < n; i++) {
            square += (row[i] - mean) * (row[i] - mean) / n;
        }
        for (uint32_t i = 0; i < n; i++) {
            out[(size_t)t * n + i] = (row[i] - mean) / sqrt(square + 1e-5) * g[i] + b[i];
        }
    }
    free(g);
    free(b);
    return out;
}

/* x [count][heads][D], rotated by complex multiplication. */
static void rope(const tiny_plan *tiny, double *x, uint32_t count, uint32_t heads)
{
    const uint32_t width = tiny->dims.head_width;
    const bool halves = tiny->dims.pairing == MR_ROPE_HALVES;
    for (uint32_t i = 0; i < count * heads * (width / 2); i++) {
        const uint32_t pair = i % (width / 2);
        const uint32_t position = i / (width / 2) / heads;
        double *head = x + (size_t)(i / (width / 2)) * width;
        double *a = head + (halves ? pair : 2 * pair);
        double *b = halves ? a + width / 2 : a + 1;
        const double angle = position * (double)tiny->plan->ropes[0].inv_freq[pair];
        const double real = *a * cos(angle) - *b * sin(angle);
        *b = *a * sin(angle) + *b * cos(angle);
        *a = real;
    }
}

/* The nearest of the numbers with `bits` bits after the first and exponents from `least` on. */
static double round_to(double x, int bits, int least)
{
    int exponent = 0;
    (void)frexp(x, &exponent); /* |x| < 2^exponent */
    exponent = exponent - 1 < least ? least : exponent - 1;
    return ldexp(nearbyint(ldexp(x, bits - exponent)), exponent - bits);
}

/* x [count][D], each row as a KV cache of this type keeps it. */
static void keep(double *x, uint32_t count, uint32_t width, mr_dtype kv_dtype)
{
    for (uint32_t row = 0; row < count && kv_dtype != MR_DTYPE_F32; row++, x += width) {
        double top = 0.0;
        for (uint32_t i = 0; i < width; i++) {
            top = fmax(top, fabs(x[i]));
        }
        for (uint32_t i = 0; i < width; i++) {
            if (kv_dtype == MR_DTYPE_I8) {
                x[i] = top > 0.0 ? nearbyint(x[i] / top * 127.0) * (top / 127.0) : 0.0;
            } else {
                x[i] = kv_dtype == MR_DTYPE_F16 ? round_to(x[i], 10, -14) : round_to(x[i], 7, -126);
            }
        }
    }
}

static double score(const tiny_plan *tiny, const double *q, const double *k)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < tiny->dims.head_width; i++) {
        sum += q[i] * k[i];
    }
    sum /= sqrt(tiny->dims.head_width);
    const double cap = (double)tiny->dims.soft_cap;
    return cap > 0.0 ? cap * tanh(sum / cap) : sum;
}

static double *attention(const tiny_plan *tiny, const double *q, const double *k, const double *v,
                         uint32_t count, uint32_t window)
{
    const tiny_dims *d = &tiny->dims;
    const uint32_t width = d->head_width;
    double *out = zeros((size_t)count * d->heads * width);
    for (uint32_t i = 0; i < count * d->heads; i++) {
        const uint32_t t = i / d->heads;
        const uint32_t group = i % d->heads / (d->heads / d->kv_heads);
        const uint32_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
        double sum = 0.0;
        for (uint32_t p = first; p <= t; p++) {
            const size_t at = ((size_t)p * d->kv_heads + group) * width;
            const double e = exp(score(tiny, q + (size_t)i * width, k + at));
            sum += e;
            for (uint32_t j = 0; j < width; j++) {
                out[(size_t)i * width + j] += e * v[at + j];
            }
        }
        for (uint32_t j = 0; j < width; j++) {
            out[(size_t)i * width + j] /= sum;
        }
    }
    return out;
}

static double activate(mr_activation kind, double x)
{
    switch (kind) {
    case MR_ACT_SILU:
        return x / (1.0 + exp(-x));
    case MR_ACT_GELU_TANH:
        return x / 2 * (1.0 + tanh(sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case MR_ACT_GELU:
        return x / 2 * (1.0 + erf(x / sqrt(2.0)));
    case MR_ACT_RELU:
        break;
    }
    return fmax(x, 0.0);
}

static void add(double *stream, double *more, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        stream[i] += more[i];
    }
    free(more);
}

static void run_layer(const tiny_plan *tiny, uint32_t layer, double *stream, uint32_t count,
                      mr_dtype kv_dtype)
{
    const tiny_layer *w = &tiny->layers[layer];
    const tiny_dims *d = &tiny->dims;
    double *h = norm(tiny, w->attn_gain, w->attn_bias, stream, count);
    double *q = linear(tiny, w->q, w->q_bias, h, count);
    double *k = linear(tiny, w->k, w->k_bias, h, count);
    double *v = linear(tiny, w->v, w->v_bias, h, count);
    rope(tiny, q, count, d->heads);
    rope(tiny, k, count, d->kv_heads);
    keep(k, count * d->kv_heads, d->head_width, kv_dtype);
    keep(v, count * d->kv_heads, d->head_width, kv_dtype);
    double *seen = attention(tiny, q, k, v, count, tiny_window(d, layer));
    add(stream, linear(tiny, w->o, MR_NO_WEIGHT, seen, count), (size_t)count * d->width);
    free(h);
    h = norm(tiny, w->ffn_gain, w->ffn_bias, stream, count);
    double *gate = linear(tiny, w->gate, MR_NO_WEIGHT, h, count);
    double *up = linear(tiny, w->up, MR_NO_WEIGHT, h, count);
    for (size_t i = 0; i < (size_t)count * d->ffn; i++) {
        gate[i] = activate(d->activation, gate[i]) * up[i];
    }
    add(stream, linear(tiny, w->down, MR_NO_WEIGHT, gate, count), (size_t)count * d->width);
    free(h);
    free(q);
    free(k);
    free(v);
    free(seen);
    free(gate);
    free(up);
}

double *naive_logits(const tiny_plan *tiny, const int32_t *tokens, uint32_t count,
                     mr_dtype kv_dtype)
{
    const uint32_t width = tiny->dims.width;
    double *table = weight(tiny, tiny->embed);
    double *stream = zeros((size_t)count * width);
    for (size_t i = 0; i < (size_t)count * width; i++) {
        stream[i] =
            (double)tiny->dims.embed_scale * table[(size_t)tokens[i / width] * width + i % width];
    }
    for (uint32_t i = 0; i < tiny->dims.layers; i++) {
        run_layer(tiny, i, stream, count, kv_dtype);
    }
    double *h = norm(tiny, tiny->out_gain, tiny->out_bias, stream, count);
    double *logits = linear(tiny, tiny->head, MR_NO_WEIGHT, h, count);
    free(table);
    free(stream);
    free(h);
    return logits;
}
