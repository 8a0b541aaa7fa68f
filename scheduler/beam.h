/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Beam search: the arithmetic, and what a group keeps for it. Each step every live beam offers its
 * 2 · width most likely next tokens. Of all these candidates the 2 · width with the largest
 * cumulative logprob are looked at, best first: one that ends (stop token, end token, stop string)
 * goes to the pool of finished hypotheses if it is among the first `width`, and is dropped else;
 * the first `width` others become the live beams of the next step.
 *
 *   score = cumulative logprob / tokens^length_penalty     tokens: generated, an end token included
 *
 * The pool keeps the `width` best. The search is over when no beam lives, or the pool is full and
 * no live beam can come to beat the worst in it: logprobs are at most 0, so a beam's cumulative one
 * never rises, and its score is at most that of the length that suits it best, the longest possible
 * for a positive length_penalty and the next one otherwise.
 */
#ifndef MILLRACE_SCHEDULER_BEAM_H
#define MILLRACE_SCHEDULER_BEAM_H

#include "scheduler/sequence.h"

/* A possible next token of a live beam. */
typedef struct mr_candidate {
    double cumulative; /* logprob of the beam with the token */
    float logprob;     /* of the token */
    uint32_t token;
    uint32_t beam;
} mr_candidate;

typedef struct mr_hypothesis {
    double score;
    double cumulative;
    uint32_t *tokens; /* owns, [max_tokens] */
    float *logprobs;  /* owns, [max_tokens] */
    uint32_t n_tokens;
    uint32_t matched_token;
    uint16_t matched_stop;
    uint64_t text_bytes; /* of the last event */
    mr_finish finish;
} mr_hypothesis;

typedef struct mr_beams {
    uint32_t width;
    float length_penalty;
    uint32_t n_live;     /* sequences 0 … n_live − 1 of the group; 0: nothing is drawn yet */
    bool attached;       /* while resident: all live ones share the blocks of the prompt */
    mr_hypothesis *pool; /* owns, [width]; best first once the search is over */
    uint32_t n_pool;
    uint32_t n_candidates;
    mr_candidate candidates[2 * MR_MAX_BEAMS]; /* best first */
    /* While the results go out. */
    uint32_t choice; /* the next event's */
    uint32_t token;
} mr_beams;

MR_MUST_USE mr_status mr_beams_create(const mr_request_params *params, mr_beams **out);
void mr_beams_destroy(mr_beams *beams);

/* Score of `tokens` generated tokens, at least 1. */
double mr_beams_score(const mr_beams *beams, double cumulative, uint32_t tokens);

/* Puts a candidate into candidates[] if it is one of the best; among equals the first one offered
 * stays in front. */
void mr_beams_offer(mr_beams *beams, const mr_candidate *candidate);

/* A place in the pool for a hypothesis of this score, the worst one's if it is full; NULL when it
 * is not good enough. The caller fills it, score included. */
mr_hypothesis *mr_beams_place(mr_beams *beams, double score);

/* True when no live beam with this cumulative logprob and `tokens` tokens, of at most max_tokens,
 * can come to beat the pool. */
bool mr_beams_decided(const mr_beams *beams, double best_cumulative, uint32_t tokens,
                      uint32_t max_tokens);

/* Orders the pool, best first; equals in the order in which they ended. */
void mr_beams_sort(mr_beams *beams);

#endif
