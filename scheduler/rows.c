/* SPDX-License-Identifier: Apache-2.0 */
#include "base/checked.h"
#include "scheduler/internal.h"

#include <math.h>
#include <string.h>

/* Prompt positions whose rows are still wanted are score_from() … n_prompt − 2: each scores the
 * token behind it. */
static bool scores(const mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    return request->prompt_logprobs != NULL && request->n_prompt_scored < request->n_prompt;
}

static uint32_t score_from(const mr_sequence *sequence)
{
    const uint32_t next = sequence->request->n_prompt_scored - 1;
    return next > sequence->n_computed ? next : sequence->n_computed;
}

uint32_t mr_scheduler_chunk(const mr_scheduler *s, const mr_sequence *sequence, uint32_t limit)
{
    uint32_t count = mr_min_u32(limit, s->tokens_left);
    count = mr_min_u32(count, sequence->n_tokens - sequence->n_computed);
    if (scores(sequence)) {
        /* From there on every token has a row, also the prompt's last one. */
        const uint64_t end = (uint64_t)score_from(sequence) + s->rows_left;
        if (sequence->n_computed + (uint64_t)count > end) {
            count = (uint32_t)(end - sequence->n_computed);
        }
    } else if (sequence->n_computed + count == sequence->n_tokens && s->rows_left == 0) {
        count--;
    }
    if (sequence->group->penalties) {
        const uint64_t end = (uint64_t)sequence->history_sent + s->history_left;
        if (sequence->n_computed + (uint64_t)count > end) {
            count = end > sequence->n_computed ? (uint32_t)(end - sequence->n_computed) : 0;
        }
    }
    return count;
}

/* ---- parameters ---- */

/* Of the token at `position`. */
static mr_row_params params_of(const mr_sequence *sequence, uint32_t position)
{
    const mr_request *request = sequence->request;
    const mr_request_params *wanted = &request->params;
    const bool penalties = sequence->group->penalties;
    return (mr_row_params){
        .temperature = wanted->temperature,
        .top_p = wanted->top_p,
        .min_p = wanted->min_p,
        .top_k = wanted->top_k,
        .repetition_penalty = wanted->repetition_penalty,
        .presence_penalty = wanted->presence_penalty,
        .frequency_penalty = wanted->frequency_penalty,
        .key = request->key,
        .position = position,
        .choice = sequence->choice,
        .target = MR_NO_TARGET,
        .bias_count = request->n_bias,
        .history_len = penalties ? position : 0,
        .prompt_len = penalties ? mr_min_u32(position, request->n_prompt) : 0,
        .n_top = wanted->logprobs ? wanted->top_logprobs : 0,
        .want_logprob = wanted->logprobs,
        .processed = wanted->logprobs_processed,
    };
}

/* What a search looks at: the model's distribution after bias, bans and penalties, which is what
 * PROCESSED means at temperature 0. */
static void search_params(const mr_beams *beams, mr_row_params *params)
{
    params->temperature = 0.0f;
    params->top_p = 1.0f;
    params->min_p = 0.0f;
    params->top_k = 0;
    params->choice = 0;
    params->n_top = (uint8_t)(2 * beams->width);
    params->want_logprob = true;
    params->processed = true;
}

/* Adds the tokens that may not be drawn to the bias of the request; gives the length of the list in
 * the scratch arrays. */
static uint32_t list_bans(const mr_scheduler *s, const mr_request *request)
{
    uint32_t n = request->n_bias;
    if (n > 0) {
        memcpy(s->bias_tokens, request->bias_tokens, n * sizeof(*s->bias_tokens));
        memcpy(s->bias_values, request->bias_values, n * sizeof(*s->bias_values));
    }
    for (uint32_t i = 0; !request->params.ignore_eos && i < s->options.n_eos; i++) {
        s->bias_tokens[n] = s->eos[i];
        s->bias_values[n++] = -INFINITY;
    }
    for (uint32_t i = 0; i < request->n_stop_tokens; i++) {
        s->bias_tokens[n] = request->stop_tokens[i];
        s->bias_values[n++] = -INFINITY;
    }
    return n;
}

/* ---- the batch ---- */

static void add_row(mr_scheduler *s, const mr_row_params *params, const uint32_t *bias_tokens,
                    const float *bias_values, mr_batch_storage *storage)
{
    MR_CHECK(mr_batch_add_row(storage, params, bias_tokens, bias_values) == MR_OK);
    MR_CHECK(s->rows_left > 0);
    s->rows_left--;
    s->n_rows++;
}

/* The row of the token added last, at `position`, which scores the next one of the prompt. */
static void add_score_row(mr_scheduler *s, const mr_sequence *sequence, uint32_t position,
                          bool first, mr_batch_storage *storage)
{
    const mr_request *request = sequence->request;
    mr_row_params params = params_of(sequence, position + 1);
    params.target = request->prompt[position + 1];
    params.n_top = request->params.top_logprobs;
    params.want_logprob = true;
    if (!params.processed) {
        params.bias_count = 0; /* without effect on the model's own distribution */
        params.history_len = 0;
        params.prompt_len = 0;
    }
    const bool shares = !first || params.bias_count == 0;
    add_row(s, &params, shares ? NULL : request->bias_tokens, request->bias_values, storage);
}

/* Rows after all tokens of the sequence, `ahead` of which are not drawn yet: one, or one for each
 * choice if they all begin here. */
