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
 * The engine thread's. Nothing here allocates.
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
    uint32_t waiting; /* sequences */
} mr_fair_tenant;

#define MR_FAIR_UNIT (UINT64_C(1) << 20)

typedef struct mr_fair_queue {
    mr_fair_options options;
    mr_fair_tenant tenants[MR_MAX_TENANTS];
    uint32_t waiting;   /* sequences of all */
    uint32_t last_left; /* the tenant whose last sequence left the queue last */

    /* Of the plan under way. */
    mr_sequence *passed[MR_MAX_PASSED_OVER]; /* those that did not fit */
    uint32_t n_passed;
    uint64_t now_ns;
} mr_fair_queue;

void mr_fair_queue_init(mr_fair_queue *queue, const mr_fair_options *options);

/* A request's first sequence comes into the queue. */
void mr_fair_queue_arrive(mr_fair_queue *queue, mr_sequence *sequence);
/* A sequence of a request that is here already does (preempted, or a choice that found no room). */
void mr_fair_queue_return(mr_fair_queue *queue, mr_sequence *sequence);
/* It leaves the queue, if it is there. */
void mr_fair_queue_leave(mr_fair_queue *queue, mr_sequence *sequence);

/* Counts tokens first … end − 1 of the sequence as served, those that were not counted before:
 * what is computed again is not the tenant's doing. */
void mr_fair_queue_serve(mr_fair_queue *queue, mr_sequence *sequence, uint32_t first, uint32_t end);

/* Begins a round of choosing. */
void mr_fair_queue_begin(mr_fair_queue *queue, uint64_t now_ns);
/* Who of `waiting` is next; NULL: nobody may come in now. Paused ones are left out, as nobody
 * waits for their readers, and those that move to the host tier. */
mr_sequence *mr_fair_queue_next(const mr_fair_queue *queue, const mr_sequence_list *waiting);
/* The chosen one does not fit; others may still, see mr_fair_queue_next. */
void mr_fair_queue_pass_over(mr_fair_queue *queue, mr_sequence *sequence);
/* The chosen one came in, before those that were passed over. */
void mr_fair_queue_admitted(mr_fair_queue *queue, mr_sequence *sequence);

/* The tenant that holds most of the queue for its weight; `weights` as of mr_request.weight, of
 * which `tenant` is about to add one. It is `tenant` itself unless another holds more than that
 * would. */
uint32_t mr_fair_queue_fullest(const mr_fair_queue *queue, const mr_sequence_list *waiting,
                               uint32_t tenant, uint32_t weight);

#endif
