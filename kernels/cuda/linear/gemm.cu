/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many rows by cuBLASLt. Row-major out[rows][n] = in[rows][k] · weight[n][k]ᵀ is, as it
 * counts (columns first), D[n × rows] = op(A = weight [k × n], transposed) · B[k × rows].
 *
 * The algorithm of a shape is asked for once and remembered; row counts above 256 share it by the
 * next multiple of 64.
 */
#include "kernels/cuda/device/common.cuh"

#include <cstring>
#include <new>

#define SLOTS           1024u
#define WORKSPACE_BYTES (static_cast<size_t>(32) << 20)

struct mr_gemm_key {
    uint32_t rows, n, k, out_stride;
    uint32_t types; /* type and out_type; 0 marks a free slot */
};

struct mr_gemm_entry {
    mr_gemm_key key;
    cublasLtMatmulAlgo_t algo;
    bool found; /* false: cuBLASLt has none for the shape */
};

struct mr_cuda_gemm_cache {
    mr_gemm_entry entries[SLOTS];
};

int mr_cuda_gemm_open(mr_cuda_context *context)
{
    context->gemms = new (std::nothrow) mr_cuda_gemm_cache();
    if (context->gemms == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    context->workspace_bytes = WORKSPACE_BYTES;
    const cudaError_t code = cudaMalloc(&context->workspace, WORKSPACE_BYTES);
    if (code != cudaSuccess) {
        return code;
    }
    return cublasLtCreate(&context->blas) == CUBLAS_STATUS_SUCCESS ? 0 : cudaErrorUnknown;
}

void mr_cuda_gemm_close(mr_cuda_context *context)
{
    if (context->blas != nullptr) {
        cublasLtDestroy(context->blas);
    }
    cudaFree(context->workspace);
    delete context->gemms;
}

static cudaDataType_t data_type(mr_dtype type)
{
    return type == MR_DTYPE_F32 ? CUDA_R_32F : type == MR_DTYPE_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

struct mr_gemm_call {
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
};

static bool describe(const mr_cuda_linear *p, uint32_t rows, mr_gemm_call *call)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t in = data_type(p->type);
    const cudaDataType_t out = data_type(p->out_type);
    return cublasLtMatmulDescCreate(&call->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(call->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                          sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->a, in, p->k, p->n, p->k) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->b, in, p->k, rows, p->k) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->d, out, p->n, rows, p->out_stride) ==
               CUBLAS_STATUS_SUCCESS;
}

static void forget(mr_gemm_call *call)
{
    if (call->d != nullptr) {
        cublasLtMatrixLayoutDestroy(call->d);
    }
    if (call->b != nullptr) {
        cublasLtMatrixLayoutDestroy(call->b);
    }
    if (call->a != nullptr) {
        cublasLtMatrixLayoutDestroy(call->a);
    }
    if (call->op != nullptr) {
        cublasLtMatmulDescDestroy(call->op);
    }
}

static void ask(mr_cuda_context *context, const mr_cuda_linear *p, mr_gemm_entry *entry)
{
    mr_gemm_call call = {};
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    if (describe(p, entry->key.rows, &call) &&
        cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &context->workspace_bytes,
            sizeof(context->workspace_bytes)) == CUBLAS_STATUS_SUCCESS) {
        /* Parts of a wide output begin anywhere: only what every element has is promised. */
        const uint32_t least = p->type == MR_DTYPE_F32 ? 4 : 2;
        const uint32_t in = p->k * least % 16 == 0 ? 16 : least;
        const uint32_t size = p->out_type == MR_DTYPE_F32 ? 4 : 2;
        const uint32_t out = p->out % 16 == 0 && p->out_stride * size % 16 == 0 ? 16 : size;
        (void)cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &in, sizeof(in));
        (void)cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &in, sizeof(in));
        (void)cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &out, sizeof(out));
        (void)cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &out, sizeof(out));
        const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
            context->blas, call.op, call.a, call.b, call.d, call.d, preference, 1, &result, &count);
        entry->found = status == CUBLAS_STATUS_SUCCESS && count > 0;
        entry->algo = result.algo;
    }
    if (preference != nullptr) {
        cublasLtMatmulPreferenceDestroy(preference);
    }
    forget(&call);
}

/* The entry of a shape, asked for if it is new; NULL when the table is full. */
static mr_gemm_entry *find(mr_cuda_context *context, const mr_cuda_linear *p)
{
    mr_gemm_key key = {};
    key.rows = p->rows <= 256 ? p->rows : mr_ceil_div(p->rows, 64) * 64;
    key.n = p->n;
    key.k = p->k;
    key.out_stride = p->out_stride;
    key.types = 1 + static_cast<uint32_t>(p->type) * 64 + static_cast<uint32_t>(p->out_type) * 8 +
                (p->out % 16 == 0 ? 4 : 0);
    uint32_t at = (key.rows * 2654435761u ^ key.n * 2246822519u ^ key.k * 3266489917u) % SLOTS;
    for (uint32_t tried = 0; tried < SLOTS; tried++, at = (at + 1) % SLOTS) {
        mr_gemm_entry *entry = &context->gemms->entries[at];
        if (entry->key.types == 0) {
            entry->key = key;
            ask(context, p, entry);
            return entry;
        }
        if (memcmp(&entry->key, &key, sizeof(key)) == 0) {
            return entry;
        }
    }
    return nullptr;
}

int mr_cuda_gemm_run(mr_cuda_context *context, const mr_cuda_linear *p, bool *done)
{
    const mr_gemm_entry *entry = find(context, p);
    *done = false;
    if (entry == nullptr || !entry->found) {
        return 0;
    }
    mr_gemm_call call = {};
    const float one = 1.0f;
    const float zero = 0.0f;
    cublasStatus_t status = CUBLAS_STATUS_ALLOC_FAILED;
    if (describe(p, p->rows, &call)) {
        status = cublasLtMatmul(context->blas, call.op, &one, mr_at<const void>(p->weight), call.a,
                                mr_at<const void>(p->in), call.b, &zero, mr_at<void>(p->out),
                                call.d, mr_at<void>(p->out), call.d, &entry->algo,
                                context->workspace, context->workspace_bytes, context->stream);
    }
    forget(&call);
    *done = status == CUBLAS_STATUS_SUCCESS;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        return 0; /* the algorithm of another row count does not take this one */
    }
    return *done ? 0 : cudaErrorUnknown;
}
