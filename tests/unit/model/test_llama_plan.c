/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "model/model_internal.h"
#include "tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static mr_model *accepted(gguf_writer *w)
{
    size_t size;
    mr_model *model = NULL;
    mr_error err = {0};
    const uint8_t *file = gguf_finish(w, &size);
    if (mr_model_open_memory(file, size, "dir/tiny.gguf", &model, &err) != MR_OK) {
        fail_msg("refused: %s", err.message);
    }
    return model;
}

/* The file is refused; the message has the label and the text. Empties the writer. */
static void refused(gguf_writer *w, mr_status status, const char *text)
{
    size_t size;
    mr_model *model = NULL;
    mr_error err = {0};
    const uint8_t *file = gguf_finish(w, &size);
    const mr_status found = mr_model_open_memory(file, size, "dir/tiny.gguf", &model, &err);
    if (found != status || strstr(err.message, text) == NULL) {
        fail_msg("status %d, message \"%s\" lacks \"%s\"", found, err.message, text);
    }
    assert_null(model);
    assert_memory_equal(err.message, "dir/tiny.gguf: ", 15);
    gguf_writer_deinit(w);
    gguf_writer_init(w);
}

static mr_plan *plan_of(const mr_model *model)
{
    mr_plan *plan = NULL;
    mr_error err = {0};
    if (mr_model_plan(model, &plan, &err) != MR_OK || mr_plan_check(plan, &err) != MR_OK) {
        fail_msg("plan: %s", err.message);
    }
    return plan;
}

static const char *buffer_name(const mr_plan *plan, mr_buffer_id id)
{
    return id == MR_NO_BUFFER ? "-" : plan->buffers[id].name;
}

static const char *weight_name(const mr_plan *plan, mr_weight_id id)
{
    return id == MR_NO_WEIGHT ? "-" : plan->weights[id].name;
}

/* Writes an operator as text: its kind, its buffers, its weights. */
static void describe(const mr_plan *plan, const mr_op *op, char *out, size_t size)
{
    switch (op->kind) {
    case MR_OP_EMBED:
        snprintf(out, size, "embed %s: %s", buffer_name(plan, op->embed.out),
                 weight_name(plan, op->embed.table));
        return;
    case MR_OP_NORM:
        snprintf(out, size, "norm %s + %s > %s: %s", buffer_name(plan, op->norm.stream),
                 buffer_name(plan, op->norm.in), buffer_name(plan, op->norm.out),
                 weight_name(plan, op->norm.gain));
        return;
    case MR_OP_LINEAR:
        snprintf(out, size, "linear %s > %s: %s %s %s", buffer_name(plan, op->linear.in),
                 buffer_name(plan, op->linear.out), weight_name(plan, op->linear.weight[0]),
                 weight_name(plan, op->linear.weight[1]), weight_name(plan, op->linear.weight[2]));
        return;
    case MR_OP_ROPE_KV:
        snprintf(out, size, "rope_kv %s: layer %u", buffer_name(plan, op->rope_kv.qkv),
                 op->rope_kv.layer);
        return;
    case MR_OP_ATTENTION:
        snprintf(out, size, "attention %s > %s: layer %u", buffer_name(plan, op->attention.qkv),
                 buffer_name(plan, op->attention.out), op->attention.layer);
        return;
    case MR_OP_GATED:
        snprintf(out, size, "gated %s > %s", buffer_name(plan, op->gated.in),
                 buffer_name(plan, op->gated.out));
        return;
    case MR_OP_ALL_REDUCE:
    case MR_OP_GATHER:
    case MR_OP_ACTIVATE:
    case MR_OP_SAMPLE:
        snprintf(out, size, "%s %s > %s", mr_op_name(op->kind), buffer_name(plan, op->unary.in),
                 buffer_name(plan, op->unary.out));
        return;
    }
    fail_msg("unknown operator");
}

