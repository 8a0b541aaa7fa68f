/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the scheduler share, and tests look into.
 *
 *   scheduler.c  create, add, fail, stats         residency.c  slots and blocks: admit, grow,
 * preempt plan.c       who runs, rows of the batch      apply.c      tokens of the finished step
 *   outbox.c     last events, news to the sinks   sequence.c   token list, ordered lists
 */
#ifndef MILLRACE_SCHEDULER_INTERNAL_H
#define MILLRACE_SCHEDULER_INTERNAL_H

#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

/* A sequence's part of the planned step. */
typedef struct mr_planned {
    mr_sequence *sequence;
    uint32_t tokens;
    bool row; /* its last token has a row of logits */
} mr_planned;

struct mr_scheduler {
    mr_scheduler_options options;
    mr_block_pool *pool; /* borrows */
    uint32_t block_size;
    uint32_t total_blocks; /* of the pool, without the null block */
    uint32_t max_running;  /* sequences, and slots 0 … max_running − 1 */
    uint32_t max_live;     /* waiting and running */
    uint32_t max_blocks;   /* of one sequence */
    uint32_t *eos;         /* owns, [n_eos]; options.eos points here */
    float *bans;           /* owns, [n_eos] −INFINITY */

    /* A live sequence is in exactly one of the two between calls. */
    mr_sequence_list waiting;
    mr_sequence_list running;

    uint32_t *tables;     /* owns, [max_running][max_blocks] blocks of each slot */
    uint32_t *free_slots; /* owns, a stack */
    uint32_t n_free_slots;

    mr_planned *planned; /* owns, [max_running] in batch order */
    uint32_t n_planned;
    uint32_t n_rows;
    uint32_t tokens_left; /* of the budget of the step being planned */

    mr_request **news;  /* owns, [max_news] requests to announce, each once */
    mr_request **group; /* owns, [max_news] those of one sink */
    uint32_t n_news;
    uint32_t max_news;

    uint64_t n_arrived; /* the last ticket */
    uint64_t window_ns; /* an idle scheduler gathers companions until then; 0: it does not */
    uint64_t last_prefill_step; /* 0: none */
    uint64_t last_ns;           /* the latest time seen */
    mr_scheduler_stats stats;   /* counters; gauges are filled when asked for */
};

/* outbox.c */

/* Marks the request as one with news. */
void mr_scheduler_announce(mr_scheduler *scheduler, mr_sequence *sequence);
/* Ends a sequence: gives back slot and blocks and completes usage. Its last event is pushed next.
 * The caller takes it out of its list. */
void mr_scheduler_settle(mr_scheduler *scheduler, mr_sequence *sequence, mr_finish finish,
                         uint64_t now_ns);
/* Pushes an event; plan() left room for it. `top` is [event->n_top]. */
void mr_scheduler_push(mr_scheduler *scheduler, mr_sequence *sequence, const mr_token_event *event,
                       const mr_alternative *top);
/* Ends a sequence without a token; its request's error is set. */
void mr_scheduler_end(mr_scheduler *scheduler, mr_sequence *sequence, mr_finish finish,
                      uint64_t now_ns);

/* residency.c */

/* Gives a waiting sequence a slot and the blocks of all its tokens; false, and nothing changed,
 * when they are not there. The caller takes it out of `waiting`. */
bool mr_scheduler_admit(mr_scheduler *scheduler, mr_sequence *sequence, uint64_t now_ns);
/* Gives running[index] the block for its next token, if need be by preempting others; false when
 * there is none to be had. Preempted ones stay in `running` until the caller drops them. */
bool mr_scheduler_grow(mr_scheduler *scheduler, uint32_t index);
/* Gives back slot and blocks, if it has them. */
void mr_scheduler_release(mr_scheduler *scheduler, mr_sequence *sequence);

#endif
