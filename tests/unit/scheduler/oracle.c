/* SPDX-License-Identifier: Apache-2.0 */
#include "oracle.h"

#include "scheduler/stop_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_in(uint32_t token, const uint32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == token) {
            return true;
        }
    }
    return false;
}

static void add_text(const mr_scheduler_options *options, const mr_request *request, uint32_t token,
                     scripted_result *out)
{
    const mr_tokenizer *tokenizer = options->tokenizer;
    if (tokenizer == NULL || token >= mr_tokenizer_vocab_size(tokenizer) ||
        (mr_tokenizer_kind(tokenizer, token) == MR_TOKEN_SPECIAL &&
         !request->params.keep_special_tokens)) {
        return;
    }
    const mr_bytes bytes = mr_tokenizer_token_bytes(tokenizer, token);
    MR_CHECK(out->text_bytes + bytes.size <= sizeof(out->text));
    memcpy(out->text + out->text_bytes, bytes.data, bytes.size);
    out->text_bytes += bytes.size;
}

/* Ends the text at `at` if a stop string does; of several the longest. */
static bool stops_at(const mr_request *request, scripted_result *out, size_t at)
{
    size_t longest = 0;
    for (size_t i = 0; i < mr_stop_count(request->stop); i++) {
        const mr_stop_string string = mr_stop_string_get(request->stop, i);
        if (string.bytes <= at && string.bytes > longest &&
            memcmp(out->text + at - string.bytes, string.data, string.bytes) == 0) {
            longest = string.bytes;
            out->matched_stop = (uint32_t)i;
        }
    }
    if (longest > 0) {
        out->shown[out->n_tokens] = request->params.include_stop_in_text ? at : at - longest;
    }
    return longest > 0;
}

/* The longest end of the text that is a proper beginning of a stop string. */
static size_t held_back(const mr_request *request, const scripted_result *out)
{
    size_t held = 0;
    for (size_t i = 0; i < mr_stop_count(request->stop); i++) {
        const mr_stop_string string = mr_stop_string_get(request->stop, i);
        for (size_t n = 1; n < string.bytes && n <= out->text_bytes; n++) {
            if (n > held && memcmp(out->text + out->text_bytes - n, string.data, n) == 0) {
                held = n;
            }
        }
    }
    return held;
}

static bool ends_by_text(const mr_scheduler_options *options, const mr_request *request,
                         uint32_t token, bool may_stop, scripted_result *out)
{
    const size_t before = out->text_bytes;
    add_text(options, request, token, out);
    out->shown[out->n_tokens] = SIZE_MAX;
    if (request->stop == NULL) {
        return false;
    }
    for (size_t at = before + 1; may_stop && at <= out->text_bytes; at++) {
        if (stops_at(request, out, at)) {
            return true;
        }
    }
    out->shown[out->n_tokens] = out->text_bytes - held_back(request, out);
    return false;
}

/* End and stop tokens; gives their number. */
static uint32_t list_stops(const mr_scheduler_options *options, const mr_request *request,
                           uint32_t *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; !request->params.ignore_eos && i < options->n_eos; i++) {
        out[n++] = options->eos[i];
    }
    for (uint32_t i = 0; i < request->n_stop_tokens; i++) {
        out[n++] = request->stop_tokens[i];
    }
    return n;
}

void scripted_output(const mr_scheduler_options *options, const mr_request *request,
                     uint32_t choice, scripted_result *out)
{
    const mr_request_params *params = &request->params;
    const uint32_t n_prompt = request->n_prompt;
    uint32_t stops[128];
    uint32_t all[2048];
    const uint32_t n_stops = list_stops(options, request, stops);
    memset(out, 0, sizeof(*out));
    out->matched_token = MR_NO_TOKEN;
    out->matched_stop = MR_NO_STOP;
    memcpy(all, request->prompt, n_prompt * sizeof(*all));
    out->finish = MR_FINISH_LENGTH;
    while (out->n_tokens < params->max_tokens &&
           n_prompt + out->n_tokens < options->max_seq_length) {
        const bool may_stop = out->n_tokens >= params->min_tokens;
        const uint32_t token = scripted_next(all, n_prompt + out->n_tokens, choice,
                                             options->vocab_size, stops, may_stop ? 0 : n_stops);
        all[n_prompt + out->n_tokens] = token;
        out->tokens[out->n_tokens] = token;
        const bool by_token = is_in(token, stops, n_stops);
        out->matched_token = by_token ? token : MR_NO_TOKEN;
        out->shown[out->n_tokens] = SIZE_MAX;
        const bool ends = by_token || ends_by_text(options, request, token, may_stop, out);
        out->n_tokens++;
        if (ends) {
            out->finish = MR_FINISH_STOP;
            return;
        }
    }
    out->shown[out->n_tokens - 1] = SIZE_MAX;
}

/* ---- beam search ---- */

#define MAX_POOL  4096u
#define MAX_VOCAB 64u

typedef struct hypothesis {
    uint32_t tokens[128]; /* generated */
    uint32_t n_tokens;
    double cumulative;
    double score;
    uint32_t order;
    mr_finish finish;
    uint32_t matched_token;
    uint32_t matched_stop;
} hypothesis;

