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

mr_status mr_text_stream_take(mr_text_stream *stream, bool last, mr_buffer *out)
{
    const size_t held = last ? 0 : mr_utf8_pending(stream->pending.data, stream->pending.size);
    const size_t whole = stream->pending.size - held;
    MR_TRY(mr_utf8_append_lossy(out, stream->pending.data, whole));
    mr_buffer_consume(&stream->pending, whole);
    return MR_OK;
}
