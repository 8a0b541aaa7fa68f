/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/internal.h"

/* True when `token` ends its sequence; asked before it is appended. */
static bool ends_text(const mr_scheduler *s, const mr_sequence *sequence, uint32_t token)
{
    const mr_request_params *params = &sequence->request->params;
    const uint32_t n_generated = sequence->n_tokens - sequence->request->n_prompt;
    if (params->ignore_eos || n_generated < params->min_tokens) {
        return false;
    }
    for (uint32_t i = 0; i < s->options.n_eos; i++) {
        if (s->eos[i] == token) {
            return true;
        }
    }
    return false;
}

static bool is_full(const mr_scheduler *s, const mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    return sequence->n_tokens - request->n_prompt >= request->params.max_tokens ||
           sequence->n_tokens >= s->options.max_seq_length;
}

static void append(mr_scheduler *s, mr_sequence *sequence, const mr_step_output *output,
                   uint32_t row, uint64_t now_ns)
{
    mr_request *request = sequence->request;
    const uint32_t token = output->tokens[row];
    const bool stop = ends_text(s, sequence, token);
    sequence->tokens[sequence->n_tokens++] = token;
    s->stats.generated_tokens++;
    if (request->usage.first_token_ns == 0) {
        request->usage.first_token_ns = now_ns;
    }
    mr_finish finish = MR_FINISH_NONE;
    if (stop) {
        finish = MR_FINISH_STOP;
    } else if (is_full(s, sequence)) {
        finish = MR_FINISH_LENGTH;
    }
    if (finish != MR_FINISH_NONE) {
        mr_scheduler_settle(s, sequence, finish, now_ns);
    }
    mr_token_event event = {
        .token = token,
        .finish = (uint8_t)finish,
        .matched_token = stop ? token : MR_NO_TOKEN,
        .text_bytes = UINT64_MAX,
    };
    const mr_alternative *top = NULL;
    if (request->params.logprobs) {
        const uint8_t asked = request->params.top_logprobs;
        event.logprob = output->logprobs[row];
        event.n_top = output->n_top[row] < asked ? output->n_top[row] : asked;
        top = output->top + (size_t)row * MR_MAX_TOP;
    }
    mr_scheduler_push(s, sequence, &event, top);
}

static void take_row(mr_scheduler *s, mr_sequence *sequence, const mr_step_output *output,
                     uint32_t row, uint64_t now_ns)
{
    if (output->corrupt[row] == 0 && output->tokens[row] < s->options.vocab_size) {
        append(s, sequence, output, row, now_ns);
        return;
    }
    mr_fail(&sequence->request->error, MR_INTERNAL,
            "the model gave no usable logits for token %u of the sequence; the weights or the "
            "device are damaged, run `millrace verify`",
            sequence->n_tokens);
    mr_scheduler_end(s, sequence, MR_FINISH_ERROR, now_ns);
}

/* Tokens of the prompt among the next `count` of the sequence. */
static uint32_t prompt_part(const mr_sequence *sequence, uint32_t count)
{
    const uint32_t n_prompt = sequence->request->n_prompt;
    const uint32_t left = sequence->n_computed < n_prompt ? n_prompt - sequence->n_computed : 0;
    return count < left ? count : left;
}

void mr_scheduler_apply(mr_scheduler *s, const mr_step_output *output, uint64_t now_ns)
{
    MR_CHECK(output->n_rows == s->n_rows);
    s->last_ns = now_ns;
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const mr_planned *part = &s->planned[i];
        s->stats.prompt_tokens += prompt_part(part->sequence, part->tokens);
        part->sequence->n_computed += part->tokens;
        if (part->row) {
            take_row(s, part->sequence, output, row++, now_ns);
        }
    }
    s->n_planned = 0;
    s->n_rows = 0;
    mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
}
