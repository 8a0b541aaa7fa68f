/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who of those that wait comes next.
 *
 * Between tenants: the one that was served least, in tokens over its weight. A tenant that had
 * nothing waiting begins where the least served of those that wait stands, so that nobody saves up
 * for later. (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024: the virtual
 * token counter, with weights. Prompts are counted when they are admitted, output as it comes.)
 *
 * Within a tenant: who has waited for the ageing bound, oldest first; then by priority; then by
 * arrival.
 *
 * Before all of them: who has been overtaken as often, or for as long, as is allowed. Its blocks
 * are waited for then, and nobody else comes in.
 *
 * The engine thread's. Only _init and _reserve allocate.
 */
#ifndef MILLRACE_SCHEDULER_FAIR_QUEUE_H
#define MILLRACE_SCHEDULER_FAIR_QUEUE_H

#include "scheduler/sequence.h"

/* How many of those that do not fit a plan passes over, at most: it bounds the work of a plan. */
#define MR_MAX_PASSED_OVER 8u

typedef struct mr_fair_options {
    uint64_t ageing_ns;     /* 0: priorities do not matter here */
    uint32_t max_overtakes; /* times that others may pass one that does not fit; 0: none may */
    uint64_t overtake_ns;   /* how long they may */
} mr_fair_options;

typedef struct mr_fair_tenant {
    uint64_t served;  /* tokens over weight, in units of 1 / MR_FAIR_UNIT token */
    uint32_t weight;  /* of its request that came last */
    uint32_t waiting; /* sequences */
} mr_fair_tenant;

#define MR_FAIR_UNIT (UINT64_C(1) << 20)

/* What choosing looks at, apart from the sequences, which lie all over the memory. */
typedef struct mr_fair_entry {
    mr_sequence *sequence; /* borrows */
    uint64_t ticket;
    uint64_t aged_ns; /* from when on its priority does not matter */
    int32_t priority;
    uint16_t tenant;
    bool blocked; /* it was passed over before, see the sequence */
} mr_fair_entry;

typedef struct mr_fair_queue {
    mr_fair_options options;
    mr_fair_tenant tenants[MR_MAX_TENANTS];
    mr_fair_entry *entries; /* owns, [capacity], count of them in use, in no order */
    uint32_t count;
    uint32_t capacity;
    uint32_t last_left; /* the tenant whose last sequence left the queue last */

    /* Of the plan under way. */
    mr_sequence *passed[MR_MAX_PASSED_OVER]; /* those that did not fit */
    uint32_t n_passed;
    uint64_t now_ns;
} mr_fair_queue;

/* RESOURCE_EXHAUSTED when memory is short; _deinit is right all the same. */
MR_MUST_USE mr_status mr_fair_queue_init(mr_fair_queue *queue, const mr_fair_options *options,
                                         uint32_t capacity);
void mr_fair_queue_deinit(mr_fair_queue *queue);
/* Grows it to hold `capacity` sequences. */
MR_MUST_USE mr_status mr_fair_queue_reserve(mr_fair_queue *queue, uint32_t capacity);

/* A request's first sequence comes into the queue, which has room. */
void mr_fair_queue_arrive(mr_fair_queue *queue, mr_sequence *sequence);
/* A sequence of a request that is here already does (preempted, or a choice that found no room). */
void mr_fair_queue_return(mr_fair_queue *queue, mr_sequence *sequence);
/* It leaves the queue, if it is there. */
void mr_fair_queue_leave(mr_fair_queue *queue, mr_sequence *sequence);

/* Counts the sequence's tokens from `first` on as served, those that were not counted before: what
 * is computed again is not the tenant's doing. */
void mr_fair_queue_serve(mr_fair_queue *queue, mr_sequence *sequence, uint32_t first);

/* Begins a round of choosing. */
void mr_fair_queue_begin(mr_fair_queue *queue, uint64_t now_ns);
/* Who is next; NULL: nobody may come in now. Paused ones are left out, as nobody waits for their
 * readers, and those that move to the host tier. */
mr_sequence *mr_fair_queue_next(const mr_fair_queue *queue);
/* The chosen one does not fit; others may still, see mr_fair_queue_next. */
void mr_fair_queue_pass_over(mr_fair_queue *queue, mr_sequence *sequence);
/* The chosen one came in, before those that were passed over. */
void mr_fair_queue_admitted(mr_fair_queue *queue, mr_sequence *sequence);

/* The tenant that holds most of the queue for its weight, when `tenant` is about to add one: that
 * itself, unless another holds more than it would. */
uint32_t mr_fair_queue_fullest(const mr_fair_queue *queue, uint32_t tenant, uint32_t weight);
/* Of the tenant's requests that never ran, the one with the worst claim; NULL: there is none. */
mr_sequence *mr_fair_queue_worst(const mr_fair_queue *queue, uint32_t tenant);

#endif
