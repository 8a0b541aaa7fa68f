/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/beam.h"

#include "base/checked.h"

#include <math.h>
#include <stdlib.h>

mr_status mr_beams_create(const mr_request_params *params, mr_beams **out)
{
    mr_beams *beams = mr_calloc(1, sizeof(*beams));
    if (beams == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    beams->width = params->beam_width;
    beams->length_penalty = params->length_penalty;
    beams->pool = mr_calloc(beams->width, sizeof(*beams->pool));
    bool complete = beams->pool != NULL;
    for (uint32_t i = 0; complete && i < beams->width; i++) {
        beams->pool[i].tokens = mr_calloc(params->max_tokens, sizeof(*beams->pool[i].tokens));
        beams->pool[i].logprobs = mr_calloc(params->max_tokens, sizeof(*beams->pool[i].logprobs));
        complete = beams->pool[i].tokens != NULL && beams->pool[i].logprobs != NULL;
    }
    if (!complete) {
        mr_beams_destroy(beams);
        return MR_RESOURCE_EXHAUSTED;
    }
    *out = beams;
    return MR_OK;
}

void mr_beams_destroy(mr_beams *beams)
{
    if (beams == NULL) {
        return;
    }
    for (uint32_t i = 0; beams->pool != NULL && i < beams->width; i++) {
        free(beams->pool[i].tokens);
        free(beams->pool[i].logprobs);
    }
    free(beams->pool);
    free(beams);
}

double mr_beams_score(const mr_beams *beams, double cumulative, uint32_t tokens)
{
    return cumulative / pow((double)tokens, (double)beams->length_penalty);
}

void mr_beams_offer(mr_beams *beams, const mr_candidate *candidate)
{
    const uint32_t limit = 2 * beams->width;
    uint32_t at = beams->n_candidates;
    if (at == limit) {
        if (!(candidate->cumulative > beams->candidates[--at].cumulative)) {
            return;
        }
    } else {
        beams->n_candidates++;
    }
    for (; at > 0 && candidate->cumulative > beams->candidates[at - 1].cumulative; at--) {
        beams->candidates[at] = beams->candidates[at - 1];
    }
    beams->candidates[at] = *candidate;
}

/* The last among equals. */
static uint32_t worst_of(const mr_beams *beams)
{
    uint32_t worst = 0;
    for (uint32_t i = 1; i < beams->n_pool; i++) {
        if (beams->pool[i].score <= beams->pool[worst].score) {
            worst = i;
        }
    }
    return worst;
}

mr_hypothesis *mr_beams_place(mr_beams *beams, double score)
{
    if (beams->n_pool < beams->width) {
        return &beams->pool[beams->n_pool++];
    }
    /* The later ones move up, so that the pool stays in the order in which they ended. */
    const uint32_t worst = worst_of(beams);
    if (!(score > beams->pool[worst].score)) {
        return NULL;
    }
    const mr_hypothesis place = beams->pool[worst];
    for (uint32_t i = worst; i + 1 < beams->n_pool; i++) {
        beams->pool[i] = beams->pool[i + 1];
    }
    beams->pool[beams->n_pool - 1] = place;
    return &beams->pool[beams->n_pool - 1];
}

bool mr_beams_decided(const mr_beams *beams, double best_cumulative, uint32_t tokens,
                      uint32_t max_tokens)
{
    if (beams->n_pool < beams->width) {
        return false;
    }
    const uint32_t best_length = beams->length_penalty > 0.0f ? max_tokens : tokens + 1;
    const double bound = mr_beams_score(beams, best_cumulative, best_length);
    return !(bound > beams->pool[worst_of(beams)].score);
}

void mr_beams_sort(mr_beams *beams)
{
    for (uint32_t i = 1; i < beams->n_pool; i++) {
        const mr_hypothesis moved = beams->pool[i];
        uint32_t at = i;
        for (; at > 0 && moved.score > beams->pool[at - 1].score; at--) {
            beams->pool[at] = beams->pool[at - 1];
        }
        beams->pool[at] = moved;
    }
}
