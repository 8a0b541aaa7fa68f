/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C, for processors without AVX2: the same integer arithmetic, one output after the other. */
#include "kernels/cpu/fast_simd_portable.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum { HALF = 16, WORD_BYTES = 64 };

/* Σ u · x of one output's block; `codes` is at its first word, words are 64 bytes apart. */
static int32_t dot_u4(const uint8_t *codes, const int8_t *x)
{
    int32_t sum = 0;
    for (uint32_t w = 0; w < MR_FAST_BLOCK / 8; w++, codes += WORD_BYTES) {
        for (uint32_t c = 0; c < 4; c++) {
            sum += (codes[c] & 0x0f) * x[4 * w + c];
            sum += (codes[c] >> 4) * x[HALF + 4 * w + c];
        }
    }
    return sum;
}

static int32_t dot_u8(const uint8_t *codes, const int8_t *x)
{
    int32_t sum = 0;
    for (uint32_t w = 0; w < MR_FAST_BLOCK / 4; w++, codes += WORD_BYTES) {
        for (uint32_t c = 0; c < 4; c++) {
            sum += codes[c] * x[4 * w + c];
        }
    }
    return sum;
}

static int32_t dot_planes(bool bytes, const uint8_t *codes, const mr_fast_block *x)
{
    int32_t sum = 0;
    for (uint32_t plane = 0; plane < x->planes; plane++) {
        const int8_t *part = x->codes + plane * MR_FAST_BLOCK;
        sum = 256 * sum + (bytes ? dot_u8(codes, part) : dot_u4(codes, part));
    }
    return sum;
}

/* Output `i` of the strip for one row of activations. */
static float output(const mr_fast_linear *job, uint32_t i, const uint8_t *row)
{
    const bool bytes = job->layout == MR_FAST_U8_CENTRED;
    const bool offsets = job->layout == MR_FAST_U4_OFFSET;
    const int32_t centre = bytes ? 128 : 8;
    const size_t code_bytes = (size_t)MR_FAST_STRIP * MR_FAST_BLOCK / (bytes ? 1 : 2);
    const size_t block_bytes = code_bytes + (offsets ? 4 : 2) * MR_FAST_STRIP;
    const size_t first = i / HALF * (code_bytes / 2) + i % HALF * 4;
    const uint8_t *block = job->strip;
    float sum = 0.0f;
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++, block += block_bytes) {
        const mr_fast_block *x = (const mr_fast_block *)(const void *)row;
        const void *scales = block + code_bytes;
        const uint16_t *half = scales;
        const float d = mr_f16_to_f32(half[i]);
        int32_t dot = dot_planes(bytes, block + first, x);
        dot += offsets ? 0 : centre * x->minus_sum;
        sum += (float)dot * (d * x->scale);
        if (offsets) {
            sum += mr_f16_to_f32(half[MR_FAST_STRIP + i]) * x->offset_sum;
        }
        row += mr_fast_block_bytes(job->planes);
    }
    return sum;
}

static void linear(const mr_fast_linear *job)
{
    if (!mr_fast_is_quantised(job->layout)) {
        mr_impl_linear_float(job);
        return;
    }
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(job->planes);
    for (uint32_t r = 0; r < job->rows; r++) {
        float *out = job->out + r * job->out_stride;
        for (uint32_t i = 0; i < job->n; i++) {
            const float sum = output(job, i, job->x_quant + r * row_bytes);
            out[i] = job->bias == NULL ? sum : sum + job->bias[i];
        }
    }
}

const mr_fast_kernels mr_fast_kernels_portable = MR_FAST_KERNELS(linear);
