/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/internal.h"
#include "scheduler/prefix.h"
#include "scheduler/swap.h"

/* A token that the step drew, with what was asked about it. */
typedef struct drawn {
    uint32_t token;
    float logprob;
    uint8_t n_top;
    const mr_alternative *top;
} drawn;

static drawn drawn_of(const mr_request *request, const mr_step_output *output, uint32_t row)
{
    drawn d = {.token = output->tokens[row]};
    if (request->params.logprobs) {
        const uint8_t asked = request->params.top_logprobs;
        d.logprob = output->logprobs[row];
        d.n_top = output->n_top[row] < asked ? output->n_top[row] : asked;
        d.top = output->top + (size_t)row * MR_MAX_TOP;
    }
    return d;
}

static void append(mr_scheduler *s, mr_sequence *sequence, const drawn *d, uint64_t now_ns)
{
    mr_request *request = sequence->request;
    mr_group *group = sequence->group;
    mr_verdict verdict;
    mr_scheduler_judge(s, request, mr_sequence_generated(sequence), d->token, &sequence->text,
                       &verdict);
    sequence->tokens[sequence->n_tokens++] = d->token;
    mr_fair_queue_serve(&s->fair, sequence, sequence->n_tokens - 1);
    sequence->cumulative += (double)d->logprob;
    group->n_generated++;
    s->stats.generated_tokens++;
    if (request->usage.first_token_ns == 0) {
        request->usage.first_token_ns = now_ns;
    }
    if (verdict.finish != MR_FINISH_NONE) {
        mr_scheduler_settle(s, sequence, verdict.finish, now_ns);
    }
    /* Filled in its place: a copy of what was just written waits for every store before it. */
    mr_token_event *entry = mr_scheduler_reserve(group);
    *entry = (mr_token_event){
        .token = d->token,
        .choice = sequence->choice,
        .finish = (uint8_t)verdict.finish,
        .n_top = d->n_top,
        .matched_stop = verdict.matched_stop,
        .matched_token = verdict.matched_token,
        .logprob = d->logprob,
        .cumulative_logprob = sequence->cumulative,
        .text_bytes = verdict.text_bytes,
    };
    for (uint32_t i = 0; i < d->n_top; i++) {
        entry->top[i] = d->top[i];
    }
    mr_scheduler_give(s, group, entry);
}

/* False, and the request ended, if one of the rows is damaged. */
static bool check_rows(mr_scheduler *s, mr_sequence *sequence, const mr_step_output *output,
                       uint32_t first, uint32_t count, uint64_t now_ns)
{
    for (uint32_t row = first; row < first + count; row++) {
        if (output->corrupt[row] != 0 || output->tokens[row] >= s->options.vocab_size) {
            s->stats.corrupted++;
            mr_scheduler_prefix_forget(s, sequence);
            mr_fail(&sequence->request->error, MR_INTERNAL,
                    "the model gave no usable logits for token %u of the sequence; the weights or "
                    "the device are damaged: compare the file's checksum, try another machine",
                    sequence->n_tokens);
            mr_scheduler_end(s, sequence->group, MR_FINISH_ERROR, now_ns);
            return false;
        }
    }
    return true;
}

static void take_scores(mr_request *request, const mr_step_output *output, uint32_t first,
                        uint32_t count)
{
    const uint8_t asked = request->params.top_logprobs;
    for (uint32_t row = first; row < first + count; row++) {
        const uint32_t index = request->n_prompt_scored++;
        const uint8_t n_top = output->n_top[row] < asked ? output->n_top[row] : asked;
        request->prompt_logprobs[index] =
            (mr_prompt_logprob){.logprob = output->logprobs[row], .n_top = n_top};
        for (uint8_t i = 0; i < n_top; i++) {
            request->prompt_top[(size_t)index * asked + i] = output->top[row * MR_MAX_TOP + i];
        }
    }
}

