/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX-512 VNNI. One vpdpbusd multiplies 16 outputs × 4 codes with 4 activation codes; a block
 * of 32 inputs is eight of them, exact in int32, and then one or two fused multiply-adds in float:
 *
 *   sum += Σ(u · x) · (d · scale)  [+ m · offset_sum]      block after block along the inputs
 *
 * A register tile is a strip of 32 outputs × up to six rows. With many rows, the codes of the strip
 * are unpacked to bytes once and kept in the cache for all of them.
 */
#include "kernels/cpu/fast_simd_avx512.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum {
    WORDS = 8,       /* groups of 4 codes a block */
    WORD_BYTES = 64, /* 16 outputs × 4 codes */
    HALVES = 2,      /* of a strip, 16 outputs each */
    MAX_ROWS = 6,
    UNPACK_ROWS = 32, /* from so many rows on it pays to unpack first */
    AHEAD = 4096,     /* bytes to prefetch ahead; the processor's own stops at page ends */
};

/* How the codes and scales of a strip are stored: as packed, or unpacked into the scratch. */
typedef enum source {
    FROM_U4,
    FROM_U8,
    FROM_SCRATCH, /* bytes, and scales in float */
} source;

MR_SIMD __m512i mr_word(const int8_t *codes)
{
    int32_t word;
    memcpy(&word, codes, sizeof(word));
    return _mm512_set1_epi32(word);
}

/* Vector `index` of the scales and offsets of a block: scales of both halves, then offsets. */
MR_SIMD mr_vec mr_scale_load(source from, const uint8_t *scales, uint32_t index)
{
    const void *at = scales;
    return from == FROM_SCRATCH ? mr_vec_load((const float *)at + 16 * index)
                                : mr_vec_load_f16((const uint16_t *)at + 16 * index);
}

MR_SIMD size_t mr_code_bytes(source from)
{
    return (from == FROM_U4 ? WORDS / 2 : WORDS) * WORD_BYTES;
}

/* How a strip is multiplied; constants wherever one of these is passed on. */
typedef struct how {
    source from;
    bool offsets;
    bool pairs; /* of scales */
    uint32_t planes;
} how;

/* Vectors of scales and offsets of a block. */
MR_SIMD uint32_t mr_number_vectors(how h)
{
    return HALVES * (h.offsets ? 2 : 1) * (h.pairs ? 2 : 1);
}

MR_SIMD size_t mr_block_bytes(how h)
{
    return HALVES * mr_code_bytes(h.from) +
           mr_number_vectors(h) * (h.from == FROM_SCRATCH ? 64 : 32);
}

MR_SIMD void mr_block_prefetch(const uint8_t *block, size_t bytes)
{
#pragma GCC unroll 8
    for (size_t line = 0; line < bytes; line += 64) {
        _mm_prefetch((const void *)(block + line), _MM_HINT_T0);
    }
}

/* The codes of a block and a plane of a row. */
MR_SIMD const int8_t *mr_codes_of(const uint8_t *x, uint32_t plane)
{
    return (const int8_t *)x + sizeof(mr_fast_block) + plane * MR_FAST_BLOCK;
}

MR_SIMD const mr_fast_block *mr_block_of(const uint8_t *x)
{
    return (const mr_fast_block *)(const void *)x;
}

/* Adds the products of one word of codes of each half with word `at` of each row. */
MR_SIMD void mr_word_dots(uint32_t rows, const __m512i u[HALVES], uint32_t plane, uint32_t at,
                          const uint8_t *const *x, __m512i dot[HALVES][MAX_ROWS])
{
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        const __m512i word = mr_word(mr_codes_of(x[r], plane) + 4 * at);
        dot[0][r] = _mm512_dpbusd_epi32(dot[0][r], u[0], word);
        dot[1][r] = _mm512_dpbusd_epi32(dot[1][r], u[1], word);
    }
}

