/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/backend.h"
#include "kernels/plan.h"

#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Breaks a good plan in one place. */
typedef void (*break_fn)(mr_plan *plan);

/* The tiny plan has one of every kind at least. */
static mr_op *find(mr_plan *plan, mr_op_kind kind)
{
    uint32_t i = 0;
    while (i + 1 < plan->n_ops && plan->ops[i].kind != kind) {
        i++;
    }
    return &plan->ops[i];
}

static mr_op *find_last(mr_plan *plan, mr_op_kind kind)
{
    uint32_t i = plan->n_ops - 1;
    while (i > 0 && plan->ops[i].kind != kind) {
        i--;
    }
    return &plan->ops[i];
}

static mr_plan_weight *weight_of(mr_plan *plan, mr_weight_id id)
{
    return &plan->weights[id];
}

/* The same buffers without a gate. */
static mr_op as_activate(const mr_op *gated)
{
    return (mr_op){.kind = MR_OP_ACTIVATE,
                   .segment = gated->segment,
                   .layer = gated->layer,
                   .activate = {.in = gated->gated.in, .out = gated->gated.out}};
}

#define BREAK(name, statement)                                                                     \
    static void name(mr_plan *plan)                                                                \
    {                                                                                              \
        statement;                                                                                 \
    }

BREAK(vocab_zero, plan->vocab_size = 0)
BREAK(no_ops, plan->n_ops = 0)
BREAK(buffer_width, plan->buffers[1].width = 0)
BREAK(buffer_rows, plan->buffers[1].rows = (mr_row_space)7)
BREAK(buffer_name, memset(plan->buffers[1].name, 'x', sizeof(plan->buffers[1].name)))
BREAK(weight_name, memset(plan->weights[1].name, 'x', sizeof(plan->weights[1].name)))
BREAK(weight_dtype, plan->weights[0].dtype = MR_DTYPE_COUNT)
BREAK(weight_bytes, plan->weights[0].bytes--)
BREAK(weight_data, plan->weights[0].data = NULL)
BREAK(weight_empty, plan->weights[0].n = 0)
BREAK(weight_block, (plan->weights[0].dtype = MR_DTYPE_Q8_0, plan->weights[0].k = 40))
BREAK(weight_shard, (plan->weights[0].shard = MR_SHARD_INPUTS, plan->weights[0].shard_unit = 0))
BREAK(weight_shard_axis, (plan->weights[0].shard = (mr_shard)9, plan->weights[0].shard_unit = 1))
BREAK(kv_heads, plan->kv.heads = 0)
BREAK(kv_groups, plan->kv.groups = 0)
BREAK(kv_group_of, plan->kv.group_of[1] = 1)
BREAK(rope_odd, plan->ropes[0].dims = 7)
BREAK(rope_wide, plan->ropes[0].dims = 18)
BREAK(rope_pairing, plan->ropes[0].pairing = (mr_rope_pairing)2)
BREAK(rope_factor, plan->ropes[0].attention_factor = NAN)
BREAK(rope_rule, plan->ropes[0].rule = (mr_rope_rule)3)
BREAK(rope_two, (plan->ropes[0].rule = MR_ROPE_TWO, plan->ropes[0].original = 8))
BREAK(rope_dynamic, (plan->ropes[0].rule = MR_ROPE_DYNAMIC, plan->ropes[0].original = 8))
BREAK(weight_made, (plan->weights[0].random = true, plan->weights[0].dtype = MR_DTYPE_Q8_0,
                    plan->weights[0].data = NULL))
BREAK(op_kind, plan->ops[3].kind = (mr_op_kind)77)
BREAK(op_segment, plan->ops[3].segment = 1)
BREAK(embed_out, find(plan, MR_OP_EMBED)->embed.out = 1000)
BREAK(embed_table, find(plan, MR_OP_EMBED)->embed.table = 1000)
BREAK(embed_shape, plan->vocab_size = 97)
BREAK(embed_rows, plan->buffers[find(plan, MR_OP_EMBED)->embed.out].rows = MR_ROWS_LOGITS)
BREAK(embed_positions, (find(plan, MR_OP_EMBED)->embed.learned_positions = true,
                        find(plan, MR_OP_EMBED)->embed.positions = 1000))
