/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention, every warp for itself (lone.cu): pieces of work, the ring, and what a warp
 * computes of a stage. */
#ifndef MILLRACE_KERNELS_CUDA_ATTENTION_LONE_CUH
#define MILLRACE_KERNELS_CUDA_ATTENTION_LONE_CUH

#include "kernels/cuda/attention/split.cuh"
#include "kernels/cuda/device/mma.cuh"

#define MR_LONE_HEADS 8u /* of a piece: columns of a product */
#define MR_LONE_TILE  4096u
#define MR_LONE_LOG2E 1.4426950408889634f

struct mr_lone_args : mr_split_args {
    uint32_t piece16;  /* units of 16 bytes of one head in one block, */
    uint32_t scales16; /* and of the scales before its elements */
    uint32_t blocks;   /* of the launch that computes */
};

/* How keys and values are stored. */
enum mr_lone_kv { MR_LONE_SAME, MR_LONE_E4M3, MR_LONE_I8 };

/* What lies where in a stage: keys, values, and the scales of both. Rows of 128 bytes and more lie
 * as the copy engine swizzles them (maps.cuh). */
template <int D, mr_lone_kv KV> struct mr_lone_stage {
    static constexpr uint32_t ROW = D * (KV == MR_LONE_SAME ? 2 : 1); /* bytes */
    static constexpr uint32_t KEYS = MR_LONE_TILE / ROW;              /* a multiple of 16 */
    static constexpr uint32_t VALUES = MR_LONE_TILE;
    static constexpr uint32_t KEY_SCALES = 2 * MR_LONE_TILE;
    static constexpr uint32_t VALUE_SCALES = KEY_SCALES + KEYS * 4;
    static constexpr uint32_t BYTES = KEY_SCALES + (KV == MR_LONE_I8 ? KEYS * 8 : 0);
    static_assert(BYTES % 128 == 0, "every stage begins in the first bank");

    /* Byte offset of chunk c (16 bytes) of row r: eight rows of one chunk lie in all banks. */
    __device__ static uint32_t at(uint32_t r, uint32_t c)
    {
        if (ROW >= 128) {
            return r / 8 * (ROW * 8) + c / 8 * 1024 + r % 8 * 128 + ((c % 8 ^ r % 8) << 4);
        }
        return r / 2 * 128 + (((r % 2 * 4 + c) ^ (r / 2 & 7)) << 4);
    }
    /* Of chunk 2k + c of row 16m + r, from where chunk c (0 or 1) of row r lies. */
    __device__ static uint32_t further(uint32_t from, int m, int k)
    {
        return (from ^ (k % 4 << 5)) + k / 4 * 1024 + m * (16 * ROW);
    }
};
/* ---- pieces ---- */

struct mr_lone_piece {
    uint32_t index; /* of the item */
    uint32_t token;
    uint32_t g;     /* key/value head */
    uint32_t head;  /* the first query head */
    uint32_t heads; /* at most 8 */
    uint32_t base;  /* index of the token's first split that the layer's window reaches */
    uint32_t splits;
    uint32_t begin; /* keys that count */
    uint32_t end;
    const uint32_t *table; /* of the token's blocks */
};

__device__ static inline uint32_t mr_lone_items(const mr_lone_args &a)
{
    return a.p.count > 0 ? a.p.count : a.header->n_items;
}

/* Goes through a warp's pieces: the blocks take turns, then the warps of each. Or a block is a team
 * that has one piece, of which a warp has every fourth part of a split. */
struct mr_lone_cursor {
    uint32_t index; /* of the item, from 0 */
    uint32_t rest;  /* of its pieces */
    uint32_t n_items;
    bool team;

