/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AMX. Sixteen rows and more are multiplied with tiles; the sums of a block of 32 inputs are exact
 * in int32, and scales are put to them in the order of fast_avx512.c. So quantised weights give the
 * bits of that path, which also computes what rows are left over.
 *
 * A tile has 16 rows × 16 outputs. The codes of a strip are unpacked for it once, into the scratch:
 *
 *   [half of the strip][block] { bytes [8 words][16 outputs][4], less the centre where there is one
 *                                float scales [spans][16 outputs], float offsets likewise }
 *
 * Eight words are eight rows of the second factor as the instruction wants it. The first factor is
 * read where the quantised rows lie, one block of sixteen of them.
 */
#include "kernels/cpu/fast_amx.h"

#include "base/cpu.h"
#include "kernels/cpu/fast_amx_isa.h"
#include "kernels/cpu/fast_simd_avx512.h"

#include "kernels/cpu/fast_kernels_impl.h"
#include "kernels/cpu/fast_tiles_impl.h"

enum {
    ROWS = MR_AMX_ROWS,
    HALF = 16, /* outputs of a half strip */
    HALVES = MR_FAST_STRIP / HALF,
    WORDS = 8, /* groups of 4 codes a block */
    WORD_BYTES = HALF * 4,
    NUMBER_BYTES = HALF * 4, /* scales or offsets of a half strip */
    AHEAD = 4096,            /* bytes to prefetch ahead, as in fast_avx512.c */
};

bool mr_fast_amx_ready(void)
{
#ifdef MR_AMX_EMULATED
    return mr_cpu_detect().avx512_vnni;
#else
    return mr_cpu_detect().amx_int8 && mr_cpu_request_amx();
#endif
}

/* How a strip is multiplied; constants wherever one of these is passed on. */
typedef struct how {
    bool bytes; /* as packed */
    bool offsets;
    bool pairs; /* of scales */
    uint32_t planes;
} how;

MR_SIMD uint32_t mr_spans(how h)
{
    return h.pairs ? 2 : 1;
}

/* Vectors of scales and offsets of a half strip's block. */
MR_SIMD uint32_t mr_number_vectors(how h)
{
    return mr_spans(h) * (h.offsets ? 2 : 1);
}

/* Of a half strip's block in the scratch. */
MR_SIMD size_t mr_block_bytes(how h)
{
    return WORDS * WORD_BYTES + mr_number_vectors(h) * NUMBER_BYTES;
}

/* Tiles 0 and 1: sums of each plane; 2: activations; 4: weights. */
static void configure(how h)
{
    const uint32_t inputs = MR_FAST_BLOCK / mr_spans(h);
    mr_amx_config config = {.palette = 1};
    config.rows[0] = config.rows[1] = config.rows[2] = ROWS;
    config.row_bytes[0] = config.row_bytes[1] = HALF * 4;
    config.row_bytes[2] = (uint16_t)inputs;
    config.rows[4] = (uint8_t)(inputs / 4);
    config.row_bytes[4] = WORD_BYTES;
    mr_amx_configure(&config);
}

/* ---- unpacking ---- */

MR_SIMD void mr_unpack_words(how h, const uint8_t *from, uint8_t *to)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i eight = _mm512_set1_epi8(8);
    const __m512i sign = _mm512_set1_epi8(-128);
    const uint32_t words = h.bytes ? WORDS : WORDS / 2;
#pragma GCC unroll 8
    for (uint32_t w = 0; w < words; w++) {
        const __m512i raw = _mm512_loadu_si512(from + w * WORD_BYTES);
        if (h.bytes) {
            _mm512_storeu_si512(to + w * WORD_BYTES, h.offsets ? raw : _mm512_xor_si512(raw, sign));
            continue;
        }
        __m512i low = _mm512_and_si512(raw, nibble);
        __m512i high = _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble);
        if (!h.offsets) {
            low = _mm512_sub_epi8(low, eight);
            high = _mm512_sub_epi8(high, eight);
        }
        _mm512_storeu_si512(to + w * WORD_BYTES, low);
        _mm512_storeu_si512(to + (WORDS / 2 + w) * WORD_BYTES, high);
    }
}

