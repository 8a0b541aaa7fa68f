/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of many rows by cuBLASLt. Row-major out[rows][n] = in[rows][k] · weight[n][k]ᵀ is, as it
 * counts (columns first), D[n × rows] = op(A = weight [k × n], transposed) · B[k × rows].
 *
 * The algorithm of a shape is asked for once, timed against others (tune.cu), and remembered; row
 * counts above 256 share it by the next of four steps an octave.
 *
 * Products of F8_E4M3 have a scale for each output and each row, which cuBLASLt applies to its sums
 * (compute capability 9.0), unless they are to be raw.
 *
 * Invariant products have one algorithm for all row counts: the first of cuBLASLt's list for
 * PINNED_ROWS rows, without workspace or reductions between blocks, that is seen to give a row the
 * same bits whatever the number of rows and its place among them (pinned.cu).
 */
#include "kernels/cuda/device/common.cuh"

#include <cstring>
#include <new>

#define SLOTS           4096u
#define TUNED           6 /* algorithms that are timed */
#define CANDIDATES      16
#define WORKSPACE_BYTES (static_cast<size_t>(32) << 20)

struct mr_gemm_key {
    uint32_t rows, n, k, out_stride;
    uint32_t types; /* of operands and result; 0 marks a free slot */
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

template <typename V>
static bool set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t which, V value)
{
    return cublasLtMatmulDescSetAttribute(op, which, &value, sizeof(value)) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool is_coded(const mr_cuda_linear *p)
{
    return p->weight_type == MR_DTYPE_F8_E4M3;
}

static bool describe_scales(const mr_cuda_linear *p, cublasLtMatmulDesc_t op)
{
    const int32_t vectors = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
    return set(op, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, vectors) &&
           set(op, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, vectors) &&
           set(op, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, mr_at<const void>(p->weight_scale)) &&
           set(op, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, mr_at<const void>(p->coded.scale));
}

static bool describe(const mr_cuda_linear *p, uint32_t rows, mr_gemm_call *call)
{
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cudaDataType_t in = is_coded(p) ? CUDA_R_8F_E4M3 : data_type(p->type);
    const cudaDataType_t out = data_type(p->out_type);
    return cublasLtMatmulDescCreate(&call->op, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulDescSetAttribute(call->op, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                          sizeof(transposed)) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->a, in, p->k, p->n, p->k) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->b, in, p->k, rows, p->k) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatrixLayoutCreate(&call->d, out, p->n, rows, p->out_stride) ==
               CUBLAS_STATUS_SUCCESS &&
           (!is_coded(p) ||
            set(call->op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(1))) &&
           (!is_coded(p) || p->raw || describe_scales(p, call->op));
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

/* At most `most` algorithms for `rows` rows, cuBLASLt's first choice first; their number. */
static int candidates(mr_cuda_context *context, const mr_cuda_linear *p, uint32_t rows, int most,
                      cublasLtMatmulHeuristicResult_t *results)
{
    mr_gemm_call call = {};
    cublasLtMatmulPreference_t preference = nullptr;
    int count = 0;
    const size_t workspace = p->invariant ? 0 : context->workspace_bytes;
    if (describe(p, rows, &call) &&
        cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
        cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace,
                                             sizeof(workspace)) == CUBLAS_STATUS_SUCCESS) {
        /* Parts of a wide output begin anywhere: only what every element has is promised. */
        const uint32_t least = is_coded(p) ? 1 : p->type == MR_DTYPE_F32 ? 4 : 2;
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
        if (p->invariant) {
            const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
            (void)cublasLtMatmulPreferenceSetAttribute(
                preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none, sizeof(none));
        }
        const cublasStatus_t status =
            cublasLtMatmulAlgoGetHeuristic(context->blas, call.op, call.a, call.b, call.d, call.d,
                                           preference, most, results, &count);
        count = status == CUBLAS_STATUS_SUCCESS ? count : 0;
    }
    if (preference != nullptr) {
        cublasLtMatmulPreferenceDestroy(preference);
    }
    forget(&call);
    return count;
}

/* Takes the fastest of those that give the first one's bits, or the first that holds its row's
 * bits. */
