/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning a step: drop who is cancelled or overdue, give decodes the blocks they need, then fill
 * the token budget with decodes first and prefill chunks after them, best claim first. Who comes in
 * is the fair queue's to say. The work is in proportion to the sequences and the tokens of the
 * step, never to contexts or to the pool.
 */
#include "base/checked.h"
#include "base/log.h"
#include "scheduler/internal.h"
#include "scheduler/swap.h"

/* How often the ring of a paused sequence is looked at while nothing else runs. */
#define PAUSED_POLL_NS (5 * MR_NS_PER_MS)

/* Entries that must be free for a step: a token of each open choice, and its last event. */
#define RING_PER_CHOICE 2u

/* Of those that wait, so many are looked at in a step, or one in so many if that is more. */
#define SWEEP_LEAST 256u
#define SWEEP_SHARE 8u

/* True: it has been paused for too long. */
static bool is_overdue(mr_scheduler *s, const mr_group *group, uint64_t now_ns, uint64_t *wake_ns)
{
    const uint64_t limit_ns = mr_time_add(group->paused_ns, s->options.slow_reader_timeout_ns);
    *wake_ns = mr_min_u64(*wake_ns, mr_min_u64(limit_ns, mr_time_add(now_ns, PAUSED_POLL_NS)));
    return now_ns >= limit_ns;
}

/* Pauses a request whose ring is full, wakes one whose reader caught up. True: it has been paused
 * for too long. A search has nothing to say before its end. */
static bool watch_reader(mr_scheduler *s, mr_group *group, uint64_t now_ns, uint64_t *wake_ns)
{
    const uint32_t wanted = RING_PER_CHOICE * group->n_open;
    if (group->n_generated == 0 || group->beams != NULL) {
        return false;
    }
    if (group->ring_space < wanted) {
        group->ring_space = mr_ring_space(&group->request->events);
    }
    if (group->ring_space >= wanted) {
        group->paused_ns = MR_NEVER;
        return false;
    }
    if (!mr_group_paused(group)) {
        group->paused_ns = now_ns;
    }
    return is_overdue(s, group, now_ns, wake_ns);
}

static void end_slow_reader(mr_scheduler *s, mr_group *group, uint64_t now_ns)
{
    mr_request *request = group->request;
    mr_fail(&request->error, MR_RESOURCE_EXHAUSTED,
            "slow reader: nothing was read for %llu ms while %u tokens waited; read the stream "
            "faster",
            (unsigned long long)(s->options.slow_reader_timeout_ns / MR_NS_PER_MS),
            mr_ring_count(&request->events));
    request->reader_lost = true;
    mr_scheduler_end(s, group, MR_FINISH_ERROR, now_ns);
}

/* Ends the request if it is cancelled or overdue. */
static void check_life(mr_scheduler *s, mr_group *group, uint64_t now_ns, uint64_t *wake_ns)
{
    mr_request *request = group->request;
    if (mr_flag_get(&request->cancelled)) {
        mr_fail(&request->error, MR_CANCELLED, "the request was cancelled");
        mr_scheduler_end(s, group, MR_FINISH_CANCELLED, now_ns);
        return;
    }
    if (now_ns >= request->deadline_ns) {
        mr_fail(&request->error, MR_DEADLINE_EXCEEDED,
                "the time of the request was over after %u tokens, of at most %u a choice",
                group->n_generated, request->params.max_tokens);
        mr_scheduler_end(s, group, MR_FINISH_TIME_LIMIT, now_ns);
        return;
    }
    const bool drains = group->sequences[0].state == MR_SEQUENCE_DRAINING;
    if (now_ns >= group->limit_ns && !drains &&
        !mr_scheduler_cut_search(s, group, MR_FINISH_TIME_LIMIT, now_ns)) {
        mr_scheduler_end(s, group, MR_FINISH_TIME_LIMIT, now_ns);
        return;
    }
    *wake_ns = mr_min_u64(*wake_ns, request->deadline_ns);
    *wake_ns = drains ? *wake_ns : mr_min_u64(*wake_ns, group->limit_ns);
}

/* A part of one of the lists. */
typedef struct stretch {
    mr_sequence *const *items;
    uint32_t count;
} stretch;

