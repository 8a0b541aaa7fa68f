/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with few rows (decoding): out[rows][n] = in[rows][k] · weight[n][k]ᵀ.
 *
 * The weights are read once, at the speed of memory, straight into the registers that
 * mma.m16n8k16 wants as its A operand (16 outputs by 16 inputs); the rows are the B operand, 8 at a
 * time. The order of inputs within a product is free, so thread t of a quad takes inputs
 * 8t … 8t + 7 of a chunk of 32, one 16-byte load, and feeds them to two products; the rows are
 * loaded alike.
 *
 *   grid    one block for 16 · MT outputs (gated: 16 gates and their 16 ups)
 *   block   8 warps, which take chunks of 32 inputs in turn; their sums meet in shared memory and
 *           are added in the order of the warps
 *
 * Sums in float32, in an order that depends on k only: a row does not depend on its neighbours.
 */
#include "kernels/cuda/device/common.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)
#define CHUNK   32 /* inputs of two products */
#define TILE    16 /* outputs */

template <typename T>
__device__ static inline void mr_mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                     uint32_t a3, uint32_t b0, uint32_t b1);
template <>
__device__ inline void mr_mma<__nv_bfloat16>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
template <>
__device__ inline void mr_mma<__half>(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                      uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

/* Weights pass by once: they need not stay in the first cache. */
__device__ static inline uint4 mr_load_once(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* Output row of tile m, line `line` of 16; past the end it is the last, whose sum is dropped. */
__device__ static inline uint32_t mr_output(const mr_cuda_linear &p, uint32_t first, uint32_t m,
                                            uint32_t line)
{
    const uint32_t n = p.gated ? p.n / 2 : p.n;
    const uint32_t o = p.gated ? first + line : first + m * TILE + line;
    const uint32_t inside = o < n ? o : n - 1;
    return p.gated && m == 1 ? n + inside : inside;
}

/* sums: [WARPS][MT][NT][TILE][8] */
template <int MT, int NT>
__device__ static inline float mr_sum_warps(const float *sums, uint32_t m, uint32_t line,
                                            uint32_t row)
{
    float sum = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        sum += sums[(((w * MT + m) * NT + row / 8) * TILE + line) * 8 + row % 8];
    }
    return sum;
}

template <typename T, int MT, int NT>
__global__ static void __launch_bounds__(THREADS)
    mr_linear_few_kernel(mr_cuda_linear p, const uint4 *weight, const uint4 *in, void *out,
                         const float *bias)
{
    constexpr int UNROLL = MT * NT >= 4 ? 2 : 4;
    __shared__ float sums[WARPS * MT * NT * TILE * 8];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t group = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
    const uint32_t first = blockIdx.x * (p.gated ? TILE : TILE * MT);
    const uint32_t vectors = p.k / 8; /* of a row */
    const uint32_t chunks = (p.k + CHUNK - 1) / CHUNK;

    const uint4 *lines[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        lines[m][0] = weight + static_cast<size_t>(mr_output(p, first, m, group)) * vectors;
        lines[m][1] = weight + static_cast<size_t>(mr_output(p, first, m, group + 8)) * vectors;
    }
    float acc[MT][NT][4] = {};
    for (uint32_t c = warp; c < chunks; c += WARPS * UNROLL) {
        uint4 a[UNROLL][MT][2];
        uint4 b[UNROLL][NT];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const uint32_t at = (c + u * WARPS) * (CHUNK / 8) + quad;
            const bool inside = at < vectors;
#pragma unroll
            for (int m = 0; m < MT; m++) {
                a[u][m][0] = inside ? mr_load_once(lines[m][0] + at) : make_uint4(0, 0, 0, 0);
                a[u][m][1] = inside ? mr_load_once(lines[m][1] + at) : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const uint32_t row = n * 8 + group;
                b[u][n] = inside && row < p.rows ? in[static_cast<size_t>(row) * vectors + at]
                                                 : make_uint4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
#pragma unroll
            for (int m = 0; m < MT; m++) {
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mr_mma<T>(acc[m][n], a[u][m][0].x, a[u][m][1].x, a[u][m][0].y, a[u][m][1].y,
                              b[u][n].x, b[u][n].y);
                    mr_mma<T>(acc[m][n], a[u][m][0].z, a[u][m][1].z, a[u][m][0].w, a[u][m][1].w,
                              b[u][n].z, b[u][n].w);
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float *s = sums + ((warp * MT + m) * NT + n) * TILE * 8;
            s[group * 8 + quad * 2] = acc[m][n][0];
            s[group * 8 + quad * 2 + 1] = acc[m][n][1];
            s[(group + 8) * 8 + quad * 2] = acc[m][n][2];
            s[(group + 8) * 8 + quad * 2 + 1] = acc[m][n][3];
        }
    }
    __syncthreads();
    const uint32_t tiles = p.gated ? 1 : MT;
    const uint32_t outputs = p.gated ? p.n / 2 : p.n;
    for (uint32_t i = threadIdx.x; i < tiles * TILE * NT * 8; i += THREADS) {
        const uint32_t line = i % TILE;
        const uint32_t m = i / TILE % tiles;
        const uint32_t row = i / (TILE * tiles);
        const uint32_t o = first + m * TILE + line;
        if (row >= p.rows || o >= outputs) {
            continue;
        }
        float y = mr_sum_warps<MT, NT>(sums, m, line, row);
        if (p.gated) {
            /* As if the two had been stored: the separate operator rounds them too. */
            const float up =
                mr_to_float(mr_from_float<T>(mr_sum_warps<MT, NT>(sums, MT - 1, line, row)));
            y = mr_activate(p.activation, mr_to_float(mr_from_float<T>(y))) * up;
        } else if (bias != nullptr) {
            y += bias[o];
        }
        mr_store_as(out, p.out_type, static_cast<size_t>(row) * p.out_stride + o, y);
    }
}

template <typename T, int MT, int NT>
static void launch(mr_cuda_context *context, const mr_cuda_linear *p)
{
    const uint32_t outputs = p->gated ? p->n / 2 : p->n;
    const uint32_t step = p->gated ? TILE : TILE * MT;
    mr_linear_few_kernel<T, MT, NT><<<mr_ceil_div(outputs, step), THREADS, 0, context->stream>>>(
        *p, mr_at<const uint4>(p->weight), mr_at<const uint4>(p->in), mr_at<void>(p->out),
        mr_at<const float>(p->bias));
}

template <typename T> static void choose(mr_cuda_context *context, const mr_cuda_linear *p)
{
    /* Two tiles a warp halve the reads of the rows; with few outputs they leave processors idle. */
    const bool wide =
        p->gated || mr_ceil_div(p->n, 2 * TILE) >=
                        4 * static_cast<uint32_t>(context->properties.multiProcessorCount);
    if (p->rows <= 8 && wide) {
        launch<T, 2, 1>(context, p);
    } else if (p->rows <= 8) {
        launch<T, 1, 1>(context, p);
    } else if (wide) {
        launch<T, 2, 2>(context, p);
    } else {
        launch<T, 1, 2>(context, p);
    }
}

int mr_cuda_linear_few(mr_cuda_context *context, const mr_cuda_linear *p)
{
    if (p->type == MR_DTYPE_F16) {
        choose<__half>(context, p);
    } else {
        choose<__nv_bfloat16>(context, p);
    }
    return cudaGetLastError();
}
