/* SPDX-License-Identifier: Apache-2.0 */
#include "service/text.h"

#include "base/utf8.h"

void mr_text_stream_init(mr_text_stream *stream, const mr_tokenizer *tokenizer, bool keep_special)
{
    *stream = (mr_text_stream){.tokenizer = tokenizer, .keep_special = keep_special};
}

void mr_text_stream_deinit(mr_text_stream *stream)
{
    mr_buffer_deinit(&stream->pending);
}

mr_status mr_text_stream_push(mr_text_stream *stream, uint32_t token)
{
    /* A model's vocabulary may be padded past its tokenizer's: such a token has no text. */
    if (stream->tokenizer == NULL || token >= mr_tokenizer_vocab_size(stream->tokenizer)) {
        return MR_OK;
    }
    if (!stream->keep_special && mr_tokenizer_kind(stream->tokenizer, token) == MR_TOKEN_SPECIAL) {
        return MR_OK;
    }
    const mr_bytes bytes = mr_tokenizer_token_bytes(stream->tokenizer, token);
    return mr_buffer_append(&stream->pending, bytes.data, bytes.size);
}

mr_status mr_text_stream_add(mr_text_stream *stream, const mr_token_event *event)
{
    const mr_tokenizer *tokenizer = stream->tokenizer;
    if (event->token == MR_NO_TOKEN || tokenizer == NULL ||
        event->token >= mr_tokenizer_vocab_size(tokenizer)) {
        return MR_OK;
    }
    if (event->matched_token == event->token &&
        mr_tokenizer_kind(tokenizer, event->token) != MR_TOKEN_SPECIAL) {
        return MR_OK;
    }
    return mr_text_stream_push(stream, event->token);
}

mr_status mr_text_stream_take(mr_text_stream *stream, uint64_t limit, bool last, mr_buffer *out)
{
    const uint64_t open = limit > stream->taken ? limit - stream->taken : 0;
    size_t whole = open < stream->pending.size ? (size_t)open : stream->pending.size;
    if (!last) {
        whole -= mr_utf8_pending(stream->pending.data, whole);
    }
    MR_TRY(mr_utf8_append_lossy(out, stream->pending.data, whole));
    mr_buffer_consume(&stream->pending, last ? stream->pending.size : whole);
    stream->taken += whole;
    return MR_OK;
}
