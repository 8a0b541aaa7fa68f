/* SPDX-License-Identifier: Apache-2.0 */
#include "service/request_sink.h"

#include <stddef.h>

void mr_request_link_init(mr_request_link *link, void (*on_news)(mr_request_link *link, bool ended))
{
    mr_inbox_node_init(&link->news.node);
    mr_inbox_node_init(&link->ended.node);
    link->news.ended = false;
    link->ended.ended = true;
    link->on_news = on_news;
}

/* The engine's thread writes the ring, so it may look at what it wrote last. */
static bool has_ended(const mr_request *request)
{
    const mr_token_event *last = mr_ring_newest(&request->events);
    return last != NULL && last->last;
}

static void publish(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    mr_rpc_queue *queue = (mr_rpc_queue *)sink;
    bool asleep = false;
    for (uint32_t i = 0; i < count; i++) {
        mr_request_link *link = requests[i]->owner;
        mr_request_note *note = has_ended(requests[i]) ? &link->ended : &link->news;
        if (mr_inbox_put(&queue->inbox, &note->node)) {
            asleep = true;
        }
    }
    if (asleep) {
        mr_rpc_queue_post(queue, &queue->wake_tag);
    }
}

void mr_request_sink_init(mr_rpc_queue *queue)
{
    queue->sink.publish = publish;
    mr_inbox_init(&queue->inbox);
    queue->wake_tag.event = MR_RPC_WAKE;
}

void mr_request_sink_take(mr_rpc_queue *queue)
{
    mr_inbox_node *node = mr_inbox_take_all(&queue->inbox);
    while (node != NULL) {
        mr_inbox_node *next = node->next;
        const bool ended = ((const mr_request_note *)node)->ended;
        const size_t offset =
            ended ? offsetof(mr_request_link, ended.node) : offsetof(mr_request_link, news.node);
        mr_request_link *link = (void *)((char *)node - offset);
        mr_inbox_release(node);
        link->on_news(link, ended);
        node = next;
    }
}
