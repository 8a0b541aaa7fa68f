/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Encodes arbitrary bytes. The first byte picks the options and the family; two more place a plain
 * span. What is not UTF-8 must be refused, everything else must come back from its ids.
 */
#include "../unit/model/tiny_vocab.h"

#include "base/utf8.h"
#include "model/tokenizer.h"

#include <stdlib.h>

#define HEAD 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mr_tokenizer *create(const char *family)
{
    static tiny_vocab vocab;
    tiny_vocab_init(&vocab);
    vocab.spec.pre_tokenizer = family;
    tiny_vocab_join(&vocab, "a", "a");
    tiny_vocab_join(&vocab, "aa", "aa");
    tiny_vocab_join(&vocab, "\xC4\xA0", "a");
    tiny_vocab_join(&vocab, "\xC4\xA0", "\xC4\xA0");
    tiny_vocab_join(&vocab, "<", "|");
    tiny_vocab_join(&vocab, "|", ">");
    tiny_vocab_add(&vocab, "<|a|>", MR_TOKEN_SPECIAL);
    tiny_vocab_add(&vocab, "<|a|><|a", MR_TOKEN_ADDED);
    tiny_vocab_add(&vocab, "\xC3\xA9 1", MR_TOKEN_ADDED);
    mr_tokenizer *made = NULL;
    MR_CHECK(mr_tokenizer_create(&vocab.spec, &made, NULL) == MR_OK);
    return made;
}

static void check_round_trip(const mr_tokenizer *tokenizer, const uint8_t *text, size_t bytes,
                             const mr_encode_options *options)
{
    mr_ids ids = {0};
    mr_buffer back = {0};
    const mr_status status = mr_tokenizer_encode(tokenizer, text, bytes, options, &ids, NULL);
    if (!mr_utf8_valid(text, bytes, NULL)) {
        MR_CHECK(status == MR_INVALID_ARGUMENT && ids.count == 0);
    } else {
        MR_CHECK(status == MR_OK);
        MR_CHECK(mr_tokenizer_decode(tokenizer, ids.data, ids.count, true, &back, NULL) == MR_OK);
        MR_CHECK(back.size == bytes && (bytes == 0 || memcmp(back.data, text, bytes) == 0));
    }
    mr_buffer_deinit(&back);
    mr_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const families[] = {"gpt-2", "smollm", "llama-bpe"};
    static mr_tokenizer *tokenizers[3];
    if (size < HEAD) {
        return 0;
    }
    const size_t family = data[0] % 3;
    if (tokenizers[family] == NULL) {
        tokenizers[family] = create(families[family]);
    }
    const size_t bytes = size - HEAD;
    mr_text_span span = {.begin = data[1], .end = data[1] + (size_t)data[2]};
    span.begin = span.begin < bytes ? span.begin : bytes;
    span.end = span.end < bytes ? span.end : bytes;
    const mr_encode_options options = {
        .parse_special = (data[0] & 0x40) != 0,
        .plain = &span,
        .n_plain = (data[0] & 0x80) != 0,
    };
    check_round_trip(tokenizers[family], data + HEAD, bytes, &options);
    return 0;
}