static const char *const tiny_ops[] = {
    "embed stream: token_embd.weight",
    "norm stream + - > h: blk.0.attn_norm.weight",
    "linear h > qkv: blk.0.attn_q.weight blk.0.attn_k.weight blk.0.attn_v.weight",
    "rope_kv qkv: layer 0",
    "attention qkv > att: layer 0",
    "linear att > proj: blk.0.attn_output.weight - -",
    "all_reduce proj > proj",
    "norm stream + proj > h: blk.0.ffn_norm.weight",
    "linear h > gate_up: blk.0.ffn_gate.weight blk.0.ffn_up.weight -",
    "gated gate_up > act",
    "linear act > proj: blk.0.ffn_down.weight - -",
    "all_reduce proj > proj",
    "norm stream + proj > h: blk.1.attn_norm.weight",
    "linear h > qkv: blk.1.attn_q.weight blk.1.attn_k.weight blk.1.attn_v.weight",
    "rope_kv qkv: layer 1",
    "attention qkv > att: layer 1",
    "gather stream > stream.rows",
    "gather att > att.rows",
    "linear att.rows > proj.rows: blk.1.attn_output.weight - -",
    "all_reduce proj.rows > proj.rows",
    "norm stream.rows + proj.rows > h.rows: blk.1.ffn_norm.weight",
    "linear h.rows > gate_up.rows: blk.1.ffn_gate.weight blk.1.ffn_up.weight -",
    "gated gate_up.rows > act.rows",
    "linear act.rows > proj.rows: blk.1.ffn_down.weight - -",
    "all_reduce proj.rows > proj.rows",
    "norm stream.rows + proj.rows > h.rows: output_norm.weight",
    "linear h.rows > logits: token_embd.weight - -",
    "sample logits > -",
};

#define N_TINY_OPS (sizeof(tiny_ops) / sizeof(tiny_ops[0]))

static void test_config(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    mr_model *model = accepted(w);
    const mr_model_config *c = mr_model_config_get(model);
    assert_string_equal(c->architecture, "llama");
    assert_string_equal(c->name, "tiny");
    assert_int_equal(c->layers, TINY_LAYERS);
    assert_int_equal(c->width, TINY_WIDTH);
    assert_int_equal(c->ffn_width, TINY_FFN);
    assert_int_equal(c->heads, TINY_HEADS);
    assert_int_equal(c->kv_heads, TINY_KV_HEADS);
    assert_int_equal(c->head_width, TINY_HEAD_WIDTH);
    assert_int_equal(c->vocab_size, TINY_VOCAB);
    assert_int_equal(c->context_length, 128);
    assert_true(c->norm_epsilon == 0.0009765625f);
    assert_string_equal(c->quantization, "Q8_0");
    /* 48·32 + 2·((32 + 16 + 16 + 32 + 64 + 64)·32 + 32·64 + 2·32) + 32 */
    assert_int_equal(c->parameters, 20128);
    /* 48·34 + 2·((32 + 16 + 32 + 64 + 64)·34 + 16·128 + 32·40 + 2·128) + 128 */
    assert_int_equal(c->weights_bytes, 23072);
    assert_null(mr_model_tokenizer(model));
    assert_false(mr_chat_template_known(mr_model_chat(model)));
    mr_model_close(model);
}

static void test_R2_rope_default(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    mr_model *model = accepted(w);
    const mr_model_config *c = mr_model_config_get(model);
    /* 10000^(-2i/8): 1, 1/10, 1/100, 1/1000 */
    static const float expected[] = {1.0f, 0.1f, 0.01f, 0.001f};
    assert_string_equal(c->rope_type, "default");
    assert_int_equal(c->rope.pairing, MR_ROPE_INTERLEAVED);
    assert_int_equal(c->rope.dims, 8);
    assert_true(c->rope.attention_factor == 1.0f);
    assert_memory_equal(c->rope.inv_freq, expected, sizeof(expected));
    mr_model_close(model);
}

static void test_R2_rope_linear(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_f32(w, "llama.rope.freq_base", 256.0f);
    gguf_key_u32(w, "llama.rope.dimension_count", 4);
    gguf_key_string(w, "llama.rope.scaling.type", "linear");
    gguf_key_f32(w, "llama.rope.scaling.factor", 4.0f);
    mr_model *model = accepted(w);
    const mr_model_config *c = mr_model_config_get(model);
    /* 256^0 / 4, 256^(-1/2) / 4 */
    static const float expected[] = {0.25f, 0.015625f};
    assert_string_equal(c->rope_type, "linear");
    assert_int_equal(c->rope.dims, 4);
    assert_memory_equal(c->rope.inv_freq, expected, sizeof(expected));
    mr_model_close(model);
}

