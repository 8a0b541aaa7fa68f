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
 * Products keep the order of sums of linear/few.cu, attention has a split's keys divided among
 * the warps, and norms are divided (api.h). So results are close to those of the separate kernels,
 * not equal.
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
#define FEW     MR_CUDA_FEW_ROWS /* rows of one product */

/* Product of rows that another part has left in memory: through shared memory, unless they are so
 * short that they are read but once or so many that they do not fit. */
template <typename T, int NT, int PART, bool CODED>
__device__ static inline void mr_multiply_stored(const mr_decode_args &a, mr_decode_state &st,
                                                 const mr_share &s, mr_cuda_ptr from, bool fits)
{
    mr_rows rows;
    rows.far = mr_at<const uint8_t>(from);
    rows.map = PART == MR_PART_OUT ? mr_map_of(a, st) : nullptr;
    rows.k = mr_inputs_of(a.p, PART);
    if (fits && rows.k > 2 * MR_RING_INPUTS) {
        mr_stage_rows(a, st, from, rows.map, rows.k);
        mr_multiply_part<T, NT, PART, CODED, true>(a, st, s, rows);
    } else {
        mr_multiply_part<T, NT, PART, CODED, false>(a, st, s, rows);
    }
}

/* What a block does in every layer. */
struct mr_duties {
    mr_share qkv;
    mr_share out; /* and down */
    mr_share gated;
    mr_work work;
    uint32_t pieces; /* of attention, of all blocks */
};

/* A product of the stream's norm, for which `before` has left what it takes. */
template <typename T, int NT, int PART, bool CODED>
__device__ static inline void mr_run_normed(const mr_decode_args &a, mr_decode_state &st,
                                            const mr_share &s, uint32_t before)
{
    if (s.begin == s.end) {
        return;
    }
    mr_ask_ahead<PART>(a, st, s);
    mr_await(a, st, before, mr_workers(a, before, 0), st.layer + 1);
    mr_stage_normed<T, NT>(a, st);
    const mr_rows rows = {nullptr, nullptr, a.p.width};
    mr_multiply_part<T, NT, PART, CODED, true>(a, st, s, rows);
    mr_arrive(a, PART);
}

/* A product that is added to the stream. */
template <typename T, int NT, int PART, bool CODED>
__device__ static inline void mr_run_added(const mr_decode_args &a, mr_decode_state &st,
                                           const mr_duties &d, uint32_t before)
{
    if (d.out.begin == d.out.end) {
        return;
    }
    mr_ask_ahead<PART>(a, st, d.out);
    mr_await(a, st, before, mr_workers(a, before, d.pieces), st.layer + 1);
    mr_multiply_stored<T, NT, PART, CODED>(a, st, d.out, PART == MR_PART_OUT ? a.p.att : a.p.act,
                                           PART == MR_PART_OUT || a.down_staged);
    mr_arrive(a, PART);
}

