/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A GenerateRequest from its bytes to what the engine would take, on a model with a tokenizer and a
 * chat template. What is refused says why in text that a status can carry; what is taken is within
 * the bounds that the engine relies on.
 */
#include "chatml.h"

#include "../unit/model/tiny_llama.h"

#include "base/utf8.h"
#include "service/codec.h"
#include "service/proto_request.h"

#include <float.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void write_tokenizer(gguf_writer *w, const tiny_vocab *vocab)
{
    const char *tokens[TINY_TOKENS];
    const char *merges[TINY_MERGES];
    for (uint32_t i = 0; i < vocab->spec.n_tokens; i++) {
        tokens[i] = vocab->token_text[i];
    }
    for (uint32_t i = 0; i < vocab->spec.n_merges; i++) {
        merges[i] = vocab->merge_text[i];
    }
    gguf_key_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(w, "tokenizer.ggml.pre", "smollm");
    gguf_key_strings(w, "tokenizer.ggml.tokens", tokens, vocab->spec.n_tokens);
    gguf_key_strings(w, "tokenizer.ggml.merges", merges, vocab->spec.n_merges);
    gguf_key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    gguf_put_u32(&w->values, GGUF_I32);
    gguf_put_u64(&w->values, vocab->spec.n_tokens);
    for (uint32_t i = 0; i < vocab->spec.n_tokens; i++) {
        /* The file's numbers: 1 normal, 3 control. */
        gguf_put_u32(&w->values, vocab->kinds[i] == MR_TOKEN_NORMAL ? 1 : 3);
    }
    gguf_key_string(w, "tokenizer.chat_template", chatml_template());
}

static mr_runtime *open_runtime(void)
{
    static chatml_vocab vocab;
    gguf_writer writer;
    size_t size = 0;
    chatml_vocab_init(&vocab);
    gguf_writer_init(&writer);
    tiny_llama_write(&writer, &(tiny_llama){.vocab = vocab.vocab.spec.n_tokens});
    write_tokenizer(&writer, &vocab.vocab);
    gguf_key_u32(&writer, "tokenizer.ggml.eos_token_id", vocab.end);
    const uint8_t *file = gguf_finish(&writer, &size);
    const int fd = memfd_create("model", 0);
    MR_CHECK(fd >= 0 && write(fd, file, size) == (ssize_t)size);
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);

    mr_config config;
    mr_runtime *made = NULL;
    mr_error err = {0};
    MR_CHECK(mr_config_init(&config, &err) == MR_OK);
    MR_CHECK(mr_config_set(&config, "threads=1", &err) == MR_OK);
    MR_CHECK(mr_config_finish(&config, &err) == MR_OK);
    const mr_runtime_options options = {.model_path = path, .config = &config};
    if (mr_runtime_open(&options, &made, &err) != MR_OK) {
        (void)fprintf(stderr, "%s\n", err.message);
    }
    MR_CHECK(made != NULL);
    close(fd);
    gguf_writer_deinit(&writer);
    return made;
}

static void check_taken(const mr_proto_request *request, const mr_runtime *runtime)
{
    const uint32_t longest = mr_runtime_config(runtime)->max_seq_length;
    const uint32_t vocab = mr_model_config_get(mr_runtime_model(runtime))->vocab_size;
    const mr_request_params *params = &request->params;
    MR_CHECK(request->prompt.count >= 1 && request->prompt.count < longest);
    for (size_t i = 0; i < request->prompt.count; i++) {
        MR_CHECK(request->prompt.data[i] < vocab);
    }
    MR_CHECK(params->n >= 1 && params->n <= MR_MAX_CHOICES);
    MR_CHECK(params->beam_width <= MR_MAX_BEAMS);
    MR_CHECK(params->max_tokens >= 1 && params->max_tokens <= longest);
    MR_CHECK(params->temperature >= 0.0f && params->temperature <= FLT_MAX);
    MR_CHECK(params->top_p > 0.0f && params->top_p <= 1.0f);
    MR_CHECK(params->min_p >= 0.0f && params->min_p <= 1.0f);
    MR_CHECK(params->top_logprobs <= MR_MAX_TOP_LOGPROBS);
    MR_CHECK(strlen(request->id) <= MR_REQUEST_ID_MAX);
    mr_request_spec spec = {.id = "f",
                            .prompt = request->prompt.data,
                            .n_prompt = (uint32_t)request->prompt.count,
                            .params = request->params};
    mr_generation_lists_fill(&request->lists, &spec);
    MR_CHECK(spec.n_bias <= MR_MAX_LOGIT_BIAS && spec.n_stop_tokens <= MR_MAX_STOP_TOKENS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static mr_runtime *runtime;
    if (runtime == NULL) {
        runtime = open_runtime();
    }
    ProtobufCMessage *message = NULL;
    mr_error err = {0};
    if (mr_codec_decode(&millrace__v1__generate_request__descriptor, data, size, &message, &err) !=
        MR_OK) {
        return 0;
    }
    mr_proto_request request;
    const mr_status status =
        mr_proto_request_read((Millrace__V1__GenerateRequest *)message, runtime, &request, &err);
    if (status == MR_OK) {
        check_taken(&request, runtime);
    } else {
        MR_CHECK(err.status == status && err.message[0] != '\0');
        MR_CHECK(mr_utf8_valid((const uint8_t *)err.message, strlen(err.message), NULL));
        MR_CHECK(mr_utf8_valid((const uint8_t *)err.field, strlen(err.field), NULL));
    }
    mr_proto_request_deinit(&request);
    mr_codec_free(message);
    return 0;
}
