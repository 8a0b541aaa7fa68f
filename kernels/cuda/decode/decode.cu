/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All layers of a decode step with few rows in one launch (mr_cuda_decode).
 *
 *   grid    one block a processor, all there at once; each has a fixed share of every matrix's
 *           tiles of 16 outputs
 *   block   8 warps that compute, and one that feeds them with weights through a ring (ring.cuh)
 *
 * Between the parts of a layer those who have work in the next wait for those who had in the one
 * before. Meanwhile the ring fills: as long as a wait is shorter than the ring is deep, memory
 * never rests.
 *
 * Products are those of linear/few.cu, whose order of sums they keep; norms add as pointwise.cu
 * does, attention is that of attention/packed.cu. So results equal those of the separate kernels.
 *
 * What one block writes and another reads within the launch is read past the first cache. sm_90.
 */
#include "kernels/cuda/decode/attend.cuh"
#include "kernels/cuda/decode/feed.cuh"
#include "kernels/cuda/decode/product.cuh"
#include "kernels/cuda/decode/rows.cuh"

#include <cstring>
#include <cudaTypedefs.h>

#define THREADS (MR_DECODE_TAKERS + 32)
#define FEW     8 /* rows of one product */

/* Rows of the last layer's second half, as rows of the first. */
__device__ static inline const uint32_t *mr_map_of(const mr_decode_args &a,
                                                   const mr_decode_state &st)
{
    return st.layer + 1 == a.p.n_layers ? mr_ptr<const uint32_t>(a.p.logit_rows) : nullptr;
}

/* Product of rows that another part has left in memory: through shared memory, unless they are so
 * short that they are read but once or so many that they do not fit. */
template <typename T, int NT, int PART>
__device__ static inline void mr_multiply_stored(const mr_decode_args &a, mr_decode_state &st,
                                                 const mr_share &s, mr_cuda_ptr from, bool fits)
{
    mr_rows rows;
    rows.far = mr_ptr<const uint8_t>(from);
    rows.map = PART == MR_PART_OUT ? mr_map_of(a, st) : nullptr;
    rows.k = mr_inputs_of(a.p, PART);
    if (fits && rows.k > 2 * MR_RING_INPUTS) {
        mr_stage_rows(a, st, from, rows.map, rows.k);
        mr_multiply_part<T, NT, PART, true>(a, st, s, rows);
    } else {
        mr_multiply_part<T, NT, PART, false>(a, st, s, rows);
    }
}

/* Blocks that have any of a part. */
__device__ static inline uint32_t mr_workers(const mr_decode_args &a, uint32_t part,
                                             uint32_t pieces)
{
    return min(gridDim.x,
               part == MR_PART_ATTEND ? pieces : mr_outputs_of(a.p, part) / MR_DECODE_TILE);
}

/* What a block does in every layer. */
struct mr_duties {
    mr_share qkv;
    mr_share out; /* and down */
    mr_share gated;
    mr_work work;
    uint32_t pieces; /* of attention, of all blocks */
};

template <typename T, int NT>
__device__ static inline void mr_run_qkv(const mr_decode_args &a, mr_decode_state &st,
                                         const mr_duties &d, const mr_cuda_decode_layer &l)
{
    if (d.qkv.begin == d.qkv.end) {
        return;
    }
    mr_gains g;
    mr_load_gains(a, l.attention_gain, g);
    MR_MARK(12);
    if (st.layer > 0) {
        mr_await(a, st, MR_PART_DOWN, mr_workers(a, MR_PART_DOWN, 0), st.layer);
    }
    MR_MARK(0);
    mr_norm_stream<T>(a, st, g);
    MR_MARK(1);
    const mr_rows rows = {nullptr, nullptr, a.p.width};
    mr_multiply_part<T, NT, MR_PART_QKV, true>(a, st, d.qkv, rows);
    mr_arrive(a, MR_PART_QKV);
    MR_MARK(2);
}

template <typename T, int NT>
__device__ static inline void mr_run_out(const mr_decode_args &a, mr_decode_state &st,
                                         const mr_duties &d)
{
    if (d.out.begin == d.out.end) {
        return;
    }
    mr_await(a, st, MR_PART_ATTEND, mr_workers(a, MR_PART_ATTEND, d.pieces), st.layer + 1);
    MR_MARK(5);
    mr_multiply_stored<T, NT, MR_PART_OUT>(a, st, d.out, a.p.att, true);
    mr_arrive(a, MR_PART_OUT);
    MR_MARK(6);
}