static void test_R2_rope_factors(void **state)
{
    gguf_writer *w = *state;
    static const float factors[] = {1.0f, 2.0f, 4.0f, 8.0f};
    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_f32(w, "llama.rope.freq_base", 16.0f);
    gguf_vector(w, "rope_freqs.weight", factors, 4);
    mr_model *model = accepted(w);
    const mr_model_config *c = mr_model_config_get(model);
    /* 16^(-i/4) = 2^-i, over the factors */
    static const float expected[] = {1.0f, 0.25f, 0.0625f, 0.015625f};
    assert_string_equal(c->rope_type, "llama3");
    assert_memory_equal(c->rope.inv_freq, expected, sizeof(expected));
    for (size_t i = 0; i < mr_model_tensor_count(model); i++) {
        assert_true(mr_model_tensor_at(model, i)->used);
    }
    mr_model_close(model);
}

static void test_R1_unknown_scaling_is_refused(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_string(w, "llama.rope.scaling.type", "yarn");
    refused(w, MR_UNIMPLEMENTED, "rope.scaling.type 'yarn' is not supported");

    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_f32(w, "llama.rope.scaling.wobble", 1.0f);
    refused(w, MR_UNIMPLEMENTED, "the key 'llama.rope.scaling.wobble' is not known");

    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_f32(w, "llama.rope.scaling.factor", -1.0f);
    refused(w, MR_DATA_LOSS, "is -1, not positive");

    tiny_llama_write(w, &(tiny_llama){0});
    gguf_vector(w, "rope_freqs.weight", (const float[]){1.0f, 1.0f, 0.0f, 1.0f}, 4);
    refused(w, MR_DATA_LOSS, "RoPE frequency 2");
}

static void test_tied_plan(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    mr_model *model = accepted(w);
    mr_plan *plan = plan_of(model);
    char text[512];
    assert_int_equal(plan->n_ops, N_TINY_OPS);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        describe(plan, &plan->ops[i], text, sizeof(text));
        assert_string_equal(text, tiny_ops[i]);
        const bool outside = i == 0 || i >= 25;
        assert_int_equal(plan->ops[i].layer, outside ? UINT16_MAX : i >= 12);
        assert_int_equal(plan->ops[i].segment, 0);
    }
    /* One weight for both uses, whole on every rank. */
    assert_int_equal(plan->n_weights, 2 + 2 * 9);
    assert_int_equal(plan->ops[26].linear.weight[0], plan->ops[0].embed.table);
    assert_int_equal(plan->weights[plan->ops[0].embed.table].shard, MR_SHARD_NONE);
    mr_plan_destroy(plan);
    mr_model_close(model);
}

static void test_plan_parameters(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    mr_model *model = accepted(w);
    mr_plan *plan = plan_of(model);
    assert_int_equal(plan->vocab_size, TINY_VOCAB);
    assert_int_equal(plan->kv.layers, TINY_LAYERS);
    assert_int_equal(plan->kv.heads, TINY_KV_HEADS);
    assert_int_equal(plan->kv.head_width, TINY_HEAD_WIDTH);
    assert_true(plan->ops[0].embed.scale == 1.0f);
    assert_int_equal(plan->ops[1].norm.kind, MR_NORM_RMS);
    assert_true(plan->ops[1].norm.epsilon == 0.0009765625f);
    assert_int_equal(plan->ops[1].norm.bias, MR_NO_WEIGHT);
    assert_int_equal(plan->ops[2].linear.parts, 3);
    assert_int_equal(plan->buffers[plan->ops[2].linear.out].width, (4 + 2 * 2) * 8);
    assert_int_equal(plan->ops[3].rope_kv.heads, TINY_HEADS);
    assert_int_equal(plan->ops[3].rope_kv.rope, 0);
    assert_float_equal(plan->ops[4].attention.scale, 0.35355339059, 1e-8); /* 1/√8 */
    assert_int_equal(plan->ops[4].attention.window, 0);
    assert_int_equal(plan->ops[9].gated.activation, MR_ACT_SILU);
    assert_true(plan->ops[26].linear.logits);
    assert_false(plan->ops[2].linear.logits);
    mr_plan_destroy(plan);
    mr_model_close(model);
}

