/* SPDX-License-Identifier: Apache-2.0 */
/* Operators of the fast path but attention: how the work is cut; the arithmetic is in kernels. */
#include "kernels/cpu/fast_internal.h"
#include "kernels/cpu/fast_pack.h"

#include <math.h>
#include <string.h>

enum {
    UNITS_A_THREAD = 4,  /* pieces of a linear that a thread should have for an even share */
    MIN_CHUNK_ROWS = 48, /* rows below which a piece is not cut further */
};

void mr_fast_quantize_row(const mr_cpu_exec *exec, mr_buffer_id id, uint32_t row, uint32_t first,
                          uint32_t count)
{
    const mr_fast_state *state = mr_fast_state_of(exec);
    const uint32_t planes = state->planes[id];
    if (state->half[id] != NULL) {
        const size_t width = mr_fast_half_width(exec->plan->buffers[id].width);
        mr_fast_kernels_of(exec)->narrow(MR_DTYPE_BF16, mr_cpu_row(exec, id, row) + first,
                                         state->half[id] + row * width + first, count);
    }
    if (state->quant[id] == NULL) {
        return;
    }
    uint8_t *out = state->quant[id] + row * mr_fast_quant_bytes(exec, id) +
                   first / MR_FAST_BLOCK * mr_fast_block_bytes(planes);
    mr_fast_kernels_of(exec)->quantize(mr_cpu_row(exec, id, row) + first, count, planes, out);
}

static void quantize_whole_row(const mr_cpu_exec *exec, const mr_op *op, mr_buffer_id id,
                               uint32_t row)
{
    if (mr_fast_quantizes(exec, op)) {
        mr_fast_quantize_row(exec, id, row, 0, exec->plan->buffers[id].width);
    }
}

void mr_fast_op_embed(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    const mr_cpu_weight *table = &exec->weights->items[op->embed.table];
    uint64_t begin;
    uint64_t end;
    mr_share(batch->n_tokens, 1, thread, threads, &begin, &end);
    for (uint32_t t = (uint32_t)begin; t < end; t++) {
        float *out = mr_cpu_row(exec, op->embed.out, t);
        mr_fast_weight_row(table, exec->tokens[t], out);
        mr_fast_kernels_of(exec)->scale(out, op->embed.scale, table->k);
        if (op->embed.learned_positions) {
            float *position = mr_cpu_scratch(exec, thread);
            mr_fast_weight_row(&exec->weights->items[op->embed.positions],
                               batch->positions[t] + op->embed.offset, position);
            mr_fast_kernels_of(exec)->add(out, position, table->k);
        }
        quantize_whole_row(exec, op, op->embed.out, t);
    }
}

void mr_fast_op_norm(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                     uint32_t threads)
{
    const mr_op_norm *norm = &op->norm;
    const mr_fast_kernels *k = mr_fast_kernels_of(exec);
    const uint32_t width = exec->plan->buffers[norm->stream].width;
    const float *gain = mr_cpu_vector(exec, norm->gain);
    const float *bias = mr_cpu_vector(exec, norm->bias);
    uint64_t begin;
    uint64_t end;
    mr_share(mr_cpu_rows(exec->plan, norm->stream, batch), 1, thread, threads, &begin, &end);
    for (uint32_t row = (uint32_t)begin; row < end; row++) {
        float *x = mr_cpu_row(exec, norm->stream, row);
        if (norm->in != MR_NO_BUFFER) {
            k->add(x, mr_cpu_row(exec, norm->in, row), width);
        }
        const float centre = norm->kind == MR_NORM_LAYER ? k->mean(x, width) : 0.0f;
        const float factor = 1.0f / sqrtf(k->mean_square(x, centre, width) + norm->epsilon);
        k->normalize(x, centre, factor, gain, bias, mr_cpu_row(exec, norm->out, row), width);
        quantize_whole_row(exec, op, norm->out, row);
    }
}

/* A linear as a grid of strips (of all parts) × chunks of rows. */
typedef struct grid {
    uint32_t strips;
    uint32_t chunks;
    uint32_t rows;
} grid;

static uint32_t strips_of(uint32_t n)
{
    return n / MR_FAST_STRIP + (n % MR_FAST_STRIP > 0);
}

static grid make_grid(const mr_cpu_exec *exec, const mr_op_linear *linear, uint32_t rows,
                      uint32_t threads)
{
    grid g = {.chunks = 1, .rows = rows};
    for (uint32_t part = 0; part < linear->parts; part++) {
        g.strips += strips_of(exec->weights->items[linear->weight[part]].n);
    }
    MR_CHECK(g.strips > 0);
    while (threads > 1 && (uint64_t)g.strips * g.chunks < (uint64_t)UNITS_A_THREAD * threads &&
           rows / (2 * g.chunks) >= MIN_CHUNK_ROWS) {
        g.chunks *= 2;
    }
    return g;
}

/* Which part strip `*strip` of the grid belongs to; it becomes a strip of that part, and *column
 * the first column of the part in the output. */