    __device__ mr_lone_cursor(const mr_lone_args &a, bool is_team)
    {
        n_items = mr_lone_items(a);
        team = is_team;
        index = 0;
        rest = 0;
        move(a, blockIdx.x + (team ? 0 : gridDim.x * (threadIdx.x / 32)));
    }
    __device__ void advance(const mr_lone_args &a)
    {
        if (team) {
            index = n_items;
        } else {
            move(a, gridDim.x * (blockDim.x / 32));
        }
    }
    /* The piece here, or the next one that the layer's window reaches; false at the end. A warp of
     * a team may have no keys of it. */
    __device__ bool find(const mr_lone_args &a, mr_lone_piece &piece)
    {
        for (; index < n_items; advance(a)) {
            const mr_cuda_item item = a.items[a.p.first + index];
            const mr_split_range range = mr_range_of(a, item);
            if (item.split < range.first_split) {
                continue;
            }
            const uint32_t chunk = rest % a.chunks;
            piece.index = a.p.first + index;
            piece.token = item.token;
            piece.g = rest / a.chunks;
            piece.head = piece.g * a.share + chunk * MR_LONE_HEADS;
            piece.heads = min(a.share - chunk * MR_LONE_HEADS, MR_LONE_HEADS);
            piece.base = item.base + range.first_split;
            piece.splits = range.splits;
            piece.begin = range.begin;
            piece.end = range.end;
            piece.table =
                a.block_tables + static_cast<size_t>(a.token_slot[item.token]) * a.p.max_blocks;
            if (team) {
                const uint32_t part = MR_CUDA_SPLIT_KEYS / (blockDim.x / 32);
                const uint32_t from = item.split * MR_CUDA_SPLIT_KEYS + threadIdx.x / 32 * part;
                piece.begin = max(range.begin, from);
                piece.end = max(min(range.end, from + part), piece.begin);
            }
            return true;
        }
        return false;
    }

  private:
    __device__ void move(const mr_lone_args &a, uint32_t by)
    {
        const uint32_t per_item = a.p.kv.heads * a.chunks;
        rest += by;
        index += rest / per_item;
        rest %= per_item;
    }
};

/* ---- the ring ---- */

__device__ static inline const uint8_t *mr_bytes_at(mr_cuda_ptr ptr)
{
    return reinterpret_cast<const uint8_t *>(static_cast<uintptr_t>(ptr));
}

/* Brings a warp's stages, one after the other, through its pieces without a stop. Rows that do not
 * count are zeroes. */
