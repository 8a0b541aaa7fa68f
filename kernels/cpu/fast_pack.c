/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/fast_pack.h"

#include "base/checked.h"
#include "kernels/quant_block.h"

#include <string.h>

enum { U4_BYTES = 16, U8_BYTES = 32, HALF_CODES = 16, HALF_STRIP = 16 };

/* How each type is packed. Codes are those of the file, or what they stand for where it has them
 * from a table. Scales and offsets are exact in the types with 32 elements a block. Those of the
 * larger blocks, in the file an f16 times a small integer, are rounded to f16: by 2^-11 of
 * themselves at most, where the file has no more than eight bits for them. */
static const mr_fast_layout layouts[MR_DTYPE_COUNT] = {
    [MR_DTYPE_F32] = MR_FAST_F32,
    [MR_DTYPE_F16] = MR_FAST_F16,
    [MR_DTYPE_BF16] = MR_FAST_BF16,
    [MR_DTYPE_Q8_0] = MR_FAST_U8_CENTRED,
    [MR_DTYPE_Q4_0] = MR_FAST_U4_CENTRED,
    [MR_DTYPE_Q4_1] = MR_FAST_U4_OFFSET,
    [MR_DTYPE_Q5_0] = MR_FAST_U8_CENTRED,
    [MR_DTYPE_Q5_1] = MR_FAST_U8_OFFSET,
    [MR_DTYPE_Q2_K] = MR_FAST_U4_PAIRS_OFFSET,
    [MR_DTYPE_Q3_K] = MR_FAST_U4_PAIRS_CENTRED,
    [MR_DTYPE_Q4_K] = MR_FAST_U4_OFFSET,
    [MR_DTYPE_Q5_K] = MR_FAST_U8_OFFSET,
    [MR_DTYPE_Q6_K] = MR_FAST_U8_PAIRS_CENTRED,
    [MR_DTYPE_IQ4_NL] = MR_FAST_U8_CENTRED,
    [MR_DTYPE_IQ4_XS] = MR_FAST_U8_CENTRED,
};

/* Code bytes of one output's block. */
static uint32_t code_bytes(uint32_t layout)
{
    return mr_fast_has_bytes(layout) ? U8_BYTES : U4_BYTES;
}

/* Groups of inputs with a scale of their own in a block. */
static uint32_t span_count(uint32_t layout)
{
    return mr_fast_has_pairs(layout) ? 2 : 1;
}

/* What is added to a code to make it unsigned. */
static int centre_of(uint32_t layout)
{
    return mr_fast_has_offsets(layout) ? 0 : mr_fast_has_bytes(layout) ? 128 : 8;
}

static uint32_t element_bytes(uint32_t layout)
{
    return layout == MR_FAST_F32 ? 4 : 2;
}

/* Bytes of a block of all 32 outputs, and where its scales begin. */
static size_t block_bytes(uint32_t layout)
{
    return (size_t)MR_FAST_STRIP * (code_bytes(layout) + 2 * mr_fast_numbers(layout));
}

static size_t scales_at(uint32_t layout)
{
    return (size_t)MR_FAST_STRIP * code_bytes(layout);
}

/* Where word `w` of output `i` lies in a block. */
static size_t word_at(uint32_t layout, uint32_t w, uint32_t i)
{
    size_t half = (size_t)i / HALF_STRIP * HALF_STRIP * code_bytes(layout);
    return half + 4 * ((size_t)w * HALF_STRIP + i % HALF_STRIP);
}

size_t mr_fast_strip_bytes(uint32_t layout, uint32_t k)
{
    if (mr_fast_is_quantised(layout)) {
        return k / MR_FAST_BLOCK * block_bytes(layout);
    }
    if (layout == MR_FAST_BF16_PAIRS) {
        return MR_FAST_STRIP * mr_fast_half_width(k) * sizeof(uint16_t);
    }
    return (size_t)MR_FAST_STRIP * k * element_bytes(layout);
}

/* Where input `j` of output `i` lies in a float strip, in elements. */
static size_t element_at(uint32_t layout, size_t j, uint32_t i)
{
    return layout == MR_FAST_BF16_PAIRS ? (j / 2 * MR_FAST_STRIP + i) * 2 + j % 2
                                        : j * MR_FAST_STRIP + i;
}

/* Of weights with codes. Integer layouts are exact but for an offset, which is rounded to f16. What
 * does not fit them (act-order, F8 codes, scales beyond f16) is rounded to the type of the scales,
 * to bf16 where that is f32: as the engines do that such checkpoints are made for. */
static mr_fast_layout codes_layout(const mr_weight_codes *codes, mr_dtype dtype)
{
    if (codes->halves && dtype == MR_DTYPE_CODES4) {
        return codes->centred ? MR_FAST_U4_CENTRED : MR_FAST_U4_OFFSET;
    }
    if (codes->halves && dtype == MR_DTYPE_CODES8) {
        return codes->centred ? MR_FAST_U8_CENTRED : MR_FAST_U8_OFFSET;
    }
    return codes->scale_dtype == MR_DTYPE_F16 ? MR_FAST_F16 : MR_FAST_BF16;
}