static void sweep(mr_scheduler *s, stretch part, uint64_t now_ns, uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < part.count; i++) {
        mr_sequence *sequence = part.items[i];
        /* The end of one choice may have been that of others. */
        if (sequence->state == MR_SEQUENCE_ENDED) {
            continue;
        }
        check_life(s, sequence->group, now_ns, wake_ns);
        if ((sequence->state == MR_SEQUENCE_RUNNING || sequence->state == MR_SEQUENCE_WAITING) &&
            watch_reader(s, sequence->group, now_ns, wake_ns)) {
            end_slow_reader(s, sequence->group, now_ns);
        }
    }
}

/* Pushes results of finished searches. */
static void drain(mr_scheduler *s, uint64_t now_ns, uint64_t *wake_ns)
{
    for (uint32_t i = 0; i < s->draining.count; i++) {
        mr_group *group = s->draining.items[i]->group;
        mr_scheduler_drain(s, group, now_ns);
        if (group->n_open > 0 && is_overdue(s, group, now_ns, wake_ns)) {
            end_slow_reader(s, group, now_ns);
        }
    }
}

/* What is looked at of those that wait: all, or, where they are many and steps follow each other, a
 * part in turn. */
static stretch next_waiting(mr_scheduler *s)
{
    const uint32_t all = s->waiting.count;
    const uint32_t share = (all + SWEEP_SHARE - 1) / SWEEP_SHARE;
    const uint32_t most = s->planned_none ? all : share > SWEEP_LEAST ? share : SWEEP_LEAST;
    const uint32_t from = most < all && s->swept < all ? s->swept : 0;
    const uint32_t count = mr_min_u32(most, all - from);
    s->swept = from + count;
    return (stretch){s->waiting.items + from, count};
}

/* Drops those from `waiting` that have left the queue. */
static void drop_left(mr_scheduler *s)
{
    if (s->waiting.count != s->fair.count) {
        mr_sequence_list_keep(&s->waiting, MR_SEQUENCE_WAITING);
    }
}

static void sweep_all(mr_scheduler *s, uint64_t now_ns, uint64_t *wake_ns)
{
    const uint32_t waiting = s->waiting.count;
    const stretch part = next_waiting(s);
    sweep(s, (stretch){s->running.items, s->running.count}, now_ns, wake_ns);
    sweep(s, part, now_ns, wake_ns);
    sweep(s, (stretch){s->draining.items, s->draining.count}, now_ns, wake_ns);
    s->swept_all = part.count == waiting;
    mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
    drop_left(s);
    mr_sequence_list_keep(&s->draining, MR_SEQUENCE_DRAINING);
    drain(s, now_ns, wake_ns);
    mr_sequence_list_keep(&s->draining, MR_SEQUENCE_DRAINING);
}

/* True while an idle scheduler gathers companions for its first step. */
static bool gathering(mr_scheduler *s, uint64_t now_ns, uint64_t *wake_ns)
{
    if (s->window_ns == 0 || s->waiting.count == 0) {
        return false;
    }
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < s->waiting.count && tokens < s->options.max_batch_tokens; i++) {
        tokens += s->waiting.items[i]->n_tokens;
    }
    if (now_ns < s->window_ns && s->waiting.count < s->max_running &&
        tokens < s->options.max_batch_tokens) {
        *wake_ns = mr_min_u64(*wake_ns, s->window_ns);
        return true;
    }
    s->window_ns = 0;
    return false;
}

static bool runs_alone(const mr_scheduler *s)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        running += s->running.items[i]->state == MR_SEQUENCE_RUNNING;
    }
    return running == 1;
}

/* Beams take a step only together: each has one token to compute. */
static bool decodes(const mr_sequence *sequence)
{
    const uint32_t members = sequence->group->beams != NULL ? sequence->group->beams->n_live : 1;
    bool all = members > 0;
    for (uint32_t i = 0; i < members; i++) {
        all = all && mr_sequence_decodes(&sequence[i]);
    }
    return all;
}

static void end_outgrown(mr_scheduler *s, mr_sequence *sequence, uint64_t now_ns)
{
    mr_fail(&sequence->request->error, MR_RESOURCE_EXHAUSTED,
            "the whole KV cache of %u blocks is full after %u tokens of this request alone; ask "
            "for fewer tokens%s or raise kv_cache_memory",
            s->total_blocks, sequence->n_tokens, sequence->group->beams != NULL ? " or beams" : "");
    mr_scheduler_end(s, sequence->group, MR_FINISH_ERROR, now_ns);
}

/* Gives decodes their next blocks, best claim first. One that gets none stays where it is and sits
 * this step out: a better one may take its blocks, or another's end gives it some. Returns whether
 * there is one. */
