/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/scheduler.h"

#include "base/checked.h"
#include "scheduler/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_AFTER_MS 1000u

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void mr_scheduler_batch_limits(const mr_scheduler_options *options, uint32_t block_size,
                               mr_batch_limits *out)
{
    const uint32_t rows = min_u32(options->max_batch_size, options->max_batch_tokens);
    *out = (mr_batch_limits){
        .max_tokens = options->max_batch_tokens,
        .max_seqs = rows,
        .max_rows = rows,
        .max_context = options->max_seq_length,
        .block_size = block_size,
        .kv_groups = 1,
        .max_bias = rows * options->n_eos,
        /* The history grows by the tokens that a step computes. */
        .max_history = options->max_batch_tokens,
    };
}

static mr_status check_options(const mr_scheduler_options *options, mr_error *err)
{
    /* The upper bounds only keep products of these numbers within 32 bits. */
    const struct {
        const char *name;
        uint32_t value, low, high;
    } numbers[] = {
        {"max_batch_size", options->max_batch_size, 1, 1u << 16},
        {"max_batch_tokens", options->max_batch_tokens, 1, 1u << 28},
        {"max_seq_length", options->max_seq_length, 2, 1u << 28},
        {"max_queue_requests", options->max_queue, 0, 1u << 28},
        {"max_preemptions", options->max_preemptions, 0, 1u << 28},
        {"prefill_interval", options->prefill_interval, 1, 1u << 28},
        {"vocab_size", options->vocab_size, 1, 1u << 28},
        {"number of end tokens", options->n_eos, 0, 1u << 12},
    };
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (numbers[i].value < numbers[i].low || numbers[i].value > numbers[i].high) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, numbers[i].name,
                                 "%s is %u; it must be %u to %u", numbers[i].name, numbers[i].value,
                                 numbers[i].low, numbers[i].high);
        }
    }
    return MR_OK;
}

static mr_status allocate(mr_scheduler *s)
{
    const size_t slots = s->max_running;
    const size_t n_eos = s->options.n_eos;
    s->eos = mr_calloc(n_eos + 1, sizeof(*s->eos));
    s->bans = mr_calloc(n_eos + 1, sizeof(*s->bans));
    s->tables = mr_calloc(slots * s->max_blocks, sizeof(*s->tables));
    s->free_slots = mr_calloc(slots, sizeof(*s->free_slots));
    s->planned = mr_calloc(slots, sizeof(*s->planned));
    s->news = mr_calloc(s->max_news, sizeof(*s->news));
    s->group = mr_calloc(s->max_news, sizeof(*s->group));
    if (s->eos == NULL || s->bans == NULL || s->tables == NULL || s->free_slots == NULL ||
        s->planned == NULL || s->news == NULL || s->group == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    MR_TRY(mr_sequence_list_init(&s->waiting, s->max_live));
    return mr_sequence_list_init(&s->running, s->max_running);
}

static void deallocate(mr_scheduler *s)
{
    mr_sequence_list_deinit(&s->waiting);
    mr_sequence_list_deinit(&s->running);
    free(s->eos);
    free(s->bans);
    free(s->tables);
    free(s->free_slots);
    free(s->planned);
    free(s->news);
    free(s->group);
    free(s);
}

static void init(mr_scheduler *s, const mr_scheduler_options *options, mr_block_pool *pool)
{
    mr_block_pool_stats blocks;
    mr_block_pool_stats_get(pool, &blocks);
    s->options = *options;
    s->pool = pool;
    s->block_size = mr_block_pool_block_size(pool);
    s->total_blocks = blocks.total;
    /* A step has a token for each running sequence, so that none starves. */
    s->max_running = min_u32(options->max_batch_size, options->max_batch_tokens);
    s->max_live = options->max_queue + s->max_running;
    s->max_blocks = mr_blocks_for(options->max_seq_length, s->block_size);
    /* Those that live, and as many that ended since news went out. */
    s->max_news = 2 * s->max_live;
}

mr_status mr_scheduler_create(const mr_scheduler_options *options, mr_block_pool *pool,
                              mr_scheduler **out, mr_error *err)
{
    MR_TRY(check_options(options, err));
    mr_scheduler *s = mr_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the scheduler");
    }
    init(s, options, pool);
    if (allocate(s) != MR_OK) {
        const uint32_t slots = s->max_running;
        deallocate(s);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "no memory for a scheduler of %u sequences of %u tokens; lower "
                       "max_batch_size, max_seq_length or max_queue_requests",
                       slots, options->max_seq_length);
    }
    for (uint32_t i = 0; i < options->n_eos; i++) {
        s->eos[i] = options->eos[i];
        s->bans[i] = -INFINITY;
    }
    s->options.eos = s->eos;
    while (s->n_free_slots < s->max_running) {
        s->free_slots[s->n_free_slots] = s->max_running - 1 - s->n_free_slots;
        s->n_free_slots++;
    }
    *out = s;
    return MR_OK;
}

