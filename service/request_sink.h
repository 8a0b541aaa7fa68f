/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the engine to a completion queue's thread.
 *
 *   engine thread                                queue thread
 *   publish(requests) ─ notes into the inbox
 *                     └ it was empty: wake-up ──► MR_RPC_WAKE: takes all notes
 *
 * Each request has two notes, "news" and "ended". The second is put exactly once, by the last
 * publish; until it is taken the request and its owner must stay, after that the engine does not
 * touch them again. Notes are taken on MR_RPC_WAKE only: then a note that calls for a wake-up is
 * never taken before that wake-up is on its way, and a queue that has no calls left can go.
 */
#ifndef MILLRACE_SERVICE_REQUEST_SINK_H
#define MILLRACE_SERVICE_REQUEST_SINK_H

#include "base/inbox.h"
#include "service/rpc_queue.h"

#include <stdbool.h>

typedef struct mr_request_note {
    mr_inbox_node node; /* first */
    bool ended;
} mr_request_note;

/* What mr_request.owner points to, for requests whose sink is a queue's. */
typedef struct mr_request_link {
    mr_request_note news;
    mr_request_note ended;
    /* On the queue's thread: events may wait in the request's ring; with `ended` all of them do,
     * and the link may be freed. */
    void (*on_news)(struct mr_request_link *link, bool ended);
} mr_request_link;

void mr_request_link_init(mr_request_link *link,
                          void (*on_news)(mr_request_link *link, bool ended));

/* Sets up sink and inbox of a queue. */
void mr_request_sink_init(mr_rpc_queue *queue);
/* Takes all notes and calls their links. The queue's thread, on MR_RPC_WAKE. */
void mr_request_sink_take(mr_rpc_queue *queue);

#endif
