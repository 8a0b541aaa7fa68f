/* SPDX-License-Identifier: Apache-2.0 */
/* In place of kernels/cuda/device/mma.cuh, which is PTX: included before it, this keeps it out. Its
 * functions of the same names and meanings, as far as the emulated kernels use them; what lies in
 * which lane's registers is the PTX manual's (mma.m16n8k16, ldmatrix, movmatrix). */
#ifndef MILLRACE_KERNELS_CUDA_DEVICE_MMA_CUH
#define MILLRACE_KERNELS_CUDA_DEVICE_MMA_CUH

#include "kernels/cuda/device/common.cuh"
#include "kernels/cuda/device/swizzle.cuh"

#include <cfloat>

/* The low or high half of a register as a number. */
template <typename T> static inline float emulated_half(uint32_t word, uint32_t high)
{
    const T half = {static_cast<uint16_t>(high != 0 ? word >> 16 : word)};
    return mr_to_float(half);
}

/* Lanes bring a0 … a3, b0, b1, and take away four sums of products. */
template <typename T> static void emulated_product(emulated::words *lanes)
{
    float a[16][16];
    float b[16][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        const uint32_t group = lane / 4;
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t k = lane % 4 * 2 + i;
            a[group][k] = emulated_half<T>(lanes[lane][0], i);
            a[group + 8][k] = emulated_half<T>(lanes[lane][1], i);
            a[group][k + 8] = emulated_half<T>(lanes[lane][2], i);
            a[group + 8][k + 8] = emulated_half<T>(lanes[lane][3], i);
            b[k][group] = emulated_half<T>(lanes[lane][4], i);
            b[k + 8][group] = emulated_half<T>(lanes[lane][5], i);
        }
    }
    for (uint32_t row = 0; row < 16; row++) {
        float c[8] = {};
        for (uint32_t k = 0; k < 16; k++) {
            for (uint32_t n = 0; n < 8; n++) {
                c[n] += a[row][k] * b[k][n];
            }
        }
        for (uint32_t n = 0; n < 8; n++) {
            lanes[row % 8 * 4 + n / 2][row / 8 * 2 + n % 2] = emulated_bits(c[n]);
        }
    }
}

template <typename T>
static inline void emulated_multiply(float (&c)[4], const emulated::words &operands)
{
    const emulated::words *sums =
        emulated::meet(emulated::call::product, operands, sizeof(operands), emulated_product<T>);
    for (uint32_t i = 0; i < 4; i++) {
        c[i] += emulated_float(sums[threadIdx.x % 32][i]);
    }
}

template <typename T> struct mr_matrix;
template <> struct mr_matrix<__half> {
    static uint32_t pack(float lo, float hi)
    {
        return __float2half_rn(lo).bits | static_cast<uint32_t>(__float2half_rn(hi).bits) << 16;
    }
    static void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1)
    {
        emulated_multiply<__half>(c, {a0, a1, a2, a3, b0, b1});
    }
};
template <> struct mr_matrix<__nv_bfloat16> {
    static uint32_t pack(float lo, float hi)
    {
        return __float2bfloat16_rn(lo).bits | static_cast<uint32_t>(__float2bfloat16_rn(hi).bits)
                                                  << 16;
    }
    static void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                         uint32_t b0, uint32_t b1)
    {
        emulated_multiply<__nv_bfloat16>(c, {a0, a1, a2, a3, b0, b1});
    }
};

/* Element (row, column) of the i-th 8 × 8 matrix, whose rows lanes 8i … 8i + 7 name. */
static inline uint32_t emulated_element(const emulated::words *rows, uint32_t i, uint32_t row,
                                        uint32_t column)
{
    uint16_t half;
    memcpy(&half, emulated::shared_at(rows[i * 8 + row][0], 16) + column * 2, sizeof(half));
    return half;
}

template <bool TRANSPOSED> static inline void mr_load_matrices(uint32_t address, uint32_t (&m)[4])
{
    const uint32_t group = threadIdx.x % 32 / 4;
    const uint32_t pair = threadIdx.x % 4 * 2;
    const emulated::words *rows =
        emulated::meet(emulated::call::load, &address, sizeof(address), nullptr);
    for (uint32_t i = 0; i < 4; i++) {
        m[i] = TRANSPOSED ? emulated_element(rows, i, pair, group) |
                                emulated_element(rows, i, pair + 1, group) << 16
                          : emulated_element(rows, i, group, pair) |
                                emulated_element(rows, i, group, pair + 1) << 16;
    }
}

/* Lanes hold pairs of a row, and take away pairs of a column. */
static inline void emulated_turn(emulated::words *lanes)
{
    uint16_t x[8][8];
    for (uint32_t lane = 0; lane < 32; lane++) {
        x[lane / 4][lane % 4 * 2] = static_cast<uint16_t>(lanes[lane][0]);
        x[lane / 4][lane % 4 * 2 + 1] = static_cast<uint16_t>(lanes[lane][0] >> 16);
    }
    for (uint32_t lane = 0; lane < 32; lane++) {
        lanes[lane][0] =
            x[lane % 4 * 2][lane / 4] | static_cast<uint32_t>(x[lane % 4 * 2 + 1][lane / 4]) << 16;
    }
}

static inline uint32_t mr_turn_matrix(uint32_t x)
{
    return emulated::meet(emulated::call::turn, &x, sizeof(x), emulated_turn)[threadIdx.x % 32][0];
}

static inline void mr_copy16(uint32_t to, const void *from, bool there)
{
    emulated::copy(to, from, 16, there);
}

static inline void mr_copy4(uint32_t to, const void *from)
{
    emulated::copy(to, from, 4, true);
}

static inline void mr_store16(uint32_t to, uint4 v)
{
    memcpy(shared + (emulated::shared_at(to, 16) - shared), &v, sizeof(v));
}

static inline void mr_commit()
{
    emulated::commit_copies();
}

template <int N> static inline void mr_wait_copies()
{
    emulated::wait_copies(N);
}

static inline uint4 mr_load_once(const uint4 *p)
{
    return *p;
}

/* Without denormal numbers. */
static inline float mr_exp2(float x)
{
    const float y = exp2f(x);
    return y < FLT_MIN ? 0.0f : y;
}

#endif