template <typename T, int D, int NT, bool CODED>
__device__ static inline void mr_compute(const mr_decode_args &a, mr_decode_state &st)
{
    mr_duties d;
    d.qkv = mr_share_of(a.p, MR_PART_QKV);
    d.out = mr_share_of(a.p, MR_PART_OUT);
    d.gated = mr_share_of(a.p, MR_PART_GATED);
    d.pieces = mr_work_count(a);
    mr_find_work(a, blockIdx.x, d.pieces, d.work);
    if (d.out.begin < d.out.end) {
        mr_load_own<T>(a, st, d.out);
        mr_arrive(a, MR_PART_DOWN);
    }
    for (st.layer = 0; st.layer < a.p.n_layers; st.layer++) {
        mr_run_normed<T, NT, MR_PART_QKV, CODED>(a, st, d.qkv, MR_PART_DOWN);
        if (d.work.runs) {
            mr_attend_all<T, D>(a, st, d.work, d.pieces, mr_workers(a, MR_PART_QKV, 0));
            mr_arrive(a, MR_PART_ATTEND);
        }
        mr_run_added<T, NT, MR_PART_OUT, CODED>(a, st, d, MR_PART_ATTEND);
        mr_run_normed<T, NT, MR_PART_GATED, CODED>(a, st, d.gated, MR_PART_OUT);
        mr_run_added<T, NT, MR_PART_DOWN, CODED>(a, st, d, MR_PART_GATED);
    }
    mr_leave(a, st);
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

template <typename T, int D, int NT, bool CODED>
__global__ static void __launch_bounds__(THREADS, 1)
    mr_decode_kernel(const __grid_constant__ mr_decode_args a)
{
#if __CUDA_ARCH__ >= 900
    MR_DYNAMIC_SHARED(uint8_t, 128, shared);
    __shared__ uint32_t arrived;
    mr_decode_state st;
    st.act = shared;
    st.act_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    uint32_t at = a.act_bytes;
    st.sums = reinterpret_cast<float *>(shared + at);
    at += mr_sums_bytes(NT);
    st.scales = reinterpret_cast<float *>(shared + at);
    at += MR_DECODE_ROWS * 4;
    st.own = reinterpret_cast<float *>(shared + at);
    at += mr_own_bytes(a);
    st.ring.bars = st.act_at + at;
    st.ring.data =
        (st.act_at + at + a.slots * 16 + MR_RING_ALIGN - 1) / MR_RING_ALIGN * MR_RING_ALIGN;
    st.ring.slots = a.slots;
    st.ring.slot = 0;
    st.ring.parity = 0;
    st.arrived = &arrived;
    st.pitch = 0;
    st.waits = true;
    if (threadIdx.x == 0) {
        mr_ring_init(st.ring, MR_DECODE_WARPS);
    }
    __syncthreads();
    if (threadIdx.x >= MR_DECODE_TAKERS) {
        if (threadIdx.x == MR_DECODE_TAKERS) {
            mr_feed(a, st.ring);
        }
        return;
    }
    mr_compute<T, D, NT, CODED>(a, st);
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
    const uint32_t fixed = a->act_bytes + mr_sums_bytes(static_cast<int>(nt)) + MR_DECODE_ROWS * 4 +
                           mr_own_bytes(*a) + MR_RING_ALIGN;
    if (fixed + 4 * (MR_RING_SLOT + 16) > most) {
        return false;
    }
    a->slots = (most - fixed) / (MR_RING_SLOT + 16);
    *bytes = fixed + a->slots * (MR_RING_SLOT + 16);
    return true;
}

template <typename T, int D, int NT, bool CODED>
static int launch(mr_cuda_context *context, mr_decode_args *a)
{
    uint32_t bytes = 0;
    if (!lay_out(context, a, NT, &bytes)) {
        return cudaErrorInvalidValue;
    }
    const cudaError_t code =
        cudaFuncSetAttribute(mr_decode_kernel<T, D, NT, CODED>,
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
    return cudaLaunchKernelEx(&config, mr_decode_kernel<T, D, NT, CODED>, *a);
}

static mr_decode_args args_of(const mr_cuda_decode *p)
{
    mr_decode_args a = {};
    a.p = *p;
    a.shift = (p->block_size & (p->block_size - 1)) == 0 ? __builtin_ctz(p->block_size) : -1;
    a.codes = p->weight_type == MR_DTYPE_F8_E4M3 ? 2 : 1;
    return a;
}

/* Rows that fit so that the ring still is worth having. */
static bool takes(const mr_cuda_context *context, mr_decode_args *a, uint32_t rows)
{
    uint32_t bytes = 0;
    a->p.rows = rows;
    return lay_out(context, a, rows > FEW ? MR_DECODE_ROWS / FEW : 1, &bytes) && a->slots >= 6;
}

mr_cuda_decode_most mr_cuda_decode_takes(mr_cuda_context *context, const mr_cuda_decode *p)
{
    const cudaDeviceProp &have = context->properties;
    mr_decode_args a = args_of(p);
    const uint32_t unit = MR_RING_BLOCK * a.codes;
    const bool coded = p->weight_type == MR_DTYPE_F8_E4M3;
    const bool fits = have.major == 9 && have.cooperativeLaunch != 0 &&
                      context->encode_tensor != nullptr && p->kv_type == p->type &&
                      (p->type == MR_DTYPE_F16 || p->type == MR_DTYPE_BF16) &&
                      (coded ? p->type == MR_DTYPE_BF16 : p->weight_type == p->type) &&
                      (p->head_width == 64 || p->head_width == 128) &&
                      p->heads / p->kv_heads <= MR_PACKED_HEADS && p->width % unit == 0 &&
                      p->heads * p->head_width % unit == 0 && p->ffn % unit == 0;
    mr_cuda_decode_most most = {};
    if (!fits || !takes(context, &a, FEW)) {
        return most;
    }
    /* A block has its pieces of attention one after the other, while attention on its own reads as
     * fast as memory does. A second piece costs as much as the launch saves of a narrow layer; of a
     * wide one (4096) a third does. */
    const bool narrow = p->width <= MR_DECODE_NARROW;
    most.rows = !coded && narrow && takes(context, &a, MR_DECODE_ROWS) ? MR_DECODE_ROWS : FEW;
    most.pieces = static_cast<uint32_t>(have.multiProcessorCount) * (narrow ? 2 : 5) / 2;
    return most;
}

/* How slots of weight [n][k] are copied: as [k / 64][n][64]. Elements are whatever has 2 bytes. */
static bool make_map(PFN_cuTensorMapEncodeTiled_v12000 encode, mr_cuda_ptr weight, uint32_t n,
                     uint32_t k, void *out)
{
    const cuuint64_t sizes[3] = {MR_RING_BLOCK, n, k / MR_RING_BLOCK};
    const cuuint64_t strides[2] = {static_cast<cuuint64_t>(k) * 2, MR_RING_LINE};
    const cuuint32_t box[3] = {MR_RING_BLOCK, MR_RING_TILE, MR_RING_INPUTS / MR_RING_BLOCK};
    const cuuint32_t steps[3] = {1, 1, 1};
    CUtensorMap map;
    const CUresult code =
        encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, mr_at<void>(weight), sizes, strides, box,
               steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    memcpy(out, &map, sizeof(map));
    return code == CUDA_SUCCESS;
}

int mr_cuda_decode_make_maps(mr_cuda_context *context, const mr_cuda_decode *p,
                             mr_cuda_decode_layer *layers)
{
    static_assert(sizeof(CUtensorMap) == sizeof(layers->maps[0]), "a map has its place");
    static_assert(sizeof(*layers) % 64 == 0, "maps are aligned");
    const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(context->encode_tensor);
    const uint32_t inner = p->heads * p->head_width;
    const uint32_t qkv = inner + 2 * p->kv_heads * p->head_width;
    const uint32_t codes = args_of(p).codes;
    bool made = true;
    for (uint32_t i = 0; made && i < p->n_layers; i++) {
        mr_cuda_decode_layer *l = &layers[i];
        made = make_map(encode, l->qkv, qkv, p->width / codes, l->maps[0]) &&
               make_map(encode, l->out, p->width, inner / codes, l->maps[1]) &&
               make_map(encode, l->gate_up, 2 * p->ffn, p->width / codes, l->maps[2]) &&
               make_map(encode, l->down, p->width, p->ffn / codes, l->maps[3]);
    }
    return made ? 0 : cudaErrorInvalidValue;
}

template <typename T, int NT, bool CODED>
static int choose_width(mr_cuda_context *context, mr_decode_args *a)
{
    return a->p.head_width == 64 ? launch<T, 64, NT, CODED>(context, a)
                                 : launch<T, 128, NT, CODED>(context, a);
}

template <typename T> static int choose_rows(mr_cuda_context *context, mr_decode_args *a)
{
    return a->p.rows > FEW ? choose_width<T, MR_DECODE_ROWS / FEW, false>(context, a)
                           : choose_width<T, 1, false>(context, a);
}

int mr_cuda_decode_run(mr_cuda_context *context, const mr_cuda_decode *p)
{
    mr_decode_args a = args_of(p);
    if (a.codes == 2) {
        return choose_width<__nv_bfloat16, 1, true>(context, &a);
    }
    if (p->type == MR_DTYPE_F16) {
        return choose_rows<__half>(context, &a);
    }
    return choose_rows<__nv_bfloat16>(context, &a);
}