template <typename T, int NT>
__device__ static inline void mr_run_gated(const mr_decode_args &a, mr_decode_state &st,
                                           const mr_duties &d, const mr_cuda_decode_layer &l)
{
    if (st.layer + 1 == a.p.n_layers && a.p.logit_rows != 0) {
        st.stream = a.p.last_stream;
    }
    if (d.gated.begin == d.gated.end) {
        return;
    }
    mr_gains g;
    mr_load_gains(a, l.gated_gain, g);
    mr_await(a, st, MR_PART_OUT, mr_workers(a, MR_PART_OUT, 0), st.layer + 1);
    MR_MARK(7);
    mr_norm_stream<T>(a, st, g);
    MR_MARK(8);
    const mr_rows rows = {nullptr, nullptr, a.p.width};
    mr_multiply_part<T, NT, MR_PART_GATED, true>(a, st, d.gated, rows);
    mr_arrive(a, MR_PART_GATED);
    MR_MARK(9);
}

template <typename T, int NT>
__device__ static inline void mr_run_down(const mr_decode_args &a, mr_decode_state &st,
                                          const mr_duties &d)
{
    if (d.out.begin == d.out.end) {
        return;
    }
    mr_await(a, st, MR_PART_GATED, mr_workers(a, MR_PART_GATED, 0), st.layer + 1);
    MR_MARK(10);
    mr_multiply_stored<T, NT, MR_PART_DOWN>(a, st, d.out, a.p.act, a.down_staged);
    mr_arrive(a, MR_PART_DOWN);
    MR_MARK(11);
}

/* Whoever leaves last makes the counters what the next launch needs. A block for which something
 * has taken too long spoils all rows: sampling reports them. */
__device__ static inline void mr_leave(const mr_decode_args &a, const mr_decode_state &st)
{
    if (!st.waits) {
        for (uint32_t row = 0; row < a.p.rows; row++) {
            mr_ptr<uint16_t>(a.p.last)[static_cast<size_t>(row) * a.p.width] = 0xffff;
        }
    }
    if (threadIdx.x == 0) {
        uint32_t *left = mr_counter_of(a, MR_PARTS);
        if (atomicAdd(left, 1) == gridDim.x - 1) {
            for (uint32_t part = 0; part <= MR_PARTS; part++) {
                *mr_counter_of(a, part) = 0;
            }
        }
    }
}

template <typename T, int D, int NT>
__device__ static inline void mr_compute(const mr_decode_args &a, mr_decode_state &st)
{
    mr_duties d;
    d.qkv = mr_share_of(a.p, MR_PART_QKV);
    d.out = mr_share_of(a.p, MR_PART_OUT);
    d.gated = mr_share_of(a.p, MR_PART_GATED);
    d.pieces = mr_work_count(a);
    mr_find_work(a, blockIdx.x, d.pieces, d.work);
    mr_load_own(a, st, d.out);
    MR_MARK(13);
    for (st.layer = 0; st.layer < a.p.n_layers; st.layer++) {
        const mr_cuda_decode_layer l = mr_ptr<const mr_cuda_decode_layer>(a.p.layers)[st.layer];
        mr_run_qkv<T, NT>(a, st, d, l);
        if (d.work.runs) {
            mr_attend_all<T, D>(a, st, l, d.work, d.pieces, mr_workers(a, MR_PART_QKV, 0));
            mr_arrive(a, MR_PART_ATTEND);
            MR_MARK(4);
        }
        mr_run_out<T, NT>(a, st, d);
        mr_run_gated<T, NT>(a, st, d, l);
        mr_run_down<T, NT>(a, st, d);
    }
    mr_leave(a, st);
    MR_MARKS_OUT();
}

/* Shared memory behind the rows, but for the ring. */
static __host__ __device__ constexpr uint32_t mr_sums_bytes(int nt)
{
    return 2 * MR_DECODE_WARPS * nt * MR_DECODE_TILE * 8 * 4;
}

static __host__ __device__ inline uint32_t mr_own_bytes(const mr_decode_args &a)
{
    return (a.p.rows * a.own_width * 4 + 127) / 128 * 128;
}

