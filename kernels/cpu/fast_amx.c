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

/* Tiles 0 … 3: sums of [parity of the unit][plane]; 4, 5: activations; 6, 7: weights. */
static void configure(how h)
{
    const uint32_t inputs = MR_FAST_BLOCK / mr_spans(h);
    mr_amx_config config = {.palette = 1};
    for (uint32_t i = 0; i < 4; i++) {
        config.rows[i] = ROWS;
        config.row_bytes[i] = HALF * 4;
    }
    for (uint32_t i = 0; i < 2; i++) {
        config.rows[4 + i] = ROWS;
        config.row_bytes[4 + i] = (uint16_t)inputs;
        config.rows[6 + i] = (uint8_t)(inputs / 4);
        config.row_bytes[6 + i] = WORD_BYTES;
    }
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

/* 16 rows times a half strip, unit by unit: a block, or a span of one. */
typedef struct walk {
    const uint8_t *block; /* the first, in the scratch */
    const uint8_t *x;     /* of the first row */
    size_t row_bytes;
} walk;

MR_SIMD const uint8_t *mr_unit_block(how h, const walk *w, uint32_t unit)
{
    return w->block + unit / mr_spans(h) * mr_block_bytes(h);
}

MR_SIMD const uint8_t *mr_unit_x(how h, const walk *w, uint32_t unit)
{
    return w->x + unit / mr_spans(h) * mr_fast_block_bytes(h.planes);
}

#define MULTIPLY(c, a, b)                                                                          \
    do {                                                                                           \
        mr_amx_zero(c);                                                                            \
        if (h.offsets) {                                                                           \
            mr_amx_dot_unsigned(c, a, b);                                                          \
        } else {                                                                                   \
            mr_amx_dot_signed(c, a, b);                                                            \
        }                                                                                          \
    } while (0)

/* Starts the products of a unit, in the tiles of its parity. */
MR_SIMD void mr_unit_multiply(how h, uint32_t odd, const walk *w, uint32_t unit)
{
    const uint32_t span = h.pairs ? odd : 0;
    const uint8_t *codes = mr_unit_block(h, w, unit) + span * WORDS / 2 * WORD_BYTES;
    const uint8_t *a = mr_unit_x(h, w, unit) + sizeof(mr_fast_block) + span * MR_FAST_SPAN;
    if (odd) {
        mr_amx_load(7, codes, WORD_BYTES);
        mr_amx_load(5, a, w->row_bytes);
        MULTIPLY(2, 5, 7);
    } else {
        mr_amx_load(6, codes, WORD_BYTES);
        mr_amx_load(4, a, w->row_bytes);
        MULTIPLY(0, 4, 6);
    }
    if (h.planes == 1) {
        return;
    }
    if (odd) {
        mr_amx_load(5, a + MR_FAST_BLOCK, w->row_bytes);
        MULTIPLY(3, 5, 7);
    } else {
        mr_amx_load(4, a + MR_FAST_BLOCK, w->row_bytes);
        MULTIPLY(1, 4, 6);
    }
}

MR_SIMD void mr_unit_store(how h, uint32_t odd, dots *out)
{
    if (odd) {
        mr_amx_store(2, out->plane[0], sizeof(out->plane[0][0]));
    } else {
        mr_amx_store(0, out->plane[0], sizeof(out->plane[0][0]));
    }
    if (h.planes == 2 && odd) {
        mr_amx_store(3, out->plane[1], sizeof(out->plane[1][0]));
    } else if (h.planes == 2) {
        mr_amx_store(1, out->plane[1], sizeof(out->plane[1][0]));
    }
}

/* Adds a unit's products to the sums of 16 rows. */
MR_SIMD void mr_unit_add(how h, const walk *w, uint32_t unit, const dots *d, mr_vec sum[ROWS])
{
    const uint32_t span = unit % mr_spans(h);
    const uint8_t *x = mr_unit_x(h, w, unit);
    const uint8_t *block = mr_unit_block(h, w, unit);
    const float *numbers = (const float *)(const void *)(block + WORDS * WORD_BYTES);
    const mr_vec scale = mr_vec_load(numbers + span * HALF);
    const mr_vec offset = h.offsets ? mr_vec_load(numbers + (mr_spans(h) + span) * HALF) : scale;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < ROWS; r++) {
        const mr_fast_block *a = (const mr_fast_block *)(const void *)(x + r * w->row_bytes);
        __m512i dot = _mm512_load_si512(d->plane[0][r]);
        if (h.planes == 2) {
            dot = _mm512_slli_epi32(dot, 8);
            dot = _mm512_add_epi32(dot, _mm512_load_si512(d->plane[1][r]));
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

/* All units: while the tiles multiply one, the sums of the one before are added up. */
MR_SIMD void mr_units_add(how h, const walk *w, uint32_t units, mr_vec sum[ROWS])
{
    _Alignas(64) dots d[2];
    mr_unit_multiply(h, 0, w, 0);
    mr_unit_store(h, 0, &d[0]);
    uint32_t unit = 1;
    for (; unit + 1 < units; unit += 2) {
        mr_unit_multiply(h, 1, w, unit);
        mr_unit_add(h, w, unit - 1, &d[0], sum);
        mr_unit_store(h, 1, &d[1]);
        mr_unit_multiply(h, 0, w, unit + 1);
        mr_unit_add(h, w, unit, &d[1], sum);
        mr_unit_store(h, 0, &d[0]);
    }
    if (unit < units) {
        mr_unit_multiply(h, 1, w, unit);
        mr_unit_add(h, w, unit - 1, &d[0], sum);
        mr_unit_store(h, 1, &d[1]);
    }
    mr_unit_add(h, w, units - 1, &d[(units - 1) % 2], sum);
}

/* 16 rows from `x` times one half of the strip. */
MR_SIMD void mr_half_tile(how h, const mr_fast_linear *job, uint32_t half, const uint8_t *x,
                          float *out)
{
    const uint32_t blocks = job->k / MR_FAST_BLOCK;
    const walk w = {.block = job->scratch + half * (size_t)blocks * mr_block_bytes(h),
                    .x = x,
                    .row_bytes = blocks * mr_fast_block_bytes(h.planes)};
    const uint32_t lanes = mr_tile_lanes(job->n, half);
    mr_vec sum[ROWS];
#pragma GCC unroll 16
    for (uint32_t r = 0; r < ROWS; r++) {
        sum[r] = mr_vec_set(0.0f);
    }
    mr_units_add(h, &w, blocks * mr_spans(h), sum);
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
