/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sequence: the engine's side of a request. A token list, a count of tokens whose K/V is
 * computed, and, while it is resident, a slot and blocks.
 *
 *   tokens   [ prompt ............ | output .......... | room for max_tokens ]
 *            [ computed .................. | missing   ]
 *              0                            n_computed   n_tokens
 *
 * Allocated with its request, touched by the engine thread only.
 */
#ifndef MILLRACE_SCHEDULER_SEQUENCE_H
#define MILLRACE_SCHEDULER_SEQUENCE_H

#include "scheduler/request.h"

typedef enum mr_sequence_state {
    MR_SEQUENCE_WAITING,
    MR_SEQUENCE_RUNNING, /* has a slot and blocks */
    MR_SEQUENCE_ENDED,
} mr_sequence_state;

typedef struct mr_sequence {
    mr_request *request; /* borrows: the request owns its sequence */
    uint32_t *tokens;    /* borrows the request's prompt, [n_prompt + max_tokens] */
    uint32_t n_tokens;
    uint32_t n_computed;
    uint64_t ticket;    /* order of arrival */
    uint64_t paused_ns; /* since when the ring is full; MR_NEVER: it is not */
    uint32_t *blocks;   /* [n_blocks] the slot's row of the scheduler's table */
    uint32_t n_blocks;
    uint32_t n_sent; /* blocks the device's table knows */
    uint32_t slot;
    uint32_t ring_space; /* entries known to be free, the final event's included */
    mr_sequence_state state;
    bool penalties; /* its rows need the history */
    bool announced; /* in the list of requests with news */
} mr_sequence;

/* RESOURCE_EXHAUSTED when memory is short. `request` is complete but for its sequence. */
MR_MUST_USE mr_status mr_sequence_create(mr_request *request, mr_sequence **out);
void mr_sequence_destroy(mr_sequence *sequence);

static inline bool mr_sequence_paused(const mr_sequence *sequence)
{
    return sequence->paused_ns != MR_NEVER;
}

/* True when the next step computes the token that it drew last, and nothing else is missing. */
static inline bool mr_sequence_decodes(const mr_sequence *sequence)
{
    return sequence->n_computed + 1 == sequence->n_tokens &&
           sequence->n_tokens > sequence->request->n_prompt;
}

/* Sequences in order of arrival; borrowed. */
typedef struct mr_sequence_list {
    mr_sequence **items; /* owns, [capacity] */
    uint32_t count;
    uint32_t capacity;
} mr_sequence_list;

MR_MUST_USE mr_status mr_sequence_list_init(mr_sequence_list *list, uint32_t capacity);
void mr_sequence_list_deinit(mr_sequence_list *list);
/* Puts `sequence` where its ticket belongs. The list must have room. */
void mr_sequence_list_insert(mr_sequence_list *list, mr_sequence *sequence);
/* Drops those that are not in `state`. */
void mr_sequence_list_keep(mr_sequence_list *list, mr_sequence_state state);

#endif