static bool grow_decodes(mr_scheduler *s, uint64_t now_ns)
{
    /* What a better one could not get, a worse one cannot either, but for a protected one. */
    bool exhausted = false;
    for (uint32_t i = 0; i < s->running.count; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (sequence->state != MR_SEQUENCE_RUNNING || mr_group_paused(sequence->group) ||
            !decodes(sequence) || mr_scheduler_has_room(s, sequence) ||
            (exhausted && !mr_scheduler_protects(s, sequence)) || mr_scheduler_grow(s, i)) {
            continue;
        }
        exhausted = true;
        if (runs_alone(s) && !mr_swap_moving(s)) {
            end_outgrown(s, sequence, now_ns);
        }
    }
    mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
    drop_left(s);
    return exhausted;
}

/* Puts the next token of a decode into the batch; of all beams or of none. */
static void emit_decode(mr_scheduler *s, mr_sequence *sequence, mr_batch_storage *storage)
{
    const mr_beams *beams = sequence->group->beams;
    const uint32_t members = beams != NULL ? beams->n_live : 1;
    uint64_t history = 0;
    for (uint32_t i = 0; i < members; i++) {
        history += sequence[i].n_tokens - sequence[i].history_sent;
    }
    /* Tokens and rows there are: one for every slot. */
    if (sequence->group->penalties && history > s->history_left) {
        return;
    }
    for (uint32_t i = 0; i < members; i++) {
        mr_scheduler_emit(s, &sequence[i], 1, storage);
    }
}

static void plan_decodes(mr_scheduler *s, mr_batch_storage *storage)
{
    for (uint32_t i = 0; i < s->running.count; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (!mr_group_paused(sequence->group) && decodes(sequence) &&
            mr_scheduler_has_room(s, sequence)) {
            emit_decode(s, sequence, storage);
        }
    }
}

static void plan_chunk(mr_scheduler *s, mr_sequence *sequence, uint32_t limit,
                       mr_batch_storage *storage)
{
    const uint32_t count = mr_scheduler_chunk(s, sequence, limit);
    if (count > 0) {
        mr_scheduler_emit(s, sequence, count, storage);
    }
}

/* Beams that come back compute their prompt once, then each what it generated but for the last
 * token, which is a step of all. */
static void plan_beam_chunks(mr_scheduler *s, mr_sequence *first, mr_batch_storage *storage)
{
    const mr_beams *beams = first->group->beams;
    const uint32_t n_prompt = first->request->n_prompt;
    if (!beams->attached) {
        plan_chunk(s, first, n_prompt - first->n_computed, storage);
        return;
    }
    for (uint32_t i = 0; i < beams->n_live && s->tokens_left > 0; i++) {
        plan_chunk(s, &first[i], first[i].n_tokens - 1 - first[i].n_computed, storage);
    }
}

static void plan_prefill(mr_scheduler *s, mr_sequence *sequence, mr_batch_storage *storage)
{
    if (sequence->group->beams != NULL) {
        plan_beam_chunks(s, sequence, storage);
    } else {
        plan_chunk(s, sequence, UINT32_MAX, storage);
    }
}

/* Takes waiting ones in, as far as slots, blocks and tokens go. */
static void plan_admissions(mr_scheduler *s, uint64_t now_ns, mr_batch_storage *storage)
{
    uint32_t left = 0;
    mr_fair_queue_begin(&s->fair, now_ns);
    while (s->tokens_left > 0 && s->n_free_slots > 0) {
        mr_sequence *sequence = mr_fair_queue_next(&s->fair);
        if (sequence == NULL) {
            break;
        }
        const mr_admission admission = mr_scheduler_admit(s, sequence, now_ns);
        if (admission == MR_ADMIT_LATER) {
            mr_fair_queue_pass_over(&s->fair, sequence);
        } else if (admission == MR_ADMIT_NEVER) {
            end_outgrown(s, sequence, now_ns);
            left++;
        } else {
            mr_fair_queue_admitted(&s->fair, sequence);
            if (!sequence->moving) {
                plan_prefill(s, sequence, storage);
            }
            left++;
        }
    }
    if (left > 0) {
        mr_pace_moved(&s->pace, left, now_ns);
        drop_left(s);
    }
}

