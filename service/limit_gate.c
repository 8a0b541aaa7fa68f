/* SPDX-License-Identifier: Apache-2.0 */
#include "service/limit_gate.h"

#include "service/rpc.h"

#include <stddef.h>

void mr_limit_gate_init(mr_rpc_queue *queue)
{
    mr_inbox_init(&queue->decided);
    queue->decided_tag.event = MR_RPC_DECIDED;
}

/* The link's thread. The pass may be gone once its note is inside. */
static void on_decided(mr_rate_ticket *ticket)
{
    mr_limit_pass *pass = (mr_limit_pass *)ticket;
    mr_rpc_queue *queue = pass->queue;
    if (mr_inbox_put(&queue->decided, &pass->node)) {
        mr_rpc_queue_post(queue, &queue->decided_tag);
    }
}

bool mr_limit_gate_ask(mr_limit_pass *pass, mr_rpc_queue *queue)
{
    mr_inbox_node_init(&pass->node);
    pass->queue = queue;
    pass->ticket.on_decided = on_decided;
    return mr_rate_limiter_take(queue->server->limiter, &pass->ticket);
}

void mr_limit_gate_take(mr_rpc_queue *queue)
{
    mr_inbox_node *node = mr_inbox_take_all(&queue->decided);
    while (node != NULL) {
        mr_inbox_node *next = node->next;
        mr_limit_pass *pass = (void *)((char *)node - offsetof(mr_limit_pass, node));
        mr_inbox_release(node);
        pass->on_decided(pass);
        node = next;
    }
}
