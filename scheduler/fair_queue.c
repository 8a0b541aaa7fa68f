/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/fair_queue.h"

void mr_fair_queue_init(mr_fair_queue *queue, const mr_fair_options *options)
{
    *queue = (mr_fair_queue){.options = *options};
}

static mr_fair_tenant *tenant_of(mr_fair_queue *queue, const mr_sequence *sequence)
{
    return &queue->tenants[sequence->request->tenant];
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
    return queue->waiting > 0 ? least : queue->tenants[queue->last_left].served;
}

void mr_fair_queue_arrive(mr_fair_queue *queue, mr_sequence *sequence)
{
    mr_fair_tenant *tenant = tenant_of(queue, sequence);
    if (tenant->waiting == 0) {
        const uint64_t least = least_served(queue);
        tenant->served = tenant->served > least ? tenant->served : least;
    }
    mr_fair_queue_return(queue, sequence);
}

void mr_fair_queue_return(mr_fair_queue *queue, mr_sequence *sequence)
{
    sequence->queued = true;
    sequence->overtaken = 0;
    sequence->blocked_ns = MR_NEVER;
    tenant_of(queue, sequence)->waiting++;
    queue->waiting++;
}

void mr_fair_queue_leave(mr_fair_queue *queue, mr_sequence *sequence)
{
    if (!sequence->queued) {
        return;
    }
    sequence->queued = false;
    mr_fair_tenant *tenant = tenant_of(queue, sequence);
    tenant->waiting--;
    queue->waiting--;
    if (tenant->waiting == 0) {
        queue->last_left = sequence->request->tenant;
    }
}

void mr_fair_queue_serve(mr_fair_queue *queue, mr_sequence *sequence, uint32_t first, uint32_t end)
{
    const uint32_t from = first > sequence->n_served ? first : sequence->n_served;
    if (end > from) {
        tenant_of(queue, sequence)->served +=
            (end - from) * MR_FAIR_UNIT / sequence->request->weight;
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

static bool is_aged(const mr_fair_queue *queue, const mr_sequence *sequence)
{
    return queue->now_ns >= mr_time_add(sequence->request->arrived_ns, queue->options.ageing_ns);
}

/* Of one tenant. */
static bool precedes_within(const mr_fair_queue *queue, const mr_sequence *a, const mr_sequence *b)
{
    const bool a_aged = is_aged(queue, a);
    if (a_aged != is_aged(queue, b)) {
        return a_aged;
    }
    return a_aged ? a->ticket < b->ticket : mr_sequence_outranks(a, b);
}

static bool precedes(const mr_fair_queue *queue, const mr_sequence *a, const mr_sequence *b)
{
    const bool a_due = is_due(queue, a);
    if (a_due != is_due(queue, b)) {
        return a_due;
    }
    if (a_due) {
        return a->ticket < b->ticket;
    }
    const uint32_t t = a->request->tenant;
    const uint32_t u = b->request->tenant;
    if (t == u) {
        return precedes_within(queue, a, b);
    }
    const uint64_t a_served = queue->tenants[t].served;
    const uint64_t b_served = queue->tenants[u].served;
    return a_served != b_served ? a_served < b_served : t < u;
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

mr_sequence *mr_fair_queue_next(const mr_fair_queue *queue, const mr_sequence_list *waiting)
{
    mr_sequence *best = NULL;
    if (is_reserved(queue)) {
        return NULL;
    }
    for (uint32_t i = 0; i < waiting->count; i++) {
        mr_sequence *sequence = waiting->items[i];
        if (sequence->state != MR_SEQUENCE_WAITING || mr_group_paused(sequence->group) ||
            sequence->moving || was_passed_over(queue, sequence)) {
            continue;
        }
        if (best == NULL || precedes(queue, sequence, best)) {
            best = sequence;
        }
    }
    return best;
}

void mr_fair_queue_pass_over(mr_fair_queue *queue, mr_sequence *sequence)
{
    MR_CHECK(queue->n_passed < MR_MAX_PASSED_OVER);
    queue->passed[queue->n_passed++] = sequence;
    if (sequence->blocked_ns == MR_NEVER) {
        sequence->blocked_ns = queue->now_ns;
    }
}

void mr_fair_queue_admitted(mr_fair_queue *queue, mr_sequence *sequence)
{
    for (uint32_t i = 0; i < queue->n_passed; i++) {
        queue->passed[i]->overtaken++;
    }
    mr_fair_queue_serve(queue, sequence, sequence->n_computed, sequence->n_tokens);
}

uint32_t mr_fair_queue_fullest(const mr_fair_queue *queue, const mr_sequence_list *waiting,
                               uint32_t tenant, uint32_t weight)
{
    uint32_t fullest = tenant;
    uint64_t most = queue->tenants[tenant].waiting + 1;
    uint64_t most_weight = weight;
    for (uint32_t i = 0; i < waiting->count; i++) {
        const mr_request *request = waiting->items[i]->request;
        const uint64_t held = queue->tenants[request->tenant].waiting;
        if (request->tenant != tenant && held * most_weight > most * request->weight) {
            fullest = request->tenant;
            most = held;
            most_weight = request->weight;
        }
    }
    return fullest;
}