static int by_cumulative(const void *a, const void *b)
{
    const hypothesis *x = a;
    const hypothesis *y = b;
    return x->cumulative < y->cumulative ? 1 : x->cumulative > y->cumulative ? -1 : 0;
}

static int by_score(const void *a, const void *b)
{
    const hypothesis *x = a;
    const hypothesis *y = b;
    return x->score < y->score ? 1 : x->score > y->score ? -1 : (int)x->order - (int)y->order;
}

/* Whether its last token ends it; those before did not. */
static void judge(const mr_scheduler_options *options, const mr_request *request, hypothesis *h)
{
    static scripted_result text;
    uint32_t stops[128];
    const uint32_t n_stops = list_stops(options, request, stops);
    text.text_bytes = 0;
    text.matched_stop = MR_NO_STOP;
    h->matched_token = MR_NO_TOKEN;
    h->matched_stop = MR_NO_STOP;
    h->finish = MR_FINISH_NONE;
    const uint32_t last = h->n_tokens - 1;
    for (uint32_t i = 0; i < last; i++) {
        add_text(options, request, h->tokens[i], &text);
    }
    const bool may_stop = last >= request->params.min_tokens;
    text.n_tokens = last;
    if (may_stop && is_in(h->tokens[last], stops, n_stops)) {
        h->finish = MR_FINISH_STOP;
        h->matched_token = h->tokens[last];
    } else if (ends_by_text(options, request, h->tokens[last], may_stop, &text)) {
        h->finish = MR_FINISH_STOP;
        h->matched_stop = text.matched_stop;
    }
    if (h->finish == MR_FINISH_NONE &&
        (h->n_tokens == request->params.max_tokens ||
         request->n_prompt + h->n_tokens == options->max_seq_length)) {
        h->finish = MR_FINISH_LENGTH;
    }
    h->score = h->cumulative / pow(h->n_tokens, (double)request->params.length_penalty);
}

/* All continuations of a live hypothesis. */
static uint32_t expand(const mr_scheduler_options *options, const mr_request *request,
                       const hypothesis *h, hypothesis *out)
{
    uint32_t all[1024];
    uint32_t stops[128];
    float d[MAX_VOCAB];
    uint32_t n = 0;
    const uint32_t n_stops = list_stops(options, request, stops);
    const bool bans = h->n_tokens < request->params.min_tokens;
    memcpy(all, request->prompt, request->n_prompt * sizeof(*all));
    memcpy(all + request->n_prompt, h->tokens, h->n_tokens * sizeof(*all));
    scripted_distribution(all, request->n_prompt + h->n_tokens, options->vocab_size, stops,
                          bans ? n_stops : 0, d);
    for (uint32_t v = 0; v < options->vocab_size; v++) {
        if (d[v] > -INFINITY) {
            out[n] = *h;
            out[n].tokens[out[n].n_tokens++] = v;
            out[n].cumulative += (double)d[v];
            judge(options, request, &out[n]);
            n++;
        }
    }
    return n;
}

static void give(const hypothesis *h, scripted_result *out, double *cumulative)
{
    memset(out, 0, sizeof(*out));
    memcpy(out->tokens, h->tokens, h->n_tokens * sizeof(*out->tokens));
    out->n_tokens = h->n_tokens;
    out->finish = h->finish;
    out->matched_token = h->matched_token;
    out->matched_stop = h->matched_stop;
    *cumulative = h->cumulative;
}

uint32_t scripted_beams(const mr_scheduler_options *options, const mr_request *request,
                        scripted_result *out, double *cumulative)
{
    const uint32_t width = request->params.beam_width;
    hypothesis *live = calloc(MR_MAX_BEAMS, sizeof(*live));
    hypothesis *candidates = calloc((size_t)MR_MAX_BEAMS * MAX_VOCAB, sizeof(*candidates));
    hypothesis *pool = calloc(MAX_POOL, sizeof(*pool));
    MR_CHECK(live != NULL && candidates != NULL && pool != NULL);
    uint32_t n_live = 1;
    uint32_t n_pool = 0;
    while (n_live > 0) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < n_live; i++) {
            n += expand(options, request, &live[i], candidates + n);
        }
        qsort(candidates, n, sizeof(*candidates), by_cumulative);
        n_live = 0;
        uint32_t places = width;
        for (uint32_t rank = 0; rank < n && rank < 2 * width && places > 0; rank++) {
            const hypothesis *c = &candidates[rank];
            places -= c->finish != MR_FINISH_STOP;
            if (c->finish == MR_FINISH_NONE) {
                live[n_live++] = *c;
            } else if (c->finish == MR_FINISH_LENGTH || rank < width) {
                MR_CHECK(n_pool < MAX_POOL);
                pool[n_pool] = *c;
                pool[n_pool].order = n_pool;
                n_pool++;
            }
        }
    }
    qsort(pool, n_pool, sizeof(*pool), by_score);
    const uint32_t given = n_pool < request->params.n ? n_pool : request->params.n;
    for (uint32_t i = 0; i < given; i++) {
        give(&pool[i], &out[i], &cumulative[i]);
    }
    free(live);
    free(candidates);
    free(pool);
    return given;
}
