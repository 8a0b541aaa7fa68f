/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/internal.h"

void mr_scheduler_announce(mr_scheduler *s, mr_sequence *sequence)
{
    if (sequence->announced) {
        return;
    }
    MR_CHECK(s->n_news < s->max_news);
    sequence->announced = true;
    s->news[s->n_news++] = sequence->request;
}

void mr_scheduler_settle(mr_scheduler *s, mr_sequence *sequence, mr_finish finish, uint64_t now_ns)
{
    mr_request_usage *usage = &sequence->request->usage;
    mr_scheduler_release(s, sequence);
    sequence->state = MR_SEQUENCE_ENDED;
    usage->completion_tokens = sequence->n_tokens - sequence->request->n_prompt;
    usage->finished_ns = now_ns;
    s->stats.finished[finish]++;
}

void mr_scheduler_push(mr_scheduler *s, mr_sequence *sequence, const mr_token_event *event,
                       const mr_alternative *top)
{
    mr_ring *ring = &sequence->request->events;
    mr_token_event *entry = mr_ring_reserve(ring);
    MR_CHECK(entry != NULL && sequence->ring_space > 0);
    *entry = *event;
    for (uint32_t i = 0; i < event->n_top; i++) {
        entry->top[i] = top[i];
    }
    mr_ring_commit(ring);
    sequence->ring_space--;
    mr_scheduler_announce(s, sequence);
}

void mr_scheduler_end(mr_scheduler *s, mr_sequence *sequence, mr_finish finish, uint64_t now_ns)
{
    mr_scheduler_settle(s, sequence, finish, now_ns);
    const mr_token_event event = {
        .token = MR_NO_TOKEN,
        .finish = (uint8_t)finish,
        .matched_token = MR_NO_TOKEN,
        .text_bytes = UINT64_MAX,
    };
    mr_scheduler_push(s, sequence, &event, NULL);
}

/* Moves the news of `sink` into the group and gives their number. */
static uint32_t take_group(mr_scheduler *s, const mr_sink *sink)
{
    uint32_t taken = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_news; i++) {
        mr_request *request = s->news[i];
        if (request->sink == sink) {
            request->sequence->announced = false;
            s->group[taken++] = request;
        } else {
            s->news[kept++] = request;
        }
    }
    s->n_news = kept;
    return taken;
}

void mr_scheduler_publish(mr_scheduler *s)
{
    while (s->n_news > 0) {
        mr_sink *sink = s->news[0]->sink;
        const uint32_t count = take_group(s, sink);
        sink->publish(sink, s->group, count);
        for (uint32_t i = 0; i < count; i++) {
            if (s->group[i]->sequence->state == MR_SEQUENCE_ENDED) {
                mr_request_unref(s->group[i]);
            }
        }
    }
}
