/* SPDX-License-Identifier: Apache-2.0 */
/* GetModel, and the answer to every method that is not served. */
#include "service/call.h"
#include "service/unsupported.h"

#include "millrace/v1/inference.pb-c.h"

#include <grpc/slice.h>
#include <string.h>

#define PACKAGE_PREFIX "/millrace.v1."

static ProtobufCBinaryData text(const char *value)
{
    /* protobuf-c only reads what it packs. */
    return (ProtobufCBinaryData){.len = strlen(value), .data = (uint8_t *)value};
}

/* Everything in it is borrowed from the runtime. */
static void describe(const mr_runtime *runtime, Millrace__V1__Model *out)
{
    const mr_model *model = mr_runtime_model(runtime);
    const mr_model_config *about = mr_model_config_get(model);
    const mr_config *config = mr_runtime_config(runtime);
    millrace__v1__model__init(out);
    out->name = text(mr_runtime_model_name(runtime));
    out->architecture = text(about->architecture);
    out->quantization = text(about->quantization);
    out->vocab_size = about->vocab_size;
    out->max_seq_length = config->max_seq_length;
    out->n_eos_token_ids = about->n_eos;
    out->eos_token_ids = (uint32_t *)about->eos;
    out->parameters = about->parameters;
    out->backend = text(mr_runtime_backend(runtime)->name);
    out->version = text(MR_VERSION);
    out->rope = text(about->rope_in_effect);
    out->kv_cache_dtype = text(config->kv_cache_dtype);
    out->kv_scales = text(about->kv_scales);
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    if (tokenizer != NULL && mr_tokenizer_bos(tokenizer) != UINT32_MAX) {
        out->_bos_token_id_case = MILLRACE__V1__MODEL___BOS_TOKEN_ID_BOS_TOKEN_ID;
        out->bos_token_id = mr_tokenizer_bos(tokenizer);
    }
    const mr_chat_template *chat = mr_model_chat(model);
    out->chat = tokenizer != NULL && chat != NULL && mr_chat_template_known(chat);
}

static void begin_get_model(mr_call *call)
{
    mr_error err;
    mr_runtime *runtime = NULL;
    if (mr_server_runtime(call->queue->server, &runtime, &err) != MR_OK) {
        mr_call_finish(call, NULL, &err);
        return;
    }
    Millrace__V1__Model model;
    describe(runtime, &model);
    Millrace__V1__GetModelResponse response = MILLRACE__V1__GET_MODEL_RESPONSE__INIT;
    response.model = &model;
    mr_call_finish(call, &response.base, NULL);
}

const mr_rpc_method mr_rpc_get_model = {
    .path = "/millrace.v1.InferenceService/GetModel",
    .begin = begin_get_model,
};

static void begin_other(mr_call *call)
{
    char path[256];
    const size_t length = GRPC_SLICE_LENGTH(call->details.method);
    const size_t kept = length < sizeof(path) ? length : sizeof(path) - 1;
    memcpy(path, GRPC_SLICE_START_PTR(call->details.method), kept);
    path[kept] = '\0';

    mr_error err;
    const size_t prefix = strlen(PACKAGE_PREFIX);
    const bool ours = strncmp(path, PACKAGE_PREFIX, prefix) == 0;
    if (ours && mr_unsupported_find(MR_SURFACE_PROTO, path + prefix) != NULL) {
        (void)mr_unsupported_fail(MR_SURFACE_PROTO, path + prefix, &err);
    } else {
        (void)mr_fail(&err, MR_UNIMPLEMENTED,
                      "there is no method %s here; millrace.v1.InferenceService has Generate "
                      "(streams), GenerateUnary, Abort, Tokenize, Detokenize and GetModel, "
                      "grpc.health.v1.Health has Check and Watch",
                      path);
    }
    mr_call_finish(call, NULL, &err);
}

const mr_rpc_method mr_rpc_other = {
    .begin = begin_other,
};