template <int D, mr_lone_kv KV> class mr_lone_loader
{
    using stage = mr_lone_stage<D, KV>;
    static constexpr uint32_t CHUNKS = stage::ROW / 16;
    static constexpr uint32_t ROWS = 32 / CHUNKS; /* that the warp copies at a time */
    static constexpr uint32_t TIMES = stage::KEYS / ROWS;

    mr_lone_cursor cursor;
    mr_lone_piece piece;
    uint32_t key; /* the next stage's first */
    uint32_t of;  /* number of the piece of its block; the lanes have those that follow it */
    bool more;

    /* The table is asked a stage ahead, so that none waits for it. */
    __device__ void find_blocks(const mr_lone_args &a)
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t first = key + (lane << a.shift);
        of = 0;
        if (more && first < piece.end && lane << a.shift < stage::KEYS) {
            of = piece.table[first >> a.shift] * a.p.kv.heads + piece.g;
        }
    }
    __device__ void look(const mr_lone_args &a)
    {
        more = cursor.find(a, piece) && piece.begin < piece.end;
        key = piece.begin / stage::KEYS * stage::KEYS;
    }
    /* ROWS rows to where the stage has them; the t-th of them is row t · ROWS. */
    template <bool WHOLE>
    __device__ void copy_rows(const mr_lone_args &a, const uint8_t *keys, const uint8_t *values,
                              uint32_t to, uint32_t t) const
    {
        const uint32_t lane = threadIdx.x % 32;
        const uint32_t at = key + t * ROWS + lane / CHUNKS;
        const bool there = WHOLE || (at >= piece.begin && at < piece.end);
        const uint32_t place = to + stage::at(t * ROWS + lane / CHUNKS, lane % CHUNKS);
        mr_copy16(place, keys, there);
        mr_copy16(place + stage::VALUES, values, there);
    }
    template <bool WHOLE> __device__ void copy(const mr_lone_args &a, uint32_t to) const
    {
        const uint8_t *keys = mr_bytes_at(a.p.kv.keys) + threadIdx.x % 32 * 16;
        const uint8_t *values = mr_bytes_at(a.p.kv.values) + threadIdx.x % 32 * 16;
        const uint32_t within = key & ((1u << a.shift) - 1);
        if (stage::KEYS >> a.shift <= 1) { /* all in one block: what follows each other there */
            const uint32_t first = __shfl_sync(0xffffffffu, of, 0);
            const size_t from =
                (static_cast<size_t>(first) * a.piece16 + a.scales16 + within * CHUNKS) * 16;
#pragma unroll
            for (uint32_t t = 0; t < TIMES; t++) {
                copy_rows<WHOLE>(a, keys + from + t * 512, values + from + t * 512, to, t);
            }
            return;
        }
#pragma unroll
        for (uint32_t t = 0; t < TIMES; t++) {
            const uint32_t block = t * ROWS >> a.shift;
            const uint32_t mine = __shfl_sync(0xffffffffu, of, block);
            const uint32_t row = t * ROWS - (block << a.shift);
            const size_t from =
                (static_cast<size_t>(mine) * a.piece16 + a.scales16 + row * CHUNKS) * 16;
            copy_rows<WHOLE>(a, keys + from, values + from, to, t);
        }
    }
    __device__ void copy_scales(const mr_lone_args &a, uint32_t to) const
    {
#pragma unroll
        for (uint32_t r = threadIdx.x % 32; r < (stage::KEYS + 31) / 32 * 32; r += 32) {
            const uint32_t block = (key + r >> a.shift) - (key >> a.shift);
            const uint32_t mine = __shfl_sync(0xffffffffu, of, block);
            if (r < stage::KEYS && key + r >= piece.begin && key + r < piece.end) {
                const size_t from = static_cast<size_t>(mine) * a.piece16 * 16 +
                                    (key + r & ((1u << a.shift) - 1)) * 4;
                mr_copy4(to + stage::KEY_SCALES + r * 4, mr_bytes_at(a.p.kv.keys) + from);
                mr_copy4(to + stage::VALUE_SCALES + r * 4, mr_bytes_at(a.p.kv.values) + from);
            }
        }
    }

  public:
    __device__ mr_lone_loader(const mr_lone_args &a, bool team) : cursor(a, team)
    {
        look(a);
        find_blocks(a);
    }
    /* Asks for the next stage, if there is one: one group of copies in any case. */
    __device__ void ask(const mr_lone_args &a, uint32_t to)
    {
        if (more) {
            if (key >= piece.begin && key + stage::KEYS <= piece.end) {
                copy<true>(a, to);
            } else {
                copy<false>(a, to);
            }
            if (KV == MR_LONE_I8) {
                copy_scales(a, to);
            }
            key += stage::KEYS;
            if (key >= piece.end) {
                cursor.advance(a);
                look(a);
            }
            find_blocks(a);
        }
        mr_commit();
    }
};

/* ---- what a warp computes ---- */

/* Softmax over the piece's keys so far. A lane has heads 2 · (lane % 4) and the one behind it, as
 * columns; out[n] are rows of D: lane / 4 and 8 further of the n-th sixteen, or, of one-byte
 * values, 2 · (lane / 4) and the one behind it. */
template <int D> struct mr_lone_sums {
    float max[2];
    float sum[2]; /* of the lane's keys only */
    float out[D / 16][4];
};

template <int D> __device__ static inline void mr_clear_sums(mr_lone_sums<D> &sums)
{
    sums = {};
    sums.max[0] = -CUDART_INF_F;
    sums.max[1] = -CUDART_INF_F;
}

template <typename T> struct mr_is_half {
    static constexpr bool value = false;
};
template <> struct mr_is_half<__half> {
    static constexpr bool value = true;
};

/* What products are made of: integers are exact in both types; F8_E4M3 is in f16, and so are
 * queries in bf16 between 2^-17 and 65504, which what is larger becomes. */
