/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/fair_queue.h"

#include "base/checked.h"

#include <stdlib.h>

mr_status mr_fair_queue_init(mr_fair_queue *queue, const mr_fair_options *options,
                             uint32_t capacity)
{
    *queue = (mr_fair_queue){.options = *options};
    return mr_fair_queue_reserve(queue, capacity);
}

void mr_fair_queue_deinit(mr_fair_queue *queue)
{
    free(queue->entries);
    queue->entries = NULL;
}

mr_status mr_fair_queue_reserve(mr_fair_queue *queue, uint32_t capacity)
{
    if (capacity <= queue->capacity) {
        return MR_OK;
    }
    mr_fair_entry *entries = mr_reallocarray(queue->entries, capacity, sizeof(*entries));
    if (entries == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    queue->entries = entries;
    queue->capacity = capacity;
    return MR_OK;
}

/* Where a tenant begins that had nothing in the queue. */
static uint64_t least_served(const mr_fair_queue *queue)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t t = 0; t < MR_MAX_TENANTS; t++) {
        const mr_fair_tenant *tenant = &queue->tenants[t];
        if (tenant->waiting > 0 && tenant->served < least) {
            least = tenant->served;
        }
    }
    return queue->count > 0 ? least : queue->tenants[queue->last_left].served;
}

void mr_fair_queue_arrive(mr_fair_queue *queue, mr_sequence *sequence)
{
    mr_fair_tenant *tenant = &queue->tenants[sequence->request->tenant];
    if (tenant->waiting == 0) {
        const uint64_t least = least_served(queue);
        tenant->served = tenant->served > least ? tenant->served : least;
    }
    tenant->weight = sequence->request->weight;
    mr_fair_queue_return(queue, sequence);
}

void mr_fair_queue_return(mr_fair_queue *queue, mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    MR_CHECK(queue->count < queue->capacity && sequence->queue_place == 0);
    queue->entries[queue->count++] = (mr_fair_entry){
        .sequence = sequence,
        .ticket = sequence->ticket,
        .aged_ns = mr_time_add(request->arrived_ns, queue->options.ageing_ns),
        .priority = request->params.priority,
        .tenant = (uint16_t)request->tenant,
    };
    sequence->queue_place = queue->count;
    sequence->overtaken = 0;
    sequence->blocked_ns = MR_NEVER;
    queue->tenants[request->tenant].waiting++;
}

void mr_fair_queue_leave(mr_fair_queue *queue, mr_sequence *sequence)
{
    if (sequence->queue_place == 0) {
        return;
    }
    mr_fair_entry *entry = &queue->entries[sequence->queue_place - 1];
    MR_CHECK(entry->sequence == sequence);
    *entry = queue->entries[--queue->count];
    entry->sequence->queue_place = sequence->queue_place;
    sequence->queue_place = 0;
    mr_fair_tenant *tenant = &queue->tenants[sequence->request->tenant];
    tenant->waiting--;
    if (tenant->waiting == 0) {
        queue->last_left = sequence->request->tenant;
    }
}

void mr_fair_queue_serve(mr_fair_queue *queue, mr_sequence *sequence, uint32_t first)
{
    const mr_request *request = sequence->request;
    const uint32_t end = sequence->n_tokens;
    const uint32_t from = first > sequence->n_served ? first : sequence->n_served;
    if (end > from) {
        queue->tenants[request->tenant].served += (end - from) * MR_FAIR_UNIT / request->weight;
        sequence->n_served = end;
    }
}

void mr_fair_queue_begin(mr_fair_queue *queue, uint64_t now_ns)
{
    queue->n_passed = 0;
    queue->now_ns = now_ns;
}

static bool was_passed_over(const mr_fair_queue *queue, const mr_sequence *sequence)
{
    for (uint32_t i = 0; i < queue->n_passed; i++) {
        if (queue->passed[i] == sequence) {
            return true;
        }
    }
    return false;
}

/* Nobody may overtake it any more. */
static bool is_due(const mr_fair_queue *queue, const mr_sequence *sequence)
{
    return sequence->blocked_ns != MR_NEVER &&
           (sequence->overtaken >= queue->options.max_overtakes ||
            queue->now_ns >= mr_time_add(sequence->blocked_ns, queue->options.overtake_ns));
}

