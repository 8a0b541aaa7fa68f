/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/internal.h"

static bool is_in(const uint32_t *list, uint32_t n, uint32_t token)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == token) {
            return true;
        }
    }
    return false;
}

bool mr_scheduler_bans_stops(const mr_request *request, uint32_t n_generated)
{
    return n_generated < request->params.min_tokens;
}

/* The bytes by which `token` makes the text longer. */
static mr_bytes text_of(const mr_scheduler *s, const mr_request *request, uint32_t token)
{
    const mr_tokenizer *tokenizer = s->options.tokenizer;
    /* A model's vocabulary may be padded past its tokenizer's: such a token has no text. */
    if (token >= mr_tokenizer_vocab_size(tokenizer) ||
        (!request->params.keep_special_tokens &&
         mr_tokenizer_kind(tokenizer, token) == MR_TOKEN_SPECIAL)) {
        return (mr_bytes){0};
    }
    return mr_tokenizer_token_bytes(tokenizer, token);
}

/* Feeds the token's text to the stop strings. Matches are passed over while they may not stop. */
static void read_text(const mr_scheduler *s, const mr_request *request, bool may_stop,
                      uint32_t token, mr_text_state *text, mr_verdict *verdict)
{
    const mr_bytes bytes = text_of(s, request, token);
    size_t at = 0;
    while (at < bytes.size) {
        const mr_stop_match match =
            mr_stop_feed(request->stop, &text->stop, bytes.data + at, bytes.size - at);
        at += match.consumed;
        if (match.index != MR_NO_STOP && may_stop) {
            const size_t length = mr_stop_string_get(request->stop, match.index).bytes;
            verdict->finish = MR_FINISH_STOP;
            verdict->matched_stop = match.index;
            verdict->text_bytes =
                text->bytes + at - (request->params.include_stop_in_text ? 0 : length);
            break;
        }
    }
    text->bytes += bytes.size;
}

/* The verdict is written field by field into its place: as a returned struct it would be read back
 * in wider pieces than it was written in, and wait for every store before it. */
void mr_scheduler_judge(const mr_scheduler *s, const mr_request *request, uint32_t n_generated,
                        uint32_t token, mr_text_state *text, mr_verdict *verdict)
{
    const mr_request_params *params = &request->params;
    const bool may_stop = !mr_scheduler_bans_stops(request, n_generated);
    const uint32_t length = request->n_prompt + n_generated + 1;
    *verdict = (mr_verdict){
        .matched_token = MR_NO_TOKEN,
        .matched_stop = MR_NO_STOP,
        .text_bytes = UINT64_MAX,
    };
    if (may_stop && (is_in(request->stop_tokens, request->n_stop_tokens, token) ||
                     (!params->ignore_eos && is_in(s->eos, s->options.n_eos, token)))) {
        /* Its own bytes are no text, and what was held back can become no stop string any more. */
        verdict->finish = MR_FINISH_STOP;
        verdict->matched_token = token;
        return;
    }
    if (request->stop != NULL) {
        read_text(s, request, may_stop, token, text, verdict);
    }
    if (verdict->finish != MR_FINISH_NONE) {
        return;
    }
    if (n_generated + 1 >= params->max_tokens || length >= s->options.max_seq_length) {
        verdict->finish = MR_FINISH_LENGTH;
    } else if (request->stop != NULL) {
        verdict->text_bytes = text->bytes - mr_stop_held(request->stop, text->stop);
    }
}
