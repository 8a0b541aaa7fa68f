/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/sequence.h"

#include "base/checked.h"
#include "scheduler/beam.h"

#include <stdlib.h>
#include <string.h>

static void init_sequence(mr_group *group, uint32_t index, uint32_t *tokens)
{
    mr_request *request = group->request;
    mr_sequence *sequence = &group->sequences[index];
    sequence->request = request;
    sequence->group = group;
    sequence->tokens = tokens;
    sequence->n_tokens = request->n_prompt;
    sequence->blocked_ns = MR_NEVER;
    sequence->choice = (uint16_t)index;
    sequence->state = index == 0 ? MR_SEQUENCE_WAITING : MR_SEQUENCE_UNBORN;
}

static mr_status init_sequences(mr_group *group)
{
    mr_request *request = group->request;
    const size_t room = (size_t)request->n_prompt + request->params.max_tokens;
    const size_t more = group->n_sequences - 1;
    group->sequences = mr_calloc(group->n_sequences, sizeof(*group->sequences));
    group->tokens = mr_calloc(more * room + 1, sizeof(*group->tokens));
    if (group->sequences == NULL || group->tokens == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    init_sequence(group, 0, request->prompt);
    for (uint32_t i = 1; i < group->n_sequences; i++) {
        uint32_t *tokens = group->tokens + (i - 1) * room;
        memcpy(tokens, request->prompt, request->n_prompt * sizeof(*tokens));
        init_sequence(group, i, tokens);
    }
    return MR_OK;
}

/* Room for the hash of every block that output comes to fill. */
static mr_status init_hashes(mr_group *group)
{
    const mr_request *request = group->request;
    const uint32_t size = request->prefix.block_size;
    const size_t end = ((size_t)request->n_prompt + request->params.max_tokens) / size;
    const size_t room = end - request->n_prompt / size;
    group->hashes = mr_calloc(group->n_sequences * room + 1, sizeof(*group->hashes));
    for (uint32_t i = 0; group->hashes != NULL && i < group->n_sequences; i++) {
        group->sequences[i].hashes = group->hashes + i * room;
    }
    return group->hashes == NULL ? MR_RESOURCE_EXHAUSTED : MR_OK;
}

static mr_status init_beams(mr_group *group)
{
    const mr_request_params *params = &group->request->params;
    MR_TRY(mr_beams_create(params, &group->beams));
    for (uint32_t i = 0; i < group->n_sequences; i++) {
        mr_sequence *sequence = &group->sequences[i];
        sequence->logprobs = mr_calloc(params->max_tokens, sizeof(*sequence->logprobs));
        if (sequence->logprobs == NULL) {
            return MR_RESOURCE_EXHAUSTED;
        }
    }
    return MR_OK;
}

mr_status mr_group_create(mr_request *request, mr_group **out)
{
    const mr_request_params *params = &request->params;
    mr_group *group = mr_calloc(1, sizeof(*group));
    if (group == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const bool beams = params->beam_width > 1;
    group->request = request;
    group->n_sequences = beams ? params->beam_width : params->n;
    group->n_open = params->n;
    group->ring_space = request->events.capacity;
    group->paused_ns = MR_NEVER;
    group->limit_ns = params->time_limit_ns == 0
                          ? MR_NEVER
                          : mr_time_add(request->arrived_ns, params->time_limit_ns);
    group->penalties = !(params->repetition_penalty == 1.0f) ||
                       !(params->presence_penalty == 0.0f) || !(params->frequency_penalty == 0.0f);
    mr_status status = init_sequences(group);
    if (status == MR_OK && beams) {
        status = init_beams(group);
    } else if (status == MR_OK && request->hashes != NULL) {
        status = init_hashes(group);
    }
    if (status != MR_OK) {
        mr_group_destroy(group);
        return status;
    }
    *out = group;
    return MR_OK;
}

void mr_group_destroy(mr_group *group)
{
    if (group == NULL) {
        return;
    }
    for (uint32_t i = 0; group->sequences != NULL && i < group->n_sequences; i++) {
        free(group->sequences[i].logprobs);
    }
    mr_beams_destroy(group->beams);
    free(group->sequences);
    free(group->tokens);
    free(group->hashes);
    free(group);
}

mr_status mr_sequence_list_init(mr_sequence_list *list, uint32_t capacity, bool by_rank)
{
    *list = (mr_sequence_list){.items = mr_calloc(capacity, sizeof(mr_sequence *)),
                               .capacity = capacity,
                               .by_rank = by_rank};
    return list->items == NULL ? MR_RESOURCE_EXHAUSTED : MR_OK;
}

void mr_sequence_list_deinit(mr_sequence_list *list)
{
    free(list->items);
    *list = (mr_sequence_list){0};
}

mr_status mr_sequence_list_reserve(mr_sequence_list *list, uint32_t capacity)
{
    if (capacity <= list->capacity) {
        return MR_OK;
    }
    mr_sequence **items = mr_reallocarray(list->items, capacity, sizeof(mr_sequence *));
    if (items == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    list->items = items;
    list->capacity = capacity;
    return MR_OK;
}

static bool precedes(const mr_sequence_list *list, const mr_sequence *a, const mr_sequence *b)
{
    return list->by_rank ? mr_sequence_runs_before(a, b) : a->ticket < b->ticket;
}

/* Index of the first item behind it. */
static uint32_t place_of(const mr_sequence_list *list, const mr_sequence *sequence)
{
    if (list->count == 0 || precedes(list, list->items[list->count - 1], sequence)) {
        return list->count;
    }
    uint32_t low = 0;
    uint32_t high = list->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (precedes(list, list->items[middle], sequence)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void mr_sequence_list_insert(mr_sequence_list *list, mr_sequence *sequence)
{
    MR_CHECK(list->count < list->capacity);
    const uint32_t at = place_of(list, sequence);
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof(*list->items));
    list->items[at] = sequence;
    list->count++;
}

/* Keeps those that are in `state`, or those that are not. */
static void filter(mr_sequence_list *list, mr_sequence_state state, bool in_state)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        mr_sequence *sequence = list->items[i];
        if ((sequence->state == state) == in_state) {
            list->items[kept++] = sequence;
        }
    }
    list->count = kept;
}

void mr_sequence_list_keep(mr_sequence_list *list, mr_sequence_state state)
{
    filter(list, state, true);
}

void mr_sequence_list_drop(mr_sequence_list *list, mr_sequence_state state)
{
    filter(list, state, false);
}
