/* SPDX-License-Identifier: Apache-2.0 */
/* From tokens to text in whole characters, for one choice of a stream. Runs on the reader's
 * thread. */
#ifndef MILLRACE_SERVICE_TEXT_H
#define MILLRACE_SERVICE_TEXT_H

#include "base/buffer.h"
#include "base/status.h"
#include "model/tokenizer.h"
#include "scheduler/request.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct mr_text_stream {
    const mr_tokenizer *tokenizer; /* borrows; NULL: the model has none, text stays empty */
    bool keep_special;
    mr_buffer pending; /* owns: bytes not handed out yet */
    uint64_t taken;    /* bytes handed out */
} mr_text_stream;

void mr_text_stream_init(mr_text_stream *stream, const mr_tokenizer *tokenizer, bool keep_special);
void mr_text_stream_deinit(mr_text_stream *stream);
/* Adds a token's bytes (none for a special token that is not kept). */
MR_MUST_USE mr_status mr_text_stream_push(mr_text_stream *stream, uint32_t token);
/* Adds an event's token, but for a token that ended the choice: that is shown only if it is a
 * special one and those are kept. */
MR_MUST_USE mr_status mr_text_stream_add(mr_text_stream *stream, const mr_token_event *event);
/* Appends to `out` all that is whole of the stream's first `limit` bytes, a number that never goes
 * down: valid UTF-8, only truly invalid bytes as U+FFFD. With `last` nothing stays behind: a
 * truncated character at the very end becomes U+FFFD, what is past the limit is dropped. */
MR_MUST_USE mr_status mr_text_stream_take(mr_text_stream *stream, uint64_t limit, bool last,
                                          mr_buffer *out);

#endif
