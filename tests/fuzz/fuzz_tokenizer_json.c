/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads arbitrary bytes as a tokenizer.json, the first line of them as a tokenizer_config.json.
 * What is taken must encode and decode any text without a complaint but of patterns that try too
 * much.
 */
#include "model/tokenizer_json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const mr_tokenizer *tokenizer)
{
    static const char text[] =
        "<s> Hello  w\xC3\xB6rld 123\xE4\xBD\xA0\xF0\x9F\x99\x82\n\n<x>e\xCC\x81"
        "\0\xE2\x96\x81 ab</s>";
    static const mr_text_span plain[] = {{5, 9}, {20, 40}};
    mr_ids ids = {0};
    mr_buffer back = {0};
    const mr_encode_options options[] = {
        {.add_special = true, .parse_special = true},
        {.parse_special = true, .plain = plain, .n_plain = 2},
        {.parse_special = false},
    };
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        const mr_status status =
            mr_tokenizer_encode(tokenizer, text, sizeof(text) - 1, &options[i], &ids, NULL);
        MR_CHECK(status == MR_OK || status == MR_RESOURCE_EXHAUSTED);
    }
    for (size_t i = 0; i < ids.count; i++) {
        MR_CHECK(ids.data[i] < mr_tokenizer_vocab_size(tokenizer));
    }
    MR_CHECK(mr_tokenizer_decode(tokenizer, ids.data, ids.count, true, &back, NULL) == MR_OK);
    mr_buffer_deinit(&back);
    mr_ids_deinit(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = size > 0 ? memchr(data, '\n', size) : NULL;
    const size_t head = line != NULL ? (size_t)(line - data) : 0;
    mr_error err = {0};
    mr_tokenizer_config config;
    if (mr_tokenizer_config_parse(data, head, &config, &err) != MR_OK) {
        config = (mr_tokenizer_config){0};
    }
    mr_tokenizer *tokenizer = NULL;
    const mr_status status =
        mr_tokenizer_json_create(data + head, size - head, &config, &tokenizer, &err);
    MR_CHECK(status == MR_OK || status == MR_DATA_LOSS || status == MR_UNIMPLEMENTED);
    MR_CHECK((tokenizer != NULL) == (status == MR_OK));
    MR_CHECK(status == MR_OK || (err.status == status && err.message[0] != '\0'));
    if (tokenizer != NULL) {
        use(tokenizer);
    }
    mr_tokenizer_destroy(tokenizer);
    mr_tokenizer_config_deinit(&config);
    return 0;
}