BREAK(embed_offset,
      (find(plan, MR_OP_EMBED)->embed.learned_positions = true,
       find(plan, MR_OP_EMBED)->embed.positions = find(plan, MR_OP_EMBED)->embed.table,
       find(plan, MR_OP_EMBED)->embed.offset = plan->vocab_size))
BREAK(embed_scale, find(plan, MR_OP_EMBED)->embed.scale = INFINITY)
BREAK(norm_unwritten, find(plan, MR_OP_NORM)->norm.stream = find(plan, MR_OP_GATED)->gated.out)
BREAK(norm_in_self, find(plan, MR_OP_NORM)->norm.in = find(plan, MR_OP_NORM)->norm.stream)
BREAK(norm_in_width, find_last(plan, MR_OP_NORM)->norm.in = find(plan, MR_OP_GATED)->gated.out)
BREAK(norm_out_width, find(plan, MR_OP_NORM)->norm.out = find(plan, MR_OP_GATED)->gated.in)
BREAK(norm_out_rows, find(plan, MR_OP_NORM)->norm.out = find(plan, MR_OP_GATHER)->unary.out)
BREAK(norm_gain, find(plan, MR_OP_NORM)->norm.gain = MR_NO_WEIGHT)
BREAK(norm_gain_shape,
      find(plan, MR_OP_NORM)->norm.gain = find(plan, MR_OP_LINEAR)->linear.weight[0])
BREAK(norm_bias, find(plan, MR_OP_NORM)->norm.bias = 1000)
BREAK(norm_kind, find(plan, MR_OP_NORM)->norm.kind = (mr_norm_kind)5)
BREAK(norm_epsilon, find(plan, MR_OP_NORM)->norm.epsilon = -1.0f)
BREAK(linear_in, find(plan, MR_OP_LINEAR)->linear.in = find(plan, MR_OP_LINEAR)->linear.out)
BREAK(linear_parts, find(plan, MR_OP_LINEAR)->linear.parts = 4)
BREAK(linear_no_parts, find(plan, MR_OP_LINEAR)->linear.parts = 0)
BREAK(linear_fewer, find(plan, MR_OP_LINEAR)->linear.parts = 2)
BREAK(linear_weight, find(plan, MR_OP_LINEAR)->linear.weight[1] = MR_NO_WEIGHT)
BREAK(linear_bias, find(plan, MR_OP_LINEAR)->linear.bias[1] = find(plan, MR_OP_NORM)->norm.gain)
BREAK(linear_k, weight_of(plan, find(plan, MR_OP_LINEAR)->linear.weight[0])->k = 32)
BREAK(linear_rows, find_last(plan, MR_OP_LINEAR)->linear.in = find(plan, MR_OP_NORM)->norm.out)
BREAK(rope_layer, find(plan, MR_OP_ROPE_KV)->rope_kv.layer = 2)
BREAK(rope_heads, find(plan, MR_OP_ROPE_KV)->rope_kv.heads = 3)
BREAK(rope_width, find(plan, MR_OP_ROPE_KV)->rope_kv.heads = 2)
BREAK(rope_table, find(plan, MR_OP_ROPE_KV)->rope_kv.rope = 1)
BREAK(attention_before, find(plan, MR_OP_ATTENTION)->attention.layer = 1)
BREAK(attention_out,
      find(plan, MR_OP_ATTENTION)->attention.out = find(plan, MR_OP_GATED)->gated.out)
BREAK(attention_self,
      find(plan, MR_OP_ATTENTION)->attention.out = find(plan, MR_OP_ROPE_KV)->rope_kv.qkv)
BREAK(attention_scale, find(plan, MR_OP_ATTENTION)->attention.scale = NAN)
BREAK(attention_cap, find(plan, MR_OP_ATTENTION)->attention.soft_cap = -1.0f)
BREAK(gated_width, find(plan, MR_OP_GATED)->gated.in = find(plan, MR_OP_NORM)->norm.out)
BREAK(head_gain, (find(plan, MR_OP_ROPE_KV)->rope_kv.head_norms = true,
                  find(plan, MR_OP_ROPE_KV)->rope_kv.q_gain = 0))