template <typename T, mr_lone_kv KV> struct mr_lone_operand {
    using type = T;
};
template <typename T> struct mr_lone_operand<T, MR_LONE_E4M3> {
    using type = __half;
};

/* By what power of two probabilities are larger than they are, for f16 has few numbers below
 * 2^-14; what they are divided by is so, too. */
template <typename T, mr_lone_kv KV> __device__ constexpr float mr_lone_lift()
{
    return mr_is_half<typename mr_lone_operand<T, KV>::type>::value ? 6.0f : 0.0f;
}

__device__ static inline float mr_to_half_range(float x)
{
    return isnan(x) ? x : fminf(fmaxf(x, -65504.0f), 65504.0f);
}

/* Two queries as they are multiplied. */
template <typename T, mr_lone_kv KV> __device__ static inline uint32_t mr_lone_query(uint32_t q)
{
    if (KV != MR_LONE_E4M3 || mr_is_half<T>::value) {
        return q;
    }
    const float2 x = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(&q));
    return mr_matrix<__half>::pack(mr_to_half_range(x.x), mr_to_half_range(x.y));
}

/* Queries as B operands, a row of 8 heads by lane / 4, in the order in which a lane has elements of
 * keys. */
template <typename T, int D, mr_lone_kv KV>
__device__ static inline void mr_load_queries(const mr_lone_args &a, const mr_lone_piece &piece,
                                              uint32_t (&q)[D / 8])
{
    const uint32_t head = threadIdx.x % 32 / 4;
    const uint32_t quad = threadIdx.x % 4;
    const size_t row =
        static_cast<size_t>(piece.token) * (a.p.heads + 2 * a.p.kv.heads) + piece.head + head;
    const uint32_t *from = static_cast<const uint32_t *>(a.qkv) + row * (D / 2);
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        const uint32_t at = KV == MR_LONE_SAME ? i * 4 + quad : i / 2 * 8 + quad * 2 + i % 2;
        q[i] = head < piece.heads ? from[at] : 0;
    }
#pragma unroll
    for (int i = 0; i < D / 8; i++) {
        q[i] = mr_lone_query<T, KV>(q[i]);
    }
}

/* Four codes as pairs of operands in order. */
template <typename T, mr_lone_kv KV>
__device__ static inline void mr_widen4(uint32_t word, uint32_t &low, uint32_t &high)
{
    if (KV == MR_LONE_I8) {
        mr_i8_widen<T>(word, low, high);
    } else {
        mr_e4m3_halves(word, low, high);
    }
}

/* Scores of the 16 keys from row 16m on: keys lane / 4 and 8 further, with the lane's two heads.
 * `keys`: where chunk lane / 16 of row lane % 16 lies. */
