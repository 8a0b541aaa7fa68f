/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/scheduler.h"

#include "base/checked.h"
#include "scheduler/internal.h"
#include "scheduler/prefix.h"

#include <inttypes.h>
#include <stdlib.h>

/* History tokens of a step: enough for whole contexts of forked sequences, within this. The memory
 * is touched only when they are sent. */
#define MAX_HISTORY (UINT64_C(1) << 22)

/* Of one list that a row carries. */
static uint32_t max_bans(const mr_scheduler_options *options)
{
    return MR_MAX_LOGIT_BIAS + MR_MAX_STOP_TOKENS + options->n_eos;
}

/* At least what the beams of one search may send together. */
static uint32_t max_history(const mr_scheduler_options *options, uint32_t seqs)
{
    const uint64_t all = (uint64_t)seqs * options->max_seq_length;
    const uint64_t search = (uint64_t)MR_MAX_BEAMS * options->max_seq_length;
    const uint64_t most = search > MAX_HISTORY ? search : MAX_HISTORY;
    const uint64_t count = (all < most ? all : most) + options->max_batch_tokens;
    return count < UINT32_MAX - 1 ? (uint32_t)count : UINT32_MAX - 1;
}

void mr_scheduler_batch_limits(const mr_scheduler_options *options, uint32_t block_size,
                               mr_batch_limits *out)
{
    const uint32_t seqs = mr_min_u32(options->max_batch_size, options->max_batch_tokens);
    *out = (mr_batch_limits){
        .max_tokens = options->max_batch_tokens,
        .max_seqs = seqs,
        .max_rows = options->max_rows > seqs ? options->max_rows : seqs,
        .max_context = options->max_seq_length,
        .block_size = block_size,
        .kv_groups = 1,
        /* Rows that score a prompt share a list, and those that draw share another. */
        .max_bias = seqs * (MR_MAX_LOGIT_BIAS + max_bans(options)),
        .max_history = max_history(options, seqs),
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
        {"max_rows", options->max_rows, 0, 1u << 28},
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
    const size_t n_bans = max_bans(&s->options);
    s->eos = mr_calloc(n_eos + 1, sizeof(*s->eos));
    s->bias_tokens = mr_calloc(n_bans, sizeof(*s->bias_tokens));
    s->bias_values = mr_calloc(n_bans, sizeof(*s->bias_values));
    s->copies = mr_calloc(s->max_copies, sizeof(*s->copies));
    s->tables = mr_calloc(slots * s->max_blocks, sizeof(*s->tables));
    s->free_slots = mr_calloc(slots, sizeof(*s->free_slots));
    s->planned = mr_calloc(slots, sizeof(*s->planned));
    s->ahead = mr_calloc(slots, sizeof(*s->ahead));
    s->news = mr_calloc(s->max_news, sizeof(*s->news));
    s->group = mr_calloc(s->max_news, sizeof(*s->group));
    MR_TRY(mr_hasher_create(&s->hasher));
    if (s->eos == NULL || s->bias_tokens == NULL || s->bias_values == NULL || s->copies == NULL ||
        s->tables == NULL || s->free_slots == NULL || s->planned == NULL || s->ahead == NULL ||
        s->news == NULL || s->group == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    MR_TRY(mr_fair_queue_init(&s->fair, &s->options.fair, s->max_live));
    MR_TRY(mr_sequence_list_init(&s->waiting, s->max_live, false));
    MR_TRY(mr_sequence_list_init(&s->draining, s->max_live, false));
    /* Forks, which have a row each, come in before those that ended in the step are dropped. */
    return mr_sequence_list_init(&s->running, s->max_running + s->max_rows, true);
}

static void deallocate(mr_scheduler *s)
{
    mr_fair_queue_deinit(&s->fair);
    mr_sequence_list_deinit(&s->waiting);
    mr_sequence_list_deinit(&s->running);
    mr_sequence_list_deinit(&s->draining);
    mr_hasher_destroy(s->hasher);
    free(s->eos);
    free(s->bias_tokens);
    free(s->bias_values);
    free(s->copies);
    free(s->tables);
    free(s->free_slots);
    free(s->planned);
    free(s->ahead);
    free(s->news);
    free(s->group);
    free(s);
}

static void init(mr_scheduler *s, const mr_scheduler_options *options, mr_block_pool *pool)
{
    mr_block_pool_stats blocks;
    mr_batch_limits limits;
    mr_block_pool_stats_get(pool, &blocks);
    mr_scheduler_batch_limits(options, mr_block_pool_block_size(pool), &limits);
    s->options = *options;
    s->pool = pool;
    s->block_size = mr_block_pool_block_size(pool);
    s->total_blocks = blocks.total;
    /* A step has a token for each running sequence, so that none starves. */
    s->max_running = limits.max_seqs;
    s->max_rows = limits.max_rows;
    s->max_history = limits.max_history;
    s->max_copies = s->max_rows + s->max_running; /* forks have a row each, and beams a slot */
    s->max_live = options->max_queue + s->max_running;
    s->max_blocks = mr_blocks_for(options->max_seq_length, s->block_size);
    /* Those that live, and as many that ended since news went out. */
    s->max_news = 2 * s->max_live;
    mr_pace_init(&s->pace);
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
    }
    s->options.eos = s->eos;
    while (s->n_free_slots < s->max_running) {
        s->free_slots[s->n_free_slots] = s->max_running - 1 - s->n_free_slots;
        s->n_free_slots++;
    }
    mr_scheduler_prefix_demote_to(s, s->options.host_tier);
    *out = s;
    return MR_OK;
}

/* Ends every request; what `ending` puts into its error is its business. */
static void end_all(mr_scheduler *s, void (*ending)(mr_request *, const mr_error *),
                    const mr_error *err, mr_finish finish, uint64_t now_ns)
{
    mr_sequence_list *const lists[] = {&s->running, &s->waiting, &s->draining};
    for (size_t l = 0; l < 3; l++) {
        for (uint32_t i = 0; i < lists[l]->count; i++) {
            mr_group *group = lists[l]->items[i]->group;
            if (group->n_open > 0) {
                ending(group->request, err);
                mr_scheduler_end(s, group, finish, now_ns);
            }
        }
    }
    mr_scheduler_drop_ended(s);
    s->n_planned = 0;
    s->n_ahead = 0;
    s->n_rows = 0;
    s->n_copies = 0;
}

static void say_stopped(mr_request *request, const mr_error *err)
{
    (void)err;
    mr_fail(&request->error, MR_CANCELLED, "the server stopped before the end");
}

static void say_failed(mr_request *request, const mr_error *err)
{
    if (request->usage.scheduled_ns != 0) {
        request->error = *err;
        return;
    }
    mr_fail(&request->error, MR_UNAVAILABLE,
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
    mr_scheduler_prefix_demote_to(s, NULL);
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

static mr_status check_ids(const mr_scheduler *s, const mr_request *request, mr_error *err)
{
    const struct {
        const char *field;
        const uint32_t *ids;
        uint32_t n;
    } lists[] = {
        {"logit_bias", request->bias_tokens, request->n_bias},
        {"stop_token_ids", request->stop_tokens, request->n_stop_tokens},
    };
    for (size_t l = 0; l < 2; l++) {
        for (uint32_t i = 0; i < lists[l].n; i++) {
            if (lists[l].ids[i] >= s->options.vocab_size) {
                return mr_fail_field(err, MR_INVALID_ARGUMENT, lists[l].field,
                                     "%s names token id %u, the vocabulary ends at %u",
                                     lists[l].field, lists[l].ids[i], s->options.vocab_size - 1);
            }
        }
    }
    if (request->stop != NULL && s->options.tokenizer == NULL) {
        return mr_fail_field(err, MR_FAILED_PRECONDITION, "stop",
                             "this model has no tokenizer, so it has no text that stop strings "
                             "could be found in; use stop_token_ids");
    }
    return MR_OK;
}

/* All beams run together. */
static mr_status check_beams(const mr_scheduler *s, const mr_request *request, mr_error *err)
{
    const uint64_t width = request->params.beam_width;
    if (width > s->max_running) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "beam_width",
                             "beam_width is %u and %u sequences can run; lower it or raise "
                             "max_batch_size",
                             request->params.beam_width, s->max_running);
    }
    const uint64_t full = request->n_prompt / s->block_size;
    const uint64_t each = mr_blocks_for(request->n_prompt + 1, s->block_size) - full;
    if (width > 1 && full + width * each > s->total_blocks) {
        return mr_fail_field(
            err, MR_INVALID_ARGUMENT, "beam_width",
            "%u beams on a prompt of %u tokens want %" PRIu64 " KV blocks, the whole "
            "cache has %u; lower beam_width or raise kv_cache_memory",
            request->params.beam_width, request->n_prompt, full + width * each, s->total_blocks);
    }
    return MR_OK;
}

static mr_status refuse_place(mr_scheduler *s, mr_request *request)
{
    mr_error *err = &request->error;
    mr_fail(err, MR_RESOURCE_EXHAUSTED,
            "%u requests wait already, the limit max_queue_requests is %u; try again later",
            s->n_groups - s->n_groups_running, s->options.max_queue);
    err->retry_after_ms = mr_pace_refuse_ms(&s->pace);
    return MR_RESOURCE_EXHAUSTED;
}

/* Makes a place in the full queue: of the tenant that holds most of it for its weight, the request
 * that never ran and has the worst claim gives way, so that one tenant cannot lock the others out.
 * False when that is the one that asks. */
static bool make_place(mr_scheduler *s, const mr_request *request, uint64_t now_ns)
{
    const uint32_t fullest = mr_fair_queue_fullest(&s->fair, request->tenant, request->weight);
    const mr_sequence *worst =
        fullest != request->tenant ? mr_fair_queue_worst(&s->fair, fullest) : NULL;
    if (worst == NULL) {
        return false;
    }
    (void)refuse_place(s, worst->request);
    s->stats.rejected++;
    mr_scheduler_end(s, worst->group, MR_FINISH_ERROR, now_ns);
    mr_sequence_list_drop(&s->waiting, MR_SEQUENCE_ENDED);
    return true;
}

static mr_status check_admission(mr_scheduler *s, mr_request *request, uint64_t now_ns)
{
    mr_error *err = &request->error;
    MR_TRY(check_prompt(s, request, err));
    MR_TRY(check_ids(s, request, err));
    MR_TRY(check_beams(s, request, err));
    if (s->n_groups >= s->max_live && !make_place(s, request, now_ns)) {
        return refuse_place(s, request);
    }
    return MR_OK;
}

/* Lists never grow inside a step: room for all choices of all live requests is made here. */
static mr_status make_room(mr_scheduler *s, mr_request *request)
{
    const uint64_t wanted = (uint64_t)s->n_sequences + request->group->n_sequences;
    const uint64_t capacity = s->waiting.capacity;
    if (wanted > capacity) {
        const uint64_t room = 2 * capacity > wanted ? 2 * capacity : wanted;
        if (room > UINT32_MAX || mr_fair_queue_reserve(&s->fair, (uint32_t)room) != MR_OK ||
            mr_sequence_list_reserve(&s->waiting, (uint32_t)room) != MR_OK) {
            return mr_fail(&request->error, MR_RESOURCE_EXHAUSTED, "no memory to queue %u choices",
                           request->params.n);
        }
    }
    return MR_OK;
}

void mr_scheduler_add(mr_scheduler *s, mr_request *request, uint64_t now_ns)
{
    s->last_ns = now_ns;
    /* The list of news never overflows: each add brings at most one entry more. */
    if (s->n_news + s->n_groups >= s->max_news) {
        mr_scheduler_publish(s);
    }
    mr_group *group = request->group;
    for (uint32_t i = 0; i < group->n_sequences; i++) {
        group->sequences[i].ticket = ++s->n_arrived;
    }
    s->stats.started++;
    if (check_admission(s, request, now_ns) != MR_OK || make_room(s, request) != MR_OK) {
        s->stats.rejected++;
        mr_scheduler_end(s, group, MR_FINISH_ERROR, now_ns);
        return;
    }
    if (mr_scheduler_idle(s)) {
        s->window_ns = mr_time_add(now_ns, s->options.batch_timeout_ns);
    }
    group->live = true;
    s->n_groups++;
    s->n_sequences += group->n_sequences;
    if (s->waiting.count == 0) {
        mr_pace_begin(&s->pace, now_ns);
    }
    mr_fair_queue_arrive(&s->fair, &group->sequences[0]);
    mr_sequence_list_insert(&s->waiting, &group->sequences[0]);
}

void mr_scheduler_reset_prefix_cache(mr_scheduler *s, uint32_t generation)
{
    if (s->options.host_tier != NULL) {
        mr_host_tier_clear(s->options.host_tier);
    }
    if (mr_block_pool_index(s->pool) != NULL) {
        mr_block_pool_reset_cache(s->pool, generation);
    }
}

bool mr_scheduler_idle(const mr_scheduler *s)
{
    return s->n_groups == 0;
}

void mr_scheduler_stats_get(const mr_scheduler *s, mr_scheduler_stats *out)
{
    *out = s->stats;
    out->waiting = s->n_groups - s->n_groups_running;
    out->running = s->n_groups_running;
    mr_block_pool_stats_get(s->pool, &out->blocks);
    const mr_prefix_index *index = mr_block_pool_index(s->pool);
    out->prefix_blocks = index == NULL ? 0 : mr_prefix_index_count(index);
    if (s->options.host_tier != NULL) {
        mr_host_tier_stats_get(s->options.host_tier, &out->host);
    }
}
