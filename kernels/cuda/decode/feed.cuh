/* SPDX-License-Identifier: Apache-2.0 */
/* The warp that feeds the ring: this block's share of every matrix, in the order in which the
 * computing warps take it. */
#ifndef MILLRACE_KERNELS_CUDA_DECODE_FEED_CUH
#define MILLRACE_KERNELS_CUDA_DECODE_FEED_CUH

#include "kernels/cuda/decode/state.cuh"

#define MR_ASKED 2048 /* elements of 2 bytes of a row */

/* A place in the order of slots. */
struct mr_walk {
    const void *map; /* of the part */
    mr_share share;
    uint32_t k; /* in elements of 2 bytes, as `input` */
    uint32_t layer;
    uint32_t part;
    uint32_t tile;
    uint32_t input;
    uint32_t m; /* of the tiles together */
};

__device__ static inline void mr_walk_leave_part(mr_walk &w)
{
    w.part++;
    w.part += w.part == MR_PART_ATTEND ? 1 : 0;
    if (w.part == MR_PARTS) {
        w.part = 0;
        w.layer++;
    }
}

/* Moves on to a part of which this block has something; false at the end. */
__device__ static inline bool mr_walk_part(const mr_decode_args &a, mr_walk &w)
{
    const mr_cuda_decode &p = a.p;
    for (; w.layer < p.n_layers; mr_walk_leave_part(w)) {
        w.share = mr_share_of(p, w.part);
        if (w.share.begin < w.share.end) {
            w.map = mr_at<const mr_cuda_decode_layer>(p.layers)[w.layer]
                        .maps[w.part == MR_PART_QKV ? 0 : w.part - MR_PART_ATTEND];
            w.k = mr_inputs_of(p, w.part) / a.codes;
            w.tile = w.share.begin;
            w.input = 0;
            w.m = 0;
            return true;
        }
    }
    return false;
}

__device__ static inline bool mr_walk_next(const mr_decode_args &a, mr_walk &w)
{
    const bool gated = w.part == MR_PART_GATED;
    const uint32_t together = mr_together(w.share, gated, w.tile);
    if (++w.m < together) {
        return true;
    }
    w.m = 0;
    w.input += MR_RING_INPUTS;
    if (w.input < w.k) {
        return true;
    }
    w.input = 0;
    w.tile += gated ? 1 : together;
    if (w.tile < w.share.end) {
        return true;
    }
    mr_walk_leave_part(w);
    return mr_walk_part(a, w);
}

/* Before a wait: what comes behind the ring, of the part's first tiles. The ring alone does not
 * last as long as some waits, and memory would rest. A lane a row. */
template <int PART>
__device__ static inline void mr_ask_ahead(const mr_decode_args &a, const mr_decode_state &st,
                                           const mr_share &s)
{
    constexpr bool GATED = PART == MR_PART_GATED;
    const uint32_t m = threadIdx.x / MR_DECODE_TILE;
    const uint32_t together = mr_together(s, GATED, s.begin);
    const uint32_t k = mr_inputs_of(a.p, PART) / a.codes;
    const uint32_t first = st.ring.slots / together * MR_RING_INPUTS;
    if (m >= together || first >= k) {
        return;
    }
    const mr_cuda_decode_layer *l = mr_at<const mr_cuda_decode_layer>(a.p.layers) + st.layer;
    const uint8_t *weight = mr_at<const uint8_t>(PART == MR_PART_QKV     ? l->qkv
                                                 : PART == MR_PART_OUT   ? l->out
                                                 : PART == MR_PART_GATED ? l->gate_up
                                                                         : l->down);
    const uint32_t row =
        (GATED ? s.begin * MR_DECODE_TILE + m * a.p.ffn : (s.begin + m) * MR_DECODE_TILE) +
        threadIdx.x % MR_DECODE_TILE;
    mr_ask_for(weight + (static_cast<size_t>(row) * k + first) * 2,
               min(static_cast<uint32_t>(MR_ASKED), k - first) * 2);
}

/* By one thread. */
__device__ static inline void mr_feed(const mr_decode_args &a, mr_ring ring)
{
    const uint64_t policy = mr_evict_first();
    mr_walk w;
    w.layer = 0;
    w.part = 0;
    bool waits = true;
    for (bool there = mr_walk_part(a, w); there; there = mr_walk_next(a, w)) {
        const uint32_t full = ring.bars + ring.slot * 8;
        waits = waits && mr_bar_wait(full + ring.slots * 8, ring.parity ^ 1);
        const uint32_t output = w.part == MR_PART_GATED ? w.tile * MR_DECODE_TILE + w.m * a.p.ffn
                                                        : (w.tile + w.m) * MR_DECODE_TILE;
        mr_barrier_expect(full, MR_RING_SLOT);
        mr_copy_slot(ring.data + ring.slot * MR_RING_SLOT, w.map, w.input, output, full, policy);
        mr_ring_next(ring);
    }
}

#endif
