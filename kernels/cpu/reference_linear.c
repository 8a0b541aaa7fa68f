/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/reference.h"

/* Output rows at a time: dequantised once for all tokens, and few enough for the nearest cache. */
#define TILE 8

size_t mr_cpu_ref_linear_scratch(const mr_cpu_exec *exec, const mr_op_linear *op)
{
    return (size_t)TILE * exec->plan->buffers[op->in].width * sizeof(float);
}

typedef struct part {
    const mr_cpu_weight *weight;
    const float *bias; /* [N] or NULL */
    const float *in;   /* [rows][K] */
    float *out;        /* [rows][out_width], at this part's first column */
    uint32_t rows;
    uint32_t out_width;
} part;

/* Outputs [begin, begin + count) of all rows; `tile` is room for count · K floats. */
static void run_tile(const part *p, float *tile, uint32_t begin, uint32_t count)
{
    const mr_cpu_weight *w = p->weight;
    uint64_t row_bytes = 0;
    MR_CHECK(mr_dtype_row_bytes(w->dtype, w->k, &row_bytes));
    const uint8_t *stored = (const uint8_t *)w->data + begin * row_bytes;
    const float *rows = tile;
    if (w->dtype == MR_DTYPE_F32) {
        rows = (const float *)w->data + (size_t)begin * w->k;
    } else {
        mr_dequantize(w->dtype, stored, tile, (uint64_t)count * w->k);
    }
    for (uint32_t r = 0; r < p->rows; r++) {
        const float *x = p->in + (size_t)r * w->k;
        float *out = p->out + (size_t)r * p->out_width + begin;
        for (uint32_t i = 0; i < count; i++) {
            const float sum = mr_ref_dot(rows + (size_t)i * w->k, x, w->k);
            out[i] = p->bias != NULL ? sum + p->bias[begin + i] : sum;
        }
    }
}

void mr_cpu_ref_linear(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads)
{
    const mr_op_linear *linear = &op->linear;
    uint32_t column = 0;
    for (uint32_t i = 0; i < linear->parts; i++) {
        const part p = {
            .weight = &exec->weights->items[linear->weight[i]],
            .bias = mr_cpu_vector(exec, linear->bias[i]),
            .in = exec->buffers[linear->in],
            .out = exec->buffers[linear->out] + column,
            .rows = mr_cpu_rows(exec->plan, linear->in, batch),
            .out_width = exec->plan->buffers[linear->out].width,
        };
        uint64_t begin;
        uint64_t end;
        mr_share(p.weight->n, TILE, thread, threads, &begin, &end);
        for (uint64_t n = begin; p.rows > 0 && n < end; n += TILE) {
            const uint32_t count = (uint32_t)(end - n < TILE ? end - n : TILE);
            run_tile(&p, mr_cpu_scratch(exec, thread), (uint32_t)n, count);
        }
        column += p.weight->n;
    }
}