static uint32_t find_part(const mr_cpu_exec *exec, const mr_op_linear *linear, uint32_t *strip,
                          uint32_t *column)
{
    uint32_t part = 0;
    *column = 0;
    for (; part + 1 < linear->parts; part++) {
        const uint32_t n = exec->weights->items[linear->weight[part]].n;
        if (*strip < strips_of(n)) {
            break;
        }
        *strip -= strips_of(n);
        *column += n;
    }
    return part;
}

static void run_unit(mr_cpu_exec *exec, const mr_op_linear *linear, const grid *g, uint32_t unit,
                     uint8_t *scratch)
{
    uint32_t strip = unit % g->strips;
    uint32_t column;
    const uint32_t part = find_part(exec, linear, &strip, &column);
    const mr_cpu_weight *weight = &exec->weights->items[linear->weight[part]];
    const float *bias = mr_cpu_vector(exec, linear->bias[part]);
    const uint32_t first = strip * MR_FAST_STRIP;
    const uint32_t left = weight->n - first;
    uint64_t begin;
    uint64_t end;
    mr_share(g->rows, 1, unit / g->strips, g->chunks, &begin, &end);
    mr_fast_linear job = {
        .layout = weight->layout,
        .k = weight->k,
        .strip =
            (const uint8_t *)weight->data + strip * mr_fast_strip_bytes(weight->layout, weight->k),
        .n = left < MR_FAST_STRIP ? left : MR_FAST_STRIP,
        .rows = (uint32_t)(end - begin),
        .bias = bias == NULL ? NULL : bias + first,
        .out = mr_cpu_row(exec, linear->out, (uint32_t)begin) + column + first,
        .out_stride = exec->plan->buffers[linear->out].width,
        .scratch = scratch,
    };
    if (mr_fast_is_quantised(weight->layout)) {
        job.planes = mr_fast_state_of(exec)->planes[linear->in];
        job.x_quant = mr_fast_state_of(exec)->quant[linear->in] +
                      begin * mr_fast_quant_bytes(exec, linear->in);
    } else if (weight->layout == MR_FAST_BF16_PAIRS) {
        job.x_half =
            mr_fast_state_of(exec)->half[linear->in] + begin * mr_fast_half_width(weight->k);
    } else {
        job.x = mr_cpu_row(exec, linear->in, (uint32_t)begin);
    }
    mr_fast_kernels_of(exec)->linear(&job);
}

void mr_fast_op_linear(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads)
{
    const mr_op_linear *linear = &op->linear;
    const uint32_t rows = mr_cpu_rows(exec->plan, linear->in, batch);
    uint64_t begin;
    uint64_t end;
    if (rows == 0) {
        return;
    }
    if (mr_fast_quantizes(exec, op)) {
        mr_share(rows, 1, thread, threads, &begin, &end);
        for (uint32_t row = (uint32_t)begin; row < end; row++) {
            quantize_whole_row(exec, op, linear->in, row);
        }
        mr_thread_pool_barrier(exec->pool);
    }
    const grid g = make_grid(exec, linear, rows, threads);
    mr_share((uint64_t)g.strips * g.chunks, 1, thread, threads, &begin, &end);
    for (uint32_t unit = (uint32_t)begin; unit < end; unit++) {
        run_unit(exec, linear, &g, unit, mr_cpu_scratch(exec, thread));
    }
}

/* One head of keys, already rotated, into its column of the block: see fast_attention.c. Elements
 * are narrowed a vector at a time and put where they belong one by one. */
static void write_key(const mr_cpu_exec *exec, const float *key, mr_cpu_kv_piece piece,
                      uint32_t offset)
{
    const uint32_t width = exec->plan->kv.head_width;
    const size_t stride = exec->options.block_size;
    if (exec->options.kv_dtype == MR_DTYPE_F32) {
        float *column = (float *)(void *)piece.elements + offset;
        for (uint32_t d = 0; d < width; d++) {
            column[d * stride] = key[d];
        }
        return;
    }
    uint16_t part[MR_FAST_LANES];
    uint16_t *column = (uint16_t *)(void *)piece.elements + offset;
    for (uint32_t d = 0; d < width; d += MR_FAST_LANES) {
        const uint32_t n = width - d < MR_FAST_LANES ? width - d : MR_FAST_LANES;
        mr_fast_kernels_of(exec)->narrow(exec->options.kv_dtype, key + d, part, n);
        for (uint32_t i = 0; i < n; i++) {
            column[(d + i) * stride] = part[i];
        }
    }
}

/* A key or value as int8. `spread` (D bytes): it is a key, whose codes lie apart; NULL: a value. */
static void write_int8(const mr_cpu_exec *exec, const float *x, mr_cpu_kv_piece piece,
                       uint32_t offset, int8_t *spread)
{
    const uint32_t width = exec->plan->kv.head_width;
    const size_t stride = exec->options.block_size;
    int8_t *codes = (int8_t *)piece.elements;
    int8_t *to = spread != NULL ? spread : codes + (size_t)offset * width;
    piece.scales[offset] = mr_fast_kernels_of(exec)->quantize_kv(x, to, width);
    for (uint32_t d = 0; spread != NULL && d < width; d++) {
        codes[offset + d * stride] = spread[d];
    }
}