static uint32_t add_drawn_rows(mr_scheduler *s, const mr_sequence *sequence, uint32_t ahead,
                               mr_batch_storage *storage)
{
    const mr_request *request = sequence->request;
    const mr_group *group = sequence->group;
    mr_row_params params = params_of(sequence, sequence->n_tokens + ahead);
    const uint32_t *bias_tokens = request->bias_tokens;
    const float *bias_values = request->bias_values;
    if (mr_scheduler_bans_stops(request, mr_sequence_generated(sequence) + ahead)) {
        params.bias_count = list_bans(s, request);
        bias_tokens = s->bias_tokens;
        bias_values = s->bias_values;
    }
    uint32_t count = 1;
    if (group->beams != NULL) {
        search_params(group->beams, &params);
    } else if (group->n_generated + ahead == 0 && sequence->choice == 0) {
        count = mr_min_u32(group->n_sequences, s->rows_left);
    }
    for (uint32_t i = 0; i < count; i++) {
        params.choice = sequence->choice + i;
        add_row(s, &params, i == 0 ? bias_tokens : NULL, bias_values, storage);
    }
    return count;
}

/* The tokens of one block, from `position` to before `end`. */
static void add_block_tokens(mr_scheduler *s, const mr_sequence *sequence, uint32_t position,
                             uint32_t end, mr_batch_storage *storage)
{
    const uint32_t block = sequence->blocks[position / s->block_size];
    const uint32_t kv_slot = block * s->block_size + position % s->block_size;
    MR_CHECK(mr_batch_add_span(storage, sequence->tokens + position, end - position, position,
                               kv_slot) == MR_OK);
}

/* Tokens that score the next one each have a row: they come one by one. */
static uint32_t add_scoring_tokens(mr_scheduler *s, const mr_sequence *sequence, uint32_t position,
                                   uint32_t end, mr_batch_storage *storage)
{
    uint32_t scored = 0;
    for (; position < end; position++) {
        add_block_tokens(s, sequence, position, position + 1, storage);
        if (position + 1 < sequence->request->n_prompt) {
            add_score_row(s, sequence, position, scored == 0, storage);
            scored++;
        }
    }
    return scored;
}

static uint32_t add_tokens(mr_scheduler *s, const mr_sequence *sequence, uint32_t end,
                           mr_batch_storage *storage)
{
    const uint32_t first_scored = scores(sequence) ? score_from(sequence) : end;
    const uint32_t plain = mr_min_u32(first_scored, end);
    uint32_t position = sequence->n_computed;
    while (position < plain) {
        const uint32_t block_end = (position / s->block_size + 1) * s->block_size;
        const uint32_t to = mr_min_u32(block_end, plain);
        add_block_tokens(s, sequence, position, to, storage);
        position = to;
    }
    return add_scoring_tokens(s, sequence, position, end, storage);
}

/* Starts the sequence in the batch, which takes it to `end` tokens. Blocks are told as they come
 * into use, which bounds what a step has to tell. */
static void add_sequence(mr_scheduler *s, mr_sequence *sequence, uint32_t end,
                         mr_batch_storage *storage)
{
    MR_CHECK(mr_batch_add_seq(storage, sequence->slot, end, 0) == MR_OK);
    mr_batch_set_rope_length(storage, sequence->request->n_prompt);
    const uint32_t in_use = mr_blocks_for(end, s->block_size);
    for (; sequence->n_sent < in_use; sequence->n_sent++) {
        const mr_block_delta delta = {
            .slot = sequence->slot,
            .index = sequence->n_sent,
            .block = sequence->blocks[sequence->n_sent],
        };
        MR_CHECK(mr_batch_add_block(storage, &delta) == MR_OK);
    }
}

void mr_scheduler_emit(mr_scheduler *s, mr_sequence *sequence, uint32_t count,
                       mr_batch_storage *storage)
{
    const uint32_t end = sequence->n_computed + count;
    if (s->n_planned == 0) {
        mr_batch_reset(storage);
    }
    add_sequence(s, sequence, end, storage);
    mr_planned *part = &s->planned[s->n_planned++];
    *part = (mr_planned){.sequence = sequence, .tokens = count};
    part->scored = add_tokens(s, sequence, end, storage);
    if (sequence->group->penalties) {
        const uint32_t sent = sequence->history_sent;
        MR_CHECK(mr_batch_add_history(storage, sequence->slot, sent, sequence->tokens + sent,
                                      end - sent) == MR_OK);
        s->history_left -= end - sent;
        sequence->history_sent = end;
    }
    if (end == sequence->n_tokens) {
        part->drawn = add_drawn_rows(s, sequence, 0, storage);
    }
    s->tokens_left -= count;
}

void mr_scheduler_emit_ahead(mr_scheduler *s, mr_sequence *sequence, uint32_t row,
                             mr_batch_storage *storage)
{
    const uint32_t position = sequence->n_tokens;
    if (s->n_ahead == 0) {
        mr_batch_reset(storage);
    }
    add_sequence(s, sequence, position + 1, storage);
    const uint32_t kv_slot =
        sequence->blocks[position / s->block_size] * s->block_size + position % s->block_size;
    MR_CHECK(mr_batch_add_token(storage, mr_token_src_row(row), position, &kv_slot) == MR_OK);
    mr_planned *part = &s->ahead[s->n_ahead++];
    *part = (mr_planned){.sequence = sequence, .tokens = 1};
    part->drawn = add_drawn_rows(s, sequence, 1, storage);
}