BREAK(head_epsilon, find(plan, MR_OP_ROPE_KV)->rope_kv.epsilon = -1.0f)
BREAK(activate_width, *find(plan, MR_OP_GATED) = as_activate(find(plan, MR_OP_GATED)))
BREAK(gated_act, find(plan, MR_OP_GATED)->gated.activation = (mr_activation)9)
BREAK(reduce_out, find(plan, MR_OP_ALL_REDUCE)->unary.out = find(plan, MR_OP_NORM)->norm.out)
BREAK(gather_in, find(plan, MR_OP_GATHER)->unary.in = find(plan, MR_OP_SAMPLE)->unary.in)
BREAK(gather_out, find(plan, MR_OP_GATHER)->unary.out = find(plan, MR_OP_ALL_REDUCE)->unary.in)
BREAK(sample_in, find(plan, MR_OP_SAMPLE)->unary.in = find(plan, MR_OP_GATHER)->unary.out)
BREAK(sample_out, find(plan, MR_OP_SAMPLE)->unary.out = 0)

static const struct {
    break_fn apply;
    const char *message; /* a part of it */
} faults[] = {
    {vocab_zero, "vocabulary"},
    {no_ops, "at least one operator"},
    {buffer_width, "plan buffer 1"},
    {buffer_rows, "plan buffer 1"},
    {buffer_name, "plan buffer 1"},
    {weight_name, "plan weight 1"},
    {weight_dtype, "\"embed.0\": type"},
    {weight_bytes, "24575 bytes"},
    {weight_data, "needs data"},
    {weight_empty, "0 x 64 F32"},
    {weight_block, "whole number of blocks"},
    {weight_shard, "unit 0"},
    {weight_shard_axis, "shard axis 9"},
    {kv_heads, "KV cache"},
    {kv_groups, "KV cache"},
    {kv_group_of, "layer 1 is in group 1"},
    {rope_odd, "7 rotated elements"},
    {rope_wide, "18 rotated elements of a head of 16"},
    {rope_pairing, "pairing 2"},
    {rope_factor, "attention factor"},
    {rope_rule, "rule 3"},
    {rope_two, "rule 2"},
    {rope_dynamic, "rule 1"},
    {weight_made, "needs data"},
    {op_kind, "op 3 (unknown): operator kind 77"},
    {op_segment, "op 4 (attention): segment 0 after segment 1"},
    {embed_out, "(embed): out: buffer 1000"},
    {embed_table, "table: weight 1000"},
    {embed_shape, "is 96 x 64, not 97 x 64"},
    {embed_rows, "must have token rows"},
    {embed_positions, "positions: weight 1000"},
    {embed_offset, "position 0 is row 96 of a table of 96"},
    {embed_scale, "scale is not finite"},
    {norm_unwritten, "op 1 (norm): stream: buffer \"gated\" is read before"},
    {norm_in_self, "same buffer \"stream\""},
    {norm_in_width, "in: buffer \"gated\" has width 96, not 64"},
    {norm_out_width, "out: buffer \"gate_up\" has width 192, not 64"},
    {norm_out_rows, "out: buffer \"last\" must have token rows"},
    {norm_gain, "gain: weight 65535"},
    {norm_gain_shape, "is 64 x 64, not 1 x 64"},
    {norm_bias, "bias: weight 1000"},
    {norm_kind, "norm kind 5"},
    {norm_epsilon, "epsilon"},
    {linear_in, "(linear): in: buffer \"qkv\" is read before"},
    {linear_parts, "4 parts"},
    {linear_no_parts, "0 parts"},
    {linear_fewer, "has width 128, not 96"},
    {linear_weight, "weight: weight 65535"},
    {linear_bias, "bias: weight \"attn_gain.1\" is 1 x 64, not 1 x 32"},
    {linear_k, "plan weight \"q.2\""},
    {linear_rows, "must have token rows"},
    {rope_layer, "KV layer 2"},
    {rope_heads, "3 query heads"},
    {rope_width, "has width 128, not 96"},
    {rope_table, "rope table 1"},
    {attention_before, "KV layer 1 is read before"},
    {attention_out, "has width 96, not 64"},
    {attention_self, "same buffer \"qkv\""},
    {attention_scale, "scale and soft cap"},
    {attention_cap, "scale and soft cap"},
    {gated_width, "(gated): in: buffer \"normed\" has width 64, not 192"},
    {head_gain, "gain of query heads: weight"},
    {head_epsilon, "epsilon"},
    {activate_width, "(activate): in: buffer \"gate_up\" has width 192, not 96"},
    {gated_act, "activation 9"},
    {reduce_out, "(all_reduce): out"},
    {gather_in, "(gather): in: buffer \"logits\" is read before"},
    {gather_out, "must have logit rows"},
    {sample_in, "(sample): in: buffer \"last\" has width 64, not 96"},
    {sample_out, "no output buffer"},
};