mr_status mr_fast_weight_layout(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err)
{
    const bool coded = from->codes != NULL;
    if (!coded && (unsigned)to->dtype >= MR_DTYPE_COUNT) {
        return mr_fail(err, MR_UNIMPLEMENTED, "weight %s: type %u is not known; use a file in %s",
                       from->name, (unsigned)to->dtype, MR_DTYPE_NAMES);
    }
    to->layout = coded ? codes_layout(from->codes, to->dtype) : layouts[to->dtype];
    uint64_t strips = ((uint64_t)to->n + MR_FAST_STRIP - 1) / MR_FAST_STRIP;
    if (!mr_mul_u64(strips, mr_fast_strip_bytes(to->layout, to->k), &to->bytes)) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "weight %s: %u x %u is too large", from->name,
                       to->n, to->k);
    }
    return MR_OK;
}

mr_status mr_fast_weight_layout_pairs(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err)
{
    MR_TRY(mr_fast_weight_layout(from, to, err));
    if (to->layout != MR_FAST_BF16 || (to->uses & MR_CPU_USE_LINEAR) == 0) {
        return MR_OK;
    }
    const uint64_t strips = ((uint64_t)to->n + MR_FAST_STRIP - 1) / MR_FAST_STRIP;
    to->layout = MR_FAST_BF16_PAIRS;
    if (!mr_mul_u64(strips, mr_fast_strip_bytes(to->layout, to->k), &to->bytes)) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "weight %s: %u x %u is too large", from->name,
                       to->n, to->k);
    }
    return MR_OK;
}

/* Packs `count` rows, at most a strip of them. */
static void pack_float_strip(const mr_cpu_weight *to, const uint8_t *rows, uint32_t count,
                             uint8_t *out)
{
    const size_t row_bytes = (size_t)to->k * element_bytes(to->layout);
    if (element_bytes(to->layout) == 4) {
        for (size_t j = 0; j < to->k; j++) {
            for (uint32_t i = 0; i < count; i++) {
                memcpy(out + (j * MR_FAST_STRIP + i) * 4, rows + i * row_bytes + 4 * j, 4);
            }
        }
        return;
    }
    for (size_t j = 0; j < to->k; j++) {
        for (uint32_t i = 0; i < count; i++) {
            memcpy(out + element_at(to->layout, j, i) * 2, rows + i * row_bytes + 2 * j, 2);
        }
    }
}

/* 32 weights to output `i` of a strip's block: codes as words of 4 bytes, and the scales. */
static void pack_group(uint32_t layout, const mr_quant_group *group, uint32_t i, uint8_t *block)
{
    const int centre = centre_of(layout);
    const uint32_t spans = span_count(layout);
    for (uint32_t s = 0; s < mr_fast_numbers(layout); s++) {
        const float number = s < spans ? group->scale[s] : -group->min[s - spans];
        const uint16_t bits = mr_f32_to_f16(number);
        memcpy(block + scales_at(layout) + 2 * (s * MR_FAST_STRIP + i), &bits, 2);
    }
    uint8_t codes[MR_FAST_BLOCK];
    for (uint32_t j = 0; j < MR_FAST_BLOCK; j++) {
        codes[j] = (uint8_t)(group->codes[j] + centre);
    }
    if (!mr_fast_has_bytes(layout)) {
        for (uint32_t j = 0; j < HALF_CODES; j++) {
            codes[j] = (uint8_t)(codes[j] | codes[HALF_CODES + j] << 4);
        }
    }
    for (uint32_t w = 0; w < code_bytes(layout) / 4; w++) {
        memcpy(block + word_at(layout, w, i), codes + 4 * w, 4);
    }
}

/* Rows of a weight with codes, rounded to the layout's f16 or bf16. */
static void pack_rounded_row(const mr_cpu_weight *to, const uint8_t *row, uint32_t i, uint8_t *out)
{
    const mr_dtype_info *info = mr_dtype_info_get(to->dtype);
    float values[MR_CODES_BLOCK];
    for (uint32_t j = 0; j < to->k; j++) {
        const uint32_t in_block = j % info->block_elements;
        if (in_block == 0) {
            mr_dequantize(to->dtype, row + (size_t)j / info->block_elements * info->block_bytes,
                          values, info->block_elements);
        }
        const uint16_t bits = to->layout == MR_FAST_F16 ? mr_f32_to_f16(values[in_block])
                                                        : mr_f32_to_bf16(values[in_block]);
        memcpy(out + element_at(to->layout, j, i) * 2, &bits, 2);
    }
}

static void pack_codes_row(const mr_cpu_weight *to, const uint8_t *src, uint32_t i, uint8_t *out)
{
    const uint32_t bytes = mr_dtype_info_get(to->dtype)->block_bytes;
    const bool centred = !mr_fast_has_offsets(to->layout);
    mr_quant_group group;
    for (uint32_t done = 0; done < to->k; done += MR_CODES_BLOCK, src += bytes) {
        mr_codes_unpack(to->dtype, centred, src, &group);
        pack_group(to->layout, &group, i, out);
        out += block_bytes(to->layout);
    }
}

