/* SPDX-License-Identifier: Apache-2.0 */
/* clang-format off */
/*
 * What the files of the scheduler share, and tests look into.
 *
 *   scheduler.c  create, add, fail, stats
 *   fair_queue.c who of those that wait comes next
 *   pace.c       how fast the queue moves
 *   plan.c       who runs, and how much of it
 *   residency.c  slots and blocks: admit, grow, preempt
 *   swap.c       what is preempted, in the host tier (swap.h)
 *   prefix.c     blocks that the prefix cache has (prefix.h)
 *   rows.c       rows of the batch, and their parameters
 *   ahead.c      the step behind the one that runs
 *   apply.c      tokens of the finished step
 *   verdict.c    what a token does to its choice
 *   fork.c       choices and beams on shared blocks
 *   search.c     a step of beam search
 *   outbox.c     last events, news to the sinks
 *   sequence.c   groups, ordered lists
 */
/* clang-format on */
#ifndef MILLRACE_SCHEDULER_INTERNAL_H
#define MILLRACE_SCHEDULER_INTERNAL_H

#include "scheduler/beam.h"
#include "scheduler/fair_queue.h"
#include "scheduler/pace.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

/* A sequence's part of the planned step. */
typedef struct mr_planned {
    mr_sequence *sequence; /* NULL: it ended in the step before, what comes is dropped */
    uint32_t tokens;
    uint32_t scored; /* rows that score prompt tokens, from the request's n_prompt_scored on */
    uint32_t drawn; /* rows after its last token: choices 0 … drawn − 1 of a new request, else 1 */
} mr_planned;

struct mr_scheduler {
    mr_scheduler_options options;
    mr_block_pool *pool; /* borrows */
    uint32_t block_size;
    uint32_t total_blocks; /* of the pool, without the null block */
    uint32_t max_running;  /* sequences, and slots 0 … max_running − 1 */
    uint32_t max_rows;     /* R of a step */
    uint32_t max_history;  /* history tokens of a step */
    uint32_t max_live;     /* requests, waiting and running */
    uint32_t max_blocks;   /* of one sequence */
    mr_hasher *hasher;     /* owns; of blocks that output fills */
    uint32_t *eos;         /* owns, [n_eos]; options.eos points here */
    uint32_t *bias_tokens; /* owns: scratch for the list of a row that bans stop tokens */
    float *bias_values;

    /* A live sequence that is born is in exactly one of them between calls; of the beams of a
     * search the first stands for all. */
    mr_sequence_list waiting; /* in order of arrival */
    mr_sequence_list running; /* by rank: the first gets what the last has to give */
    mr_sequence_list draining;
    mr_fair_queue fair; /* of those that wait */
    mr_pace pace;
    uint32_t n_groups;         /* live requests */
    uint32_t n_groups_running; /* those that have something running */
    uint32_t n_sequences;      /* of live requests, the unborn and ended ones too */

    uint32_t *tables;     /* owns, [max_running][max_blocks] blocks of each slot */
    uint32_t *free_slots; /* owns, a stack */
    uint32_t n_free_slots;

    mr_planned *planned; /* owns, [max_running] in batch order */
    uint32_t n_planned;
    uint32_t n_rows;
    mr_planned *ahead; /* owns, [max_running] of the step behind the planned one; ahead.c */
    uint32_t n_ahead;
    uint32_t n_ahead_rows;
    uint32_t ahead_in_a_row; /* steps that were planned so */
    uint64_t n_dropped;      /* rows of them whose sequence had ended */
    uint32_t tokens_left;    /* of what the step being planned may have */
    uint32_t rows_left;
    uint32_t history_left;

    mr_block_copy *copies; /* owns, [max_copies] to be made before the next step, in this order */
    uint32_t n_copies;
    uint32_t max_copies;

    mr_request **news;  /* owns, [max_news] requests to announce, each once */
    mr_request **group; /* owns, [max_news] those of one sink */
    uint32_t n_news;
    uint32_t max_news;

