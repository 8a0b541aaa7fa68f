/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every filter keeps a prefix of one total order of the vocabulary: larger logit first, lower id
 * among equals. So what survives all of them is described by a single cut, the last token kept,
 * and no list of the vocabulary is ever sorted: top_k and top_p find their cut with a heap.
 */
#include "kernels/sample.h"

#include "base/checked.h"
#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* More than any Gumbel noise: −ln(−ln(u)) at the largest uniform, 1 − 2^-24, is below 16.64. */
#define NOISE_BOUND 17.0f

/* The last token of the order that is kept: v stays iff it does not come after it. */
typedef struct cut {
    float value;
    uint32_t id;
} cut;

struct mr_sampler {
    uint32_t vocab_size;
    float *scaled;   /* [V] logits after bias and penalties, then shifted and scaled */
    cut *heap;       /* [V] */
    uint32_t *count; /* [V] times in the output so far; zero between rows */
    uint8_t *seen;   /* [V] in the history and not yet penalised; zero between rows */
};

mr_status mr_sampler_create(uint32_t vocab_size, mr_sampler **out)
{
    mr_sampler *sampler = mr_calloc(1, sizeof(*sampler));
    if (sampler == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    sampler->vocab_size = vocab_size;
    sampler->scaled = mr_calloc(vocab_size, sizeof(*sampler->scaled));
    sampler->heap = mr_calloc(vocab_size, sizeof(*sampler->heap));
    sampler->count = mr_calloc(vocab_size, sizeof(*sampler->count));
    sampler->seen = mr_calloc(vocab_size, sizeof(*sampler->seen));
    if (sampler->scaled == NULL || sampler->heap == NULL || sampler->count == NULL ||
        sampler->seen == NULL) {
        mr_sampler_destroy(sampler);
        return MR_RESOURCE_EXHAUSTED;
    }
    *out = sampler;
    return MR_OK;
}

void mr_sampler_destroy(mr_sampler *sampler)
{
    if (sampler == NULL) {
        return;
    }
    free(sampler->scaled);
    free(sampler->heap);
    free(sampler->count);
    free(sampler->seen);
    free(sampler);
}

/* The largest value and its lowest id; false for a NaN, or a largest value that is not finite.
 * Several maxima side by side, so that compilers make vectors of them. */
static bool find_max(const float *values, uint32_t n, cut *max)
{
    enum { LANES = 16 };
    float top[LANES];
    uint32_t nans[LANES] = {0};
    for (uint32_t i = 0; i < LANES; i++) {
        top[i] = -INFINITY;
    }
    uint32_t v = 0;
    for (; v + LANES <= n; v += LANES) {
        for (uint32_t i = 0; i < LANES; i++) {
            const float value = values[v + i];
            top[i] = value > top[i] ? value : top[i];
            nans[i] |= value != value;
        }
    }
    for (; v < n; v++) {
        top[0] = values[v] > top[0] ? values[v] : top[0];
        nans[0] |= isnan(values[v]);
    }
    for (uint32_t i = 1; i < LANES; i++) {
        top[0] = top[i] > top[0] ? top[i] : top[0];
        nans[0] |= nans[i];
    }
    *max = (cut){.value = top[0], .id = 0};
    if (nans[0] != 0 || !isfinite(top[0])) {
        return false;
    }
    while (values[max->id] != top[0]) {
        max->id++;
    }
    return true;
}

static inline bool before(cut a, cut b)
{
    return a.value > b.value || (a.value == b.value && a.id < b.id);
}

/* Whether token v is kept; −∞ never is. */
static inline bool kept(const float *values, uint32_t v, cut last)
{
    return values[v] > last.value || (values[v] == last.value && v <= last.id);
}

/* Any finite value. */
static const cut keep_all = {.value = -FLT_MAX, .id = UINT32_MAX};

/* ---- bias and penalties ---- */

static void add_bias(float *logits, uint32_t n, const mr_sample_row *row)
{
    for (uint32_t i = 0; i < row->params->bias_count; i++) {
        if (row->bias_tokens[i] < n) {
            logits[row->bias_tokens[i]] += row->bias_values[i];
        }
    }
}

static bool has_penalties(const mr_sample_row *row)
{
    const mr_row_params *p = row->params;
    return row->history != NULL && (p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
                                    p->frequency_penalty != 0.0f);
}

static void penalise(mr_sampler *sampler, const mr_sample_row *row)
{
    const mr_row_params *p = row->params;
    if (!has_penalties(row)) {
        return;
    }
    for (uint32_t i = 0; i < p->history_len; i++) {
        const uint32_t token = row->history[i];
        if (token < sampler->vocab_size) {
            sampler->seen[token] = 1;
            sampler->count[token] += i >= p->prompt_len;
        }
    }
    for (uint32_t i = 0; i < p->history_len; i++) {
        const uint32_t token = row->history[i];
        if (token >= sampler->vocab_size || sampler->seen[token] == 0) {
            continue;
        }
        float logit = sampler->scaled[token];
        const bool possible = isfinite(logit); /* a banned token stays banned */
        logit = logit > 0.0f ? logit / p->repetition_penalty : logit * p->repetition_penalty;
        if (sampler->count[token] > 0) {
            logit -= p->presence_penalty;
            logit -= p->frequency_penalty * (float)sampler->count[token];
        }
        /* Penalties near 0 must not make a number infinite. */
        sampler->scaled[token] = possible ? fminf(fmaxf(logit, -FLT_MAX), FLT_MAX) : logit;
        sampler->seen[token] = 0;
        sampler->count[token] = 0;
    }
}

/* ---- filters ---- */

/* Restores the heap below `at`. `last_first` puts the token that comes last in the order at the
 * root, else the first. */
static void sift_down(cut *heap, uint32_t n, uint32_t at, bool last_first)
{
    const cut moved = heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n && before(heap[child], heap[child + 1]) == last_first) {
            child++;
        }
        if (before(moved, heap[child]) != last_first) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = moved;
}

