/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/internal.h"
#include "scheduler/swap.h"

/* The request is in the news of the next publish(), once. */
static void announce(mr_scheduler *s, mr_group *group)
{
    if (group->announced) {
        return;
    }
    MR_CHECK(s->n_news < s->max_news);
    group->announced = true;
    s->news[s->n_news++] = group->request;
}

void mr_scheduler_close(mr_scheduler *s, mr_group *group, mr_finish finish, uint32_t tokens,
                        uint64_t now_ns)
{
    mr_request_usage *usage = &group->request->usage;
    MR_CHECK(group->n_open > 0);
    group->n_open--;
    usage->finish = finish > usage->finish ? finish : usage->finish;
    usage->completion_tokens += tokens;
    usage->longest_choice = tokens > usage->longest_choice ? tokens : usage->longest_choice;
    usage->finished_ns = now_ns;
    if (group->n_open == 0) {
        s->stats.finished[usage->finish]++;
        s->n_groups -= group->live;
        s->n_sequences -= group->live ? group->n_sequences : 0;
        group->live = false;
    }
}

void mr_scheduler_settle(mr_scheduler *s, mr_sequence *sequence, mr_finish finish, uint64_t now_ns)
{
    mr_scheduler_release(s, sequence);
    mr_swap_forget(s, sequence);
    mr_fair_queue_leave(&s->fair, sequence);
    sequence->state = MR_SEQUENCE_ENDED;
    mr_scheduler_close(s, sequence->group, finish, mr_sequence_generated(sequence), now_ns);
}

mr_token_event *mr_scheduler_reserve(mr_group *group)
{
    mr_ring *ring = &group->request->events;
    if (group->ring_space <= group->n_open) {
        group->ring_space = mr_ring_space(ring);
    }
    mr_token_event *entry = mr_ring_reserve(ring);
    MR_CHECK(entry != NULL && group->ring_space > 0);
    return entry;
}

void mr_scheduler_give(mr_scheduler *s, mr_group *group, mr_token_event *entry)
{
    entry->last = group->n_open == 0;
    mr_ring_commit(&group->request->events);
    group->ring_space--;
    announce(s, group);
}

void mr_scheduler_push(mr_scheduler *s, mr_group *group, const mr_token_event *event,
                       const mr_alternative *top)
{
    mr_token_event *entry = mr_scheduler_reserve(group);
    *entry = *event;
    for (uint32_t i = 0; i < event->n_top; i++) {
        entry->top[i] = top[i];
    }
    mr_scheduler_give(s, group, entry);
}

void mr_scheduler_push_end(mr_scheduler *s, mr_group *group, uint32_t choice, mr_finish finish)
{
    const mr_token_event event = {
        .token = MR_NO_TOKEN,
        .choice = (uint16_t)choice,
        .finish = (uint8_t)finish,
        .matched_stop = MR_NO_STOP,
        .matched_token = MR_NO_TOKEN,
        .text_bytes = UINT64_MAX,
    };
    mr_scheduler_push(s, group, &event, NULL);
}

/* Results that did not go out are lost; the choice that was going out keeps what did. */
static void end_search(mr_scheduler *s, mr_group *group, mr_finish finish, uint64_t now_ns)
{
    mr_beams *beams = group->beams;
    mr_scheduler_release(s, &group->sequences[0]);
    mr_fair_queue_leave(&s->fair, &group->sequences[0]);
    group->sequences[0].state = MR_SEQUENCE_ENDED;
    while (group->n_open > 0) {
        mr_scheduler_close(s, group, finish, beams->token, now_ns);
        mr_scheduler_push_end(s, group, beams->choice++, finish);
        beams->token = 0;
    }
}

void mr_scheduler_end(mr_scheduler *s, mr_group *group, mr_finish finish, uint64_t now_ns)
{
    if (group->beams != NULL) {
        end_search(s, group, finish, now_ns);
        return;
    }
    for (uint32_t i = 0; i < group->n_sequences; i++) {
        mr_sequence *sequence = &group->sequences[i];
        if (sequence->state != MR_SEQUENCE_ENDED) {
            mr_scheduler_settle(s, sequence, finish, now_ns);
            mr_scheduler_push_end(s, group, i, finish);
        }
    }
}

void mr_scheduler_drop_ended(mr_scheduler *s)
{
    mr_sequence_list_drop(&s->running, MR_SEQUENCE_ENDED);
    mr_sequence_list_drop(&s->waiting, MR_SEQUENCE_ENDED);
    mr_sequence_list_drop(&s->draining, MR_SEQUENCE_ENDED);
}

/* Moves the news of `sink` into the group and gives their number. */
static uint32_t take_group(mr_scheduler *s, const mr_sink *sink)
{
    uint32_t taken = 0;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n_news; i++) {
        mr_request *request = s->news[i];
        if (request->sink == sink) {
            request->group->announced = false;
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
            if (s->group[i]->group->n_open == 0) {
                mr_request_unref(s->group[i]);
            }
        }
    }
}