/* Adds the dot products of a block of codes with one plane of each row. */
MR_SIMD void mr_block_dots(source from, uint32_t rows, uint32_t plane, const uint8_t *codes,
                           const uint8_t *const *x, __m512i dot[HALVES][MAX_ROWS])
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const uint32_t words = from == FROM_U4 ? WORDS / 2 : WORDS;
#pragma GCC unroll 8
    for (uint32_t w = 0; w < words; w++, codes += WORD_BYTES) {
        const __m512i raw[HALVES] = {_mm512_loadu_si512(codes),
                                     _mm512_loadu_si512(codes + mr_code_bytes(from))};
        if (from != FROM_U4) {
            mr_word_dots(rows, raw, plane, w, x, dot);
            continue;
        }
        const __m512i low[HALVES] = {_mm512_and_si512(raw[0], nibble),
                                     _mm512_and_si512(raw[1], nibble)};
        const __m512i high[HALVES] = {
            _mm512_and_si512(_mm512_srli_epi16(raw[0], 4), nibble),
            _mm512_and_si512(_mm512_srli_epi16(raw[1], 4), nibble),
        };
        mr_word_dots(rows, low, plane, w, x, dot);
        mr_word_dots(rows, high, plane, WORDS / 2 + w, x, dot);
    }
}

/* Those of one span of 16 inputs. */
MR_SIMD void mr_span_dots(source from, uint32_t rows, uint32_t plane, uint32_t span,
                          const uint8_t *codes, const uint8_t *const *x,
                          __m512i dot[HALVES][MAX_ROWS])
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    codes += from == FROM_U4 ? 0 : span * WORDS / 2 * WORD_BYTES;
#pragma GCC unroll 8
    for (uint32_t w = 0; w < WORDS / 2; w++, codes += WORD_BYTES) {
        __m512i u[HALVES] = {_mm512_loadu_si512(codes),
                             _mm512_loadu_si512(codes + mr_code_bytes(from))};
#pragma GCC unroll 8
        for (uint32_t h = 0; h < HALVES && from == FROM_U4; h++) {
            u[h] = span == 0 ? u[h] : _mm512_srli_epi16(u[h], 4);
            u[h] = _mm512_and_si512(u[h], nibble);
        }
        mr_word_dots(rows, u, plane, span * WORDS / 2 + w, x, dot);
    }
}

MR_SIMD void mr_dots(how h, uint32_t rows, uint32_t plane, uint32_t span, const uint8_t *codes,
                     const uint8_t *const *x, __m512i dot[HALVES][MAX_ROWS])
{
    if (h.pairs) {
        mr_span_dots(h.from, rows, plane, span, codes, x, dot);
    } else {
        mr_block_dots(h.from, rows, plane, codes, x, dot);
    }
}

/* −Σ codes of a block of activations, or of a span of it. */
MR_SIMD int32_t mr_minus_sum(how h, uint32_t span, const uint8_t *x)
{
    return h.pairs ? mr_fast_minus_span(mr_block_of(x), span) : mr_block_of(x)->minus_sum;
}

/* Σ code · activation code of one block or span, the centre taken off; the second plane on top of
 * 256 times the first. */
MR_SIMD void mr_block_products(how h, uint32_t rows, uint32_t span, const uint8_t *codes,
                               const uint8_t *const *x, __m512i dot[HALVES][MAX_ROWS])
{
    __m512i start[MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        const __m512i minus = _mm512_set1_epi32(mr_minus_sum(h, span, x[r]));
        const int shift = h.from == FROM_U8 ? 7 : 3; /* centre 128 or 8 */
        start[r] = h.offsets ? _mm512_setzero_si512() : _mm512_slli_epi32(minus, shift);
        dot[0][r] = h.planes == 1 ? start[r] : _mm512_setzero_si512();
        dot[1][r] = dot[0][r];
    }
    mr_dots(h, rows, 0, span, codes, x, dot);
    if (h.planes == 1) {
        return;
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        dot[0][r] = _mm512_add_epi32(_mm512_slli_epi32(dot[0][r], 8), start[r]);
        dot[1][r] = _mm512_add_epi32(_mm512_slli_epi32(dot[1][r], 8), start[r]);
    }
    mr_dots(h, rows, 1, span, codes, x, dot);
}

