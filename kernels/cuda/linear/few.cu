/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products with few rows (decoding): out[rows][n] = in[rows][k] · weight[n][k]ᵀ.
 *
 * The weights are read once, at the speed of memory, straight into the registers that
 * mma.m16n8k16 wants as its A operand (16 outputs by 16 inputs); the rows are the B operand, 8 at a
 * time. The order of inputs within a product is free, so thread t of a quad takes inputs
 * 8t … 8t + 7 of a chunk of 32, one 16-byte load, and feeds them to two products; the rows are
 * loaded alike. Weights in F8_E4M3 are widened in registers: a load has 16 of them, for four
 * products; the scale of an output is applied to its sum.
 *
 *   grid    one block for 16 · MT outputs (gated: 16 gates and their 16 ups)
 *   block   8 warps, which take chunks of 32 inputs (64 in F8_E4M3) in turn; their sums meet in
 *           shared memory and are added in the order of the warps
 *
 * Sums in float32, in an order that depends on k only: a row does not depend on its neighbours.
 */
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/mma.cuh"

#define WARPS   8
#define THREADS (WARPS * 32)
#define LOADS   4  /* of 16 bytes of weights: a quad's share of a chunk */
#define TILE    16 /* outputs */

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

/* Weights of UNROLL chunks that a warp takes together. */
template <int MT, int UNROLL> struct mr_weights_ahead {
    uint4 v[UNROLL][MT][2];
};

template <int MT, int UNROLL>
__device__ static inline void mr_load_weights(const uint4 *const (&lines)[MT][2], uint32_t c,
                                              uint32_t vectors, mr_weights_ahead<MT, UNROLL> &a)
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const uint32_t at = (c + u * WARPS) * LOADS + threadIdx.x % 4;
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a.v[u][m][0] = at < vectors ? mr_load_once(lines[m][0] + at) : make_uint4(0, 0, 0, 0);
            a.v[u][m][1] = at < vectors ? mr_load_once(lines[m][1] + at) : make_uint4(0, 0, 0, 0);
        }
    }
}

template <typename T, int MT, int NT, int UNROLL>
__device__ static inline void mr_multiply(const uint4 *in, uint32_t rows, uint32_t c,
                                          uint32_t vectors, const mr_weights_ahead<MT, UNROLL> &a,
                                          float (&acc)[MT][NT][4])
{
    uint4 b[UNROLL][NT];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const uint32_t at = (c + u * WARPS) * LOADS + threadIdx.x % 4;
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t row = n * 8 + threadIdx.x % 32 / 4;
            b[u][n] = at < vectors && row < rows ? in[static_cast<size_t>(row) * vectors + at]
                                                 : make_uint4(0, 0, 0, 0);
        }
    }
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const uint4 lo = a.v[u][m][0];
            const uint4 hi = a.v[u][m][1];
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mr_matrix<T>::multiply(acc[m][n], lo.x, hi.x, lo.y, hi.y, b[u][n].x, b[u][n].y);
                mr_matrix<T>::multiply(acc[m][n], lo.z, hi.z, lo.w, hi.w, b[u][n].z, b[u][n].w);
            }
        }
    }
}

template <typename T, int MT, int NT, int UNROLL>
__device__ static inline void
mr_multiply_codes(const uint4 *in, uint32_t rows, uint32_t c, uint32_t vectors,
                  const mr_weights_ahead<MT, UNROLL> &a, float (&acc)[MT][NT][4])
{
#pragma unroll
    for (int u = 0; u < UNROLL; u++) {
        const uint32_t at = (c + u * WARPS) * LOADS + threadIdx.x % 4;
        uint32_t b[NT][8];
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t row = n * 8 + threadIdx.x % 32 / 4;
            const bool there = at < vectors && row < rows;
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint4 v = there ? in[(static_cast<size_t>(row) * vectors + at) * 2 + h]
                                      : make_uint4(0, 0, 0, 0);
                b[n][4 * h] = v.x;
                b[n][4 * h + 1] = v.y;
                b[n][4 * h + 2] = v.z;
                b[n][4 * h + 3] = v.w;
            }
        }
#pragma unroll
        for (int m = 0; m < MT; m++) {
            const uint4 lo = a.v[u][m][0];
            const uint4 hi = a.v[u][m][1];
            const uint32_t low[4] = {lo.x, lo.y, lo.z, lo.w};
            const uint32_t high[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint32_t w[4];
                mr_e4m3_widen<T>(low[j], w[0], w[2]);
                mr_e4m3_widen<T>(high[j], w[1], w[3]);
#pragma unroll
                for (int n = 0; n < NT; n++) {
                    mr_matrix<T>::multiply(acc[m][n], w[0], w[1], w[2], w[3], b[n][2 * j],
                                           b[n][2 * j + 1]);
                }
            }
        }
    }
}