    uint64_t n_arrived; /* the last ticket */
    uint64_t window_ns; /* an idle scheduler gathers companions until then; 0: it does not */
    uint64_t last_prefill_step;  /* 0: none */
    uint64_t last_ns;            /* the latest time seen */
    uint32_t swept;              /* waiting ones that were looked at lately */
    bool swept_all;              /* the last plan looked at all of them */
    bool planned_none;           /* the last plan gave no step */
    uint32_t n_moving;           /* sequences that move to or from the host tier */
    uint64_t planned_ns;         /* when the step was planned */
    double prefill_ns_per_token; /* measured; 0: not yet */
    uint32_t empty_plans;        /* in a row, though something runs and nothing is waited for */
    mr_scheduler_stats stats;    /* counters; gauges are filled when asked for */
};

/* outbox.c */

/* Accounts for the end of a choice with so many tokens, and of its request if it was the last one.
 * The choice's last event is pushed next. */
void mr_scheduler_close(mr_scheduler *scheduler, mr_group *group, mr_finish finish, uint32_t tokens,
                        uint64_t now_ns);
/* Ends a sequence that is a choice: gives back slot and blocks, and closes the choice. The caller
 * takes it out of its list. */
void mr_scheduler_settle(mr_scheduler *scheduler, mr_sequence *sequence, mr_finish finish,
                         uint64_t now_ns);
/* The ring's next entry, for the caller to fill but for `last`; there is room for it. Then
 * mr_scheduler_give makes it visible. */
mr_token_event *mr_scheduler_reserve(mr_group *group);
void mr_scheduler_give(mr_scheduler *scheduler, mr_group *group, mr_token_event *entry);
/* Pushes an event; there is room for it. `top` is [event->n_top]. */
void mr_scheduler_push(mr_scheduler *scheduler, mr_group *group, const mr_token_event *event,
                       const mr_alternative *top);
/* Pushes the last event of a choice that ends without a token; the choice is closed. */
void mr_scheduler_push_end(mr_scheduler *scheduler, mr_group *group, uint32_t choice,
                           mr_finish finish);
/* Ends all open choices of a request without a token; its error is set. The caller takes what is
 * ENDED then out of the lists. */
void mr_scheduler_end(mr_scheduler *scheduler, mr_group *group, mr_finish finish, uint64_t now_ns);
/* Drops ENDED sequences from all lists. */
void mr_scheduler_drop_ended(mr_scheduler *scheduler);

/* residency.c */

/* Puts a sequence of a live request into the queue: WAITING. */
void mr_scheduler_queue(mr_scheduler *scheduler, mr_sequence *sequence);

typedef enum mr_admission {
    MR_ADMITTED,
    MR_ADMIT_LATER, /* slots or blocks are not there now; nothing changed */
    MR_ADMIT_NEVER, /* the whole pool would not do */
} mr_admission;

/* Gives a waiting sequence a slot and the blocks of all its tokens; beams get theirs together. The
 * caller takes it out of `waiting`. */
mr_admission mr_scheduler_admit(mr_scheduler *scheduler, mr_sequence *sequence, uint64_t now_ns);
/* Gives a sequence a slot, and `count` blocks of its own from first_block on: entries before that
 * are the caller's to fill. Slot and blocks are there. */
void mr_scheduler_take(mr_scheduler *scheduler, mr_sequence *sequence, uint32_t first_block,
                       uint32_t count);
/* Whether the tokens of the sequence, or of all live beams, have their blocks. */
bool mr_scheduler_has_room(const mr_scheduler *scheduler, const mr_sequence *sequence);
/* Gives running[index] the blocks for its next token, if need be by preempting others; false when
 * they are not to be had. Preempted ones stay in `running` until the caller drops them. */