template <typename T, int D, int NT>
__global__ static void __launch_bounds__(THREADS, 1)
    mr_decode_kernel(const __grid_constant__ mr_decode_args a)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ uint32_t arrived;
    mr_decode_state st;
    st.act = shared;
    st.act_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    uint32_t at = a.act_bytes;
    st.sums = reinterpret_cast<float *>(shared + at);
    at += mr_sums_bytes(NT);
    st.scratch = reinterpret_cast<float *>(shared + at);
    at += MR_DECODE_NORMS * 32 * 4;
    st.own = reinterpret_cast<float *>(shared + at);
    at += mr_own_bytes(a);
    st.ring.bars = st.act_at + at;
    st.ring.data = st.act_at + (at + a.slots * 16 + 127) / 128 * 128;
    st.ring.slots = a.slots;
    st.ring.slot = 0;
    st.ring.parity = 0;
    st.arrived = &arrived;
    st.stream = a.p.stream;
    st.pitch = 0;
    st.waits = true;
#ifdef MR_DECODE_LAB
    if (threadIdx.x < 16) {
        mr_spent[threadIdx.x] = 0;
        mr_marked = clock64();
    }
#endif
    if (threadIdx.x == 0) {
        mr_ring_init(st.ring, MR_DECODE_WARPS);
    }
    __syncthreads();
    if (threadIdx.x >= MR_DECODE_TAKERS) {
        mr_feed(a, st.ring);
        return;
    }
    mr_compute<T, D, NT>(a, st);
#endif
}

/* ---- launching ---- */

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Shared memory: rows and attention have what they need, the ring the rest. False: there is too
 * little. */
static bool lay_out(const mr_cuda_context *context, mr_decode_args *a, uint32_t nt, uint32_t *bytes)
{
    const mr_cuda_decode *p = &a->p;
    const uint32_t share = p->heads / p->kv_heads;
    const uint32_t d = p->head_width;
    const uint32_t blocks = static_cast<uint32_t>(context->properties.multiProcessorCount);
    const uint32_t most = static_cast<uint32_t>(context->properties.sharedMemPerBlockOptin) - 256;
    uint32_t act = MR_DECODE_WARPS * larger(MR_PACKED_KEYS * d * 2, share * (d + 2) * 4) +
                   (MR_PACKED_HEADS + 2) * d * 2;
    act = larger(act, p->rows * mr_pitch_of(larger(p->width, p->heads * d)));
    const uint32_t down = p->rows * mr_pitch_of(p->ffn);
    a->down_staged = down <= act || down <= most / 3;
    act = a->down_staged ? larger(act, down) : act;
    a->act_bytes = (act + 127) / 128 * 128;
    a->own_width = mr_ceil_div(p->width / MR_DECODE_TILE, blocks) * MR_DECODE_TILE;
    const uint32_t fixed = a->act_bytes + mr_sums_bytes(static_cast<int>(nt)) +
                           MR_DECODE_NORMS * 32 * 4 + mr_own_bytes(*a) + 128;
    if (fixed + 4 * (MR_RING_SLOT + 16) > most) {
        return false;
    }
    a->slots = (most - fixed) / (MR_RING_SLOT + 16);
    *bytes = fixed + a->slots * (MR_RING_SLOT + 16);
    return true;
}

template <typename T, int D, int NT> static int launch(mr_cuda_context *context, mr_decode_args *a)
{
    uint32_t bytes = 0;
    if (!lay_out(context, a, NT, &bytes)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code =
        cudaFuncSetAttribute(mr_decode_kernel<T, D, NT>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
    if (code != cudaSuccess) {
        return code;
    }
    /* All blocks there at once, or none. */
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<uint32_t>(context->properties.multiProcessorCount));
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = bytes;
    config.stream = context->stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, mr_decode_kernel<T, D, NT>, *a);
}

static mr_decode_args args_of(const mr_cuda_decode *p)
{
    mr_decode_args a = {};
    a.p = *p;
    a.shift = (p->block_size & (p->block_size - 1)) == 0 ? __builtin_ctz(p->block_size) : -1;
    a.ahead = 8;
    return a;
}

