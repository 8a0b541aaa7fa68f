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

static void add_float(mr_hasher *h, float value)
{
    mr_hasher_add(h, &value, sizeof(value));
}

static void add_numbers(mr_hasher *h, const uint64_t *numbers, size_t count)
{
    mr_hasher_add(h, numbers, count * sizeof(*numbers));
}

static void add_linear(mr_hasher *h, const mr_op_linear *op)
{
    const uint64_t numbers[] = {op->in, op->out, op->parts, op->logits};
    add_numbers(h, numbers, 4);
    for (uint32_t i = 0; i < op->parts; i++) {
        add_u64(h, op->weight[i]);
        add_u64(h, op->bias[i]);
    }
}

/* Every kind has its case: a setting that is no weight changes the results as well. */
static void add_op(mr_hasher *h, const mr_op *op)
{
    add_u64(h, (uint64_t)op->kind);
    switch (op->kind) {
    case MR_OP_EMBED:
        add_numbers(h,
                    (const uint64_t[]){op->embed.table, op->embed.out, op->embed.learned_positions,
                                       op->embed.positions, op->embed.offset},
                    5);
        add_float(h, op->embed.scale);
        break;
    case MR_OP_NORM:
        add_numbers(h,
                    (const uint64_t[]){(uint64_t)op->norm.kind, op->norm.stream, op->norm.in,
                                       op->norm.out, op->norm.gain, op->norm.bias},
                    6);
        add_float(h, op->norm.epsilon);
        break;
    case MR_OP_LINEAR:
        add_linear(h, &op->linear);
        break;
    case MR_OP_ROPE_KV:
        add_numbers(h,
                    (const uint64_t[]){op->rope_kv.qkv, op->rope_kv.layer, op->rope_kv.heads,
                                       op->rope_kv.rope, op->rope_kv.head_norms, op->rope_kv.q_gain,
                                       op->rope_kv.k_gain},
                    7);
        add_float(h, op->rope_kv.epsilon);
        break;
    case MR_OP_ATTENTION:
        add_numbers(h,
                    (const uint64_t[]){op->attention.qkv, op->attention.out, op->attention.layer,
                                       op->attention.heads, op->attention.window},
                    5);
        add_float(h, op->attention.scale);
        add_float(h, op->attention.soft_cap);
        break;
    case MR_OP_GATED:
        add_numbers(
            h, (const uint64_t[]){op->gated.in, op->gated.out, (uint64_t)op->gated.activation}, 3);
        break;
    case MR_OP_ACTIVATE:
        add_numbers(h,
                    (const uint64_t[]){op->activate.in, op->activate.out,
                                       (uint64_t)op->activate.activation},
                    3);
        break;
    case MR_OP_ALL_REDUCE:
    case MR_OP_GATHER:
    case MR_OP_SAMPLE:
        add_numbers(h, (const uint64_t[]){op->unary.in, op->unary.out}, 2);
        break;
    }
}

/* How the tensors of a weight are read. */
static void add_codes(mr_hasher *h, const mr_weight_codes *codes)
{
    add_numbers(h,
                (const uint64_t[]){(uint64_t)codes->codes.form, codes->codes.bits,
                                   codes->codes.packs_rows, codes->zeros.data != NULL,
                                   codes->zero_add, (uint64_t)codes->scale_dtype, codes->group,
                                   codes->scale_rows, codes->group_of != NULL, codes->first,
                                   codes->centred},
                11);
}

static void add_plan(mr_hasher *h, const mr_plan *plan)
{
    add_u64(h, plan->n_ops);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        add_op(h, &plan->ops[i]);
    }
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        add_text(h, weight->name);
        add_u64(h, weight->random);
        add_u64(h, weight->codes != NULL);
        if (weight->codes != NULL) {
            add_codes(h, weight->codes);
        }
        if (weight->random) {
            add_numbers(h,
                        (const uint64_t[]){(uint64_t)weight->dtype, weight->n, weight->k,
                                           weight->random_seed, weight->random_stream},
                        5);
            add_float(h, weight->random_mean);
        }
    }
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

/* What was read is let go of again: it is not needed a second time. */
static mr_status add_tensors(mr_hasher *h, mr_hasher *scratch, const mr_model *model,
                             const mr_plan *plan, const mr_flag *stop, mr_error *err)
{
    const size_t count = mr_model_tensor_count(model);
    add_u64(h, count);
    for (size_t i = 0; i < count; i++) {
        const mr_model_tensor *tensor = mr_model_tensor_at(model, i);
        uint8_t digest[MR_SHA256_BYTES];
        MR_TRY(tensor_digest(scratch, tensor, stop, digest, err));
        plan->release(plan->release_ctx, tensor->data, tensor->bytes);
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
    mr_plan *plan = NULL;
    MR_TRY(mr_model_plan(model, &plan, err));
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (mr_hasher_create(&all) == MR_OK && mr_hasher_create(&each) == MR_OK) {
        mr_hasher_begin(all);
        add_config(all, mr_model_config_get(model));
        add_vocabulary(all, mr_model_tokenizer(model));
        add_plan(all, plan);
        status = add_tensors(all, each, model, plan, stop, err);
        mr_hasher_end(all, out);
    } else {
        status = mr_fail(err, status, "no memory to hash the model");
    }
    mr_hasher_destroy(all);
    mr_hasher_destroy(each);
    mr_plan_destroy(plan);
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
        add_numbers(h, (const uint64_t[]){(uint64_t)rope->rule, rope->original}, 2);
        add_part(h, &rope->theta, sizeof(rope->theta));
        add_part(h, &rope->factor, sizeof(rope->factor));
        add_part(h, rope->inv_freq, rope->dims / 2 * sizeof(*rope->inv_freq));
        if (rope->rule == MR_ROPE_TWO) {
            add_part(h, rope->long_inv_freq, rope->dims / 2 * sizeof(*rope->long_inv_freq));
        }
    }
    mr_hasher_end(h, out);
}