template <typename T, int D, mr_lone_kv KV>
__device__ static inline void mr_score_keys(const uint32_t (&q)[D / 8], uint32_t keys, int m,
                                            float (&s)[4])
{
    using stage = mr_lone_stage<D, KV>;
    using matrix = mr_matrix<typename mr_lone_operand<T, KV>::type>;
    float part[2][4] = {};
#pragma unroll
    for (int k = 0; k < static_cast<int>(stage::ROW / 32); k++) {
        uint32_t x[4];
        mr_load_matrices<false>(stage::further(keys, m, k), x);
        if constexpr (KV == MR_LONE_SAME) {
            matrix::multiply(part[k % 2], x[0], x[1], x[2], x[3], q[2 * k], q[2 * k + 1]);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t y[4];
                mr_widen4<T, KV>(x[2 * h], y[0], y[2]);
                mr_widen4<T, KV>(x[2 * h + 1], y[1], y[3]);
                matrix::multiply(part[h], y[0], y[1], y[2], y[3], q[4 * k + 2 * h],
                                 q[4 * k + 2 * h + 1]);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        s[i] = part[0][i] + part[1][i];
    }
}

/* Adds 16 keys' values from row 16m on, times their probabilities. `values`: where the lane's row
 * and chunk of the first matrices lie. */
template <typename T, int D, mr_lone_kv KV>
__device__ static inline void mr_sum_values(const float (&p)[4], uint32_t values, int m,
                                            float (&out)[D / 16][4])
{
    using stage = mr_lone_stage<D, KV>;
    using matrix = mr_matrix<typename mr_lone_operand<T, KV>::type>;
    const uint32_t lo = mr_turn_matrix(matrix::pack(p[0], p[1]));
    const uint32_t hi = mr_turn_matrix(matrix::pack(p[2], p[3]));
#pragma unroll
    for (int n = 0; n < static_cast<int>(stage::ROW / 32); n++) {
        uint32_t v[4];
        mr_load_matrices<true>(stage::further(values, m, n), v);
        if constexpr (KV == MR_LONE_SAME) {
            matrix::multiply(out[n], v[0], v[1], v[2], v[3], lo, hi);
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                /* A word is two neighbours of one key, then of the next. */
                uint32_t y[4];
                mr_widen4<T, KV>(__byte_perm(v[2 * h], 0, 0x3120), y[0], y[1]);
                mr_widen4<T, KV>(__byte_perm(v[2 * h + 1], 0, 0x3120), y[2], y[3]);
                matrix::multiply(out[2 * n + h], y[0], y[1], y[2], y[3], lo, hi);
            }
        }
    }
}

/* Of the lane's i-th score of the m-th 16 keys: its key, among the stage's. */
__device__ static inline uint32_t mr_lone_row(int m, int i)
{
    return m * 16 + i / 2 * 8 + threadIdx.x % 32 / 4;
}

/* Sums of products become scores, in powers of two; −∞ where a key does not count. */
template <int D, mr_lone_kv KV, int M>
__device__ static inline void mr_scale_scores(const mr_lone_args &a, const mr_lone_piece &piece,
                                              uint32_t key, const uint8_t *memory, float (&s)[M][4])
{
    using stage = mr_lone_stage<D, KV>;
    if (KV == MR_LONE_I8) {
        const float *of = reinterpret_cast<const float *>(memory + stage::KEY_SCALES);
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] *= of[mr_lone_row(i / 4, i % 4)];
        }
    }
    if (a.p.soft_cap > 0.0f) {
        const float in = a.p.scale / a.p.soft_cap;
        const float out = a.p.soft_cap * MR_LONE_LOG2E;
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] = tanhf(s[i / 4][i % 4] * in) * out;
        }
    } else {
        const float scale = a.p.scale * MR_LONE_LOG2E;
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            s[i / 4][i % 4] *= scale;
        }
    }
    if (key < piece.begin || key + stage::KEYS > piece.end) {
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            const uint32_t at = key + mr_lone_row(i / 4, i % 4);
            if (at < piece.begin || at >= piece.end) {
                s[i / 4][i % 4] = -CUDART_INF_F;
            }
        }
    }
}

/* Scores become probabilities relative to the largest so far; what there is fades accordingly. */
template <typename T, int D, mr_lone_kv KV, int M>
__device__ static inline void mr_weigh(float (&s)[M][4], mr_lone_sums<D> &sums)
{
    float max[2] = {sums.max[0], sums.max[1]};
#pragma unroll
    for (int i = 0; i < 4 * M; i++) {
        max[i % 2] = fmaxf(max[i % 2], s[i / 4][i % 4]);
    }
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
        max[0] = fmaxf(max[0], __shfl_xor_sync(0xffffffffu, max[0], o));
        max[1] = fmaxf(max[1], __shfl_xor_sync(0xffffffffu, max[1], o));
    }
    if (__any_sync(0xffffffffu, max[0] != sums.max[0] || max[1] != sums.max[1])) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float fade = max[h] == sums.max[h] ? 1.0f : mr_exp2(sums.max[h] - max[h]);
            sums.max[h] = max[h];
            sums.sum[h] *= fade;
