/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning a step: drop who is cancelled or overdue, give decodes the blocks they need, then fill
 * the token budget with decodes first and prefill chunks after them, oldest first. The work is in
 * proportion to the sequences and the tokens of the step, never to contexts or to the pool.
 */
#include "scheduler/internal.h"

/* How often the ring of a paused sequence is looked at while nothing else runs. */
#define PAUSED_POLL_NS (5 * MR_NS_PER_MS)

#define RING_RESERVE 1u /* entries kept free for a last event without a token */

static uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Pauses a sequence whose ring is full, wakes one whose reader caught up. True: it has been paused
 * for too long. */
static bool watch_reader(mr_scheduler *s, mr_sequence *sequence, uint64_t now_ns, uint64_t *wake_ns)
{
    if (sequence->ring_space <= RING_RESERVE) {
        sequence->ring_space = mr_ring_space(&sequence->request->events);
    }
    if (sequence->ring_space > RING_RESERVE) {
        sequence->paused_ns = MR_NEVER;
        return false;
    }
    if (!mr_sequence_paused(sequence)) {
        sequence->paused_ns = now_ns;
    }
    const uint64_t limit_ns = mr_time_add(sequence->paused_ns, s->options.slow_reader_timeout_ns);
    *wake_ns = min_u64(*wake_ns, min_u64(limit_ns, mr_time_add(now_ns, PAUSED_POLL_NS)));
    return now_ns >= limit_ns;
}

/* Ends the sequence if it is cancelled, overdue or not read. */
static void check_life(mr_scheduler *s, mr_sequence *sequence, uint64_t now_ns, uint64_t *wake_ns)
{
    mr_request *request = sequence->request;
    if (mr_flag_get(&request->cancelled)) {
        mr_fail(&request->error, MR_CANCELLED, "the request was cancelled");
        mr_scheduler_end(s, sequence, MR_FINISH_CANCELLED, now_ns);
        return;
    }
    if (now_ns >= request->deadline_ns) {
        mr_fail(&request->error, MR_DEADLINE_EXCEEDED,
                "the time of the request was over after %u of at most %u tokens",
                sequence->n_tokens - request->n_prompt, request->params.max_tokens);
        mr_scheduler_end(s, sequence, MR_FINISH_TIME_LIMIT, now_ns);
        return;
    }
    *wake_ns = min_u64(*wake_ns, request->deadline_ns);
    if (sequence->n_tokens > request->n_prompt && watch_reader(s, sequence, now_ns, wake_ns)) {
        mr_fail(&request->error, MR_RESOURCE_EXHAUSTED,
                "slow reader: nothing was read for %llu ms while %u tokens waited; read the "
                "stream faster",
                (unsigned long long)(s->options.slow_reader_timeout_ns / MR_NS_PER_MS),
                mr_ring_count(&request->events));
        mr_scheduler_end(s, sequence, MR_FINISH_ERROR, now_ns);
    }
}

static void sweep(mr_scheduler *s, mr_sequence_list *list, uint64_t now_ns, uint64_t *wake_ns)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < list->count; i++) {
        mr_sequence *sequence = list->items[i];
        check_life(s, sequence, now_ns, wake_ns);
        if (sequence->state != MR_SEQUENCE_ENDED) {
            list->items[kept++] = sequence;
        }
    }
    list->count = kept;
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
        *wake_ns = min_u64(*wake_ns, s->window_ns);
        return true;
    }
    s->window_ns = 0;
    return false;
}

static bool has_room(const mr_scheduler *s, const mr_sequence *sequence)
{
    return (uint64_t)sequence->n_blocks * s->block_size >= sequence->n_tokens;
}

static bool runs_alone(const mr_scheduler *s)
{
    uint32_t running = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        running += s->running.items[i]->state == MR_SEQUENCE_RUNNING;
    }
    return running == 1;
}

/* Gives decodes their next blocks, oldest first. One that gets none stays where it is and sits this
 * step out: an older one may take its blocks, or another's end gives it some. */
static void grow_decodes(mr_scheduler *s, uint64_t now_ns)
{
    bool exhausted = false; /* what an older one could not get, a newer one cannot either */
    for (uint32_t i = 0; i < s->running.count && !exhausted; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (sequence->state != MR_SEQUENCE_RUNNING || mr_sequence_paused(sequence) ||
            !mr_sequence_decodes(sequence) || has_room(s, sequence) || mr_scheduler_grow(s, i)) {
            continue;
        }
        exhausted = true;
        if (runs_alone(s)) {
            mr_fail(&sequence->request->error, MR_RESOURCE_EXHAUSTED,
                    "the whole KV cache of %u blocks is full after %u tokens of this request "
                    "alone; ask for fewer tokens or raise kv_cache_memory",
                    s->total_blocks, sequence->n_tokens);
            mr_scheduler_end(s, sequence, MR_FINISH_ERROR, now_ns);
        }
    }
    mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
}

static void add_row(mr_scheduler *s, const mr_sequence *sequence, mr_batch_storage *storage)
{
    const mr_request *request = sequence->request;
    const mr_request_params *wanted = &request->params;
    const uint32_t n_generated = sequence->n_tokens - request->n_prompt;
    const bool ban_eos = !wanted->ignore_eos && n_generated < wanted->min_tokens;
    const mr_row_params params = {
        .temperature = wanted->temperature,
        .top_p = wanted->top_p,
        .min_p = wanted->min_p,
        .top_k = wanted->top_k,
        .repetition_penalty = wanted->repetition_penalty,
        .presence_penalty = wanted->presence_penalty,
        .frequency_penalty = wanted->frequency_penalty,
        .key = request->key,
        .position = sequence->n_tokens,
        .target = MR_NO_TARGET,
        .bias_count = ban_eos ? s->options.n_eos : 0,
        .history_len = sequence->penalties ? sequence->n_tokens : 0,
        .prompt_len = sequence->penalties ? request->n_prompt : 0,
        .n_top = wanted->logprobs ? wanted->top_logprobs : 0,
        .want_logprob = wanted->logprobs,
        .processed = wanted->logprobs_processed,
    };
    MR_CHECK(mr_batch_add_row(storage, &params, s->eos, s->bans) == MR_OK);
    s->n_rows++;
}

