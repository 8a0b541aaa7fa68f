/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2. vpmaddubsw adds two products of unsigned and signed bytes in int16 with saturation. Codes
 * of 4 bits cannot saturate it, nor the sum of the eight words of a block (8 · 2 · 15 · 128 <
 * 2^15); codes of 8 bits are taken as two of 4: u = 16 · high + low. So everything is exact.
 *
 * A strip of 32 outputs is four registers of 8 outputs × 4 codes; a register tile is one of those
 * times up to three rows.
 */
#include "kernels/cpu/fast_simd_avx2.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum {
    WORD_BYTES = 64, /* 16 outputs × 4 codes */
    LANES = 8,       /* outputs a register */
    PARTS = 4,       /* registers a strip */
    MAX_ROWS = 3,
};

MR_SIMD __m256i word_of(const int8_t *codes)
{
    int32_t word;
    memcpy(&word, codes, sizeof(word));
    return _mm256_set1_epi32(word);
}

/* Adds the products of the low nibbles with x_low, and of the high ones with x_high. */
MR_SIMD void add_word(__m256i raw, const int8_t *x_low, const int8_t *x_high, __m256i *low,
                      __m256i *high)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i upper = _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble);
    raw = _mm256_and_si256(raw, nibble);
    *low = _mm256_add_epi16(*low, _mm256_maddubs_epi16(raw, word_of(x_low)));
    *high = _mm256_add_epi16(*high, _mm256_maddubs_epi16(upper, word_of(x_high)));
}

MR_SIMD const mr_fast_block *block_of(const uint8_t *x)
{
    return (const mr_fast_block *)(const void *)x;
}

/* Σ u · x of 8 outputs and one plane of a block of each row, on top of 256 times what is there. */
MR_SIMD void block_dots(bool bytes, uint32_t rows, uint32_t plane, const uint8_t *codes,
                        const uint8_t *const *x, __m256i dot[MAX_ROWS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low[MAX_ROWS];
    __m256i high[MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        low[r] = _mm256_setzero_si256();
        high[r] = low[r];
    }
    const uint32_t words = bytes ? 8 : 4;
#pragma GCC unroll 8
    for (uint32_t w = 0; w < words; w++, codes += WORD_BYTES) {
        const __m256i raw = _mm256_loadu_si256((const void *)codes);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            const int8_t *word = block_of(x[r])->codes + plane * MR_FAST_BLOCK + 4 * w;
            add_word(raw, word, bytes ? word : word + 16, &low[r], &high[r]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        __m256i upper = _mm256_madd_epi16(high[r], ones);
        upper = bytes ? _mm256_slli_epi32(upper, 4) : upper;
        dot[r] = _mm256_add_epi32(_mm256_slli_epi32(dot[r], 8), upper);
        dot[r] = _mm256_add_epi32(_mm256_madd_epi16(low[r], ones), dot[r]);
    }
}

/* The same of one span of 16 inputs. */
MR_SIMD void span_dots(bool bytes, uint32_t rows, uint32_t plane, uint32_t span,
                       const uint8_t *codes, const uint8_t *const *x, __m256i dot[MAX_ROWS])
{
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    __m256i low[MAX_ROWS];
    __m256i high[MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        low[r] = _mm256_setzero_si256();
        high[r] = low[r];
    }
    codes += bytes ? span * 4 * WORD_BYTES : 0;
#pragma GCC unroll 8
    for (uint32_t w = 0; w < 4; w++, codes += WORD_BYTES) {
        __m256i raw = _mm256_loadu_si256((const void *)codes);
        raw = bytes || span == 0 ? raw : _mm256_srli_epi16(raw, 4);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            const int8_t *word =
                block_of(x[r])->codes + plane * MR_FAST_BLOCK + span * MR_FAST_SPAN + 4 * w;
            if (bytes) {
                add_word(raw, word, word, &low[r], &high[r]);
            } else {
                const __m256i u = _mm256_and_si256(raw, nibble);
                low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(u, word_of(word)));
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        const __m256i upper = _mm256_slli_epi32(_mm256_madd_epi16(high[r], ones), 4);
        dot[r] = _mm256_add_epi32(_mm256_slli_epi32(dot[r], 8), upper);
        dot[r] = _mm256_add_epi32(_mm256_madd_epi16(low[r], ones), dot[r]);
    }
}

/* Adds to sums what one block, or one span of it, comes to; its f16 scales are at `numbers`. */
MR_SIMD void add_block(uint32_t layout, uint32_t rows, uint32_t span, const uint16_t *numbers,
                       const uint8_t *const *row, __m256i dot[MAX_ROWS], __m256 sum[MAX_ROWS])
{
    const bool offsets = mr_fast_has_offsets(layout);
    const bool pairs = mr_fast_has_pairs(layout);
    const uint32_t to_offsets = (offsets ? 1 : 0) * (pairs ? 2 : 1) * MR_FAST_STRIP;
    const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const void *)numbers));
    const __m256 m = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(numbers + to_offsets)));
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        const mr_fast_block *a = block_of(row[r]);
        const int32_t minus = pairs ? mr_fast_minus_span(a, span) : a->minus_sum;
        if (!offsets) {
            const int shift = mr_fast_has_bytes(layout) ? 7 : 3; /* centre 128 or 8 */
            dot[r] = _mm256_add_epi32(dot[r], _mm256_slli_epi32(_mm256_set1_epi32(minus), shift));
        }
        const __m256 scale = _mm256_mul_ps(d, _mm256_set1_ps(a->scale));
        sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), scale, sum[r]);
        if (offsets) {
            const float offset_sum = pairs ? a->scale * (float)-minus : a->offset_sum;
            sum[r] = _mm256_fmadd_ps(m, _mm256_set1_ps(offset_sum), sum[r]);
        }
    }
}

