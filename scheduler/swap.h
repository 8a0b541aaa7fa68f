/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preemption by swap: a victim's K/V is copied to the host tier, and back when it is its turn
 * again, where that costs less than to compute it again.
 *
 *   running ──preempt──► waiting, moving out ──► waiting ──admit──► running, moving in ──► running
 *                            │ failed, too slow: nothing is kept       │ failed, too slow:
 *                            ▼                                         ▼ waiting, nothing is kept
 *                         waiting: computed again, as without a host tier
 *
 * A sequence that is moving sits out steps. Its blocks are the tier's until the transfer ends, so
 * cancelling it at any moment leaks nothing. A search, whose beams share blocks, is recomputed.
 */
#ifndef MILLRACE_SCHEDULER_SWAP_H
#define MILLRACE_SCHEDULER_SWAP_H

#include "scheduler/internal.h"

#define MR_SWAP_POLL_NS (MR_NS_PER_MS / 2)

/* What is known about one choice between the two. */
typedef struct mr_swap_cost {
    uint32_t tokens;             /* to compute again */
    uint64_t bytes;              /* to copy, out and then back in */
    double prefill_ns_per_token; /* measured; 0: not known yet */
    double copy_ns_per_byte;     /* measured, one way; 0: not known yet */
} mr_swap_cost;

/* Transfers come after the copies before them, which forks have only listed: makes those now.
 * False: the device failed. With a host tier only. */
bool mr_swap_settle_copies(mr_scheduler *scheduler);

/* Whether to copy. While a speed is not known it is worth finding out. */
bool mr_swap_pays(const mr_swap_cost *cost);

/* Before the victim is released: true when its blocks are being kept, or are kept. */
bool mr_swap_out(mr_scheduler *scheduler, mr_sequence *victim);
/* Of a sequence that has got its slot and blocks: fetches what is kept of it. Blocks that hold its
 * first n_computed tokens already are left as they are. */
void mr_swap_in(mr_scheduler *scheduler, mr_sequence *sequence);
/* The sequence ends, or will be computed again. */
void mr_swap_forget(mr_scheduler *scheduler, mr_sequence *sequence);
/* Sees which transfers ended. Sequences that could not be fetched wait again, without slot and
 * blocks. At the beginning of a plan. */
void mr_swap_poll(mr_scheduler *scheduler, uint64_t now_ns);
/* True while a transfer is unfinished: an empty plan is no stall then, but to be made again after
 * MR_SWAP_POLL_NS. */
bool mr_swap_moving(const mr_scheduler *scheduler);
/* Blocks that come free when victims are copied out. */
uint32_t mr_swap_freeing(const mr_scheduler *scheduler);
/* Learns the speed of computing prompts from a step of `tokens` tokens that began at the plan. */
void mr_swap_measure(mr_scheduler *scheduler, uint32_t tokens, uint64_t now_ns);

#endif