static void test_check_every_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        tiny_plan tiny;
        const tiny_dims dims = tiny_dims_default();
        tiny_plan_create(&dims, &tiny);
        const uint32_t n_ops = tiny.plan->n_ops;
        faults[i].apply(tiny.plan);
        mr_error err = {0};
        assert_int_equal(mr_plan_check(tiny.plan, &err), MR_INVALID_ARGUMENT);
        if (strstr(err.message, faults[i].message) == NULL) {
            fail_msg("fault %zu: \"%s\" does not say \"%s\"", i, err.message, faults[i].message);
        }
        assert_int_equal(err.status, MR_INVALID_ARGUMENT);
        assert_int_equal(mr_plan_check(tiny.plan, NULL), MR_INVALID_ARGUMENT);
        tiny.plan->n_ops = n_ops;
        tiny_plan_destroy(&tiny);
    }
}

static void test_good_plans(void **state)
{
    (void)state;
    for (uint32_t variant = 0; variant < 4; variant++) {
        tiny_dims dims = tiny_dims_default();
        dims.biases = variant & 1;
        dims.tied = variant & 2;
        tiny_plan tiny;
        tiny_plan_create(&dims, &tiny); /* checks */
        mr_plan_set_kv(tiny.plan, 2, 2, 16) == MR_OK ? (void)0 : fail();
        tiny.plan->kv.groups = 2;
        tiny.plan->kv.group_of[1] = 1;
        assert_int_equal(mr_plan_check(tiny.plan, NULL), MR_OK);
        find(tiny.plan, MR_OP_ROPE_KV)->rope_kv.rope = UINT16_MAX;
        assert_int_equal(mr_plan_check(tiny.plan, NULL), MR_OK);
        tiny_plan_destroy(&tiny);
    }
}

static void test_building(void **state)
{
    (void)state;
    mr_plan *plan = NULL;
    assert_int_equal(mr_plan_create(&plan), MR_OK);
    mr_buffer_id buffer = 0;
    assert_int_equal(mr_plan_add_buffer(plan, "a name that is longer than the field for it",
                                        MR_ROWS_TOKENS, 1, &buffer),
                     MR_OK);
    assert_string_equal(plan->buffers[0].name, "a name that is longer than the ");
    for (uint32_t i = 1; i < 65534; i++) {
        assert_int_equal(mr_plan_add_buffer(plan, "b", MR_ROWS_TOKENS, i, &buffer), MR_OK);
        assert_int_equal(buffer, i);
    }
    assert_int_equal(mr_plan_add_buffer(plan, "b", MR_ROWS_TOKENS, 1, &buffer),
                     MR_INVALID_ARGUMENT);
    assert_int_equal(plan->buffers[65533].width, 65533);
    /* The plan keeps its own copy of the frequencies. */
    float inv_freq[2] = {1.0f, 0.5f};
    uint16_t rope = 9;
    assert_int_equal(
        mr_plan_add_rope(plan, &(mr_plan_rope){.dims = 4, .inv_freq = inv_freq}, &rope), MR_OK);
    inv_freq[1] = 0.0f;
    assert_int_equal(rope, 0);
    assert_true(plan->ropes[0].inv_freq[1] == 0.5f);
    mr_plan_destroy(plan);
    mr_plan_destroy(NULL);
}