static void make_heap(cut *heap, uint32_t n, bool last_first)
{
    for (uint32_t i = n / 2; i-- > 0;) {
        sift_down(heap, n, i, last_first);
    }
}

/* The k-th token of the order. */
static cut top_k_cut(mr_sampler *sampler, uint32_t k)
{
    cut *heap = sampler->heap;
    const float *s = sampler->scaled;
    for (uint32_t v = 0; v < k; v++) {
        heap[v] = (cut){.value = s[v], .id = v};
    }
    make_heap(heap, k, true);
    for (uint32_t v = k; v < sampler->vocab_size; v++) {
        /* Ids ascend, so an equal value comes after what is inside. */
        if (s[v] > heap[0].value) {
            heap[0] = (cut){.value = s[v], .id = v};
            sift_down(heap, k, 0, true);
        }
    }
    return heap[0];
}

/* The token with which the probability of the kept ones, in order, reaches top_p of their sum. */
static cut top_p_cut(mr_sampler *sampler, cut last, float top_p)
{
    cut *heap = sampler->heap;
    const float *s = sampler->scaled;
    uint32_t n = 0;
    double sum = 0.0;
    for (uint32_t v = 0; v < sampler->vocab_size; v++) {
        if (kept(s, v, last)) {
            heap[n++] = (cut){.value = s[v], .id = v};
            sum += (double)expf(s[v]);
        }
    }
    make_heap(heap, n, false);
    const double wanted = (double)top_p * sum;
    double reached = (double)expf(heap[0].value);
    while (reached < wanted && n > 1) {
        heap[0] = heap[--n];
        sift_down(heap, n, 0, false);
        reached += (double)expf(heap[0].value);
    }
    return heap[0];
}

float mr_sample_min_p_bound(float min_p)
{
    const double bound = log((double)min_p);
    float value = (float)bound;
    if ((double)value < bound) {
        value = nextafterf(value, INFINITY);
    }
    return value < 0.0f ? value : 0.0f;
}

static cut filter(mr_sampler *sampler, const mr_row_params *p)
{
    cut last = keep_all;
    if (p->top_k > 0 && p->top_k < sampler->vocab_size) {
        const cut at = top_k_cut(sampler, p->top_k);
        last = before(at, last) ? at : last;
    }
    if (p->top_p < 1.0f) {
        last = top_p_cut(sampler, last, p->top_p);
    }
    if (p->min_p > 0.0f) {
        const cut at = {.value = mr_sample_min_p_bound(p->min_p), .id = UINT32_MAX};
        last = before(at, last) ? at : last;
    }
    return last;
}

/* ---- draw and log-probabilities ---- */

/* argmax over the kept tokens of scaled logit + noise; the lowest id among equals. `max` is a kept
 * token: starting from it, most others are out of reach of any noise and need none. */
