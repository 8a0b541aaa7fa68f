/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the ways a product takes, and the one that takes every shape. */
#include "kernels/cuda/device/e4m3.cuh"

#define THREADS 256

/* One warp an output of a row. For shapes that the others do not take: k that is no multiple of 8,
 * or that cuBLASLt declines. `E`: a type, or codes; those have scales, unless the product is raw.
 */
template <typename E>
__global__ static void mr_linear_any_kernel(mr_cuda_linear p, const E *weight, const E *in,
                                            void *out, const float *weight_scale,
                                            const float *scale)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const uint32_t n = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const size_t row = blockIdx.y;
    if (n >= p.n) {
        return;
    }
    const E *w = weight + static_cast<size_t>(n) * p.k;
    const E *x = in + row * p.k;
    float sum = 0.0f;
    for (uint32_t i = threadIdx.x % 32; i < p.k; i += 32) {
        sum += mr_to_float(w[i]) * mr_to_float(x[i]);
    }
    sum = mr_warp_sum(sum);
    if (threadIdx.x % 32 == 0) {
        mr_store_as(out, p.out_type, row * p.out_stride + n,
                    scale != nullptr ? sum * (weight_scale[n] * scale[row]) : sum);
    }
}

/* Rows of a launch: grid.y ends at 65,535. */
#define MAX_GRID_ROWS 32768u

template <typename E>
static int launch_any(mr_cuda_context *context, const mr_cuda_linear &p, mr_cuda_ptr in,
                      const float *weight_scale, const float *scale)
{
    const size_t out_bytes = p.out_type == MR_DTYPE_F32 ? 4 : 2;
    int code = 0;
    for (uint32_t done = 0; code == 0 && done < p.rows; done += MAX_GRID_ROWS) {
        const uint32_t left = p.rows - done;
        const dim3 grid(mr_ceil_div(p.n, THREADS / 32),
                        left < MAX_GRID_ROWS ? left : MAX_GRID_ROWS);
        code = mr_launch(context, mr_linear_any_kernel<E>, grid, THREADS, 0, p,
                         mr_at<const E>(p.weight),
                         mr_at<const E>(in) + static_cast<size_t>(done) * p.k,
                         mr_at<uint8_t>(p.out) + done * p.out_stride * out_bytes, weight_scale,
                         scale != nullptr ? scale + done : scale);
    }
    return code;
}

int mr_cuda_linear_any(mr_cuda_context *context, const mr_cuda_linear *p)
{
    if (p->coded.codes != 0) {
        return launch_any<mr_code_e4m3>(context, *p, p->coded.codes,
                                        mr_at<const float>(p->weight_scale),
                                        p->raw ? nullptr : mr_at<const float>(p->coded.scale));
    }
    MR_CUDA_DISPATCH(p->type, T, return launch_any<T>(context, *p, p->in, nullptr, nullptr));
}

__global__ static void mr_add_bias_kernel(mr_cuda_linear p, void *out, const float *bias)
{
    mr_let_next_come();
    mr_wait_for_previous();
    const size_t row = blockIdx.x;
    for (uint32_t n = threadIdx.x; n < p.n; n += blockDim.x) {
        const size_t at = row * p.out_stride + n;
        mr_store_as(out, p.out_type, at, mr_load_as(out, p.out_type, at) + bias[n]);
    }
}

int mr_cuda_linear_add_bias(mr_cuda_context *context, const mr_cuda_linear *p)
{
    return mr_launch(context, mr_add_bias_kernel, p->rows, THREADS, 0, *p, mr_at<void>(p->out),
                     mr_at<const float>(p->bias));
}

static int run_coded(mr_cuda_context *context, const mr_cuda_linear *p)
{
    if (p->coded.codes == 0) {
        return p->rows <= MR_CUDA_FEW_ROWS ? mr_cuda_linear_few(context, p) : cudaErrorInvalidValue;
    }
    bool done = false;
    const int code = mr_cuda_gemm_run(context, p, &done);
    return code == 0 && !done ? mr_cuda_linear_any(context, p) : code;
}

/* The kernel for few rows, as often as it takes: where cuBLASLt has nothing whose sums are the same
 * for all row counts. */
static int launch_pieces(mr_cuda_context *context, const mr_cuda_linear *p)
{
    const uint32_t out_bytes = p->out_type == MR_DTYPE_F32 ? 4 : 2;
    mr_cuda_linear piece = *p;
    int code = 0;
    for (uint32_t done = 0; code == 0 && done < p->rows; done += piece.rows) {
        piece.rows = p->rows - done < MR_CUDA_FEW_ROWS ? p->rows - done : MR_CUDA_FEW_ROWS;
        code = mr_cuda_linear_few(context, &piece);
        piece.in += static_cast<uint64_t>(piece.rows) * p->k * 2;
        piece.out += static_cast<uint64_t>(piece.rows) * p->out_stride * out_bytes;
    }
    return code;
}

int mr_cuda_linear_run(mr_cuda_context *context, const mr_cuda_linear *p)
{
    if (p->weight_type == MR_DTYPE_F8_E4M3) {
        const int code = run_coded(context, p);
        const bool bias = p->bias != 0 && p->coded.codes != 0;
        return code == 0 && bias ? mr_cuda_linear_add_bias(context, p) : code;
    }
    const bool pieces = p->type != MR_DTYPE_F32 && p->k % 8 == 0;
    if (pieces && !p->invariant && p->rows <= MR_CUDA_FEW_ROWS) {
        return mr_cuda_linear_few(context, p);
    }
    bool done = false;
    int code = mr_cuda_gemm_run(context, p, &done);
    if (code == 0 && !done && pieces && p->invariant) {
        return launch_pieces(context, p);
    }
    if (code == 0 && !done) {
        code = mr_cuda_linear_any(context, p);
    }
    return code == 0 && p->bias != 0 ? mr_cuda_linear_add_bias(context, p) : code;
}
