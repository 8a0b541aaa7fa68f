/* SPDX-License-Identifier: Apache-2.0 */
/* The vectorised paths: one table an instruction set, all with the same operators. */
#include "base/checked.h"
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_avx512bf16.h"
#include "kernels/cpu/fast_internal.h"
#include "kernels/cpu/fast_pack.h"

#include <stdlib.h>

/* Rows of a tile that may be read after the last. */
enum { HALF_ROWS_BEYOND = 15 };

/* Which forms of its input the linear reads besides floats. */
static void forms_of(const mr_cpu_exec *exec, const mr_op_linear *linear, bool *codes, bool *half)
{
    *codes = false;
    *half = false;
    for (uint32_t part = 0; part < linear->parts; part++) {
        const uint32_t layout = exec->weights->items[linear->weight[part]].layout;
        *codes = *codes || mr_fast_is_quantised(layout);
        *half = *half || layout == MR_FAST_BF16_PAIRS;
    }
}

/* The buffer that `op` writes whole rows of, if it is able to quantise them as it goes. */
static mr_buffer_id quantizable_output(const mr_cpu_exec *exec, const mr_op *op)
{
    switch (op->kind) {
    case MR_OP_EMBED:
        return op->embed.out;
    case MR_OP_NORM:
        return op->norm.out;
    case MR_OP_GATED:
        return op->gated.out;
    case MR_OP_ACTIVATE:
        return op->activate.out;
    case MR_OP_GATHER:
        return op->unary.out;
    case MR_OP_ATTENTION:
        return exec->plan->kv.head_width % MR_FAST_BLOCK == 0 ? op->attention.out : MR_NO_BUFFER;
    default:
        return MR_NO_BUFFER;
    }
}

/* Marks who quantises the input of linear `index`: its last writer, or the linear itself. */
static void assign_quantizer(const mr_cpu_exec *exec, mr_fast_state *state, uint32_t index)
{
    const mr_op *ops = exec->plan->ops;
    const mr_buffer_id id = ops[index].linear.in;
    for (uint32_t i = index; i-- > 0;) {
        if (mr_op_writes(&ops[i], id) && ops[i].kind != MR_OP_ALL_REDUCE) {
            const bool able = quantizable_output(exec, &ops[i]) == id;
            state->quantize[able ? i : index] = true;
            return;
        }
    }
    state->quantize[index] = true;
}

/* Room for `row_bytes` of every row of a buffer and of `more`; NULL when memory is short. */
static void *make_rows(mr_cpu_exec *exec, mr_buffer_id id, uint64_t more, uint64_t row_bytes)
{
    const mr_plan_buffer *buffer = &exec->plan->buffers[id];
    const uint64_t rows =
        buffer->rows == MR_ROWS_TOKENS ? exec->options.max_tokens : exec->options.max_rows;
    uint64_t bytes;
    if (!mr_mul_u64(rows + more, row_bytes, &bytes)) {
        return NULL;
    }
    exec->activation_bytes += bytes;
    return mr_alloc_aligned(bytes);
}

static uint8_t planes_of(const mr_plan *plan, mr_buffer_id id)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if ((op->kind == MR_OP_GATED && op->gated.out == id) ||
            (op->kind == MR_OP_ACTIVATE && op->activate.out == id)) {
            return 2;
        }
    }
    return 1;
}

/* The forms of the input of linear `index` that nobody has made room for; false when memory is
 * short. */
static bool make_forms(mr_cpu_exec *exec, mr_fast_state *state, uint32_t index)
{
    const mr_op_linear *linear = &exec->plan->ops[index].linear;
    const mr_buffer_id in = linear->in;
    bool codes;
    bool half;
    forms_of(exec, linear, &codes, &half);
    if (codes || half) {
        assign_quantizer(exec, state, index);
    }
    if (codes && state->quant[in] == NULL) {
        state->planes[in] = planes_of(exec->plan, in);
        state->quant[in] = make_rows(exec, in, 0, mr_fast_quant_bytes(exec, in));
    }
    if (half && state->half[in] == NULL) {
        const uint64_t width = mr_fast_half_width(exec->plan->buffers[in].width);
        state->half[in] = make_rows(exec, in, HALF_ROWS_BEYOND, width * sizeof(**state->half));
    }
    return (!codes || state->quant[in] != NULL) && (!half || state->half[in] != NULL);
}

/* The parts of attention; false when memory is short. */
static bool make_parts(mr_cpu_exec *exec, mr_fast_state *state)
{
    size_t most = 0;
    for (uint32_t i = 0; i < exec->plan->n_ops; i++) {
        const mr_op *op = &exec->plan->ops[i];
        const size_t floats =
            op->kind == MR_OP_ATTENTION ? mr_fast_attention_parts(exec, &op->attention) : 0;
        most = floats > most ? floats : most;
    }
    if (most == 0) {
        return true;
    }
    exec->activation_bytes += most * sizeof(float);
    state->parts = mr_alloc_aligned(most * sizeof(float));
    return state->parts != NULL;
}