static void take_rows(mr_scheduler *s, const mr_planned *part, const mr_step_output *output,
                      uint32_t first, uint64_t now_ns)
{
    mr_sequence *sequence = part->sequence;
    mr_group *group = sequence->group;
    if (group->n_generated == 0 && group->n_sequences > 1) {
        mr_scheduler_fork(s, sequence, part->drawn);
    }
    for (uint32_t i = 0; i < part->drawn; i++) {
        const drawn d = drawn_of(sequence->request, output, first + i);
        append(s, &sequence[i], &d, now_ns);
    }
}

/* Tokens of the prompt among the next `count` of the sequence. */
static uint32_t prompt_part(const mr_sequence *sequence, uint32_t count)
{
    const uint32_t n_prompt = sequence->request->n_prompt;
    const uint32_t left = sequence->n_computed < n_prompt ? n_prompt - sequence->n_computed : 0;
    return count < left ? count : left;
}

/* The first of the beams speaks for all: their parts follow each other, and each has a row or
 * none has. */
static void apply_beams(mr_scheduler *s, const mr_planned *part, const mr_step_output *output,
                        uint32_t row, uint64_t now_ns)
{
    mr_group *group = part->sequence->group;
    if (part->drawn > 0) {
        const uint32_t rows = group->beams->n_live > 0 ? group->beams->n_live : 1;
        if (part->sequence == &group->sequences[0] &&
            check_rows(s, part->sequence, output, row, rows, now_ns)) {
            mr_scheduler_search(s, group, output, row, now_ns);
        }
    } else if (!group->beams->attached && group->beams->n_live > 0 &&
               part->sequence->n_computed >= part->sequence->request->n_prompt) {
        mr_scheduler_attach_beams(s, group);
    }
}

const uint32_t mr_step_size_bounds[MR_STEP_SIZES] = {1,   8,    16,   32,   64,   128,  256,
                                                     512, 1024, 2048, 4096, 8192, 16384};

static void count_step(mr_scheduler *s, uint32_t tokens)
{
    uint32_t size = 0;
    while (size < MR_STEP_SIZES && tokens > mr_step_size_bounds[size]) {
        size++;
    }
    s->stats.step_sizes[size]++;
    s->stats.step_tokens += tokens;
}

void mr_scheduler_apply(mr_scheduler *s, const mr_step_output *output, uint64_t now_ns)
{
    MR_CHECK(output->n_rows == s->n_rows);
    s->last_ns = now_ns;
    s->n_copies = 0;
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const mr_planned *part = &s->planned[i];
        tokens += part->tokens;
        if (part->sequence == NULL) {
            continue;
        }
        s->stats.prompt_tokens += prompt_part(part->sequence, part->tokens);
        part->sequence->n_computed += part->tokens;
    }
    count_step(s, tokens);
    mr_swap_measure(s, tokens, now_ns);
    uint32_t row = 0;
    for (uint32_t i = 0; i < s->n_planned; i++) {
        const mr_planned *part = &s->planned[i];
        mr_sequence *sequence = part->sequence;
        const uint32_t first = row;
        const uint32_t rows = part->scored + part->drawn;
        row += rows;
        if (sequence == NULL) {
            s->n_dropped += rows;
            continue;
        }
        /* Another of its choices may have ended the request just now. */
        if (sequence->group->n_open == 0 || !check_rows(s, sequence, output, first, rows, now_ns)) {
            continue;
        }
        mr_scheduler_prefix_register(s, sequence, part->tokens);
        take_scores(sequence->request, output, first, part->scored);
        if (sequence->group->beams != NULL) {
            apply_beams(s, part, output, first + part->scored, now_ns);
        } else if (part->drawn > 0) {
            take_rows(s, part, output, first + part->scored, now_ns);
        }
    }
    mr_scheduler_take_ahead(s);
    mr_scheduler_drop_ended(s);
    mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
#ifdef MR_DEBUG_CHECKS
    MR_CHECK(mr_block_pool_check(s->pool));
#endif
}
