/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is the engine's side of a request, and a sequence that of one choice, or of one beam of
 * a beam search. A sequence is a token list, a count of tokens whose K/V is computed, and, while
 * it is resident, a slot and blocks.
 *
 *   tokens   [ prompt ............ | output .......... | room for max_tokens ]
 *            [ computed .................. | missing   ]
 *              0                            n_computed   n_tokens
 *
 * All choices begin as the first one: it computes the prompt, and the others are forked from it
 * then. After that they are sequences like any other. The beams of a search stay together: only
 * the first of them is in the scheduler's lists, and stands there for all.
 *
 * Allocated with their request, touched by the engine thread only.
 */
#ifndef MILLRACE_SCHEDULER_SEQUENCE_H
#define MILLRACE_SCHEDULER_SEQUENCE_H

#include "cache/host_tier.h"
#include "scheduler/request.h"

typedef enum mr_sequence_state {
    MR_SEQUENCE_UNBORN, /* in no list: a choice not forked yet, or a beam that is not the first */
    MR_SEQUENCE_WAITING,
    MR_SEQUENCE_RUNNING,  /* has a slot and blocks */
    MR_SEQUENCE_DRAINING, /* a finished search whose results do not fit the ring yet */
    MR_SEQUENCE_ENDED,
} mr_sequence_state;

typedef struct mr_group mr_group;

/* Where the text of a choice stands. */
typedef struct mr_text_state {
    mr_stop_state stop;
    uint64_t bytes;
} mr_text_state;

typedef struct mr_sequence {
    mr_request *request; /* borrows */
    mr_group *group;     /* borrows: its owner */
    uint32_t *tokens;    /* borrows, [n_prompt + max_tokens] */
    float *logprobs;     /* owns, [max_tokens]; beams only */
    uint32_t n_tokens;
    uint32_t n_computed;
    uint64_t ticket;      /* order of arrival, by choice within a request */
    double cumulative;    /* sum of logprobs, where the request wants them */
    mr_text_state text;   /* with stop strings only */
    uint32_t *blocks;     /* [n_blocks] the slot's row of the scheduler's table */
    uint32_t first_block; /* those before it are another beam's, to be shared once computed */
    uint32_t n_blocks;
    uint32_t n_sent;       /* blocks the device's table knows */
    uint32_t history_sent; /* tokens of the history that the device's slot knows */
    uint32_t slot;
    uint32_t preemptions;
    mr_host_handle kept;   /* its K/V in the host tier; 0: none. swap.h */
    uint32_t n_kept;       /* tokens of that */
    bool moving;           /* to or from there: it sits out steps */
    uint64_t kept_epoch;   /* prefix_epoch then */
    mr_block_hash *hashes; /* borrows, [n_hashes] of the full blocks behind those of the prompt, as
                              they were registered; NULL with beams */
    uint32_t n_hashes;
    uint64_t prefix_epoch; /* of the prefix index, when its first block was found or computed */
    uint32_t n_served;     /* tokens that the tenant has been charged for */
    uint32_t overtaken;    /* times that others came in while it did not fit */
    uint64_t blocked_ns;   /* since when it does not fit; MR_NEVER: it was not tried, or it did */
    uint32_t queue_place;  /* in the fair queue, from 1 on; 0: not there */
    bool keeps;            /* what it has: it is preempted no more; set when it begins to run */
    uint16_t choice;
    mr_sequence_state state;
} mr_sequence;

struct mr_group {
    mr_request *request;    /* borrows: the request owns its group */
    mr_sequence *sequences; /* owns, [n_sequences] */
    uint32_t *tokens;       /* owns: the token lists but the first, which is the request's */
    mr_block_hash *hashes;  /* owns: those of all sequences; NULL: no prefix caching */
    struct mr_beams *beams; /* owns; NULL: no beam search */
    uint32_t n_sequences;   /* choices or beams */
    uint32_t n_open;        /* choices whose last event is not pushed yet */
    uint32_t n_running;     /* sequences in that state */
    uint32_t n_generated;   /* tokens of all its sequences so far */
    uint32_t ring_space;    /* entries known to be free, those kept for last events included */
    uint64_t paused_ns;     /* since when the ring is full; MR_NEVER: it is not */
    uint64_t limit_ns;      /* when its time limit is over; MR_NEVER: none */
    bool penalties;         /* its rows need the history */
    bool live;              /* taken into the scheduler, and not at its end yet */
    bool announced;         /* in the list of requests with news */
};

/* RESOURCE_EXHAUSTED when memory is short. `request` is complete but for its group, and its prompt
 * has room for max_tokens. */
MR_MUST_USE mr_status mr_group_create(mr_request *request, mr_group **out);
void mr_group_destroy(mr_group *group);

static inline bool mr_group_paused(const mr_group *group)
{
    return group->paused_ns != MR_NEVER;
}

static inline uint32_t mr_sequence_generated(const mr_sequence *sequence)
{
    return sequence->n_tokens - sequence->request->n_prompt;
}

/* True when the next step computes the token that it drew last, and nothing else is missing. */
static inline bool mr_sequence_decodes(const mr_sequence *sequence)
{
    return sequence->n_computed + 1 == sequence->n_tokens && mr_sequence_generated(sequence) > 0;
}

/* Whether `a` has the better claim: the higher priority, then the earlier arrival. */
static inline bool mr_sequence_outranks(const mr_sequence *a, const mr_sequence *b)
{
    const int32_t priority = a->request->params.priority;
    const int32_t other = b->request->params.priority;
    return priority != other ? priority > other : a->ticket < b->ticket;
}

/* The order of those that run. One that keeps what it has cannot be taken from, so it must not wait
 * for blocks of one that in turn waits for its. */
static inline bool mr_sequence_runs_before(const mr_sequence *a, const mr_sequence *b)
{
    return a->keeps != b->keeps ? a->keeps : mr_sequence_outranks(a, b);
}

/* Sequences in order; borrowed. */
typedef struct mr_sequence_list {
    mr_sequence **items; /* owns, [capacity] */
    uint32_t count;
    uint32_t capacity;
    bool by_rank; /* as mr_sequence_runs_before says, else in order of arrival */
} mr_sequence_list;

MR_MUST_USE mr_status mr_sequence_list_init(mr_sequence_list *list, uint32_t capacity,
                                            bool by_rank);
void mr_sequence_list_deinit(mr_sequence_list *list);
/* Grows it to hold `capacity`. */
MR_MUST_USE mr_status mr_sequence_list_reserve(mr_sequence_list *list, uint32_t capacity);
/* Puts `sequence` where it belongs. The list must have room. */
void mr_sequence_list_insert(mr_sequence_list *list, mr_sequence *sequence);
/* Drops those that are not in `state`. */
void mr_sequence_list_keep(mr_sequence_list *list, mr_sequence_state state);
/* Drops those that are. */
void mr_sequence_list_drop(mr_sequence_list *list, mr_sequence_state state);

#endif