/* Which axis ranks divide, and what stays together: heads, or the blocks of down's inputs. */
static void test_shards(void **state)
{
    static const struct {
        const char *name;
        mr_shard shard;
        uint32_t unit;
    } expected[] = {
        {"token_embd.weight", MR_SHARD_NONE, 1},
        {"blk.0.attn_norm.weight", MR_SHARD_NONE, 1},
        {"blk.0.attn_q.weight", MR_SHARD_OUTPUTS, 8},
        {"blk.0.attn_q.bias", MR_SHARD_INPUTS, 8},
        {"blk.0.attn_k.weight", MR_SHARD_OUTPUTS, 8},
        {"blk.0.attn_k.bias", MR_SHARD_INPUTS, 8},
        {"blk.0.attn_v.weight", MR_SHARD_OUTPUTS, 8},
        {"blk.0.attn_v.bias", MR_SHARD_INPUTS, 8},
        {"blk.0.attn_output.weight", MR_SHARD_INPUTS, 32}, /* lcm(8, block of Q8_0) */
        {"blk.0.ffn_norm.weight", MR_SHARD_NONE, 1},
        {"blk.0.ffn_gate.weight", MR_SHARD_OUTPUTS, 32},
        {"blk.0.ffn_up.weight", MR_SHARD_OUTPUTS, 32},
        {"blk.0.ffn_down.weight", MR_SHARD_INPUTS, 32},
        {"blk.0.ffn_down.bias", MR_SHARD_NONE, 1},
    };
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){.biases = true, .untied = true});
    mr_model *model = accepted(w);
    mr_plan *plan = plan_of(model);
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_string_equal(plan->weights[i].name, expected[i].name);
        assert_int_equal(plan->weights[i].shard, expected[i].shard);
        assert_int_equal(plan->weights[i].shard_unit, expected[i].unit);
    }
    const mr_plan_weight *head = &plan->weights[plan->n_weights - 1];
    assert_string_equal(head->name, "output.weight");
    assert_int_equal(head->shard, MR_SHARD_OUTPUTS);
    mr_plan_destroy(plan);
    mr_model_close(model);
}

static void test_untied_plan_with_biases(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){.untied = true, .biases = true});
    mr_model *model = accepted(w);
    mr_plan *plan = plan_of(model);
    assert_int_equal(plan->n_ops, N_TINY_OPS);
    assert_string_equal(weight_name(plan, plan->ops[26].linear.weight[0]), "output.weight");
    const mr_op_linear *qkv = &plan->ops[13].linear;
    assert_string_equal(weight_name(plan, qkv->bias[0]), "blk.1.attn_q.bias");
    assert_string_equal(weight_name(plan, qkv->bias[2]), "blk.1.attn_v.bias");
    assert_int_equal(plan->ops[18].linear.bias[0], MR_NO_WEIGHT);
    assert_string_equal(weight_name(plan, plan->ops[23].linear.bias[0]), "blk.1.ffn_down.bias");
    mr_plan_destroy(plan);
    mr_model_close(model);
}

static void test_missing_tensors_are_named(void **state)
{
    static const char *const names[] = {"token_embd.weight", "blk.1.attn_k.weight",
                                        "blk.0.ffn_norm.weight", "blk.1.ffn_down.weight",
                                        "output_norm.weight"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char text[96];
        snprintf(text, sizeof(text), "tensor '%s' is missing", names[i]);
        tiny_llama_write(*state, &(tiny_llama){.skip = names[i]});
        refused(*state, MR_DATA_LOSS, text);
    }
}

static void test_wrong_shapes_are_named(void **state)
{
    tiny_llama_write(*state, &(tiny_llama){.widen = "blk.0.attn_k.weight"});
    refused(*state, MR_DATA_LOSS,
            "tensor 'blk.0.attn_k.weight' has shape [17, 32] where the configuration wants "
            "[16, 32]");
    tiny_llama_write(*state, &(tiny_llama){.untied = true, .widen = "output.weight"});
    refused(*state, MR_DATA_LOSS, "[49, 32] where the configuration wants [48, 32]");
}

static void test_missing_keys_are_named(void **state)
{
    static const char *const names[] = {"llama.block_count", "llama.context_length",
                                        "llama.embedding_length", "llama.feed_forward_length",
                                        "llama.attention.head_count"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char text[96];
        snprintf(text, sizeof(text), "the key '%s' is missing", names[i]);
        tiny_llama_write(*state, &(tiny_llama){.skip = names[i]});
        refused(*state, MR_DATA_LOSS, text);
    }
}

