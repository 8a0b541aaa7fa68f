/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive lock-free inbox: many threads put, one thread takes everything at once in the order
 * it was put. Handlers give requests to the engine this way, and the engine gives requests with
 * news to an RPC thread.
 *
 * A node belongs to at most one inbox at a time. `mr_inbox_put` of a node that is still inside is
 * a no-op, so a producer may announce the same object every step.
 */
#ifndef MILLRACE_BASE_INBOX_H
#define MILLRACE_BASE_INBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct mr_inbox_node {
    struct mr_inbox_node *next;
    atomic_bool inside;
} mr_inbox_node;

typedef struct mr_inbox {
    _Atomic(mr_inbox_node *) head; /* newest first; taken lists are reversed */
} mr_inbox;

void mr_inbox_init(mr_inbox *inbox);
void mr_inbox_node_init(mr_inbox_node *node);

/* Puts `node` in. Returns true iff the inbox was empty before, that is, when the consumer may be
 * asleep and wants waking. Everything the producer wrote before is visible to the taker. Any
 * thread; wait-free but for contention on the head. */
bool mr_inbox_put(mr_inbox *inbox, mr_inbox_node *node);

/* Takes all nodes, oldest first, linked by `next`; NULL when empty. The consumer must call
 * mr_inbox_release on each before it looks at the node's object, so that a producer that comes
 * later puts it in again. One consumer thread at a time. */
mr_inbox_node *mr_inbox_take_all(mr_inbox *inbox);

/* Marks a taken node as outside, making every earlier put's writes visible. Read next first. */
void mr_inbox_release(mr_inbox_node *node);

#endif