static uint32_t draw(const mr_sampler *sampler, const mr_row_params *p, cut last, uint32_t max)
{
    const float *s = sampler->scaled;
    uint32_t best = max;
    float best_value = s[max] + mr_gumbel(mr_token_uniform(p->key, p->position, p->choice, max));
    for (uint32_t v = 0; v < sampler->vocab_size; v++) {
        if (s[v] + NOISE_BOUND < best_value || !kept(s, v, last)) {
            continue;
        }
        const float value = s[v] + mr_gumbel(mr_token_uniform(p->key, p->position, p->choice, v));
        if (value > best_value || (value == best_value && v < best)) {
            best_value = value;
            best = v;
        }
    }
    return best;
}

/* A distribution to report: the softmax of `values` over the tokens up to `last`. */
typedef struct distribution {
    const float *values;
    uint32_t n;
    cut last;
    float max;
} distribution;

static double log_sum_exp(const distribution *d)
{
    double sum = 0.0;
    for (uint32_t v = 0; v < d->n; v++) {
        if (kept(d->values, v, d->last)) {
            sum += (double)expf(d->values[v] - d->max);
        }
    }
    return (double)d->max + log(sum);
}

static void report(const distribution *d, const mr_row_params *p, mr_sample_result *out)
{
    const double log_sum = log_sum_exp(d);
    out->logprob = kept(d->values, out->token, d->last)
                       ? (float)((double)d->values[out->token] - log_sum)
                       : -INFINITY;
    const uint32_t wanted = p->n_top < MR_MAX_TOP ? p->n_top : MR_MAX_TOP;
    uint32_t found = 0;
    for (uint32_t v = 0; v < d->n && wanted > 0; v++) {
        const float value = d->values[v];
        if (!kept(d->values, v, d->last) ||
            (found == wanted && !(value > out->top[found - 1].logprob))) {
            continue;
        }
        uint32_t at = found < wanted ? found++ : found - 1;
        for (; at > 0 && value > out->top[at - 1].logprob; at--) {
            out->top[at] = out->top[at - 1];
        }
        out->top[at] = (mr_alternative){.token = v, .logprob = value};
    }
    for (uint32_t i = 0; i < found; i++) {
        out->top[i].logprob = (float)((double)out->top[i].logprob - log_sum);
    }
    out->n_top = (uint8_t)found;
}

/* Whether the largest raw logit is all there is to know. */
static bool is_plain_greedy(const mr_sample_row *row)
{
    const mr_row_params *p = row->params;
    return !(p->temperature > 0.0f) && p->target == MR_NO_TARGET && p->bias_count == 0 &&
           !has_penalties(row) && !p->want_logprob && p->n_top == 0;
}

void mr_sample(mr_sampler *sampler, const mr_sample_row *row, mr_sample_result *out)
{
    const mr_row_params *p = row->params;
    const uint32_t n = sampler->vocab_size;
    float *s = sampler->scaled;
    cut raw_max;
    cut max;
    *out = (mr_sample_result){.corrupt = true};
    if (!find_max(row->logits, n, &raw_max)) {
        return;
    }
    if (is_plain_greedy(row)) {
        *out = (mr_sample_result){.token = raw_max.id};
        return;
    }
    memcpy(s, row->logits, n * sizeof(*s));
    add_bias(s, n, row);
    penalise(sampler, row);
    if (!find_max(s, n, &max)) {
        return;
    }
    out->corrupt = false;

    /* Shifted so that the largest is 0: a small temperature cannot overflow, and floats are finest
     * where the draw is decided. */
    const bool greedy = !(p->temperature > 0.0f);
    const float divisor = greedy ? 1.0f : p->temperature;
    for (uint32_t v = 0; v < n; v++) {
        s[v] = (s[v] - max.value) / divisor;
    }
    const cut last = greedy ? keep_all : filter(sampler, p);
    if (p->target != MR_NO_TARGET) {
        out->token = p->target < n ? p->target : 0;
    } else {
        out->token = greedy ? max.id : draw(sampler, p, last, max.id);
    }
    if (!p->want_logprob && p->n_top == 0) {
        return;
    }
    const distribution processed = {.values = s, .n = n, .last = last, .max = 0.0f};
    const distribution raw = {
        .values = row->logits, .n = n, .last = keep_all, .max = raw_max.value};
    report(p->processed ? &processed : &raw, p, out);
}