/* Ends every sequence; what `ending` puts into a request's error is its business. */
static void end_all(mr_scheduler *s, void (*ending)(mr_sequence *, const mr_error *),
                    const mr_error *err, mr_finish finish, uint64_t now_ns)
{
    mr_sequence_list *const lists[] = {&s->running, &s->waiting};
    for (size_t l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l]->count; i++) {
            ending(lists[l]->items[i], err);
            mr_scheduler_end(s, lists[l]->items[i], finish, now_ns);
        }
        lists[l]->count = 0;
    }
    s->n_planned = 0;
    s->n_rows = 0;
}

static void say_stopped(mr_sequence *sequence, const mr_error *err)
{
    (void)err;
    mr_fail(&sequence->request->error, MR_CANCELLED, "the server stopped before the end");
}

static void say_failed(mr_sequence *sequence, const mr_error *err)
{
    if (sequence->request->usage.scheduled_ns != 0) {
        sequence->request->error = *err;
        return;
    }
    mr_fail(&sequence->request->error, MR_UNAVAILABLE,
            "the device failed before the request ran; send it to another replica: %s",
            err->message);
}

void mr_scheduler_destroy(mr_scheduler *s)
{
    if (s == NULL) {
        return;
    }
    end_all(s, say_stopped, NULL, MR_FINISH_CANCELLED, s->last_ns);
    mr_scheduler_publish(s);
    deallocate(s);
}

void mr_scheduler_fail(mr_scheduler *s, const mr_error *err, uint64_t now_ns)
{
    s->last_ns = now_ns;
    end_all(s, say_failed, err, MR_FINISH_ERROR, now_ns);
}

static mr_status check_prompt(const mr_scheduler *s, const mr_request *request, mr_error *err)
{
    const uint32_t n = request->n_prompt;
    if (n >= s->options.max_seq_length) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "prompt",
                             "the prompt has %u tokens and max_seq_length is %u, output included; "
                             "shorten the prompt to at most %u tokens",
                             n, s->options.max_seq_length, s->options.max_seq_length - 1);
    }
    if (mr_blocks_for(n + 1, s->block_size) > s->total_blocks) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "prompt",
                             "the prompt has %u tokens and the whole KV cache holds %llu; shorten "
                             "the prompt or raise kv_cache_memory",
                             n, (unsigned long long)s->total_blocks * s->block_size);
    }
    uint32_t highest = 0;
    for (uint32_t i = 0; i < n; i++) {
        highest = request->prompt[i] > highest ? request->prompt[i] : highest;
    }
    if (highest >= s->options.vocab_size) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "prompt",
                             "the prompt holds token id %u, the vocabulary ends at %u", highest,
                             s->options.vocab_size - 1);
    }
    return MR_OK;
}

static mr_status check_admission(const mr_scheduler *s, mr_request *request)
{
    if (s->waiting.count + s->running.count >= s->max_live) {
        mr_fail(&request->error, MR_RESOURCE_EXHAUSTED,
                "%u requests wait already, the limit max_queue_requests is %u; try again later",
                s->waiting.count, s->options.max_queue);
        request->error.retry_after_ms = RETRY_AFTER_MS;
        return MR_RESOURCE_EXHAUSTED;
    }
    return check_prompt(s, request, &request->error);
}

void mr_scheduler_add(mr_scheduler *s, mr_request *request, uint64_t now_ns)
{
    s->last_ns = now_ns;
    /* The list of news never overflows: each add brings at most one entry more. */
    if (s->n_news + s->waiting.count + s->running.count >= s->max_news) {
        mr_scheduler_publish(s);
    }
    mr_sequence *sequence = request->sequence;
    sequence->ticket = ++s->n_arrived;
    if (check_admission(s, request) != MR_OK) {
        mr_scheduler_end(s, sequence, MR_FINISH_ERROR, now_ns);
        return;
    }
    if (mr_scheduler_idle(s)) {
        s->window_ns = mr_time_add(now_ns, s->options.batch_timeout_ns);
    }
    s->stats.started++;
    mr_sequence_list_insert(&s->waiting, sequence);
}

bool mr_scheduler_idle(const mr_scheduler *s)
{
    return s->waiting.count == 0 && s->running.count == 0;
}

void mr_scheduler_stats_get(const mr_scheduler *s, mr_scheduler_stats *out)
{
    *out = s->stats;
    out->waiting = s->waiting.count;
    out->running = s->running.count;
    mr_block_pool_stats_get(s->pool, &out->blocks);
}