/* Of one tenant. */
static bool precedes_within(const mr_fair_queue *queue, const mr_fair_entry *a,
                            const mr_fair_entry *b)
{
    const bool a_aged = queue->now_ns >= a->aged_ns;
    if (a_aged != (queue->now_ns >= b->aged_ns)) {
        return a_aged;
    }
    return a_aged || a->priority == b->priority ? a->ticket < b->ticket : a->priority > b->priority;
}

static bool precedes(const mr_fair_queue *queue, const mr_fair_entry *a, const mr_fair_entry *b)
{
    const bool a_due = a->blocked && is_due(queue, a->sequence);
    if (a_due != (b->blocked && is_due(queue, b->sequence))) {
        return a_due;
    }
    if (a_due) {
        return a->ticket < b->ticket;
    }
    if (a->tenant == b->tenant) {
        return precedes_within(queue, a, b);
    }
    const uint64_t a_served = queue->tenants[a->tenant].served;
    const uint64_t b_served = queue->tenants[b->tenant].served;
    return a_served != b_served ? a_served < b_served : a->tenant < b->tenant;
}

/* Whether one of those that were passed over in this round is due: all wait for it then. */
static bool is_reserved(const mr_fair_queue *queue)
{
    for (uint32_t i = 0; i < queue->n_passed; i++) {
        if (is_due(queue, queue->passed[i])) {
            return true;
        }
    }
    return queue->n_passed == MR_MAX_PASSED_OVER;
}

mr_sequence *mr_fair_queue_next(const mr_fair_queue *queue)
{
    const mr_fair_entry *best = NULL;
    if (is_reserved(queue)) {
        return NULL;
    }
    for (uint32_t i = 0; i < queue->count; i++) {
        const mr_fair_entry *entry = &queue->entries[i];
        /* The sequence itself is looked at last: few get that far. */
        if ((best == NULL || precedes(queue, entry, best)) &&
            !mr_group_paused(entry->sequence->group) && !entry->sequence->moving &&
            !was_passed_over(queue, entry->sequence)) {
            best = entry;
        }
    }
    return best == NULL ? NULL : best->sequence;
}

void mr_fair_queue_pass_over(mr_fair_queue *queue, mr_sequence *sequence)
{
    MR_CHECK(queue->n_passed < MR_MAX_PASSED_OVER && sequence->queue_place > 0);
    queue->passed[queue->n_passed++] = sequence;
    queue->entries[sequence->queue_place - 1].blocked = true;
    if (sequence->blocked_ns == MR_NEVER) {
        sequence->blocked_ns = queue->now_ns;
    }
}

void mr_fair_queue_admitted(mr_fair_queue *queue, mr_sequence *sequence)
{
    for (uint32_t i = 0; i < queue->n_passed; i++) {
        queue->passed[i]->overtaken++;
    }
    mr_fair_queue_serve(queue, sequence, sequence->n_computed);
}

uint32_t mr_fair_queue_fullest(const mr_fair_queue *queue, uint32_t tenant, uint32_t weight)
{
    uint32_t fullest = tenant;
    uint64_t most = queue->tenants[tenant].waiting + 1;
    uint64_t most_weight = weight;
    for (uint32_t t = 0; t < MR_MAX_TENANTS; t++) {
        const uint64_t held = queue->tenants[t].waiting;
        if (t != tenant && held * most_weight > most * queue->tenants[t].weight) {
            fullest = t;
            most = held;
            most_weight = queue->tenants[t].weight;
        }
    }
    return fullest;
}

mr_sequence *mr_fair_queue_worst(const mr_fair_queue *queue, uint32_t tenant)
{
    mr_sequence *worst = NULL;
    for (uint32_t i = 0; i < queue->count; i++) {
        mr_sequence *sequence = queue->entries[i].sequence;
        if (queue->entries[i].tenant == tenant && sequence->request->usage.scheduled_ns == 0 &&
            (worst == NULL || mr_sequence_outranks(worst, sequence))) {
            worst = sequence;
        }
    }
    return worst;
}
