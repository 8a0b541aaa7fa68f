/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/weight_codes.h"

#include "base/checked.h"
#include "kernels/float_bits.h"

#include <math.h>
#include <string.h>

#define HALF_LEAST 0x1p-17f /* from here on f16 has eight digits, all that a bf16 scale has */
#define HALF_MOST  65504.0f

enum { SCALE_BYTES = 4, HALF = MR_CODES_BLOCK / 2, TABLE = 256 };

/* Where AWQ has code j of a word, in nibbles. */
static const uint8_t shuffled[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static uint32_t load_word(const uint8_t *from)
{
    return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 |
           (uint32_t)from[3] << 24;
}

/* The place of a code in its line, in bits. */
static uint64_t bit_of(const mr_code_matrix *m, uint64_t place)
{
    return m->form == MR_CODES_SHUFFLED ? place / 8 * 32 + 4u * shuffled[place % 8]
                                        : place * m->bits;
}

static uint32_t code_of_words(const mr_code_matrix *m, const uint8_t *line, uint64_t bit)
{
    const uint8_t *word = line + bit / 32 * m->next;
    const uint32_t shift = bit % 32;
    uint32_t code = load_word(word) >> shift;
    if (shift + m->bits > 32) {
        code |= load_word(word + m->next) << (32 - shift);
    }
    return code & ((1u << m->bits) - 1);
}

uint32_t mr_code_at(const mr_code_matrix *m, uint64_t row, uint64_t column)
{
    const uint64_t place = m->packs_rows ? row : column;
    const uint8_t *line = m->data + (m->packs_rows ? column : row) * m->line;
    switch (m->form) {
    case MR_CODES_INT8:
        return line[place * m->next] ^ 0x80u;
    case MR_CODES_E4M3:
        return line[place * m->next];
    case MR_CODES_WORDS:
    case MR_CODES_SHUFFLED:
    default:
        return code_of_words(m, line, bit_of(m, place));
    }
}

uint32_t mr_weight_codes_zero(const mr_weight_codes *c, uint64_t row, uint64_t group)
{
    if (c->zeros.data == NULL) {
        return 1u << (c->codes.bits - 1);
    }
    const uint32_t stored = mr_code_at(&c->zeros, row + c->first, group);
    return (stored + c->zero_add) & ((1u << c->codes.bits) - 1);
}

float mr_weight_codes_scale(const mr_weight_codes *c, uint64_t row, uint64_t group)
{
    const uint64_t at = (row + c->first) / c->scale_rows * c->scale_row + group * c->scale_group;
    if (c->scale_dtype == MR_DTYPE_F32) {
        return mr_float_of_bits(load_word(c->scales + 4 * at));
    }
    const uint16_t half = mr_load_u16(c->scales + 2 * at);
    return c->scale_dtype == MR_DTYPE_F16 ? mr_f16_widen(half) : mr_bf16_widen(half);
}

const uint8_t *mr_weight_codes_row(const mr_weight_codes *c, uint64_t row)
{
    MR_CHECK(c->codes.form == MR_CODES_E4M3);
    return c->codes.data + (row + c->first) * c->codes.line;
}

float mr_f8_e4m3_to_f32(uint8_t bits)
{
    const uint32_t magnitude = bits & 0x7fu;
    const uint32_t sign = (uint32_t)(bits & 0x80u) << 24;
    if (magnitude == 0x7f) {
        return mr_float_of_bits(sign | 0x7fc00000u);
    }
    /* Exponents are rebased by a multiplication, which also normalises subnormals. */
    const float value = mr_float_of_bits(magnitude << 20) * 0x1p120f;
    return mr_float_of_bits(mr_bits_of_float(value) | sign);
}

mr_dtype mr_weight_codes_dtype(const mr_weight_codes *c, uint32_t k)
{
    if (c->group_of != NULL || k % MR_CODES_BLOCK != 0 || c->group % MR_CODES_BLOCK != 0) {
        return MR_DTYPE_F32;
    }
    if (c->codes.form == MR_CODES_E4M3) {
        return MR_DTYPE_CODES_F8;
    }
    return c->codes.bits <= 4 ? MR_DTYPE_CODES4 : MR_DTYPE_CODES8;
}

uint32_t mr_weight_codes_common_zero(const mr_weight_codes *c, uint64_t rows, uint64_t groups)
{
    if (c->zeros.data == NULL) {
        return 1u << (c->codes.bits - 1);
    }
    const uint32_t zero = mr_weight_codes_zero(c, 0, 0);
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t n = 0; n < rows; n++) {
            if (mr_weight_codes_zero(c, n, g) != zero) {
                return MR_CODES_NO_ZERO;
            }
        }
    }
    return zero;
}

