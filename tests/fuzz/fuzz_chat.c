/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages into a chat template. The first byte says whether the assistant's turn is opened; 0xFF,
 * which is no UTF-8, ends each role and each content. Whatever the messages say, only the template
 * makes special tokens, and the messages stand in the text as they were given.
 */
#include "chatml.h"

#include "base/utf8.h"
#include "model/chat.h"

enum { MAX_MESSAGES = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static mr_bytes cut(const uint8_t **at, const uint8_t *end)
{
    const uint8_t *begin = *at;
    const uint8_t *stop = memchr(begin, 0xFF, (size_t)(end - begin));
    *at = stop == NULL ? end : stop + 1;
    return (mr_bytes){begin, (size_t)((stop == NULL ? end : stop) - begin)};
}

static size_t split(const uint8_t *data, size_t size, mr_chat_message *messages)
{
    const uint8_t *end = data + size;
    size_t count = 0;
    while (data < end && count < MAX_MESSAGES) {
        messages[count].role = cut(&data, end);
        messages[count].content = cut(&data, end);
        count++;
    }
    return count;
}

static void check_spans(const mr_chat_rendered *rendered, const mr_chat_message *messages,
                        size_t count)
{
    size_t span = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        const mr_bytes text = i % 2 == 0 ? messages[i / 2].role : messages[i / 2].content;
        if (text.size == 0) {
            continue;
        }
        MR_CHECK(span < rendered->n_plain);
        const mr_text_span plain = rendered->plain[span++];
        MR_CHECK(plain.end <= rendered->text.size && plain.end - plain.begin == text.size);
        MR_CHECK(memcmp(rendered->text.data + plain.begin, text.data, text.size) == 0);
    }
    MR_CHECK(span == rendered->n_plain);
}

/* A turn is a start and an end; the opened one has no end. */
static void check_ids(const mr_chat_rendered *rendered, size_t turns, bool opened)
{
    static chatml_vocab vocab;
    static mr_tokenizer *tokenizer;
    if (tokenizer == NULL) {
        chatml_vocab_init(&vocab);
        MR_CHECK(mr_tokenizer_create(&vocab.vocab.spec, &tokenizer, NULL) == MR_OK);
    }
    const mr_encode_options options = {
        .parse_special = true,
        .plain = rendered->plain,
        .n_plain = rendered->n_plain,
    };
    mr_ids ids = {0};
    MR_CHECK(mr_tokenizer_encode(tokenizer, rendered->text.data, rendered->text.size, &options,
                                 &ids, NULL) == MR_OK);
    size_t starts = 0;
    size_t ends = 0;
    for (size_t i = 0; i < ids.count; i++) {
        starts += ids.data[i] == vocab.start;
        ends += ids.data[i] == vocab.end;
    }
    MR_CHECK(ends == turns && starts == turns + (opened ? 1 : 0));
    mr_ids_deinit(&ids);
}

static bool is_text(const mr_chat_message *messages, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!mr_utf8_valid(messages[i].role.data, messages[i].role.size, NULL) ||
            !mr_utf8_valid(messages[i].content.data, messages[i].content.size, NULL)) {
            return false;
        }
    }
    return count > 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mr_chat_template *tmpl;
    if (tmpl == NULL) {
        const char *text = chatml_template();
        const mr_bytes source = {(const uint8_t *)text, strlen(text)};
        MR_CHECK(mr_chat_template_create(source, &tmpl, NULL) == MR_OK);
    }
    if (size == 0) {
        return 0;
    }
    mr_chat_message messages[MAX_MESSAGES];
    const size_t count = split(data + 1, size - 1, messages);
    const bool opened = data[0] % 2 == 1;
    mr_chat_rendered rendered;
    mr_error err = {0};
    const mr_status status = mr_chat_render(tmpl, messages, count, opened, &rendered, &err);
    if (!is_text(messages, count)) {
        MR_CHECK(status == MR_INVALID_ARGUMENT && err.message[0] != '\0');
        return 0;
    }
    MR_CHECK(status == MR_OK);
    const mr_bytes role = messages[0].role;
    const bool has_system = role.size == 6 && memcmp(role.data, "system", 6) == 0;
    check_spans(&rendered, messages, count);
    check_ids(&rendered, count + (has_system ? 0 : 1), opened);
    mr_chat_rendered_deinit(&rendered);
    return 0;
}
