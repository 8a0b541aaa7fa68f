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
    UNPACK_ROWS = 9, /* from so many rows on it pays to unpack first */
    AHEAD = 4096,    /* bytes to prefetch ahead; the processor's own stops at page ends */
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

MR_SIMD size_t mr_block_bytes(source from, bool offsets)
{
    size_t numbers = MR_FAST_STRIP * (offsets ? 2 : 1);
    return HALVES * mr_code_bytes(from) + numbers * (from == FROM_SCRATCH ? 4 : 2);
}

/* Dot products of one block with block b of each row, added into dot[half][row]. */
MR_SIMD void mr_block_dots(source from, uint32_t rows, const uint8_t *codes, uint32_t b,
                           const mr_fast_block *const *x, __m512i dot[HALVES][MAX_ROWS])
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    MR_UNROLL for (uint32_t w = 0; w < mr_code_bytes(from) / WORD_BYTES; w++) {
        __m512i raw[HALVES];
        MR_UNROLL for (uint32_t h = 0; h < HALVES; h++) {
            raw[h] = _mm512_loadu_si512(codes + h * mr_code_bytes(from) + w * WORD_BYTES);
            __m512i u = from == FROM_U4 ? _mm512_and_si512(raw[h], nibble) : raw[h];
            MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
                dot[h][r] = _mm512_dpbusd_epi32(dot[h][r], u, mr_word(x[r][b].codes + 4 * w));
            }
        }
        MR_UNROLL for (uint32_t h = 0; h < HALVES && from == FROM_U4; h++) {
            __m512i u = _mm512_and_si512(_mm512_srli_epi16(raw[h], 4), nibble);
            MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
                dot[h][r] = _mm512_dpbusd_epi32(dot[h][r], u, mr_word(x[r][b].codes + 16 + 4 * w));
            }
        }
    }
}

/* A tile of some rows from `x`. source, offsets and rows are constants where this is expanded. */
MR_SIMD void mr_strip_tile(source from, bool offsets, uint32_t rows, const mr_fast_linear *job,
                           const mr_fast_block *x, float *out)
{
    const uint8_t *block = from == FROM_SCRATCH ? job->scratch : job->strip;
    const size_t block_bytes = mr_block_bytes(from, offsets);
    const int shift = from == FROM_U8 ? 7 : 3; /* centre 128 or 8 */
    mr_vec sum[HALVES][MAX_ROWS];
    const mr_fast_block *row[MAX_ROWS];
    MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
        row[r] = x + r * job->x_stride;
        sum[0][r] = _mm512_setzero_ps();
        sum[1][r] = _mm512_setzero_ps();
    }
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++, block += block_bytes) {
        __m512i dot[HALVES][MAX_ROWS];
        MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
            __m512i minus = _mm512_set1_epi32(row[r][b].minus_sum);
            dot[0][r] = offsets ? _mm512_setzero_si512() : _mm512_slli_epi32(minus, shift);
            dot[1][r] = dot[0][r];
        }
        MR_UNROLL for (size_t line = 0; line < block_bytes && from != FROM_SCRATCH; line += 64) {
            _mm_prefetch((const void *)(block + AHEAD + line), _MM_HINT_T0);
        }
        mr_block_dots(from, rows, block, b, row, dot);
        const uint8_t *scales = block + HALVES * mr_code_bytes(from);
        MR_UNROLL for (uint32_t h = 0; h < HALVES; h++) {
            mr_vec d = mr_scale_load(from, scales, h);
            mr_vec m = offsets ? mr_scale_load(from, scales, HALVES + h) : d;
            MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
                mr_vec scale = mr_vec_mul(d, mr_vec_set(row[r][b].scale));
                sum[h][r] = mr_vec_fma(_mm512_cvtepi32_ps(dot[h][r]), scale, sum[h][r]);
                if (offsets) {
                    sum[h][r] = mr_vec_fma(m, mr_vec_set(row[r][b].offset_sum), sum[h][r]);
                }
            }
        }
    }
    MR_UNROLL for (uint32_t h = 0; h < HALVES; h++) {
        uint32_t lanes = mr_tile_lanes(job->n, h);
        MR_UNROLL for (uint32_t r = 0; r < rows; r++) {
            mr_vec v = sum[h][r];
            if (job->bias != NULL) {
                v = mr_vec_add(v, mr_vec_load_part(job->bias + 16 * h, lanes));
            }
            mr_vec_store_part(out + r * job->out_stride + 16 * h, v, lanes);
        }
    }
}

/* All rows, in tiles of nearly equal height. */
MR_SIMD void mr_strip_rows(source from, bool offsets, const mr_fast_linear *job)
{
    const mr_fast_block *x = job->x_quant;
    float *out = job->out;
    uint32_t tiles = (job->rows + MAX_ROWS - 1) / MAX_ROWS;
    for (uint32_t t = 0, done = 0; t < tiles; t++) {
        uint32_t rows = (uint32_t)((uint64_t)job->rows * (t + 1) / tiles) - done;
        switch (rows) {
        case 1:
            mr_strip_tile(from, offsets, 1, job, x, out);
            break;
        case 2:
            mr_strip_tile(from, offsets, 2, job, x, out);
            break;
        case 3:
            mr_strip_tile(from, offsets, 3, job, x, out);
            break;
        case 4:
            mr_strip_tile(from, offsets, 4, job, x, out);
            break;
        case 5:
            mr_strip_tile(from, offsets, 5, job, x, out);
            break;
        default:
            mr_strip_tile(from, offsets, 6, job, x, out);
            break;
        }
        x += rows * job->x_stride;
        out += rows * job->out_stride;
        done += rows;
    }
}

/* A strip of nibbles as bytes, with float scales, into the scratch. */
static void mr_strip_unpack(const mr_fast_linear *job, bool offsets)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const uint32_t numbers = HALVES * (offsets ? 2 : 1);
    const uint8_t *from = job->strip;
    uint8_t *to = job->scratch;
    for (uint32_t b = 0; b < job->k / MR_FAST_BLOCK; b++) {
        MR_UNROLL for (uint32_t w = 0; w < HALVES * WORDS / 2; w++, from += WORD_BYTES) {
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

MR_SIMD void mr_strip_nibbles(bool offsets, const mr_fast_linear *job)
{
    if (job->rows >= UNPACK_ROWS) {
        mr_strip_unpack(job, offsets);
        mr_strip_rows(FROM_SCRATCH, offsets, job);
    } else {
        mr_strip_rows(FROM_U4, offsets, job);
    }
}

static void linear(const mr_fast_linear *job)
{
    switch (job->layout) {
    case MR_FAST_U4_OFFSET:
        mr_strip_nibbles(true, job);
        break;
    case MR_FAST_U4_CENTRED:
        mr_strip_nibbles(false, job);
        break;
    case MR_FAST_U8_CENTRED:
        mr_strip_rows(FROM_U8, false, job);
        break;
    default:
        mr_impl_linear_float(job);
        break;
    }
}

const mr_fast_kernels mr_fast_kernels_avx512 = MR_FAST_KERNELS(linear);
