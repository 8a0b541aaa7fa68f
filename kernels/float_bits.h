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