static int ask(mr_cuda_context *context, const mr_cuda_linear *p, mr_gemm_entry *entry)
{
    cublasLtMatmulHeuristicResult_t results[CANDIDATES] = {};
    if (!p->invariant) {
        int best = 0;
        const int found = candidates(context, p, entry->key.rows, TUNED, results);
        const int status = mr_cuda_tune(context, p, results, found, &best);
        entry->found = found > 0;
        entry->algo = results[best].algo;
        return status;
    }
    const int count = candidates(context, p, MR_PINNED_ROWS, CANDIDATES, results);
    int code = 0;
    for (int i = 0; code == 0 && i < count && !entry->found; i++) {
        entry->algo = results[i].algo;
        code = mr_cuda_pinned_holds(context, p, &entry->algo, &entry->found);
    }
    return code;
}

/* Row counts that share an algorithm: four steps an octave. */
static uint32_t rows_like(uint32_t rows)
{
    uint32_t step = 1;
    while (rows > 256 && step * 8 < rows) {
        step *= 2;
    }
    return mr_ceil_div(rows, step) * step;
}

/* The entry of a shape, asked for if it is new; NULL when the table is full. */
static int find(mr_cuda_context *context, const mr_cuda_linear *p, mr_gemm_entry **out)
{
    mr_gemm_key key = {};
    key.rows = p->invariant ? 0 : rows_like(p->rows);
    key.n = p->n;
    key.k = p->k;
    key.out_stride = p->out_stride;
    key.types = 1 + static_cast<uint32_t>(p->type) * 64 + static_cast<uint32_t>(p->out_type) * 8 +
                (p->out % 16 == 0 ? 4 : 0) + (is_coded(p) ? 2 : 0) + (p->raw ? 1024 : 0);
    uint32_t at = (key.rows * 2654435761u ^ key.n * 2246822519u ^ key.k * 3266489917u) % SLOTS;
    for (uint32_t tried = 0; tried < SLOTS; tried++, at = (at + 1) % SLOTS) {
        mr_gemm_entry *entry = &context->gemms->entries[at];
        if (entry->key.types == 0) {
            entry->key = key;
            *out = entry;
            return ask(context, p, entry);
        }
        if (memcmp(&entry->key, &key, sizeof(key)) == 0) {
            *out = entry;
            return 0;
        }
    }
    return 0;
}

cublasStatus_t mr_cuda_gemm_with(mr_cuda_context *context, const mr_cuda_linear *p,
                                 const cublasLtMatmulAlgo_t *algo)
{
    mr_gemm_call call = {};
    const float one = 1.0f;
    const float zero = 0.0f;
    const mr_cuda_ptr in = is_coded(p) ? p->coded.codes : p->in;
    cublasStatus_t status = CUBLAS_STATUS_ALLOC_FAILED;
    if (describe(p, p->rows, &call)) {
        status = cublasLtMatmul(context->blas, call.op, &one, mr_at<const void>(p->weight), call.a,
                                mr_at<const void>(in), call.b, &zero, mr_at<void>(p->out), call.d,
                                mr_at<void>(p->out), call.d, algo, context->workspace,
                                p->invariant ? 0 : context->workspace_bytes, context->stream);
    }
    forget(&call);
    return status;
}

static int run_pieces(mr_cuda_context *context, const mr_cuda_linear *p,
                      const cublasLtMatmulAlgo_t *algo)
{
    const uint64_t in_bytes = p->type == MR_DTYPE_F32 ? 4 : 2;
    const uint64_t out_bytes = p->out_type == MR_DTYPE_F32 ? 4 : 2;
    mr_cuda_linear piece = *p;
    for (uint32_t done = 0; done < p->rows; done += piece.rows) {
        piece.rows = p->rows - done < MR_PINNED_MOST ? p->rows - done : MR_PINNED_MOST;
        if (mr_cuda_gemm_with(context, &piece, algo) != CUBLAS_STATUS_SUCCESS) {
            return cudaErrorUnknown;
        }
        piece.in += static_cast<uint64_t>(piece.rows) * p->k * in_bytes;
        piece.out += static_cast<uint64_t>(piece.rows) * p->out_stride * out_bytes;
    }
    return 0;
}

int mr_cuda_gemm_run(mr_cuda_context *context, const mr_cuda_linear *p, bool *done)
{
    mr_gemm_entry *entry = nullptr;
    const int code = find(context, p, &entry);
    *done = false;
    if (code != 0 || entry == nullptr || !entry->found) {
        return code;
    }
    if (p->invariant) {
        *done = true;
        return run_pieces(context, p, &entry->algo);
    }
    const cublasStatus_t status = mr_cuda_gemm_with(context, p, &entry->algo);
    *done = status == CUBLAS_STATUS_SUCCESS;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) {
        return 0; /* the algorithm of another row count does not take this one */
    }
    return *done ? 0 : cudaErrorUnknown;
}