template <typename T, bool CODED, int MT, int NT>
__global__ static void __launch_bounds__(THREADS)
    mr_linear_few_kernel(mr_cuda_linear p, const uint4 *weight, const float *weight_scale,
                         const uint4 *in, void *out, const float *bias)
{
    constexpr int UNROLL = 4 / MT;
    __shared__ float sums[WARPS * MT * NT * TILE * 8];
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t group = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
    const uint32_t first = blockIdx.x * (p.gated ? TILE : TILE * MT);
    const uint32_t vectors = p.k / (CODED ? 16 : 8); /* of a row */
    const uint32_t chunks = (vectors + LOADS - 1) / LOADS;

    const uint4 *lines[MT][2];
#pragma unroll
    for (int m = 0; m < MT; m++) {
        lines[m][0] = weight + static_cast<size_t>(mr_output(p, first, m, group)) * vectors;
        lines[m][1] = weight + static_cast<size_t>(mr_output(p, first, m, group + 8)) * vectors;
    }
    /* Weights are nobody's output: they are on their way while the rows are still being made. */
    mr_weights_ahead<MT, UNROLL> a;
    mr_let_next_come();
    mr_load_weights<MT, UNROLL>(lines, warp, vectors, a);
    mr_wait_for_previous();
    float acc[MT][NT][4] = {};
    for (uint32_t c = warp; c < chunks; c += WARPS * UNROLL) {
        mr_weights_ahead<MT, UNROLL> next;
        mr_load_weights<MT, UNROLL>(lines, c + WARPS * UNROLL, vectors, next);
        if (CODED) {
            mr_multiply_codes<T, MT, NT, UNROLL>(in, p.rows, c, vectors, a, acc);
        } else {
            mr_multiply<T, MT, NT, UNROLL>(in, p.rows, c, vectors, a, acc);
        }
        a = next;
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
        float y = mr_sum_warps<MT, NT>(sums, m, line, row) * (CODED ? weight_scale[o] : 1.0f);
        if (p.gated) {
            /* As if the two had been stored: the separate operator rounds them too. */
            const float sum = mr_sum_warps<MT, NT>(sums, MT - 1, line, row) *
                              (CODED ? weight_scale[outputs + o] : 1.0f);
            const float up = mr_to_float(mr_from_float<T>(sum));
            y = mr_activate(p.activation, mr_to_float(mr_from_float<T>(y))) * up;
        } else if (bias != nullptr) {
            y += bias[o];
        }
        mr_store_as(out, p.out_type, static_cast<size_t>(row) * p.out_stride + o, y);
    }
}

template <typename T, bool CODED, int MT, int NT>
static int launch(mr_cuda_context *context, const mr_cuda_linear *p)
{
    const uint32_t outputs = p->gated ? p->n / 2 : p->n;
    const uint32_t step = p->gated ? TILE : TILE * MT;
    return mr_launch(context, mr_linear_few_kernel<T, CODED, MT, NT>, mr_ceil_div(outputs, step),
                     THREADS, 0, *p, mr_at<const uint4>(p->weight),
                     mr_at<const float>(p->weight_scale), mr_at<const uint4>(p->in),
                     mr_at<void>(p->out), mr_at<const float>(p->bias));
}

template <typename T, bool CODED>
static int choose(mr_cuda_context *context, const mr_cuda_linear *p)
{
    /* Two tiles a warp halve the reads of the rows; with few outputs they leave processors idle. */
    const bool wide =
        p->gated || mr_ceil_div(p->n, 2 * TILE) >=
                        4 * static_cast<uint32_t>(context->properties.multiProcessorCount);
    return wide ? launch<T, CODED, 2, 1>(context, p) : launch<T, CODED, 1, 1>(context, p);
}

int mr_cuda_linear_few(mr_cuda_context *context, const mr_cuda_linear *p)
{
    if (p->weight_type == MR_DTYPE_F8_E4M3) {
        return p->type == MR_DTYPE_F16 ? choose<__half, true>(context, p)
                                       : choose<__nv_bfloat16, true>(context, p);
    }
    return p->type == MR_DTYPE_F16 ? choose<__half, false>(context, p)
                                   : choose<__nv_bfloat16, false>(context, p);
}