/* Part `part` of the strip times a few rows. layout and rows are constants where expanded. */
MR_SIMD void part_tile(uint32_t layout, uint32_t rows, uint32_t part, const mr_fast_linear *job,
                       const uint8_t *x, float *out)
{
    const bool bytes = mr_fast_has_bytes(layout);
    const uint32_t spans = mr_fast_has_pairs(layout) ? 2 : 1;
    const size_t code_bytes = (size_t)MR_FAST_STRIP * MR_FAST_BLOCK / (bytes ? 1 : 2);
    const size_t block_bytes = code_bytes + 2 * mr_fast_numbers(layout) * MR_FAST_STRIP;
    const uint8_t *block = job->strip;
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(job->planes);
    const uint8_t *row[MAX_ROWS];
    __m256 sum[MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        row[r] = x + r * row_bytes;
        sum[r] = _mm256_setzero_ps();
    }
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++, block += block_bytes) {
        const uint8_t *codes = block + part / 2 * (code_bytes / 2) + part % 2 * (WORD_BYTES / 2);
        const void *scales = block + code_bytes;
        const uint16_t *numbers = (const uint16_t *)scales + part * LANES;
#pragma GCC unroll 2
        for (uint32_t span = 0; span < spans; span++, numbers += MR_FAST_STRIP) {
            __m256i dot[MAX_ROWS];
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                dot[r] = _mm256_setzero_si256();
            }
            for (uint32_t plane = 0; plane < job->planes; plane++) {
                if (spans == 1) {
                    block_dots(bytes, rows, plane, codes, row, dot);
                } else {
                    span_dots(bytes, rows, plane, span, codes, row, dot);
                }
            }
            add_block(layout, rows, span, numbers, row, dot, sum);
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            row[r] += mr_fast_block_bytes(job->planes);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        _mm256_storeu_ps(out + r * MR_FAST_STRIP + part * LANES, sum[r]);
    }
}

MR_SIMD void strip_tile(uint32_t layout, uint32_t rows, const mr_fast_linear *job, uint32_t first)
{
    float sums[MAX_ROWS * MR_FAST_STRIP];
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(job->planes);
    const uint8_t *x = job->x_quant + first * row_bytes;
    for (uint32_t part = 0; part < PARTS; part++) {
        part_tile(layout, rows, part, job, x, sums);
    }
    for (uint32_t r = 0; r < rows; r++) {
        float *out = job->out + (first + r) * job->out_stride;
        for (uint32_t i = 0; i < job->n; i++) {
            const float sum = sums[r * MR_FAST_STRIP + i];
            out[i] = job->bias == NULL ? sum : sum + job->bias[i];
        }
    }
}

MR_SIMD void strip_rows(uint32_t layout, const mr_fast_linear *job)
{
    uint32_t first = 0;
    for (; first + MAX_ROWS <= job->rows; first += MAX_ROWS) {
        strip_tile(layout, MAX_ROWS, job, first);
    }
    for (; first < job->rows; first++) {
        strip_tile(layout, 1, job, first);
    }
}

static void linear(const mr_fast_linear *job)
{
    switch (job->layout) {
    case MR_FAST_U4_OFFSET:
        strip_rows(MR_FAST_U4_OFFSET, job);
        break;
    case MR_FAST_U4_CENTRED:
        strip_rows(MR_FAST_U4_CENTRED, job);
        break;
    case MR_FAST_U8_CENTRED:
        strip_rows(MR_FAST_U8_CENTRED, job);
        break;
    case MR_FAST_U8_OFFSET:
        strip_rows(MR_FAST_U8_OFFSET, job);
        break;
    case MR_FAST_U4_PAIRS_OFFSET:
        strip_rows(MR_FAST_U4_PAIRS_OFFSET, job);
        break;
    case MR_FAST_U4_PAIRS_CENTRED:
        strip_rows(MR_FAST_U4_PAIRS_CENTRED, job);
        break;
    case MR_FAST_U8_PAIRS_CENTRED:
        strip_rows(MR_FAST_U8_PAIRS_CENTRED, job);
        break;
    default:
        mr_impl_linear_float(job);
        break;
    }
}

static uint64_t burst(uint32_t rounds, uint32_t *sink)
{
    enum { SUMS = 8, OPERATIONS = 2 * 32 };
    __m256i sum[SUMS];
    __m256i a = _mm256_set1_epi8(1);
    for (int i = 0; i < SUMS; i++) {
        sum[i] = _mm256_setzero_si256();
    }
    for (uint32_t round = 0; round < rounds; round++) {
        __asm__ volatile("" : "+x"(a)); /* the products are not known to repeat */
#pragma GCC unroll 8
        for (int i = 0; i < SUMS; i++) {
            sum[i] = _mm256_add_epi16(sum[i], _mm256_maddubs_epi16(a, a));
        }
    }
    for (int i = 1; i < SUMS; i++) {
        sum[0] = _mm256_xor_si256(sum[0], sum[i]);
    }
    *sink = (uint32_t)_mm_cvtsi128_si32(_mm256_castsi256_si128(sum[0]));
    return (uint64_t)rounds * SUMS * OPERATIONS;
}

const mr_fast_kernels mr_fast_kernels_avx2 = MR_FAST_KERNELS(linear, burst);
