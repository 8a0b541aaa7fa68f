/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step behind the one that runs, planned before anybody knows what that one draws: each of its
 * tokens is "what row r draws" (batch.h). The device has it when the first step ends, and the host
 * applies the first step's output while the second runs.
 *
 *   plan t ── submit t ── plan ahead t+1 ── submit t+1 ── wait t ── apply t ── plan ahead t+2 …
 *
 * Only where nothing but plain decoding is to come: everybody who runs is in the step and goes on,
 * each has its next block, and there is nobody to let in. Whatever else may be wanted is left to
 * plan(), once no step is under way. A sequence that ends in the first step (end token, stop
 * string) has a row in the second whose output is dropped. Its blocks are free at once all the
 * same: the device runs steps in order, so that what the second still writes there comes before
 * anything that a later one does.
 */
#include "scheduler/internal.h"
#include "scheduler/swap.h"

/* Ring entries that must be free for each open choice: a token of either step, and its last. */
#define RING_PER_CHOICE 3u

/* Steps in a row while somebody waits for a slot: those who wait are looked at by plan() only. */
#define MOST_WHILE_WAITING 4u

/* Whether the sequence ends in the step before by its length, whatever it draws. */
static bool ends_by_length(const mr_scheduler *s, const mr_sequence *sequence)
{
    return mr_sequence_generated(sequence) + 1 >= sequence->request->params.max_tokens ||
           sequence->n_tokens + 1 >= s->options.max_seq_length;
}

/* Whether the part does nothing but draw the one next token of its sequence, and nobody asks for
 * its end. */
static bool is_plain(const mr_planned *part, uint64_t now_ns)
{
    mr_group *group = part->sequence->group;
    mr_request *request = group->request;
    const bool forks = group->n_generated == 0 && group->n_sequences > 1;
    return part->drawn == 1 && group->beams == NULL && !group->penalties && !forks &&
           !mr_group_paused(group) && !mr_flag_get(&request->cancelled) &&
           now_ns < request->deadline_ns && now_ns < group->limit_ns;
}

static bool has_ring_space(mr_group *group)
{
    const uint32_t wanted = RING_PER_CHOICE * group->n_open;
    if (group->ring_space < wanted) {
        group->ring_space = mr_ring_space(&group->request->events);
    }
    return group->ring_space >= wanted;
}

/* Whether all who run are in the step and can go on, blocks apart; *blocks is how many they lack.
 */
static bool all_go_on(mr_scheduler *s, uint64_t now_ns, uint32_t *blocks)
{
    uint32_t running = 0;
    uint32_t going_on = 0;
    *blocks = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const mr_planned *part = &s->planned[i];
        if (part->sequence == NULL) {
            continue;
        }
        if (!is_plain(part, now_ns) || !has_ring_space(part->sequence->group)) {
            return false;
        }
        running++;
        if (!ends_by_length(s, part->sequence)) {
            going_on++;
            *blocks += mr_scheduler_lacks_next(s, part->sequence);
        }
    }
    return going_on > 0 && running == s->running.count;
}

static bool is_wanted(mr_scheduler *s, uint64_t now_ns)
{
    uint32_t blocks;
    if (s->n_planned == 0 || s->n_copies > 0 || s->draining.count > 0 || mr_swap_moving(s) ||
        (s->waiting.count > 0 &&
         (s->n_free_slots > 0 || s->ahead_in_a_row >= MOST_WHILE_WAITING))) {
        return false;
    }
    return all_go_on(s, now_ns, &blocks) && blocks <= mr_block_pool_available(s->pool);
}

bool mr_scheduler_plan_ahead(mr_scheduler *s, uint64_t now_ns, mr_batch_storage *storage)
{
    s->n_ahead = 0;
    if (!is_wanted(s, now_ns)) {
        s->ahead_in_a_row = 0;
        return false;
    }
    s->last_ns = now_ns;
    const uint32_t rows_before = s->n_rows;
    s->rows_left = s->max_rows;
    s->tokens_left = s->options.max_batch_tokens;
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const mr_planned *part = &s->planned[i];
        row += part->scored;
        if (part->sequence != NULL && !ends_by_length(s, part->sequence)) {
            mr_scheduler_grow_next(s, part->sequence);
            mr_scheduler_emit_ahead(s, part->sequence, row, storage);
        }
        row += part->drawn;
    }
    s->n_ahead_rows = s->n_rows - rows_before;
    s->n_rows = rows_before;
    s->ahead_in_a_row++;
    s->stats.steps++;
    return true;
}

void mr_scheduler_take_ahead(mr_scheduler *s)
{
    mr_planned *done = s->planned;
    s->planned = s->ahead;
    s->ahead = done;
    s->n_planned = s->n_ahead;
    s->n_rows = s->n_ahead_rows;
    s->n_ahead = 0;
    s->n_ahead_rows = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        if (s->planned[i].sequence->state != MR_SEQUENCE_RUNNING) {
            s->planned[i].sequence = NULL; /* it may be gone when its row comes */
        }
    }
}
