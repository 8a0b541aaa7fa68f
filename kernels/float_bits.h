/* SPDX-License-Identifier: Apache-2.0 */
/* Floats from their bits, inline for loops that vectorise. */
#ifndef MILLRACE_KERNELS_FLOAT_BITS_H
#define MILLRACE_KERNELS_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline float mr_float_of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static inline uint32_t mr_bits_of_float(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* Branch-free, so that loops over it vectorise. The exponent is rebased by a multiplication, which
 * also normalises f16 subnormals exactly. A NaN becomes quiet and keeps its payload, as the F16C
 * instructions do it. */
static inline float mr_f16_widen(uint16_t bits)
{
    const uint32_t magnitude = (uint32_t)(bits & 0x7fffu) << 13;
    uint32_t result = mr_bits_of_float(mr_float_of_bits(magnitude) * 0x1p112f);
    result |= magnitude >= 0x0f800000u ? 0x7f800000u : 0u;
    result |= magnitude > 0x0f800000u ? 0x00400000u : 0u;
    return mr_float_of_bits(result | (uint32_t)(bits & 0x8000u) << 16);
}

static inline float mr_bf16_widen(uint16_t bits)
{
    return mr_float_of_bits((uint32_t)bits << 16);
}

/* Round to nearest even; a NaN becomes quiet and keeps what fits of its payload. Branch-free like
 * those above. */
static inline uint16_t mr_f16_narrow(float value)
{
    const uint32_t bits = mr_bits_of_float(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Below 2^-14: adding 1/2 puts the float's last place at 2^-24, the unit of the halves'
     * subnormals, so the addition itself rounds to nearest even. */
    const uint32_t subnormal = mr_bits_of_float(mr_float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t odd = magnitude >> 13 & 1u;
    uint32_t result = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
    result = magnitude < 0x38800000u ? subnormal : result;
    result = magnitude >= 0x477ff000u ? 0x7c00u : result; /* from 65520 on */
    result = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x3ffu) : result;
    return (uint16_t)(result | (bits >> 16 & 0x8000u));
}

static inline uint16_t mr_bf16_narrow(float value)
{
    const uint32_t bits = mr_bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : rounded);
}

/* Little-endian, at any address. */
static inline uint16_t mr_load_u16(const uint8_t *from)
{
    return (uint16_t)(from[0] | from[1] << 8);
}

static inline float mr_load_f16(const uint8_t *from)
{
    return mr_f16_widen(mr_load_u16(from));
}

#endif