bool mr_scheduler_grow(mr_scheduler *scheduler, uint32_t index);
/* Whether the token behind those that it has lacks its block, and taking that: a free one. */
bool mr_scheduler_lacks_next(const mr_scheduler *scheduler, const mr_sequence *sequence);
void mr_scheduler_grow_next(mr_scheduler *scheduler, mr_sequence *sequence);
/* Gives back slots and blocks, if it has them. */
void mr_scheduler_release(mr_scheduler *scheduler, mr_sequence *sequence);
/* A sequence that was preempted max_preemptions times keeps what it has. */
bool mr_scheduler_protects(const mr_scheduler *scheduler, const mr_sequence *sequence);
/* Blocks for everything that a choice or beam of the request may come to compute. */
uint32_t mr_scheduler_life_blocks(const mr_scheduler *scheduler, const mr_request *request);
/* Makes a resident sequence of one that has its slot and blocks. */
void mr_scheduler_enter(mr_scheduler *scheduler, mr_sequence *sequence);

/* fork.c */

/* Lets choices 1 … n − 1 begin where the first one, which has computed the prompt, stands: on its
 * blocks where slot and blocks are to be had and a row of theirs was drawn (choices below `drawn`),
 * else as waiting sequences that compute the prompt themselves. */
void mr_scheduler_fork(mr_scheduler *scheduler, mr_sequence *first, uint32_t drawn);
/* Lets an idle beam become a copy of a live one, blocks shared. */
void mr_scheduler_copy_beam(mr_scheduler *scheduler, mr_sequence *to, const mr_sequence *from);
/* Takes a beam out of use; it keeps blocks of its own. */
void mr_scheduler_idle_beam(mr_scheduler *scheduler, mr_sequence *beam);
/* Shares the prompt's blocks, which the first beam has computed again, with the other live ones. */
void mr_scheduler_attach_beams(mr_scheduler *scheduler, mr_group *group);

/* rows.c */

/* How many tokens of the sequence the step can take, at most `limit`: as tokens, rows and history
 * are left. */
uint32_t mr_scheduler_chunk(const mr_scheduler *scheduler, const mr_sequence *sequence,
                            uint32_t limit);
/* Puts its next `count` tokens into the batch, with the rows that belong to them. */
void mr_scheduler_emit(mr_scheduler *scheduler, mr_sequence *sequence, uint32_t count,
                       mr_batch_storage *storage);

/* The same for the token that `row` of the planned step draws for it, and a row that draws the next
 * one: a part of the step ahead. Its block is there. */
void mr_scheduler_emit_ahead(mr_scheduler *scheduler, mr_sequence *sequence, uint32_t row,
                             mr_batch_storage *storage);

/* ahead.c */

/* The planned step is applied: the one behind it, if there is one, takes its place. */
void mr_scheduler_take_ahead(mr_scheduler *scheduler);

/* verdict.c */

typedef struct mr_verdict {
    mr_finish finish; /* NONE: it goes on */
    uint32_t matched_token;
    uint16_t matched_stop;
    uint64_t text_bytes; /* for the event */
} mr_verdict;

/* What `token`, drawn after n_generated others, does to its choice; `text` moves on. */
void mr_scheduler_judge(const mr_scheduler *scheduler, const mr_request *request,
                        uint32_t n_generated, uint32_t token, mr_text_state *text,
                        mr_verdict *verdict);
/* Whether end and stop tokens are banned for the token after n_generated others. */
bool mr_scheduler_bans_stops(const mr_request *request, uint32_t n_generated);

/* search.c */

/* Applies a step of beam search: rows first_row … of the output, one a live beam (the prompt's row
 * when there is none). The search may end. */
void mr_scheduler_search(mr_scheduler *scheduler, mr_group *group, const mr_step_output *output,
                         uint32_t first_row, uint64_t now_ns);
/* Ends a search before its time, with what it has: false, and nothing done, if that is nothing. */
bool mr_scheduler_cut_search(mr_scheduler *scheduler, mr_group *group, mr_finish finish,
                             uint64_t now_ns);
/* Pushes results while the ring has room. The group ends with the last of them. */
void mr_scheduler_drain(mr_scheduler *scheduler, mr_group *group, uint64_t now_ns);

#endif