/* One head of a row of qkv: rotated unless it is a value, and kept if it is not a query. */
static void rope_kv_head(mr_cpu_exec *exec, const mr_op_rope_kv *rope, const mr_batch *batch,
                         uint32_t t, uint32_t head, void *scratch)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    const mr_fast_kernels *k = mr_fast_kernels_of(exec);
    float *x = mr_cpu_row(exec, rope->qkv, t) + (size_t)head * kv->head_width;
    const bool value = head >= rope->heads + kv->heads;
    if (!value && rope->head_norms) {
        const float *gain = mr_cpu_vector(exec, head < rope->heads ? rope->q_gain : rope->k_gain);
        const float square = k->mean_square(x, 0.0f, kv->head_width);
        k->normalize(x, 0.0f, 1.0f / sqrtf(square + rope->epsilon), gain, NULL, x, kv->head_width);
    }
    if (!value && rope->rope != UINT16_MAX) {
        const mr_plan_rope *table = &exec->plan->ropes[rope->rope];
        const float *cosines;
        const float *sines;
        mr_cpu_angles(exec, rope->rope, batch, t, &cosines, &sines);
        k->rotate(table->pairing, x, cosines, sines, table->dims);
    }
    if (head < rope->heads) {
        return;
    }
    const uint32_t slot = batch->kv_slot[(size_t)kv->group_of[rope->layer] * batch->n_tokens + t];
    const uint32_t offset = slot % exec->options.block_size;
    const uint32_t kv_head = (head - rope->heads) % kv->heads;
    const mr_cpu_kv_piece piece =
        mr_cpu_kv(exec, rope->layer, value, slot / exec->options.block_size, kv_head);
    if (exec->options.kv_dtype == MR_DTYPE_I8) {
        write_int8(exec, x, piece, offset, value ? NULL : scratch);
    } else if (value) {
        k->narrow(exec->options.kv_dtype, x, piece.elements + offset * exec->kv_layout.row,
                  kv->head_width);
    } else {
        write_key(exec, x, piece, offset);
    }
}

void mr_fast_op_rope_kv(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                        uint32_t threads)
{
    const uint32_t heads = op->rope_kv.heads + 2 * exec->plan->kv.heads;
    uint64_t begin;
    uint64_t end;
    mr_share((uint64_t)batch->n_tokens * heads, 1, thread, threads, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        rope_kv_head(exec, &op->rope_kv, batch, (uint32_t)(i / heads), (uint32_t)(i % heads),
                     mr_cpu_scratch(exec, thread));
    }
}

void mr_fast_op_gated(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    const bool gate_only = op->kind == MR_OP_ACTIVATE;
    const mr_op_gated plain = {op->activate.in, op->activate.out, op->activate.activation};
    const mr_op_gated *gated = gate_only ? &plain : &op->gated;
    const uint64_t width = exec->plan->buffers[gated->out].width;
    const uint64_t blocks = width / MR_FAST_BLOCK + (width % MR_FAST_BLOCK > 0);
    uint64_t begin;
    uint64_t end;
    mr_share(mr_cpu_rows(exec->plan, gated->in, batch) * blocks, 1, thread, threads, &begin, &end);
    while (begin < end) {
        const uint32_t row = (uint32_t)(begin / blocks);
        const uint64_t first = begin % blocks * MR_FAST_BLOCK;
        begin = (row + 1) * blocks < end ? (row + 1) * blocks : end;
        uint64_t last = (begin - row * blocks) * MR_FAST_BLOCK;
        last = last < width ? last : width;
        const float *gate = mr_cpu_row(exec, gated->in, row) + first;
        float *out = mr_cpu_row(exec, gated->out, row) + first;
        const uint32_t count = (uint32_t)(last - first);
        mr_fast_kernels_of(exec)->gated(gated->activation, gate, gate_only ? NULL : gate + width,
                                        out, count);
        if (mr_fast_quantizes(exec, op)) {
            mr_fast_quantize_row(exec, gated->out, row, (uint32_t)first, count);
        }
    }
}

void mr_fast_op_gather(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads)
{
    const size_t width = exec->plan->buffers[op->unary.out].width;
    uint64_t begin;
    uint64_t end;
    mr_share(batch->n_rows, 1, thread, threads, &begin, &end);
    for (uint32_t r = (uint32_t)begin; r < end; r++) {
        memcpy(mr_cpu_row(exec, op->unary.out, r),
               mr_cpu_row(exec, op->unary.in, batch->logit_rows[r]), width * sizeof(float));
        quantize_whole_row(exec, op, op->unary.out, r);
    }
}