bool mr_weight_codes_fit_halves(const mr_weight_codes *c, uint64_t rows, uint64_t groups)
{
    const bool stored = c->scale_dtype == MR_DTYPE_F16;
    if (stored && c->centred) {
        return true;
    }
    for (uint64_t g = 0; g < groups; g++) {
        for (uint64_t n = 0; n < rows; n++) {
            const float scale = fabsf(mr_weight_codes_scale(c, n, g));
            const uint32_t zero = c->centred ? 1 : mr_weight_codes_zero(c, n, g);
            if ((!stored && scale != 0.0f && scale < HALF_LEAST) ||
                !(scale * (float)zero <= HALF_MOST) || !(scale <= HALF_MOST)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- rows ---- */

/* Codes at places [from, from + count) of a line of words. */
static void read_line(const mr_code_matrix *m, const uint8_t *line, uint64_t from, uint32_t count,
                      uint8_t *out)
{
    const uint32_t mask = (1u << m->bits) - 1;
    const uint8_t *word = line + from * m->bits / 32 * m->next;
    uint32_t shift = (uint32_t)(from * m->bits % 32);
    uint64_t bits = (uint64_t)load_word(word) >> shift;
    uint32_t have = 32 - shift;
    for (uint32_t i = 0; i < count; i++) {
        if (have < m->bits) {
            word += m->next;
            bits |= (uint64_t)load_word(word) << have;
            have += 32;
        }
        out[i] = (uint8_t)(bits & mask);
        bits >>= m->bits;
        have -= m->bits;
    }
}

/* Codes of one place in lines [from, from + count). */
static void read_across(const mr_code_matrix *m, uint64_t place, uint64_t from, uint32_t count,
                        uint8_t *out)
{
    const uint64_t bit = bit_of(m, place);
    const uint32_t shift = bit % 32;
    const uint32_t mask = (1u << m->bits) - 1;
    const uint8_t *word = m->data + from * m->line + bit / 32 * m->next;
    for (uint32_t i = 0; i < count; i++, word += m->line) {
        uint64_t bits = load_word(word);
        if (shift + m->bits > 32) {
            bits |= (uint64_t)load_word(word + m->next) << 32;
        }
        out[i] = (uint8_t)(bits >> shift & mask);
    }
}

/* Codes of inputs [from, from + count) of a row of the arrays. */
static void read_codes(const mr_code_matrix *m, uint64_t row, uint64_t from, uint32_t count,
                       uint8_t *out)
{
    if (m->form == MR_CODES_INT8 || m->form == MR_CODES_E4M3) {
        const uint8_t flip = m->form == MR_CODES_INT8 ? 0x80 : 0;
        const uint8_t *line = m->data + row * m->line + from;
        for (uint32_t i = 0; i < count; i++) {
            out[i] = line[i] ^ flip;
        }
    } else if (m->packs_rows) {
        read_across(m, row, from, count, out);
    } else {
        read_line(m, m->data + row * m->line, from, count, out);
    }
}

/* What the groups of one row have, for as many groups as there is room. */
typedef struct row_values {
    uint32_t count;
    float scale[TABLE];
    uint32_t zero[TABLE];
} row_values;

static void read_values(const mr_weight_codes *c, uint64_t row, uint64_t group, float *scale,
                        uint32_t *zero)
{
    *scale = mr_weight_codes_scale(c, row, group);
    *zero = c->codes.form == MR_CODES_E4M3 ? 0 : mr_weight_codes_zero(c, row, group);
}

static float element(const mr_weight_codes *c, const row_values *values, uint64_t row,
                     uint64_t group, uint8_t code)
{
    float scale;
    uint32_t zero;
    if (group < values->count) {
        scale = values->scale[group];
        zero = values->zero[group];
    } else {
        read_values(c, row, group, &scale, &zero);
    }
    if (c->codes.form == MR_CODES_E4M3) {
        return scale * mr_f8_e4m3_to_f32(code);
    }
    return scale * (float)((int32_t)code - (int32_t)zero);
}

static void fill_floats(const mr_weight_codes *c, uint32_t k, uint64_t row, uint8_t *out)
{
    const uint32_t groups = k / c->group + (k % c->group != 0);
    uint8_t codes[MR_CODES_BLOCK];
    row_values values;
    values.count = groups < TABLE ? groups : TABLE;
    for (uint32_t g = 0; g < values.count; g++) {
        read_values(c, row, g, &values.scale[g], &values.zero[g]);
    }
    for (uint32_t i = 0; i < k; i++) {
        const uint32_t at = i % MR_CODES_BLOCK;
        if (at == 0) {
            const uint32_t left = k - i < MR_CODES_BLOCK ? k - i : MR_CODES_BLOCK;
            read_codes(&c->codes, row + c->first, i, left, codes);
        }
        const uint32_t group =
            c->group_of != NULL ? load_word(c->group_of + 4 * (size_t)i) : i / c->group;
        const float value = element(c, &values, row, group, codes[at]);
        memcpy(out + 4 * (size_t)i, &value, sizeof(value));
    }
}

void mr_codes_write(mr_dtype dtype, uint32_t bits, const uint8_t codes[MR_CODES_BLOCK],
                    const mr_codes_values *values, uint8_t *out)
{
    const uint32_t raise = dtype == MR_DTYPE_CODES4 ? 8u - (1u << (bits - 1)) : 0;
    memcpy(out, &values->scale, SCALE_BYTES);
    out += SCALE_BYTES;
    if (dtype != MR_DTYPE_CODES_F8) {
        *out++ = (uint8_t)(values->zero + raise);
    }
    if (dtype != MR_DTYPE_CODES4) {
        memcpy(out, codes, MR_CODES_BLOCK);
        return;
    }
    for (uint32_t j = 0; j < HALF; j++) {
        out[j] = (uint8_t)((codes[j] + raise) | (codes[HALF + j] + raise) << 4);
    }
}

static void fill_blocks(const mr_weight_codes *c, mr_dtype dtype, uint32_t k, uint64_t row,
                        uint8_t *out)
{
    const uint32_t bytes = mr_dtype_info_get(dtype)->block_bytes;
    for (uint32_t i = 0; i < k; i += MR_CODES_BLOCK, out += bytes) {
        uint8_t codes[MR_CODES_BLOCK];
        mr_codes_values values = {.scale = mr_weight_codes_scale(c, row, i / c->group)};
        if (dtype != MR_DTYPE_CODES_F8) {
            values.zero = mr_weight_codes_zero(c, row, i / c->group);
        }
        read_codes(&c->codes, row + c->first, i, MR_CODES_BLOCK, codes);
        mr_codes_write(dtype, c->codes.bits, codes, &values, out);
    }
}

void mr_weight_codes_fill(const mr_weight_codes *codes, uint32_t k, uint64_t first, uint64_t count,
                          void *out)
{
    const mr_dtype dtype = mr_weight_codes_dtype(codes, k);
    uint64_t row_bytes = 0;
    MR_CHECK(mr_dtype_row_bytes(dtype, k, &row_bytes));
    for (uint64_t i = 0; i < count; i++) {
        uint8_t *to = (uint8_t *)out + i * row_bytes;
        if (dtype == MR_DTYPE_F32) {
            fill_floats(codes, k, first + i, to);
        } else {
            fill_blocks(codes, dtype, k, first + i, to);
        }
    }
}

/* ---- blocks ---- */

static float scale_of(const uint8_t *block)
{
    float scale;
    memcpy(&scale, block, SCALE_BYTES);
    return scale;
}

/* Codes of a block of CODES4 or CODES8, in order. */
static void block_codes(mr_dtype dtype, const uint8_t *block, uint8_t out[MR_CODES_BLOCK])
{
    const uint8_t *codes = block + SCALE_BYTES + 1;
    if (dtype == MR_DTYPE_CODES8) {
        memcpy(out, codes, MR_CODES_BLOCK);
        return;
    }
    for (uint32_t j = 0; j < HALF; j++) {
        out[j] = codes[j] & 0x0f;
        out[HALF + j] = codes[j] >> 4;
    }
}

void mr_dequantize_codes(mr_dtype dtype, const uint8_t *src, float *dst, uint64_t elements)
{
    const uint32_t bytes = mr_dtype_info_get(dtype)->block_bytes;
    for (uint64_t b = 0; b < elements / MR_CODES_BLOCK; b++, src += bytes, dst += MR_CODES_BLOCK) {
        const float scale = scale_of(src);
        uint8_t codes[MR_CODES_BLOCK];
        if (dtype == MR_DTYPE_CODES_F8) {
            for (uint32_t i = 0; i < MR_CODES_BLOCK; i++) {
                dst[i] = scale * mr_f8_e4m3_to_f32(src[SCALE_BYTES + i]);
            }
            continue;
        }
        block_codes(dtype, src, codes);
        for (uint32_t i = 0; i < MR_CODES_BLOCK; i++) {
            dst[i] = scale * (float)((int32_t)codes[i] - (int32_t)src[SCALE_BYTES]);
        }
    }
}

void mr_codes_unpack(mr_dtype dtype, bool centred, const uint8_t *block, mr_quant_group *group)
{
    uint8_t codes[MR_CODES_BLOCK];
    const int32_t zero = block[SCALE_BYTES];
    const int32_t less = centred ? zero : 0;
    block_codes(dtype, block, codes);
    for (uint32_t i = 0; i < MR_CODES_BLOCK; i++) {
        group->codes[i] = (int8_t)(uint8_t)(codes[i] - less);
    }
    group->scale[0] = group->scale[1] = scale_of(block);
    group->min[0] = group->min[1] = centred ? 0.0f : scale_of(block) * (float)zero;
}