MR_SIMD void mr_unpack(how h, const mr_fast_linear *job)
{
    const uint32_t blocks = job->k / MR_FAST_BLOCK;
    const size_t codes = (h.bytes ? WORDS : WORDS / 2) * WORD_BYTES;
    const size_t packed = HALVES * (codes + mr_number_vectors(h) * HALF * sizeof(uint16_t));
    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *from = job->strip + b * packed;
        for (size_t line = 0; line < packed; line += 64) {
            _mm_prefetch((const void *)(from + AHEAD + line), _MM_HINT_T0);
        }
        for (uint32_t half = 0; half < HALVES; half++) {
            uint8_t *to = job->scratch + (half * (size_t)blocks + b) * mr_block_bytes(h);
            mr_unpack_words(h, from + half * codes, to);
            const uint16_t *numbers = (const uint16_t *)(const void *)(from + HALVES * codes);
            float *out = (float *)(void *)(to + WORDS * WORD_BYTES);
            for (uint32_t i = 0; i < mr_number_vectors(h); i++) {
                mr_vec_store(out + i * HALF, mr_vec_load_f16(numbers + (i * HALVES + half) * HALF));
            }
        }
    }
}

/* ---- products ---- */

typedef struct dots {
    int32_t plane[2][ROWS][HALF];
} dots;

MR_SIMD void mr_products(how h, uint32_t span, const uint8_t *block, const uint8_t *x,
                         size_t row_bytes, dots *out)
{
    const uint8_t *a = x + sizeof(mr_fast_block) + span * MR_FAST_SPAN;
    mr_amx_load(4, block + span * WORDS / 2 * WORD_BYTES, WORD_BYTES);
    mr_amx_zero(0);
    mr_amx_load(2, a, row_bytes);
    if (h.offsets) {
        mr_amx_dot_unsigned(0, 2, 4);
    } else {
        mr_amx_dot_signed(0, 2, 4);
    }
    mr_amx_store(0, out->plane[0], sizeof(out->plane[0][0]));
    if (h.planes == 1) {
        return;
    }
    mr_amx_zero(1);
    mr_amx_load(2, a + MR_FAST_BLOCK, row_bytes);
    if (h.offsets) {
        mr_amx_dot_unsigned(1, 2, 4);
    } else {
        mr_amx_dot_signed(1, 2, 4);
    }
    mr_amx_store(1, out->plane[1], sizeof(out->plane[1][0]));
}

/* Adds a block, or a span of it, to the sums of 16 rows. */
MR_SIMD void mr_block_add(how h, uint32_t span, const uint8_t *block, const uint8_t *x,
                          size_t row_bytes, mr_vec sum[ROWS])
{
    _Alignas(64) dots d;
    mr_products(h, span, block, x, row_bytes, &d);
    const float *numbers = (const float *)(const void *)(block + WORDS * WORD_BYTES);
    const mr_vec scale = mr_vec_load(numbers + span * HALF);
    const mr_vec offset = h.offsets ? mr_vec_load(numbers + (mr_spans(h) + span) * HALF) : scale;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < ROWS; r++) {
        const mr_fast_block *a = (const mr_fast_block *)(const void *)(x + r * row_bytes);
        __m512i dot = _mm512_load_si512(d.plane[0][r]);
        if (h.planes == 2) {
            dot = _mm512_slli_epi32(dot, 8);
            dot = _mm512_add_epi32(dot, _mm512_load_si512(d.plane[1][r]));
        }
        const mr_vec factor = mr_vec_mul(scale, mr_vec_set(a->scale));
        sum[r] = mr_vec_fma(_mm512_cvtepi32_ps(dot), factor, sum[r]);
        if (h.offsets) {
            const float offset_sum =
                h.pairs ? a->scale * (float)-mr_fast_minus_span(a, span) : a->offset_sum;
            sum[r] = mr_vec_fma(offset, mr_vec_set(offset_sum), sum[r]);
        }
    }
}

/* 16 rows from `x` times one half of the strip. */
MR_SIMD void mr_half_tile(how h, const mr_fast_linear *job, uint32_t half, const uint8_t *x,
                          float *out)
{
    const uint32_t blocks = job->k / MR_FAST_BLOCK;
    const size_t row_bytes = blocks * mr_fast_block_bytes(h.planes);
    const uint8_t *block = job->scratch + half * (size_t)blocks * mr_block_bytes(h);
    const uint32_t lanes = mr_tile_lanes(job->n, half);
    mr_vec sum[ROWS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < ROWS; r++) {
        sum[r] = mr_vec_set(0.0f);
    }
    for (uint32_t b = 0; b < blocks; b++) {
        for (uint32_t span = 0; span < mr_spans(h); span++) {
            mr_block_add(h, span, block, x, row_bytes, sum);
        }
        block += mr_block_bytes(h);
        x += mr_fast_block_bytes(h.planes);
    }
    mr_vec bias = mr_vec_set(0.0f);
    if (job->bias != NULL) {
        bias = mr_vec_load_part(job->bias + half * HALF, lanes);
    }
#pragma GCC unroll 16
    for (uint32_t r = 0; r < ROWS; r++) {
        const mr_vec v = job->bias == NULL ? sum[r] : mr_vec_add(sum[r], bias);
        mr_vec_store_part(out + r * job->out_stride + half * HALF, v, lanes);
    }
}