uint32_t mr_cuda_decode_rows(mr_cuda_context *context, const mr_cuda_decode *p)
{
    const cudaDeviceProp &have = context->properties;
    const uint32_t inner = p->heads * p->head_width;
    const bool fits = have.major == 9 && have.cooperativeLaunch != 0 && p->kv_type == p->type &&
                      (p->type == MR_DTYPE_F16 || p->type == MR_DTYPE_BF16) &&
                      (p->head_width == 64 || p->head_width == 128) &&
                      p->heads / p->kv_heads <= MR_PACKED_HEADS && p->width <= MR_DECODE_WIDTH &&
                      p->width % MR_RING_BLOCK == 0 && inner % MR_RING_BLOCK == 0 &&
                      p->ffn % MR_RING_BLOCK == 0;
    if (!fits) {
        return 0;
    }
    mr_decode_args a = args_of(p);
    uint32_t bytes = 0;
    a.p.rows = FEW;
    return lay_out(context, &a, 1, &bytes) ? FEW : 0;
}

/* How slots of weight [n][k] are copied: as [k / 64][n][64]. */
static bool make_map(PFN_cuTensorMapEncodeTiled_v12000 encode, mr_dtype type, mr_cuda_ptr weight,
                     uint32_t n, uint32_t k, void *out)
{
    const cuuint64_t sizes[3] = {MR_RING_BLOCK, n, k / MR_RING_BLOCK};
    const cuuint64_t strides[2] = {static_cast<cuuint64_t>(k) * 2, MR_RING_LINE};
    const cuuint32_t box[3] = {MR_RING_BLOCK, MR_RING_TILE, MR_RING_INPUTS / MR_RING_BLOCK};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult code = encode(
        &map,
        type == MR_DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        3, mr_at<void>(weight), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(out, &map, sizeof(map));
    return code == CUDA_SUCCESS;
}

int mr_cuda_decode_make_maps(mr_cuda_context *context, const mr_cuda_decode *p,
                             mr_cuda_decode_layer *layers)
{
    static_assert(sizeof(CUtensorMap) == sizeof(layers->maps[0]), "a map has its place");
    static_assert(sizeof(*layers) % 64 == 0, "maps are aligned");
    (void)context;
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                              12000, cudaEnableDefault, &result);
    if (code != cudaSuccess || found == nullptr) {
        return code != cudaSuccess ? code : cudaErrorNotSupported;
    }
    const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(found);
    const uint32_t inner = p->heads * p->head_width;
    const uint32_t qkv = inner + 2 * p->kv_heads * p->head_width;
    bool made = true;
    for (uint32_t i = 0; made && i < p->n_layers; i++) {
        mr_cuda_decode_layer *l = &layers[i];
        made = make_map(encode, p->type, l->qkv, qkv, p->width, l->maps[0]) &&
               make_map(encode, p->type, l->out, p->width, inner, l->maps[1]) &&
               make_map(encode, p->type, l->gate_up, 2 * p->ffn, p->width, l->maps[2]) &&
               make_map(encode, p->type, l->down, p->width, p->ffn, l->maps[3]);
    }
    return made ? 0 : cudaErrorInvalidValue;
}

template <typename T, int NT> static int choose_width(mr_cuda_context *context, mr_decode_args *a)
{
    return a->p.head_width == 64 ? launch<T, 64, NT>(context, a) : launch<T, 128, NT>(context, a);
}

#ifdef MR_DECODE_LAB
extern "C" __attribute__((visibility("default"))) uint32_t mr_decode_skip;
extern "C" __attribute__((visibility("default"))) uint32_t mr_decode_ahead;
uint32_t mr_decode_skip;
uint32_t mr_decode_ahead;
#endif

int mr_cuda_decode_run(mr_cuda_context *context, const mr_cuda_decode *p)
{
    mr_decode_args a = args_of(p);
#ifdef MR_DECODE_LAB
    a.skip = mr_decode_skip;
    a.ahead = mr_decode_ahead;
    return p->rows > 8 ? choose_width<__nv_bfloat16, 4>(context, &a)
                       : choose_width<__nv_bfloat16, 1>(context, &a);
#endif
    return p->type == MR_DTYPE_F16 ? choose_width<__half, 1>(context, &a)
                                   : choose_width<__nv_bfloat16, 1>(context, &a);
}
