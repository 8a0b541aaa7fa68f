/* SPDX-License-Identifier: Apache-2.0 */
/* A line of an offline batch. What is refused must say why, what is taken must be within bounds. */
#include "../unit/model/tiny_llama.h"

#include "model/model_internal.h"
#include "service/jsonl.h"

enum { MAX_SEQ = 64 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const mr_model *model(void)
{
    static gguf_writer writer;
    static mr_model *made; /* without a tokenizer: ids in, ids out */
    if (made == NULL) {
        gguf_writer_init(&writer);
        tiny_llama_write(&writer, &(tiny_llama){0});
        size_t size = 0;
        const uint8_t *file = gguf_finish(&writer, &size);
        MR_CHECK(mr_model_open_memory(file, size, "tiny", &made, NULL) == MR_OK);
    }
    return made;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mr_jsonl_request request;
    mr_error err = {0};
    const mr_status status =
        mr_jsonl_read_request(model(), MAX_SEQ, (const char *)data, size, &request, &err);
    if (status == MR_OK) {
        MR_CHECK(request.prompt.count >= 1 && request.prompt.count < MAX_SEQ);
        MR_CHECK(request.params.max_tokens >= 1 && request.params.temperature >= 0.0f);
        for (size_t i = 0; i < request.prompt.count; i++) {
            MR_CHECK(request.prompt.data[i] < TINY_VOCAB);
        }
    } else {
        MR_CHECK(err.status == status && err.message[0] != '\0');
    }
    mr_jsonl_request_deinit(&request);
    return 0;
}