/* Chunks of the resident sequences, then of those that can be admitted. */
static void plan_prefills(mr_scheduler *s, uint64_t now_ns, bool admit, mr_batch_storage *storage)
{
    const uint32_t before = s->n_planned;
    for (uint32_t i = 0; i < s->running.count && s->tokens_left > 0; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (!mr_group_paused(sequence->group) && !sequence->moving && !decodes(sequence)) {
            plan_prefill(s, sequence, storage);
        }
    }
    if (admit) {
        plan_admissions(s, now_ns, storage);
    }
    if (s->n_planned > before) {
        s->last_prefill_step = s->stats.steps + 1;
    }
}

/* Who has work and waits for no reader: the newest that runs, else the first in the queue. NULL
 * when a reader is waited for. */
static const mr_sequence *find_stuck(const mr_scheduler *s)
{
    for (uint32_t i = 0; i < s->running.count; i++) {
        if (mr_group_paused(s->running.items[i]->group)) {
            return NULL;
        }
    }
    if (s->running.count > 0) {
        return s->running.items[s->running.count - 1];
    }
    for (uint32_t i = 0; i < s->waiting.count; i++) {
        if (!mr_group_paused(s->waiting.items[i]->group)) {
            return s->waiting.items[i];
        }
    }
    return NULL;
}

/* Nothing was planned. Once that may be, when a request ended whose blocks others can have now:
 * they are planned at once. Twice in a row it is a fault of ours; one request ends, so that the
 * others go on, and the engine neither spins nor sleeps for ever. */
static void guard_against_stall(mr_scheduler *s, uint64_t now_ns, uint64_t *wake_ns)
{
    const mr_sequence *stuck = find_stuck(s);
    if (mr_swap_moving(s)) {
        *wake_ns = mr_min_u64(*wake_ns, mr_time_add(now_ns, MR_SWAP_POLL_NS));
        stuck = NULL;
    }
    if (stuck == NULL) {
        s->empty_plans = 0;
        return;
    }
    *wake_ns = now_ns;
    if (++s->empty_plans < 2) {
        return;
    }
    s->empty_plans = 0;
    mr_log(MR_LOG_ERROR, "scheduler", "nothing could be planned, a request ends",
           "running=%u waiting=%u kv_blocks_free=%u kv_blocks_total=%u", s->running.count,
           s->waiting.count, mr_block_pool_available(s->pool), s->total_blocks);
    mr_fail(&stuck->request->error, MR_INTERNAL,
            "the scheduler found nothing to run though %u sequences ran and %u waited; send the "
            "request again",
            s->running.count, s->waiting.count);
    mr_scheduler_end(s, stuck->group, MR_FINISH_ERROR, now_ns);
    mr_scheduler_drop_ended(s);
}

static void reset_budget(mr_scheduler *s)
{
    s->n_planned = 0;
    s->n_rows = 0;
    s->tokens_left = s->options.max_batch_tokens;
    s->rows_left = s->max_rows;
    s->history_left = s->max_history;
}

static bool plan_step(mr_scheduler *s, uint64_t now_ns, mr_batch_storage *storage,
                      uint64_t *wake_ns)
{
    s->last_ns = now_ns;
    reset_budget(s);
    *wake_ns = MR_NEVER;
    mr_swap_poll(s, now_ns);
    sweep_all(s, now_ns, wake_ns);
    if (gathering(s, now_ns, wake_ns)) {
        return false;
    }
    const uint64_t preemptions = s->stats.preemptions;
    const bool short_of_blocks = grow_decodes(s, now_ns);
    plan_decodes(s, storage);
    const uint64_t since_prefill = s->stats.steps + 1 - s->last_prefill_step;
    if (s->n_planned == 0 || since_prefill >= s->options.prefill_interval) {
        /* Blocks that were just taken from one, or that one waits for, are not for another to
         * fill. */
        const bool admit = s->stats.preemptions == preemptions && !short_of_blocks;
        plan_prefills(s, now_ns, admit, storage);
    }
    if (s->n_planned == 0) {
        guard_against_stall(s, now_ns, wake_ns);
        return false;
    }
    s->empty_plans = 0;
    s->stats.steps++;
    return true;
}

bool mr_scheduler_plan(mr_scheduler *s, uint64_t now_ns, mr_batch_storage *storage,
                       uint64_t *wake_ns)
{
    const bool planned = plan_step(s, now_ns, storage, wake_ns);
    s->planned_none = !planned;
    if (!planned && !s->swept_all) {
        *wake_ns = now_ns; /* for the deadlines of those that were not looked at */
    }
    return planned;
}

const mr_block_copy *mr_scheduler_copies(const mr_scheduler *s, size_t *count)
{
    *count = s->n_copies;
    return s->copies;
}
