/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/fast_pack.h"

#include "base/checked.h"

#include <string.h>

enum { U4_BYTES = 16, U8_BYTES = 32, HALF_CODES = 16, HALF_STRIP = 16 };

/* Code bytes of one output's block. */
static uint32_t code_bytes(uint32_t layout)
{
    return layout == MR_FAST_U8_CENTRED ? U8_BYTES : U4_BYTES;
}

/* f16 numbers beside one output's block. */
static uint32_t scale_count(uint32_t layout)
{
    return layout == MR_FAST_U4_OFFSET ? 2 : 1;
}

static uint32_t element_bytes(uint32_t layout)
{
    return layout == MR_FAST_F32 ? 4 : 2;
}

/* Bytes of a block of all 32 outputs, and where its scales begin. */
static size_t block_bytes(uint32_t layout)
{
    return (size_t)MR_FAST_STRIP * (code_bytes(layout) + 2 * scale_count(layout));
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
    return (size_t)MR_FAST_STRIP * k * element_bytes(layout);
}

mr_status mr_fast_weight_layout(const mr_plan_weight *from, mr_cpu_weight *to, mr_error *err)
{
    switch (to->dtype) {
    case MR_DTYPE_F32:
        to->layout = MR_FAST_F32;
        break;
    case MR_DTYPE_F16:
        to->layout = MR_FAST_F16;
        break;
    case MR_DTYPE_BF16:
        to->layout = MR_FAST_BF16;
        break;
    case MR_DTYPE_Q8_0:
        to->layout = MR_FAST_U8_CENTRED;
        break;
    case MR_DTYPE_Q4_0:
        to->layout = MR_FAST_U4_CENTRED;
        break;
    case MR_DTYPE_Q4_1:
        to->layout = MR_FAST_U4_OFFSET;
        break;
    default:
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "weight %s: the CPU backend has no kernels for its type (%u); use "
                       "compute=f32 or a file in F32, F16, BF16, Q8_0, Q4_0 or Q4_1",
                       from->name, (unsigned)to->dtype);
    }
    uint64_t strips = ((uint64_t)to->n + MR_FAST_STRIP - 1) / MR_FAST_STRIP;
    if (!mr_mul_u64(strips, mr_fast_strip_bytes(to->layout, to->k), &to->bytes)) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "weight %s: %u x %u is too large", from->name,
                       to->n, to->k);
    }
    return MR_OK;
}

static void pack_float_strip(const mr_plan_weight *from, const mr_cpu_weight *to, uint32_t strip,
                             uint8_t *out)
{
    uint32_t element = element_bytes(to->layout);
    for (uint32_t i = 0; i < MR_FAST_STRIP && strip * MR_FAST_STRIP + i < to->n; i++) {
        size_t row = strip * MR_FAST_STRIP + i;
        const uint8_t *src = (const uint8_t *)from->data + row * to->k * element;
        for (size_t j = 0; j < to->k; j++) {
            memcpy(out + (j * MR_FAST_STRIP + i) * element, src + j * element, element);
        }
    }
}

/* One source block to output `i` of a strip's block: codes as words of 4 bytes, and the scales. */
static void pack_block(uint32_t layout, const uint8_t *src, uint32_t i, uint8_t *block)
{
    uint8_t *scales = block + scales_at(layout);
    for (uint32_t s = 0; s < scale_count(layout); s++, src += 2) {
        memcpy(scales + 2 * (s * MR_FAST_STRIP + i), src, 2);
    }
    for (uint32_t w = 0; w < code_bytes(layout) / 4; w++) {
        uint32_t word;
        memcpy(&word, src + 4 * w, 4);
        if (layout == MR_FAST_U8_CENTRED) {
            word ^= 0x80808080u; /* two's complement to offset 128 */
        }
        memcpy(block + word_at(layout, w, i), &word, 4);
    }
}

static void pack_quantised_strip(const mr_plan_weight *from, const mr_cpu_weight *to,
                                 uint32_t strip, uint8_t *out)
{
    size_t blocks = to->k / MR_FAST_BLOCK;
    size_t src_block = code_bytes(to->layout) + 2 * scale_count(to->layout);
    for (uint32_t i = 0; i < MR_FAST_STRIP && strip * MR_FAST_STRIP + i < to->n; i++) {
        size_t row = strip * MR_FAST_STRIP + i;
        const uint8_t *src = (const uint8_t *)from->data + row * blocks * src_block;
        for (size_t b = 0; b < blocks; b++) {
            pack_block(to->layout, src + b * src_block, i, out + b * block_bytes(to->layout));
        }
    }
}

void mr_fast_weight_pack(const mr_plan_weight *from, mr_cpu_weight *to, uint32_t thread,
                         uint32_t threads)
{
    uint64_t begin;
    uint64_t end;
    size_t strip_bytes = mr_fast_strip_bytes(to->layout, to->k);
    mr_share((to->n + MR_FAST_STRIP - 1) / MR_FAST_STRIP, 1, thread, threads, &begin, &end);
    for (uint64_t p = begin; p < end; p++) {
        uint8_t *out = (uint8_t *)to->data + p * strip_bytes;
        if (mr_fast_is_quantised(to->layout)) {
            pack_quantised_strip(from, to, (uint32_t)p, out);
        } else {
            pack_float_strip(from, to, (uint32_t)p, out);
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
        size_t element = j * MR_FAST_STRIP + i;
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
            if (layout == MR_FAST_U8_CENTRED) {
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
    uint32_t layout = weight->layout;
    int centre = layout == MR_FAST_U8_CENTRED ? 128 : layout == MR_FAST_U4_CENTRED ? 8 : 0;
    uint8_t codes[MR_FAST_BLOCK];
    for (uint32_t b = 0; b < weight->k / MR_FAST_BLOCK; b++, strip += block_bytes(layout)) {
        const uint8_t *scales = strip + scales_at(layout) + 2 * i;
        float d = read_f16(scales);
        float m = scale_count(layout) == 2 ? read_f16(scales + 2 * MR_FAST_STRIP) : 0.0f;
        read_codes(layout, strip, i, codes);
        for (uint32_t j = 0; j < MR_FAST_BLOCK; j++) {
            out[b * MR_FAST_BLOCK + j] = d * (float)(codes[j] - centre) + m;
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