static void pack_quantised_row(const mr_cpu_weight *to, const uint8_t *src, uint32_t i,
                               uint8_t *out)
{
    const mr_dtype_info *info = mr_dtype_info_get(to->dtype);
    mr_quant_group groups[MR_QUANT_GROUPS_MAX];
    for (uint32_t done = 0; done < to->k; done += info->block_elements, src += info->block_bytes) {
        mr_quant_unpack(to->dtype, src, groups);
        for (uint32_t g = 0; g < info->block_elements / MR_QUANT_GROUP; g++) {
            pack_group(to->layout, &groups[g], i, out);
            out += block_bytes(to->layout);
        }
    }
}

void mr_fast_weight_pack(mr_cpu_source *from, mr_cpu_weight *to, uint32_t thread, uint32_t threads)
{
    uint64_t begin;
    uint64_t end;
    size_t strip_bytes = mr_fast_strip_bytes(to->layout, to->k);
    mr_share((to->n + MR_FAST_STRIP - 1) / MR_FAST_STRIP, 1, thread, threads, &begin, &end);
    for (uint64_t p = begin; p < end; p++) {
        uint8_t *out = (uint8_t *)to->data + p * strip_bytes;
        const uint64_t left = to->n - p * MR_FAST_STRIP;
        const uint32_t count = left < MR_FAST_STRIP ? (uint32_t)left : MR_FAST_STRIP;
        const uint8_t *rows = mr_cpu_source_rows(from, p * MR_FAST_STRIP, count);
        if (rows == NULL) {
            return;
        }
        const bool coded = from->weight->codes != NULL;
        if (!coded && !mr_fast_is_quantised(to->layout)) {
            pack_float_strip(to, rows, count, out);
            continue;
        }
        void (*pack)(const mr_cpu_weight *, const uint8_t *, uint32_t, uint8_t *) =
            pack_quantised_row;
        if (coded) {
            pack = mr_fast_is_quantised(to->layout) ? pack_codes_row : pack_rounded_row;
        }
        for (uint32_t i = 0; i < count; i++) {
            pack(to, rows + i * from->row_bytes, i, out);
        }
    }
}

static float read_f16(const uint8_t *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof(bits));
    return mr_f16_to_f32(bits);
}

static void float_row(const mr_cpu_weight *weight, const uint8_t *strip, uint32_t i, float *out)
{
    for (size_t j = 0; j < weight->k; j++) {
        const size_t element = element_at(weight->layout, j, i);
        if (weight->layout == MR_FAST_F32) {
            memcpy(out + j, strip + 4 * element, 4);
            continue;
        }
        uint16_t bits;
        memcpy(&bits, strip + 2 * element, 2);
        out[j] = weight->layout == MR_FAST_F16 ? mr_f16_to_f32(bits) : mr_bf16_to_f32(bits);
    }
}

/* Codes of output `i` of a block, in order. */
static void read_codes(uint32_t layout, const uint8_t *block, uint32_t i,
                       uint8_t codes[MR_FAST_BLOCK])
{
    for (uint32_t w = 0; w < code_bytes(layout) / 4; w++) {
        const uint8_t *word = block + word_at(layout, w, i);
        for (uint32_t c = 0; c < 4; c++) {
            if (mr_fast_has_bytes(layout)) {
                codes[4 * w + c] = word[c];
            } else {
                codes[4 * w + c] = word[c] & 0x0f;
                codes[HALF_CODES + 4 * w + c] = word[c] >> 4;
            }
        }
    }
}

static void quantised_row(const mr_cpu_weight *weight, const uint8_t *strip, uint32_t i, float *out)
{
    const uint32_t layout = weight->layout;
    const uint32_t spans = span_count(layout);
    const int centre = centre_of(layout);
    uint8_t codes[MR_FAST_BLOCK];
    for (uint32_t b = 0; b < weight->k / MR_FAST_BLOCK; b++, strip += block_bytes(layout)) {
        float numbers[2 * MR_FAST_BLOCK / MR_FAST_SPAN] = {0}; /* scales, then offsets or 0 */
        for (uint32_t s = 0; s < mr_fast_numbers(layout); s++) {
            numbers[s] = read_f16(strip + scales_at(layout) + 2 * (s * MR_FAST_STRIP + i));
        }
        read_codes(layout, strip, i, codes);
        for (uint32_t j = 0; j < MR_FAST_BLOCK; j++) {
            const uint32_t span = j * spans / MR_FAST_BLOCK;
            const float product = numbers[span] * (float)(codes[j] - centre);
            out[b * MR_FAST_BLOCK + j] = product + numbers[spans + span];
        }
    }
}

void mr_fast_weight_row(const mr_cpu_weight *weight, uint32_t row, float *out)
{
    size_t strip_bytes = mr_fast_strip_bytes(weight->layout, weight->k);
    const uint8_t *strip = (const uint8_t *)weight->data + row / MR_FAST_STRIP * strip_bytes;
    if (mr_fast_is_quantised(weight->layout)) {
        quantised_row(weight, strip, row % MR_FAST_STRIP, out);
    } else {
        float_row(weight, strip, row % MR_FAST_STRIP, out);
    }
}