/* Adds a block, or a span of it, to sums. */
MR_SIMD void mr_block_add(how h, uint32_t rows, uint32_t span, const uint8_t *block,
                          const uint8_t *const *x, mr_vec sum[HALVES][MAX_ROWS])
{
    const uint8_t *scales = block + HALVES * mr_code_bytes(h.from);
    __m512i dot[HALVES][MAX_ROWS];
    mr_block_products(h, rows, span, block, x, dot);
#pragma GCC unroll 8
    for (uint32_t half = 0; half < HALVES; half++) {
        const uint32_t at = span * HALVES + half;
        mr_vec d = mr_scale_load(h.from, scales, at);
        mr_vec m = h.offsets ? mr_scale_load(h.from, scales, mr_number_vectors(h) / 2 + at) : d;
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            const mr_fast_block *a = mr_block_of(x[r]);
            mr_vec *s = &sum[half][r];
            *s = mr_vec_fma(_mm512_cvtepi32_ps(dot[half][r]), mr_vec_mul(d, mr_vec_set(a->scale)),
                            *s);
            if (h.offsets) {
                const float offset_sum =
                    h.pairs ? a->scale * (float)-mr_minus_sum(h, span, x[r]) : a->offset_sum;
                *s = mr_vec_fma(m, mr_vec_set(offset_sum), *s);
            }
        }
    }
}

/* A tile of some rows from `x`; rows is a constant where this is expanded. */
MR_SIMD void mr_strip_tile(how h, uint32_t rows, const mr_fast_linear *job, const uint8_t *x,
                           float *out)
{
    const uint8_t *block = h.from == FROM_SCRATCH ? job->scratch : job->strip;
    const size_t block_bytes = mr_block_bytes(h);
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(h.planes);
    mr_vec sum[HALVES][MAX_ROWS];
    const uint8_t *row[MAX_ROWS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
        row[r] = x + r * row_bytes;
        sum[0][r] = _mm512_setzero_ps();
        sum[1][r] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++, block += block_bytes) {
        if (h.from != FROM_SCRATCH) {
            mr_block_prefetch(block + AHEAD, block_bytes);
        }
        mr_block_add(h, rows, 0, block, row, sum);
        if (h.pairs) {
            mr_block_add(h, rows, 1, block, row, sum);
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            row[r] += mr_fast_block_bytes(h.planes);
        }
    }
#pragma GCC unroll 8
    for (uint32_t half = 0; half < HALVES; half++) {
        uint32_t lanes = mr_tile_lanes(job->n, half);
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            mr_vec v = sum[half][r];
            if (job->bias != NULL) {
                v = mr_vec_add(v, mr_vec_load_part(job->bias + 16 * half, lanes));
            }
            mr_vec_store_part(out + r * job->out_stride + 16 * half, v, lanes);
        }
    }
}

/* All rows, in tiles of nearly equal height. */
MR_SIMD void mr_strip_rows(how h, const mr_fast_linear *job)
{
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(h.planes);
    const uint8_t *x = job->x_quant;
    float *out = job->out;
    uint32_t tiles = (job->rows + MAX_ROWS - 1) / MAX_ROWS;
    for (uint32_t t = 0, done = 0; t < tiles; t++) {
        uint32_t rows = (uint32_t)((uint64_t)job->rows * (t + 1) / tiles) - done;
        switch (rows) {
        case 1:
            mr_strip_tile(h, 1, job, x, out);
            break;
        case 2:
            mr_strip_tile(h, 2, job, x, out);
            break;
        case 3:
            mr_strip_tile(h, 3, job, x, out);
            break;
        case 4:
            mr_strip_tile(h, 4, job, x, out);
            break;
        case 5:
            mr_strip_tile(h, 5, job, x, out);
            break;
        default:
            mr_strip_tile(h, 6, job, x, out);
            break;
        }
        x += rows * row_bytes;
        out += rows * job->out_stride;
        done += rows;
    }
}

