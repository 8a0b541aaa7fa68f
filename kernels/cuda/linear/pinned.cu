/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether an algorithm of cuBLASLt gives a row the same bits whatever the number of rows and its
 * place among them. No property of an algorithm promises that, so it is looked at: random rows
 * through the weights at hand, all at once, and then the last 1, 2, 3 … of them alone.
 *
 * Takes memory of its own for the time of the look, on the first product of a shape only.
 */
#include "kernels/cuda/device/common.cuh"

#define THREADS  256
#define BLOCKS   512
#define MOST_OUT (UINT64_C(64) << 20) /* elements */

static const uint32_t counts[] = {1, 2, 3, 8, 9, 16, 17, 31, 64, 65, 127, 128, 300, 512, 1000};

struct mr_pinned_memory {
    void *in, *all, *some;
    uint32_t *differs;
};

/* Numbers in [-1, 1), by a multiplicative hash of their place. */
__global__ static void mr_fill_kernel(void *to, mr_dtype type, uint64_t count)
{
    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += BLOCKS * THREADS) {
        const uint32_t bits = static_cast<uint32_t>(i) * 2654435761u;
        mr_store_as(to, type, i, static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f);
    }
}

/* Rows of `n` elements of `size` bytes that lie `stride` elements apart. */
__global__ static void mr_compare_kernel(const uint8_t *a, const uint8_t *b, uint64_t row_bytes,
                                         uint64_t stride_bytes, uint32_t rows, uint32_t *differs)
{
    const uint64_t count = row_bytes / 2 * rows;
    for (uint64_t i = blockIdx.x * THREADS + threadIdx.x; i < count; i += BLOCKS * THREADS) {
        const uint64_t at = i / (row_bytes / 2) * stride_bytes + i % (row_bytes / 2) * 2;
        const uint16_t x = *reinterpret_cast<const uint16_t *>(a + at);
        if (x != *reinterpret_cast<const uint16_t *>(b + at)) {
            *differs = 1;
        }
    }
}

static void release(mr_pinned_memory *memory)
{
    cudaFree(memory->in);
    cudaFree(memory->all);
    cudaFree(memory->some);
    cudaFree(memory->differs);
    *memory = {};
}

static int allocate(mr_pinned_memory *memory, size_t in_bytes, size_t out_bytes)
{
    int code = cudaMalloc(&memory->in, in_bytes);
    code = code == 0 ? cudaMalloc(&memory->all, out_bytes) : code;
    code = code == 0 ? cudaMalloc(&memory->some, out_bytes) : code;
    code = code == 0 ? cudaMalloc(&memory->differs, sizeof(*memory->differs)) : code;
    if (code != 0) {
        (void)cudaGetLastError(); /* not a failure of the device */
        release(memory);
    }
    return code;
}

/* The last `count` of `rows` rows alone, against what they were among all. */
static int look(mr_cuda_context *context, const mr_cuda_linear *p, const mr_pinned_memory *memory,
                const cublasLtMatmulAlgo_t *algo, uint32_t rows, uint32_t count, bool *holds)
{
    const uint64_t in_bytes = p->type == MR_DTYPE_F32 ? 4 : 2;
    const uint64_t out_bytes = p->out_type == MR_DTYPE_F32 ? 4 : 2;
    const uint64_t before = rows - count;
    mr_cuda_linear some = *p;
    some.rows = count;
    some.in = reinterpret_cast<uintptr_t>(memory->in) + before * p->k * in_bytes;
    some.out = reinterpret_cast<uintptr_t>(memory->some);
    if (mr_cuda_gemm_with(context, &some, algo) != CUBLAS_STATUS_SUCCESS) {
        *holds = false;
        return 0;
    }
    const uint8_t *all =
        static_cast<const uint8_t *>(memory->all) + before * p->out_stride * out_bytes;
    mr_compare_kernel<<<BLOCKS, THREADS, 0, context->stream>>>(
        all, static_cast<const uint8_t *>(memory->some), p->n * out_bytes,
        p->out_stride * out_bytes, count, memory->differs);
    return cudaGetLastError();
}

static int look_at_all(mr_cuda_context *context, const mr_cuda_linear *p,
                       const mr_pinned_memory *memory, const cublasLtMatmulAlgo_t *algo,
                       uint32_t rows, bool *holds)
{
    mr_cuda_linear all = *p;
    all.rows = rows;
    all.in = reinterpret_cast<uintptr_t>(memory->in);
    all.out = reinterpret_cast<uintptr_t>(memory->all);
    mr_fill_kernel<<<BLOCKS, THREADS, 0, context->stream>>>(memory->in, p->type,
                                                            static_cast<uint64_t>(rows) * p->k);
    int code = cudaGetLastError();
    code =
        code == 0 ? cudaMemsetAsync(memory->differs, 0, sizeof(uint32_t), context->stream) : code;
    *holds = code == 0 && mr_cuda_gemm_with(context, &all, algo) == CUBLAS_STATUS_SUCCESS;
    for (uint32_t count : counts) {
        if (code == 0 && *holds && count < rows) {
            code = look(context, p, memory, algo, rows, count, holds);
        }
    }
    uint32_t differs = 0;
    code = code == 0 ? cudaMemcpyAsync(&differs, memory->differs, sizeof(differs),
                                       cudaMemcpyDeviceToHost, context->stream)
                     : code;
    code = code == 0 ? cudaStreamSynchronize(context->stream) : code;
    *holds = *holds && code == 0 && differs == 0;
    return code;
}

int mr_cuda_pinned_holds(mr_cuda_context *context, const mr_cuda_linear *p,
                         const cublasLtMatmulAlgo_t *algo, bool *holds)
{
    const uint64_t in_bytes = p->type == MR_DTYPE_F32 ? 4 : 2;
    const uint64_t out_bytes = p->out_type == MR_DTYPE_F32 ? 4 : 2;
    uint64_t rows = MOST_OUT / p->out_stride;
    rows = rows > MR_PINNED_MOST ? MR_PINNED_MOST : rows < MR_PINNED_ROWS ? MR_PINNED_ROWS : rows;
    mr_pinned_memory memory = {};
    int code = cudaErrorMemoryAllocation;
    /* Where memory is short, fewer rows. */
    for (; code == cudaErrorMemoryAllocation && rows >= MR_PINNED_ROWS; rows /= 2) {
        code = allocate(&memory, rows * p->k * in_bytes, rows * p->out_stride * out_bytes);
        if (code == 0) {
            code = look_at_all(context, p, &memory, algo, static_cast<uint32_t>(rows), holds);
            release(&memory);
        }
    }
    return code;
}