static void test_kv_block_bytes(void **state)
{
    (void)state;
    /* 30 layers · 2 · 3 heads · 64 wide · 16 tokens · 2 bytes */
    const mr_plan_kv kv = {.layers = 30, .heads = 3, .head_width = 64};
    assert_int_equal(mr_kv_block_bytes(&kv, MR_DTYPE_BF16, 16), 368640);
    assert_int_equal(mr_kv_block_bytes(&kv, MR_DTYPE_F32, 16), 737280);
    const mr_plan_kv huge = {.layers = UINT32_MAX, .heads = UINT32_MAX, .head_width = UINT32_MAX};
    assert_true(mr_kv_block_bytes(&huge, MR_DTYPE_F32, 16) == UINT64_MAX);
}

static void test_rope_classes(void **state)
{
    (void)state;
    mr_plan_rope rope = {.original = 32};
    assert_int_equal(mr_rope_class(&rope, 100), 0);
    rope.rule = MR_ROPE_TWO;
    assert_int_equal(mr_rope_class(&rope, 32), 0);
    assert_int_equal(mr_rope_class(&rope, 33), mr_rope_class(&rope, 100));
    assert_int_not_equal(mr_rope_class(&rope, 33), 0);
    rope.rule = MR_ROPE_DYNAMIC;
    assert_int_equal(mr_rope_class(&rope, 1), mr_rope_class(&rope, 32));
    assert_int_not_equal(mr_rope_class(&rope, 33), mr_rope_class(&rope, 34));
}

/* Buffers 1 to 3 stand in the places that an operator has; 4 in none. */
static void test_who_reads_and_writes(void **state)
{
    (void)state;
    static const struct {
        mr_op op;
        const char *reads;
        const char *writes;
    } cases[] = {
        {{.kind = MR_OP_EMBED, .embed = {.out = 1}}, "", "1"},
        {{.kind = MR_OP_NORM, .norm = {.in = 1, .stream = 2, .out = 3}}, "12", "23"},
        {{.kind = MR_OP_NORM, .norm = {.in = MR_NO_BUFFER, .stream = 2, .out = 3}}, "2", "23"},
        {{.kind = MR_OP_LINEAR, .linear = {.in = 1, .out = 2}}, "1", "2"},
        {{.kind = MR_OP_ROPE_KV, .rope_kv = {.qkv = 1}}, "1", "1"},
        {{.kind = MR_OP_ATTENTION, .attention = {.qkv = 1, .out = 2}}, "1", "2"},
        {{.kind = MR_OP_GATED, .gated = {.in = 1, .out = 2}}, "1", "2"},
        {{.kind = MR_OP_ACTIVATE, .activate = {.in = 1, .out = 2}}, "1", "2"},
        {{.kind = MR_OP_ALL_REDUCE, .unary = {.in = 1, .out = 1}}, "1", "1"},
        {{.kind = MR_OP_GATHER, .unary = {.in = 1, .out = 2}}, "1", "2"},
        {{.kind = MR_OP_SAMPLE, .unary = {.in = 1, .out = MR_NO_BUFFER}}, "1", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (mr_buffer_id id = 1; id <= 4; id++) {
            const int digit = '0' + id;
            assert_int_equal(mr_op_reads(&cases[i].op, id), strchr(cases[i].reads, digit) != NULL);
            assert_int_equal(mr_op_writes(&cases[i].op, id),
                             strchr(cases[i].writes, digit) != NULL);
        }
        assert_false(mr_op_reads(&cases[i].op, MR_NO_BUFFER));
        assert_false(mr_op_writes(&cases[i].op, MR_NO_BUFFER));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_every_fault), cmocka_unit_test(test_good_plans),
        cmocka_unit_test(test_building),          cmocka_unit_test(test_rope_classes),
        cmocka_unit_test(test_kv_block_bytes),    cmocka_unit_test(test_who_reads_and_writes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
