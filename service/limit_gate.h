/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the rate limiter to a completion queue's thread: a call that waits for Redis's word goes on
 * where it belongs, and meanwhile holds up nobody.
 *
 *   queue's thread        link's thread                        queue's thread
 *   ask ─► false ·····►   decided: note into the inbox
 *                         └ it was empty: wake-up  ─────────►  MR_RPC_DECIDED: on_decided
 */
#ifndef MILLRACE_SERVICE_LIMIT_GATE_H
#define MILLRACE_SERVICE_LIMIT_GATE_H

#include "cache/rate_limiter.h"
#include "service/rpc_queue.h"

#include <stdbool.h>

/* Of one request. Zero-initialised is valid: nothing was asked, nothing is held. */
typedef struct mr_limit_pass {
    mr_rate_ticket ticket; /* first */
    mr_inbox_node node;
    mr_rpc_queue *queue;
    void (*on_decided)(struct mr_limit_pass *pass); /* on the queue's thread */
} mr_limit_pass;

void mr_limit_gate_init(mr_rpc_queue *queue);

/* Asks for what the pass's ticket says. True: decided. False: on_decided follows; until then the
 * pass stays where it is. The queue's thread. */
MR_MUST_USE bool mr_limit_gate_ask(mr_limit_pass *pass, mr_rpc_queue *queue);
/* On MR_RPC_DECIDED. */
void mr_limit_gate_take(mr_rpc_queue *queue);

#endif