static void add_tokens(const mr_scheduler *s, const mr_sequence *sequence, uint32_t end,
                       mr_batch_storage *storage)
{
    uint32_t index = sequence->n_computed / s->block_size;
    uint32_t offset = sequence->n_computed % s->block_size;
    for (uint32_t position = sequence->n_computed; position < end; position++) {
        const uint32_t kv_slot = sequence->blocks[index] * s->block_size + offset;
        const int32_t token = (int32_t)sequence->tokens[position];
        MR_CHECK(mr_batch_add_token(storage, token, position, &kv_slot) == MR_OK);
        if (++offset == s->block_size) {
            offset = 0;
            index++;
        }
    }
}

/* Puts the next `count` tokens of a running sequence into the batch. */
static void emit(mr_scheduler *s, mr_sequence *sequence, uint32_t count, mr_batch_storage *storage)
{
    const uint32_t end = sequence->n_computed + count;
    if (s->n_planned == 0) {
        mr_batch_reset(storage);
    }
    MR_CHECK(mr_batch_add_seq(storage, sequence->slot, end, 0) == MR_OK);
    /* Blocks are told as they come into use, which bounds what a step has to tell. */
    const uint32_t in_use = mr_blocks_for(end, s->block_size);
    for (; sequence->n_sent < in_use; sequence->n_sent++) {
        const mr_block_delta delta = {
            .slot = sequence->slot,
            .index = sequence->n_sent,
            .block = sequence->blocks[sequence->n_sent],
        };
        MR_CHECK(mr_batch_add_block(storage, &delta) == MR_OK);
    }
    add_tokens(s, sequence, end, storage);
    if (sequence->penalties) {
        MR_CHECK(mr_batch_add_history(storage, sequence->slot, sequence->n_computed,
                                      sequence->tokens + sequence->n_computed, count) == MR_OK);
    }
    const bool row = end == sequence->n_tokens;
    if (row) {
        add_row(s, sequence, storage);
    }
    s->planned[s->n_planned++] = (mr_planned){.sequence = sequence, .tokens = count, .row = row};
    s->tokens_left -= count;
}

static void plan_decodes(mr_scheduler *s, mr_batch_storage *storage)
{
    for (uint32_t i = 0; i < s->running.count; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (!mr_sequence_paused(sequence) && mr_sequence_decodes(sequence) &&
            has_room(s, sequence)) {
            emit(s, sequence, 1, storage);
        }
    }
}

static void plan_chunk(mr_scheduler *s, mr_sequence *sequence, mr_batch_storage *storage)
{
    const uint32_t missing = sequence->n_tokens - sequence->n_computed;
    emit(s, sequence, missing < s->tokens_left ? missing : s->tokens_left, storage);
}

/* Chunks of the resident sequences, then of those that can be admitted, in order of arrival. */
static void plan_prefills(mr_scheduler *s, uint64_t now_ns, bool admit, mr_batch_storage *storage)
{
    const uint32_t decodes = s->n_planned;
    for (uint32_t i = 0; i < s->running.count && s->tokens_left > 0; i++) {
        mr_sequence *sequence = s->running.items[i];
        if (!mr_sequence_paused(sequence) && !mr_sequence_decodes(sequence)) {
            plan_chunk(s, sequence, storage);
        }
    }
    for (uint32_t i = 0; admit && i < s->waiting.count && s->tokens_left > 0; i++) {
        mr_sequence *sequence = s->waiting.items[i];
        if (mr_sequence_paused(sequence)) {
            continue; /* preempted, and its reader is behind: nobody waits for that */
        }
        if (!mr_scheduler_admit(s, sequence, now_ns)) {
            break;
        }
        plan_chunk(s, sequence, storage);
    }
    mr_sequence_list_keep(&s->waiting, MR_SEQUENCE_WAITING);
    if (s->n_planned > decodes) {
        s->last_prefill_step = s->stats.steps + 1;
    }
}

bool mr_scheduler_plan(mr_scheduler *s, uint64_t now_ns, mr_batch_storage *storage,
                       uint64_t *wake_ns)
{
    s->last_ns = now_ns;
    s->n_planned = 0;
    s->n_rows = 0;
    s->tokens_left = s->options.max_batch_tokens;
    *wake_ns = MR_NEVER;
    sweep(s, &s->running, now_ns, wake_ns);
    sweep(s, &s->waiting, now_ns, wake_ns);
    if (gathering(s, now_ns, wake_ns)) {
        return false;
    }
    const uint64_t preemptions = s->stats.preemptions;
    grow_decodes(s, now_ns);
    plan_decodes(s, storage);
    const uint64_t since_prefill = s->stats.steps + 1 - s->last_prefill_step;
    if (s->n_planned == 0 || since_prefill >= s->options.prefill_interval) {
        /* Blocks that were just taken from one are not for another to fill. */
        plan_prefills(s, now_ns, s->stats.preemptions == preemptions, storage);
    }
    if (s->n_planned == 0) {
        return false;
    }
    s->stats.steps++;
    return true;
}