/* F5: a configuration is held against itself before anything is sized by it. */
static void test_F5_inconsistent_configurations(void **state)
{
    static const struct {
        const char *key;
        uint32_t value;
        mr_status status;
        const char *text;
    } cases[] = {
        {"llama.attention.head_count_kv", 3, MR_DATA_LOSS, "not a multiple of head_count_kv 3"},
        {"llama.attention.head_count_kv", 0, MR_DATA_LOSS, "is 0"},
        {"llama.attention.head_count", 5, MR_DATA_LOSS, "not a multiple"},
        {"llama.attention.head_count", 0, MR_DATA_LOSS, "is 0"},
        {"llama.attention.head_count", 64, MR_DATA_LOSS, "a head width of 0"},
        {"llama.attention.key_length", 7, MR_DATA_LOSS, "a head width of 7"},
        {"llama.attention.key_length", 1u << 30, MR_DATA_LOSS, "a head width of 1073741824"},
        {"llama.attention.value_length", 16, MR_UNIMPLEMENTED, "value_length 16 differs"},
        {"llama.block_count", 0, MR_DATA_LOSS, "is 0"},
        {"llama.block_count", 3, MR_DATA_LOSS, "tensor 'blk.2.attn_norm.weight' is missing"},
        {"llama.block_count", UINT32_MAX, MR_DATA_LOSS, "at most 4096"},
        {"llama.embedding_length", 0, MR_DATA_LOSS, "is 0"},
        {"llama.embedding_length", 64, MR_DATA_LOSS, "has shape [48, 32]"},
        {"llama.embedding_length", 0x80000000u, MR_DATA_LOSS, "a head width"},
        {"llama.feed_forward_length", UINT32_MAX, MR_DATA_LOSS, "widths are out of range"},
        {"llama.rope.dimension_count", 10, MR_DATA_LOSS, "rope.dimension_count is 10"},
        {"llama.rope.dimension_count", 3, MR_DATA_LOSS, "rope.dimension_count is 3"},
        {"llama.expert_count", 8, MR_UNIMPLEMENTED, "a mixture of 8 experts"},
        {"llama.attention.sliding_window", 8, MR_UNIMPLEMENTED, "is not known to this build"},
        {"split.count", 2, MR_UNIMPLEMENTED, "a split model"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tiny_llama_write(*state, &(tiny_llama){.skip = cases[i].key});
        gguf_key_u32(*state, cases[i].key, cases[i].value);
        refused(*state, cases[i].status, cases[i].text);
    }
}

static void test_other_architectures_are_named(void **state)
{
    gguf_key_string(*state, "general.architecture", "mamba");
    refused(*state, MR_UNIMPLEMENTED, "architecture 'mamba'");
    gguf_key_string(*state, "general.architecture", "lla\nma");
    refused(*state, MR_DATA_LOSS, "general.architecture");
    gguf_key_u32(*state, "general.alignment", 32);
    refused(*state, MR_DATA_LOSS, "the key 'general.architecture' is missing");
}

static void test_Q5_unused_tensors_are_marked(void **state)
{
    tiny_llama_write(*state, &(tiny_llama){.extra = "blk.0.attn_k.scale"});
    mr_model *model = accepted(*state);
    size_t unused = 0;
    for (size_t i = 0; i < mr_model_tensor_count(model); i++) {
        const mr_model_tensor *tensor = mr_model_tensor_at(model, i);
        if (!tensor->used) {
            assert_string_equal(tensor->name, "blk.0.attn_k.scale");
            unused++;
        }
    }
    assert_int_equal(unused, 1);
    mr_model_close(model);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, gguf_writer_setup, gguf_writer_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_config),
        CASE(test_R2_rope_default),
        CASE(test_R2_rope_linear),
        CASE(test_R2_rope_factors),
        CASE(test_R1_unknown_scaling_is_refused),
        CASE(test_tied_plan),
        CASE(test_plan_parameters),
        CASE(test_shards),
        CASE(test_untied_plan_with_biases),
        CASE(test_missing_tensors_are_named),
        CASE(test_wrong_shapes_are_named),
        CASE(test_missing_keys_are_named),
        CASE(test_F5_inconsistent_configurations),
        CASE(test_other_architectures_are_named),
        CASE(test_Q5_unused_tensors_are_marked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