/* A strip of nibbles as bytes, with float scales, into the scratch. */
MR_SIMD void mr_strip_unpack(const mr_fast_linear *job, bool offsets)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const how h = {.from = FROM_U4, .offsets = offsets};
    const uint32_t numbers = mr_number_vectors(h);
    const uint8_t *from = job->strip;
    uint8_t *to = job->scratch;
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++) {
        mr_block_prefetch(from + AHEAD, mr_block_bytes(h));
#pragma GCC unroll 8
        for (uint32_t w = 0; w < HALVES * WORDS / 2; w++, from += WORD_BYTES) {
            __m512i raw = _mm512_loadu_si512(from);
            uint8_t *word = to + (w / 4 * WORDS + w % 4) * WORD_BYTES;
            _mm512_storeu_si512(word, _mm512_and_si512(raw, nibble));
            raw = _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble);
            _mm512_storeu_si512(word + WORDS / 2 * WORD_BYTES, raw);
        }
        to += HALVES * WORDS * WORD_BYTES;
        for (uint32_t i = 0; i < numbers; i++, to += WORD_BYTES) {
            mr_vec_store((float *)(void *)to, mr_scale_load(FROM_U4, from, i));
        }
        from += numbers * WORD_BYTES / 2;
    }
}

MR_SIMD void mr_strip_nibbles(bool offsets, uint32_t planes, const mr_fast_linear *job)
{
    if (job->rows >= UNPACK_ROWS) {
        mr_strip_unpack(job, offsets);
        mr_strip_rows((how){FROM_SCRATCH, offsets, false, planes}, job);
    } else {
        mr_strip_rows((how){FROM_U4, offsets, false, planes}, job);
    }
}

MR_SIMD void mr_strip_planes(uint32_t planes, const mr_fast_linear *job)
{
    switch (job->layout) {
    case MR_FAST_U4_OFFSET:
        mr_strip_nibbles(true, planes, job);
        break;
    case MR_FAST_U4_CENTRED:
        mr_strip_nibbles(false, planes, job);
        break;
    case MR_FAST_U8_OFFSET:
        mr_strip_rows((how){FROM_U8, true, false, planes}, job);
        break;
    case MR_FAST_U4_PAIRS_OFFSET:
        mr_strip_rows((how){FROM_U4, true, true, planes}, job);
        break;
    case MR_FAST_U4_PAIRS_CENTRED:
        mr_strip_rows((how){FROM_U4, false, true, planes}, job);
        break;
    case MR_FAST_U8_PAIRS_CENTRED:
        mr_strip_rows((how){FROM_U8, false, true, planes}, job);
        break;
    default:
        mr_strip_rows((how){FROM_U8, false, false, planes}, job);
        break;
    }
}

static void linear(const mr_fast_linear *job)
{
    if (!mr_fast_is_quantised(job->layout)) {
        mr_impl_linear_float(job);
    } else if (job->planes == 1) {
        mr_strip_planes(1, job);
    } else {
        mr_strip_planes(2, job);
    }
}

static uint64_t burst(uint32_t rounds, uint32_t *sink)
{
    enum { SUMS = 16, OPERATIONS = 2 * 64 };
    __m512i sum[SUMS];
    __m512i a = _mm512_set1_epi8(3);
    for (int i = 0; i < SUMS; i++) {
        sum[i] = _mm512_setzero_si512();
    }
    for (uint32_t round = 0; round < rounds; round++) {
        __asm__ volatile("" : "+v"(a)); /* the products are not known to repeat */
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
        }
    }
    for (int i = 1; i < SUMS; i++) {
        sum[0] = _mm512_xor_si512(sum[0], sum[i]);
    }
    *sink = (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128(sum[0]));
    return (uint64_t)rounds * SUMS * OPERATIONS;
}

const mr_fast_kernels mr_fast_kernels_avx512 = MR_FAST_KERNELS(linear, burst);
