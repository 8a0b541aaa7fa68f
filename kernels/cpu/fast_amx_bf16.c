/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bf16 on AMX. Every product goes through the tiles, a single row too: what the instruction gives
 * is not what multiplying and adding one after the other gives. Thirty-two inputs are one of it, so
 * sums have an order that depends on their length only.
 *
 * Tiles 0 … 3: sums of 16 rows × 16 outputs, [row half][output half]; 4, 5: activations of 16 rows;
 * 6, 7: weights of 16 outputs.
 */
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_amx_isa.h"
#include "kernels/cpu/fast_simd_avx512.h"

enum {
    ROWS = MR_AMX_ROWS,
    HALF = 16, /* outputs of a tile */
    DEPTH = 32 /* inputs of one instruction */
};

void mr_fast_amx_begin(void)
{
    mr_amx_config config = {.palette = 1};
    for (int i = 0; i < MR_AMX_TILES; i++) {
        config.rows[i] = ROWS;
        config.row_bytes[i] = MR_AMX_ROW_BYTES;
    }
    mr_amx_configure(&config);
}

void mr_fast_amx_end(void)
{
    mr_amx_release();
}

/* Two halves of rows from `a` times two of columns from `b`: into tiles 0 … 3. */
MR_SIMD void mr_tiles_multiply(bool two_rows, bool two_cols, const mr_fast_tiles *job,
                               const uint16_t *a, const uint32_t *b)
{
    const size_t a_bytes = job->a_stride * sizeof(*a);
    const size_t b_bytes = job->b_stride * sizeof(*b);
    for (uint32_t d = 0; d < job->depth; d += DEPTH) {
        mr_amx_load(4, a, a_bytes);
        mr_amx_load(6, b, b_bytes);
        mr_amx_dot_bf16(0, 4, 6);
        if (two_cols) {
            mr_amx_load(7, b + HALF, b_bytes);
            mr_amx_dot_bf16(1, 4, 7);
        }
        if (two_rows) {
            mr_amx_load(5, a + ROWS * job->a_stride, a_bytes);
            mr_amx_dot_bf16(2, 5, 6);
            if (two_cols) {
                mr_amx_dot_bf16(3, 5, 7);
            }
        }
        a += DEPTH;
        b += DEPTH / 2 * job->b_stride;
    }
}

MR_SIMD void mr_tiles_start(bool two_rows, bool two_cols, const mr_fast_tiles *job, float *c)
{
    const size_t c_bytes = job->c_stride * sizeof(*c);
    float *below = c + ROWS * job->c_stride;
    if (!job->accumulate) {
        mr_amx_zero(0);
        mr_amx_zero(1);
        mr_amx_zero(2);
        mr_amx_zero(3);
        return;
    }
    mr_amx_load(0, c, c_bytes);
    if (two_cols) {
        mr_amx_load(1, c + HALF, c_bytes);
    }
    if (two_rows) {
        mr_amx_load(2, below, c_bytes);
    }
    if (two_rows && two_cols) {
        mr_amx_load(3, below + HALF, c_bytes);
    }
}

MR_SIMD void mr_tiles_block(bool two_rows, bool two_cols, const mr_fast_tiles *job,
                            const uint16_t *a, const uint32_t *b, float *c)
{
    const size_t c_bytes = job->c_stride * sizeof(*c);
    float *below = c + ROWS * job->c_stride;
    mr_tiles_start(two_rows, two_cols, job, c);
    mr_tiles_multiply(two_rows, two_cols, job, a, b);
    mr_amx_store(0, c, c_bytes);
    if (two_cols) {
        mr_amx_store(1, c + HALF, c_bytes);
    }
    if (two_rows) {
        mr_amx_store(2, below, c_bytes);
    }
    if (two_rows && two_cols) {
        mr_amx_store(3, below + HALF, c_bytes);
    }
}

void mr_fast_amx_tiles(const mr_fast_tiles *job)
{
    for (uint32_t col = 0; col < job->cols; col += 2 * HALF) {
        const bool two_cols = job->cols - col > HALF;
        const uint32_t *b = job->b + col;
        for (uint32_t row = 0; row < job->rows; row += 2 * ROWS) {
            const uint16_t *a = job->a + row * job->a_stride;
            float *c = job->c + row * job->c_stride + col;
            const bool two_rows = job->rows - row > ROWS;
            if (two_rows && two_cols) {
                mr_tiles_block(true, true, job, a, b, c);
            } else if (two_rows) {
                mr_tiles_block(true, false, job, a, b, c);
            } else if (two_cols) {
                mr_tiles_block(false, true, job, a, b, c);
            } else {
                mr_tiles_block(false, false, job, a, b, c);
            }
        }
    }
}

MR_SIMD __m512i mr_halves_load(const uint16_t *from, uint32_t count)
{
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mr_vec_lanes(count), from));
}

void mr_fast_amx_zip(const mr_fast_zip *job)
{
    for (uint32_t r = 0; r < job->rows; r += 2) {
        const uint16_t *low = job->from + r * job->from_stride;
        uint32_t *to = job->to + r / 2 * job->to_stride;
        for (uint32_t c = 0; c < job->cols; c += HALF) {
            const uint32_t count = job->cols - c < HALF ? job->cols - c : HALF;
            __m512i pair = mr_halves_load(low + c, count);
            if (r + 1 < job->rows) {
                const __m512i high = mr_halves_load(low + job->from_stride + c, count);
                pair = _mm512_or_si512(pair, _mm512_slli_epi32(high, 16));
            }
            _mm512_mask_storeu_epi32(to + c, mr_vec_lanes(count), pair);
        }
    }
}

/* Rows of a strip's result with the bias, to where they belong. */
static void give_rows(const mr_fast_linear *job, const float *sums, uint32_t rows, float *out)
{
    for (uint32_t half = 0; half * HALF < job->n; half++) {
        const uint32_t left = job->n - half * HALF;
        const uint32_t lanes = left < HALF ? left : HALF;
        for (uint32_t r = 0; r < rows; r++) {
            mr_vec v = mr_vec_load(sums + r * MR_FAST_STRIP + half * HALF);
            if (job->bias != NULL) {
                v = mr_vec_add(v, mr_vec_load_part(job->bias + half * HALF, lanes));
            }
            mr_vec_store_part(out + r * job->out_stride + half * HALF, v, lanes);
        }
    }
}

void mr_fast_amx_linear_bf16(const mr_fast_linear *job)
{
    _Alignas(64) float sums[2 * ROWS * MR_FAST_STRIP];
    const size_t k = mr_fast_half_width(job->k);
    mr_fast_tiles tiles = {.a_stride = k,
                           .b = (const uint32_t *)(const void *)job->strip,
                           .b_stride = MR_FAST_STRIP,
                           .c = sums,
                           .c_stride = MR_FAST_STRIP,
                           .cols = MR_FAST_STRIP,
                           .depth = (uint32_t)k};
    mr_fast_amx_begin();
    for (uint32_t row = 0; row < job->rows; row += tiles.rows) {
        const uint32_t left = job->rows - row;
        tiles.rows = left < 2 * ROWS ? left : 2 * ROWS;
        tiles.a = job->x_half + row * k;
        mr_fast_amx_tiles(&tiles);
        give_rows(job, sums, tiles.rows, job->out + row * job->out_stride);
    }
    mr_fast_amx_end();
}
