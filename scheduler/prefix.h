/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefix caching, as the scheduler sees it: who comes in looks for the blocks that its tokens fill,
 * and a block that a step has filled is registered, of prompts and of output alike, so that the
 * next one finds it while the first still runs.
 *
 *   tokens   [ found, by reference | computed by this sequence ........ ]
 *            blocks of somebody     blocks of its own; registered as they fill
 *
 * Only full blocks are shared, and nobody writes into those. At least the last token is always
 * computed, since it has the row that draws the next. The beams of a search share what the prompt
 * fills: the block that a beam writes may be taken over by another later.
 *
 * Engine thread. Nothing here allocates.
 */
#ifndef MILLRACE_SCHEDULER_PREFIX_H
#define MILLRACE_SCHEDULER_PREFIX_H

#include "scheduler/scheduler.h"
#include "scheduler/sequence.h"

typedef struct mr_prefix_hits {
    uint32_t count; /* blocks found */
    uint32_t idle;  /* of them nobody holds: they count as available until they are taken */
} mr_prefix_hits;

/* Blocks that a waiting sequence can find at most. */
uint32_t mr_scheduler_prefix_limit(const mr_scheduler *scheduler, const mr_sequence *sequence);
/* Finds the blocks at the beginning of a waiting sequence; `blocks` has room for all of its own.
 * A request whose prompt is still to be scored finds none that it needs rows of. */
mr_prefix_hits mr_scheduler_prefix_find(const mr_scheduler *scheduler, const mr_sequence *sequence,
                                        uint32_t *blocks);
/* Takes references to blocks that were just found, and counts them. */
void mr_scheduler_prefix_take(mr_scheduler *scheduler, mr_sequence *sequence,
                              const mr_prefix_hits *hits, const uint32_t *blocks);
/* Registers the blocks that the last `count` computed tokens have filled. */
void mr_scheduler_prefix_register(mr_scheduler *scheduler, mr_sequence *sequence, uint32_t count);
/* Forgets every block of a sequence whose values turned out to be damaged. */
void mr_scheduler_prefix_forget(mr_scheduler *scheduler, const mr_sequence *sequence);

/* Goes on where the blocks found end: those of the host tier are copied into the sequence's own, as
 * far as they follow each other. With a tier whose transfers are immediate; after _take(), when the
 * sequence has its blocks. */
void mr_scheduler_prefix_promote(mr_scheduler *scheduler, mr_sequence *sequence);
/* Lets blocks that the pool evicts go to such a tier, while the scheduler lives. */
void mr_scheduler_prefix_demote_to(mr_scheduler *scheduler, mr_host_tier *tier);

#endif