#pragma unroll
            for (int n = 0; n < D / 16; n++) {
                sums.out[n][h] *= fade;
                sums.out[n][2 + h] *= fade;
            }
        }
    }
    /* A NaN is no maximum, and stays what it is. */
    float top[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        top[h] = (sums.max[h] == -CUDART_INF_F ? 0.0f : sums.max[h]) - mr_lone_lift<T, KV>();
    }
#pragma unroll
    for (int i = 0; i < 4 * M; i++) {
        float &x = s[i / 4][i % 4];
        x = mr_exp2(x - top[i % 2]);
        sums.sum[i % 2] += x;
    }
}

/* Which element of D the lane's i-th sum of a head is. */
template <mr_lone_kv KV> __device__ static inline uint32_t mr_lone_element(uint32_t i)
{
    const uint32_t row = threadIdx.x % 32 / 4;
    return KV == MR_LONE_SAME ? i * 8 + row : i / 2 * 16 + row * 2 + i % 2;
}

/* The lanes' sums of probabilities become the warp's. */
template <int D> __device__ static inline void mr_sum_lanes(mr_lone_sums<D> &sums)
{
#pragma unroll
    for (int o = 4; o < 32; o *= 2) {
        sums.sum[0] += __shfl_xor_sync(0xffffffffu, sums.sum[0], o);
        sums.sum[1] += __shfl_xor_sync(0xffffffffu, sums.sum[1], o);
    }
}

/* Into shared memory: [8 heads][D] numerators, maximum, sum. */
template <int D, mr_lone_kv KV>
__device__ static inline void mr_share_sums(float *to, const mr_lone_sums<D> &sums)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float *line = to + (threadIdx.x % 4 * 2 + h) * (D + 2);
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            line[mr_lone_element<KV>(i)] = sums.out[i / 2][i % 2 * 2 + h];
        }
        if (threadIdx.x % 32 < 4) {
            line[D] = sums.max[h];
            line[D + 1] = sums.sum[h];
        }
    }
}

/* Where the lane's part of the first matrices lies: of keys; of values. */
template <int D, mr_lone_kv KV> __device__ static inline uint32_t mr_lone_keys_at()
{
    const uint32_t lane = threadIdx.x % 32;
    return mr_lone_stage<D, KV>::at(lane % 16, lane / 16);
}

template <int D, mr_lone_kv KV> __device__ static inline uint32_t mr_lone_values_at()
{
    using stage = mr_lone_stage<D, KV>;
    const uint32_t lane = threadIdx.x % 32;
    return stage::VALUES + (KV == MR_LONE_SAME ? stage::at(lane / 16 * 8 + lane % 8, lane / 8 % 2)
                                               : stage::at(lane % 16, lane / 16));
}

template <typename T, int D, mr_lone_kv KV>
__device__ static inline void mr_run_stage(const mr_lone_args &a, const mr_lone_piece &piece,
                                           const uint32_t (&q)[D / 8], const uint8_t *memory,
                                           uint32_t shared, uint32_t key, mr_lone_sums<D> &sums)
{
    using stage = mr_lone_stage<D, KV>;
    constexpr int M = stage::KEYS / 16;
    float s[M][4];
#pragma unroll
    for (int m = 0; m < M; m++) {
        mr_score_keys<T, D, KV>(q, shared + mr_lone_keys_at<D, KV>(), m, s[m]);
    }
    mr_scale_scores<D, KV>(a, piece, key, memory, s);
    mr_weigh<T, D, KV>(s, sums);
    if (KV == MR_LONE_I8) {
        const float *of = reinterpret_cast<const float *>(memory + stage::VALUE_SCALES);
#pragma unroll
        for (int i = 0; i < 4 * M; i++) {
            /* For a key that does not count no scale was brought. */
            const uint32_t r = mr_lone_row(i / 4, i % 4);
            const bool counts = key + r >= piece.begin && key + r < piece.end;
            s[i / 4][i % 4] = counts ? s[i / 4][i % 4] * of[r] : 0.0f;
        }
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
        mr_sum_values<T, D, KV>(s[m], shared + mr_lone_values_at<D, KV>(), m, sums.out);
    }
}

#endif
