/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/sequence.h"

#include "base/checked.h"

#include <stdlib.h>
#include <string.h>

mr_status mr_sequence_create(mr_request *request, mr_sequence **out)
{
    mr_sequence *sequence = mr_calloc(1, sizeof(*sequence));
    if (sequence == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_request_params *params = &request->params;
    sequence->request = request;
    sequence->tokens = request->prompt;
    sequence->n_tokens = request->n_prompt;
    sequence->paused_ns = MR_NEVER;
    sequence->ring_space = request->events.capacity;
    sequence->state = MR_SEQUENCE_WAITING;
    sequence->penalties = !(params->repetition_penalty == 1.0f) ||
                          !(params->presence_penalty == 0.0f) ||
                          !(params->frequency_penalty == 0.0f);
    *out = sequence;
    return MR_OK;
}

void mr_sequence_destroy(mr_sequence *sequence)
{
    free(sequence);
}

mr_status mr_sequence_list_init(mr_sequence_list *list, uint32_t capacity)
{
    *list = (mr_sequence_list){.items = mr_calloc(capacity, sizeof(mr_sequence *)),
                               .capacity = capacity};
    return list->items == NULL ? MR_RESOURCE_EXHAUSTED : MR_OK;
}

void mr_sequence_list_deinit(mr_sequence_list *list)
{
    free(list->items);
    *list = (mr_sequence_list){0};
}

/* Index of the first item with a later ticket. */
static uint32_t place_of(const mr_sequence_list *list, uint64_t ticket)
{
    if (list->count == 0 || list->items[list->count - 1]->ticket < ticket) {
        return list->count;
    }
    uint32_t low = 0;
    uint32_t high = list->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (list->items[middle]->ticket < ticket) {
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
    const uint32_t at = place_of(list, sequence->ticket);
    memmove(list->items + at + 1, list->items + at, (list->count - at) * sizeof(*list->items));
    list->items[at] = sequence;
    list->count++;
}

void mr_sequence_list_keep(mr_sequence_list *list, mr_sequence_state state)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        mr_sequence *sequence = list->items[i];
        if (sequence->state == state) {
            list->items[kept++] = sequence;
        }
    }
    list->count = kept;
}
