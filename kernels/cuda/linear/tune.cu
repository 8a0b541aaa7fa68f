/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fastest of cuBLASLt's algorithms for a shape, found by running them. Weights are read from
 * memory, as they are in a step: what a product before left in the second cache is pushed out.
 *
 * Which one wins may differ from run to run, and results must not: those whose results differ in a
 * bit from those of cuBLASLt's first choice, which does not change, are out.
 */
#include "kernels/cuda/device/common.cuh"

#include <chrono>
#include <cmath>

#define RUNS     3
#define MOST_MS  2000.0f    /* of all tuning, by the clock: afterwards the first choice is taken */
#define LEAST    (1u << 20) /* elements of weights: what is smaller takes no time to speak of */
#define WORTH    0.97f      /* of the first choice's time: what is hardly faster is not taken */
#define HOPELESS 1.3f       /* times the best so far: it is run once */
#define EVICT    (static_cast<size_t>(64) << 20)

struct mr_tuning {
    cudaEvent_t begin;
    cudaEvent_t end;
    void *evict; /* EVICT bytes to write */
    unsigned long long *sum;
};

/* Adds up the words of a product, each times an odd number of its place. */
__global__ static void mr_sum_words_kernel(const uint16_t *words, uint32_t rows, uint32_t columns,
                                           uint32_t stride, unsigned long long *sum)
{
    unsigned long long mine = 0;
    for (uint32_t row = blockIdx.x; row < rows; row += gridDim.x) {
        for (uint32_t i = threadIdx.x; i < columns; i += blockDim.x) {
            const unsigned long long place = static_cast<unsigned long long>(row) * columns + i;
            mine +=
                words[static_cast<size_t>(row) * stride + i] * (place * 0x9E3779B97F4A7C15ull | 1);
        }
    }
    atomicAdd(sum, mine);
}

static int sum_of(mr_cuda_context *context, const mr_tuning &t, const mr_cuda_linear *p,
                  unsigned long long *out)
{
    const uint32_t words = p->out_type == MR_DTYPE_F32 ? 2 : 1; /* an element */
    int code = cudaMemsetAsync(t.sum, 0, sizeof(*t.sum), context->stream);
    const uint32_t blocks = p->rows > 1024 ? 1024 : p->rows;
    if (code == 0) {
        mr_sum_words_kernel<<<blocks, 256, 0, context->stream>>>(
            mr_at<const uint16_t>(p->out), p->rows, p->n * words, p->out_stride * words, t.sum);
        code = cudaGetLastError();
    }
    code = code == 0
               ? cudaMemcpyAsync(out, t.sum, sizeof(*out), cudaMemcpyDeviceToHost, context->stream)
               : code;
    return code == 0 ? cudaStreamSynchronize(context->stream) : code;
}

static int time_once(mr_cuda_context *context, const mr_tuning &t, const mr_cuda_linear *p,
                     const cublasLtMatmulAlgo_t *algo, float *ms, bool *runs)
{
    int code = cudaMemsetAsync(t.evict, 0, EVICT, context->stream);
    code = code == 0 ? cudaEventRecord(t.begin, context->stream) : code;
    if (code != 0) {
        return code;
    }
    *runs = mr_cuda_gemm_with(context, p, algo) == CUBLAS_STATUS_SUCCESS;
    code = cudaEventRecord(t.end, context->stream);
    code = code == 0 ? cudaEventSynchronize(t.end) : code;
    return code == 0 ? cudaEventElapsedTime(ms, t.begin, t.end) : code;
}

/* The shortest of some runs; the first warms up. `infinite` if the algorithm does not run. */
static int time_of(mr_cuda_context *context, const mr_tuning &t, const mr_cuda_linear *p,
                   const cublasLtMatmulAlgo_t *algo, float best, float *shortest)
{
    *shortest = INFINITY;
    for (int run = 0; run <= RUNS; run++) {
        float ms = 0.0f;
        bool runs = false;
        const int code = time_once(context, t, p, algo, &ms, &runs);
        if (code != 0 || !runs) {
            *shortest = INFINITY;
            return code;
        }
        *shortest = run > 0 && ms < *shortest ? ms : *shortest;
        if (run > 0 && ms > HOPELESS * best) {
            break;
        }
    }
    return 0;
}

static int compare(mr_cuda_context *context, const mr_tuning &t, const mr_cuda_linear *p,
                   const cublasLtMatmulHeuristicResult_t *found, int count, int *best)
{
    float first = INFINITY;
    unsigned long long bits = 0; /* of the first choice's result */
    float shortest = INFINITY;
    for (int i = 0; i < count && context->tuning_ms < MOST_MS; i++) {
        float ms;
        const int code = time_of(context, t, p, &found[i].algo, shortest, &ms);
        if (code != 0) {
            return code;
        }
        unsigned long long sum = 0;
        const bool faster = ms < shortest && (i == 0 || ms < WORTH * first);
        const int summed = faster ? sum_of(context, t, p, &sum) : 0;
        if (summed != 0) {
            return summed;
        }
        if (i == 0) {
            first = ms;
            bits = sum;
        }
        if (faster && sum == bits) {
            shortest = ms;
            *best = i;
        }
    }
    return 0;
}

static int tune(mr_cuda_context *context, const mr_cuda_linear *p,
                const cublasLtMatmulHeuristicResult_t *found, int count, int *best)
{
    mr_tuning t = {};
    int code = cudaEventCreate(&t.begin);
    code = code == 0 ? cudaEventCreate(&t.end) : code;
    if (code == 0 && cudaMalloc(&t.evict, EVICT + 256) == cudaSuccess) {
        t.sum = reinterpret_cast<unsigned long long *>(static_cast<uint8_t *>(t.evict) + EVICT);
        code = compare(context, t, p, found, count, best);
    } else {
        (void)cudaGetLastError(); /* without memory to spare the first choice does */
    }
    cudaFree(t.evict);
    if (t.end != nullptr) {
        cudaEventDestroy(t.end);
    }
    if (t.begin != nullptr) {
        cudaEventDestroy(t.begin);
    }
    return code;
}

int mr_cuda_tune(mr_cuda_context *context, const mr_cuda_linear *p,
                 const cublasLtMatmulHeuristicResult_t *found, int count, int *best)
{
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    const int code = cudaStreamIsCapturing(context->stream, &capturing);
    *best = 0;
    if (code != 0 || count < 2 || capturing != cudaStreamCaptureStatusNone ||
        static_cast<uint64_t>(p->n) * p->k < LEAST || context->tuning_ms >= MOST_MS) {
        return code;
    }
    /* The first run of an algorithm loads its code, which takes far longer than the run. */
    const auto begin = std::chrono::steady_clock::now();
    const float before = context->tuning_ms;
    const int status = tune(context, p, found, count, best);
    const std::chrono::duration<float, std::milli> spent = std::chrono::steady_clock::now() - begin;
    context->tuning_ms = before + spent.count();
    return status;
}
