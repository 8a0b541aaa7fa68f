/* SPDX-License-Identifier: Apache-2.0 */
#include "model/digest.h"

#include <string.h>

/* Bytes hashed between two looks at the flag. */
#define PIECE (UINT64_C(4) << 20)

static void add_u64(mr_hasher *h, uint64_t value)
{
    mr_hasher_add(h, &value, sizeof(value));
}

/* With its length in front, so that no two lists of parts give the same bytes. */
static void add_part(mr_hasher *h, const void *data, size_t bytes)
{
    add_u64(h, bytes);
    mr_hasher_add(h, data, bytes);
}

static void add_text(mr_hasher *h, const char *text)
{
    add_part(h, text, strlen(text));
}

static void add_config(mr_hasher *h, const mr_model_config *c)
{
    const uint64_t numbers[] = {c->layers,   c->width,      c->ffn_width,  c->heads,
                                c->kv_heads, c->head_width, c->vocab_size, c->context_length};
    add_text(h, c->architecture);
    add_text(h, c->quantization);
    add_part(h, numbers, sizeof(numbers));
    add_part(h, &c->norm_epsilon, sizeof(c->norm_epsilon));
    add_text(h, c->rope_type);
    add_part(h, &c->rope_theta, sizeof(c->rope_theta));
    add_part(h, c->eos, c->n_eos * sizeof(c->eos[0]));
}

static void add_vocabulary(mr_hasher *h, const mr_tokenizer *tokenizer)
{
    const uint32_t size = tokenizer == NULL ? 0 : mr_tokenizer_vocab_size(tokenizer);
    add_u64(h, size);
    for (uint32_t id = 0; id < size; id++) {
        const mr_bytes bytes = mr_tokenizer_token_bytes(tokenizer, id);
        add_u64(h, (uint64_t)mr_tokenizer_kind(tokenizer, id));
        add_part(h, bytes.data, bytes.size);
    }
}

static mr_status tensor_digest(mr_hasher *h, const mr_model_tensor *tensor, const mr_flag *stop,
                               uint8_t out[MR_SHA256_BYTES], mr_error *err)
{
    const uint8_t *data = tensor->data;
    if (data == NULL && tensor->bytes > 0) {
        return mr_fail(err, MR_FAILED_PRECONDITION, "tensor %s has no data to identify it by",
                       tensor->name);
    }
    mr_hasher_begin(h);
    for (uint64_t at = 0; at < tensor->bytes; at += PIECE) {
        const uint64_t left = tensor->bytes - at;
        if (mr_flag_get(stop)) {
            return mr_fail(err, MR_CANCELLED, "the model is being closed");
        }
        mr_hasher_add(h, data + at, left < PIECE ? left : PIECE);
    }
    mr_hasher_end(h, out);
    return MR_OK;
}

static mr_status add_tensors(mr_hasher *h, mr_hasher *scratch, const mr_model *model,
                             const mr_flag *stop, mr_error *err)
{
    const size_t count = mr_model_tensor_count(model);
    add_u64(h, count);
    for (size_t i = 0; i < count; i++) {
        const mr_model_tensor *tensor = mr_model_tensor_at(model, i);
        uint8_t digest[MR_SHA256_BYTES];
        MR_TRY(tensor_digest(scratch, tensor, stop, digest, err));
        add_text(h, tensor->name);
        add_text(h, mr_dtype_info_get(tensor->dtype)->name);
        add_part(h, tensor->shape, tensor->n_dims * sizeof(tensor->shape[0]));
        mr_hasher_add(h, digest, sizeof(digest));
    }
    return MR_OK;
}

mr_status mr_model_digest(const mr_model *model, const mr_flag *stop, uint8_t out[MR_SHA256_BYTES],
                          mr_error *err)
{
    mr_hasher *all = NULL;
    mr_hasher *each = NULL;
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (mr_hasher_create(&all) == MR_OK && mr_hasher_create(&each) == MR_OK) {
        mr_hasher_begin(all);
        add_config(all, mr_model_config_get(model));
        add_vocabulary(all, mr_model_tokenizer(model));
        status = add_tensors(all, each, model, stop, err);
        mr_hasher_end(all, out);
    } else {
        status = mr_fail(err, status, "no memory to hash the model");
    }
    mr_hasher_destroy(all);
    mr_hasher_destroy(each);
    return status;
}

void mr_plan_rope_digest(mr_hasher *h, const mr_plan *plan, uint8_t out[MR_SHA256_BYTES])
{
    mr_hasher_begin(h);
    for (uint32_t i = 0; i < plan->n_ropes; i++) {
        const mr_plan_rope *rope = &plan->ropes[i];
        add_u64(h, (uint64_t)rope->pairing);
        add_u64(h, rope->dims);
        add_part(h, &rope->attention_factor, sizeof(rope->attention_factor));
        add_part(h, rope->inv_freq, rope->dims / 2 * sizeof(*rope->inv_freq));
    }
    mr_hasher_end(h, out);
}