/* The first rows of the job, a multiple of 16. */
MR_SIMD void mr_strip_rows(how h, const mr_fast_linear *job, uint32_t rows)
{
    const size_t row_bytes = job->k / MR_FAST_BLOCK * mr_fast_block_bytes(h.planes);
    mr_unpack(h, job);
    configure(h);
    for (uint32_t half = 0; half * HALF < job->n; half++) {
        for (uint32_t r = 0; r < rows; r += ROWS) {
            mr_half_tile(h, job, half, job->x_quant + r * row_bytes,
                         job->out + r * job->out_stride);
        }
    }
    mr_amx_release();
}

MR_SIMD void mr_strip_planes(uint32_t planes, const mr_fast_linear *job, uint32_t rows)
{
    switch (job->layout) {
    case MR_FAST_U4_OFFSET:
        mr_strip_rows((how){false, true, false, planes}, job, rows);
        break;
    case MR_FAST_U4_CENTRED:
        mr_strip_rows((how){false, false, false, planes}, job, rows);
        break;
    case MR_FAST_U8_OFFSET:
        mr_strip_rows((how){true, true, false, planes}, job, rows);
        break;
    case MR_FAST_U4_PAIRS_OFFSET:
        mr_strip_rows((how){false, true, true, planes}, job, rows);
        break;
    case MR_FAST_U4_PAIRS_CENTRED:
        mr_strip_rows((how){false, false, true, planes}, job, rows);
        break;
    case MR_FAST_U8_PAIRS_CENTRED:
        mr_strip_rows((how){true, false, true, planes}, job, rows);
        break;
    default:
        mr_strip_rows((how){true, false, false, planes}, job, rows);
        break;
    }
}

static void linear_quantised(const mr_fast_linear *job)
{
    const uint32_t tiled = job->rows / ROWS * ROWS;
    if (tiled > 0 && job->planes == 1) {
        mr_strip_planes(1, job, tiled);
    } else if (tiled > 0) {
        mr_strip_planes(2, job, tiled);
    }
    mr_fast_linear rest = *job;
    rest.rows -= tiled;
    rest.x_quant += tiled * (size_t)(job->k / MR_FAST_BLOCK) * mr_fast_block_bytes(job->planes);
    rest.out += tiled * job->out_stride;
    if (rest.rows > 0) {
        mr_fast_kernels_avx512.linear(&rest);
    }
}

static void linear(const mr_fast_linear *job)
{
    if (mr_fast_is_quantised(job->layout)) {
        linear_quantised(job);
    } else if (job->layout == MR_FAST_BF16_PAIRS) {
        mr_fast_amx_linear_bf16(job);
    } else {
        mr_impl_linear_float(job);
    }
}

static uint64_t burst(uint32_t rounds, uint32_t *sink)
{
    enum { SUMS = 4, OPERATIONS = 2 * ROWS * HALF * MR_AMX_ROW_BYTES };
    /* What the other paths do in a round takes a tenth of the time. */
    const uint32_t repeats = rounds / 8 + 1;
    mr_amx_config config = {.palette = 1};
    for (int i = 0; i < MR_AMX_TILES; i++) {
        config.rows[i] = ROWS;
        config.row_bytes[i] = MR_AMX_ROW_BYTES;
    }
    _Alignas(64) uint32_t out[ROWS * HALF];
    mr_amx_configure(&config);
    for (uint32_t round = 0; round < repeats; round++) {
        mr_amx_dot_unsigned(0, 4, 5);
        mr_amx_dot_unsigned(1, 4, 5);
        mr_amx_dot_unsigned(2, 4, 5);
        mr_amx_dot_unsigned(3, 4, 5);
    }
    mr_amx_store(0, out, MR_AMX_ROW_BYTES);
    mr_amx_release();
    *sink = out[0];
    return (uint64_t)repeats * SUMS * OPERATIONS;
}

const mr_fast_kernels mr_fast_kernels_amx = {
    MR_FAST_KERNELS_COMMON(linear, burst),
    .tiles_begin = mr_fast_amx_begin,
    .tiles = mr_fast_amx_tiles,
    .tiles_end = mr_fast_amx_end,
    .zip = mr_fast_amx_zip,
};
