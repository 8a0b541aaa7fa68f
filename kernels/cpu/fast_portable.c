/* SPDX-License-Identifier: Apache-2.0 */
/* Plain C, for processors without AVX2: the same integer arithmetic, one output after the other. */
#include "kernels/cpu/fast_simd_portable.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum { HALF = 16, WORD_BYTES = 64, SPAN_WORDS = 4 };

/* Σ u · x of one output and one span of 16 inputs; `codes` is at its first word, words are 64 bytes
 * apart, and the nibbles of a byte are of different spans. */
static int32_t dot_u4(const uint8_t *codes, const int8_t *x, uint32_t span)
{
    int32_t sum = 0;
    x += span * MR_FAST_SPAN;
    for (uint32_t w = 0; w < SPAN_WORDS; w++, codes += WORD_BYTES) {
        for (uint32_t c = 0; c < 4; c++) {
            sum += (codes[c] >> 4 * span & 0x0f) * x[4 * w + c];
        }
    }
    return sum;
}

static int32_t dot_u8(const uint8_t *codes, const int8_t *x, uint32_t span)
{
    int32_t sum = 0;
    x += span * MR_FAST_SPAN;
    codes += span * SPAN_WORDS * WORD_BYTES;
    for (uint32_t w = 0; w < SPAN_WORDS; w++, codes += WORD_BYTES) {
        for (uint32_t c = 0; c < 4; c++) {
            sum += codes[c] * x[4 * w + c];
        }
    }
    return sum;
}

/* Of all planes and of spans [begin, end). */
static int32_t dot_planes(bool bytes, const uint8_t *codes, const int8_t *x, uint32_t planes,
                          uint32_t begin, uint32_t end)
{
    int32_t sum = 0;
    for (uint32_t plane = 0; plane < planes; plane++, x += MR_FAST_BLOCK) {
        sum *= 256;
        for (uint32_t span = begin; span < end; span++) {
            sum += bytes ? dot_u8(codes, x, span) : dot_u4(codes, x, span);
        }
    }
    return sum;
}

/* Output `i` of the strip for one row of activations. */
static float output(const mr_fast_linear *job, uint32_t i, const uint8_t *row)
{
    const bool bytes = mr_fast_has_bytes(job->layout);
    const bool offsets = mr_fast_has_offsets(job->layout);
    const uint32_t spans = mr_fast_has_pairs(job->layout) ? 2 : 1;
    const size_t code_bytes = (size_t)MR_FAST_STRIP * MR_FAST_BLOCK / (bytes ? 1 : 2);
    const size_t block_bytes = code_bytes + 2 * mr_fast_numbers(job->layout) * MR_FAST_STRIP;
    const size_t first = i / HALF * (code_bytes / 2) + i % HALF * 4;
    const uint8_t *block = job->strip;
    float sum = 0.0f;
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++, block += block_bytes) {
        const mr_fast_block *x = (const mr_fast_block *)(const void *)row;
        const void *scales = block + code_bytes;
        const uint16_t *half = (const uint16_t *)scales + i;
        for (uint32_t span = 0; span < spans; span++, half += MR_FAST_STRIP) {
            const int32_t minus = spans == 1 ? x->minus_sum : mr_fast_minus_span(x, span);
            int32_t dot = dot_planes(bytes, block + first, x->codes, job->planes, span,
                                     spans == 1 ? 2 : span + 1);
            dot += offsets ? 0 : (bytes ? 128 : 8) * minus;
            sum += (float)dot * (mr_f16_to_f32(*half) * x->scale);
            if (offsets) {
                const float m = mr_f16_to_f32(half[spans * MR_FAST_STRIP]);
                sum += m * (x->scale * (float)-minus);
            }
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

const mr_fast_kernels mr_fast_kernels_portable = MR_FAST_KERNELS(linear, NULL);