static mr_status init(mr_cpu_exec *exec, mr_error *err)
{
    const mr_plan *plan = exec->plan;
    mr_fast_state *state = mr_calloc(1, sizeof(*state));
    exec->path_state = state;
    if (state != NULL) {
        state->half = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*state->half));
        state->quant = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*state->quant));
        state->planes = mr_calloc((size_t)plan->n_buffers + 1, sizeof(*state->planes));
        state->quantize = mr_calloc((size_t)plan->n_ops + 1, sizeof(*state->quantize));
    }
    bool enough = state != NULL && state->half != NULL && state->quant != NULL &&
                  state->planes != NULL && state->quantize != NULL && make_parts(exec, state);
    for (uint32_t i = 0; enough && i < plan->n_ops; i++) {
        enough = plan->ops[i].kind != MR_OP_LINEAR || make_forms(exec, state, i);
    }
    if (!enough) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "activations: out of memory at %llu MiB; fewer tokens a step need less",
                       (unsigned long long)(exec->activation_bytes >> 20));
    }
    return MR_OK;
}

static void deinit(mr_cpu_exec *exec)
{
    mr_fast_state *state = exec->path_state;
    if (state == NULL) {
        return;
    }
    for (uint32_t i = 0; state->half != NULL && i < exec->plan->n_buffers; i++) {
        free(state->half[i]);
    }
    for (uint32_t i = 0; state->quant != NULL && i < exec->plan->n_buffers; i++) {
        free(state->quant[i]);
    }
    free(state->half);
    free(state->quant);
    free(state->planes);
    free(state->quantize);
    free(state->parts);
    free(state);
    exec->path_state = NULL;
}

static size_t scratch_bytes(const mr_cpu_exec *exec)
{
    size_t most = 0;
    for (uint32_t i = 0; i < exec->plan->n_ops; i++) {
        const mr_op *op = &exec->plan->ops[i];
        size_t bytes = 0;
        if (op->kind == MR_OP_ROPE_KV) {
            bytes = exec->plan->kv.head_width; /* the codes of a key */
        } else if (op->kind == MR_OP_ATTENTION) {
            bytes = mr_fast_attention_scratch(exec, &op->attention);
        } else if (op->kind == MR_OP_LINEAR) {
            bytes = mr_fast_linear_scratch(exec->plan->buffers[op->linear.in].width);
        } else if (op->kind == MR_OP_EMBED) {
            bytes = exec->plan->buffers[op->embed.out].width * sizeof(float);
        }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Fields that every path has; the number at the end of `numerics` goes up with every change that
 * changes bits. */
#define FAST_PATH(isa, isa_kernels, layout)                                                        \
    {                                                                                              \
        .kernels = (isa_kernels), .name = (isa), .numerics = "cpu-" isa "/int8a32/2",              \
        .weight_layout = (layout), .weight_pack = mr_fast_weight_pack,                             \
        .scratch_bytes = scratch_bytes, .exec_init = init, .exec_deinit = deinit,                  \
        .ops = {                                                                                   \
            [MR_OP_EMBED] = mr_fast_op_embed,         [MR_OP_NORM] = mr_fast_op_norm,              \
            [MR_OP_LINEAR] = mr_fast_op_linear,       [MR_OP_ROPE_KV] = mr_fast_op_rope_kv,        \
            [MR_OP_ATTENTION] = mr_fast_op_attention, [MR_OP_GATED] = mr_fast_op_gated,            \
            [MR_OP_ACTIVATE] = mr_fast_op_gated,      [MR_OP_GATHER] = mr_fast_op_gather,          \
            [MR_OP_SAMPLE] = mr_cpu_op_sample,                                                     \
        },                                                                                         \
    }

static const mr_cpu_path portable =
    FAST_PATH("portable", &mr_fast_kernels_portable, mr_fast_weight_layout);

#if defined(__x86_64__)
static const mr_cpu_path avx2 = FAST_PATH("avx2", &mr_fast_kernels_avx2, mr_fast_weight_layout);
static const mr_cpu_path avx512vnni =
    FAST_PATH("avx512vnni", &mr_fast_kernels_avx512, mr_fast_weight_layout);
static const mr_cpu_path avx512bf16 =
    FAST_PATH("avx512bf16", &mr_fast_kernels_avx512bf16, mr_fast_weight_layout_pairs);
static const mr_cpu_path amx = FAST_PATH("amx", &mr_fast_kernels_amx, mr_fast_weight_layout_pairs);
#endif

const mr_cpu_path *mr_cpu_fast_path(mr_cpu_isa isa)
{
    switch (isa) {
    case MR_CPU_ISA_PORTABLE:
        return &portable;
#if defined(__x86_64__)
    case MR_CPU_ISA_AVX2:
        return &avx2;
    case MR_CPU_ISA_AVX512_VNNI:
        return &avx512vnni;
    case MR_CPU_ISA_AVX512_BF16:
        return &avx512bf16;
    case MR_CPU_ISA_AMX:
        return &amx;
#endif
    default:
        return NULL;
    }
}
