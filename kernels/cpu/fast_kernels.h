/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one instruction set offers to the fast path: a table of kernels on plain arrays. The same
 * file of templates (fast_kernels_impl.h) is compiled once an instruction set; the integer
 * dot products are written out for each.
 *
 * Every kernel computes an output element in an order that depends on the length of its own
 * reduction only: never on how many rows, columns or threads a call has.
 */
#ifndef MILLRACE_KERNELS_CPU_FAST_KERNELS_H
#define MILLRACE_KERNELS_CPU_FAST_KERNELS_H

#include "kernels/dtype.h"
#include "kernels/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_FAST_STRIP 32u  /* outputs a strip */
#define MR_FAST_BLOCK 32u  /* inputs of a block */
#define MR_FAST_SPAN  16u  /* inputs that share a scale in the layouts with pairs of them */
#define MR_FAST_LANES 16u  /* floats a vector of the templates has, on every instruction set */
#define MR_FAST_GROUP 64u  /* keys that attention unpacks at a time */
#define MR_FAST_SPLIT 256u /* keys after which attention starts a new partial result */

/* How a matrix lies in memory: strips of 32 outputs, padded with zeros, one after another, each
 * read from its first byte to its last by a thread that multiplies with it.
 *
 *   float strip      [k][32 outputs] of the weight's own dtype
 *   bf16 pairs       [k / 2][32 outputs][2 inputs], k rounded up to 32
 *   quantised strip  [block] { codes of outputs 0 … 15, codes of 16 … 31,
 *                              f16 scales of the 32 outputs, f16 offsets of the 32 outputs }
 *                              with pairs: of the first 16 inputs and then of the last 16, each
 *     u4 codes  [4 words][16 outputs][4 bytes]: byte c of word i holds code 4i + c in its low and
 *               code 16 + 4i + c in its high nibble
 *     u8 codes  [8 words][16 outputs][4 bytes]: byte c of word i holds code 4i + c
 *
 * A weight is d · (u − centre) or, with offsets, d · u + m. */
typedef enum mr_fast_layout {
    MR_FAST_F32,
    MR_FAST_F16,
    MR_FAST_BF16,
    MR_FAST_BF16_PAIRS, /* where activations are rounded to bf16 */
    MR_FAST_U4_OFFSET,
    MR_FAST_U4_CENTRED, /* centre 8 */
    MR_FAST_U8_CENTRED, /* centre 128 */
    MR_FAST_U8_OFFSET,
    MR_FAST_U4_PAIRS_OFFSET,
    MR_FAST_U4_PAIRS_CENTRED,
    MR_FAST_U8_PAIRS_CENTRED,
} mr_fast_layout;

static inline bool mr_fast_is_quantised(uint32_t layout)
{
    return layout >= MR_FAST_U4_OFFSET;
}

/* Of a quantised layout: u8 codes; offsets; two scales a block, for 16 inputs each. */
static inline bool mr_fast_has_bytes(uint32_t layout)
{
    return layout == MR_FAST_U8_CENTRED || layout == MR_FAST_U8_OFFSET ||
           layout == MR_FAST_U8_PAIRS_CENTRED;
}

static inline bool mr_fast_has_offsets(uint32_t layout)
{
    return layout == MR_FAST_U4_OFFSET || layout == MR_FAST_U8_OFFSET ||
           layout == MR_FAST_U4_PAIRS_OFFSET;
}

static inline bool mr_fast_has_pairs(uint32_t layout)
{
    return layout >= MR_FAST_U4_PAIRS_OFFSET;
}

/* Elements of a row of activations in bf16: padded with zeros. */
static inline size_t mr_fast_half_width(uint32_t k)
{
    return ((size_t)k + MR_FAST_BLOCK - 1) / MR_FAST_BLOCK * MR_FAST_BLOCK;
}

/* f16 numbers of an output in a block: scales, then offsets. */
static inline uint32_t mr_fast_numbers(uint32_t layout)
{
    return (mr_fast_has_offsets(layout) ? 2u : 1u) * (mr_fast_has_pairs(layout) ? 2u : 1u);
}

/* 32 activations of one row: x ≈ scale · code. Codes of one plane are bytes, ±127; codes of two
 * planes are 256 · byte of the first + byte of the second, ±32,639. Blocks of a row follow each
 * other without a gap, mr_fast_block_bytes apart. */
typedef struct mr_fast_block {
    float scale;
    float offset_sum;  /* scale · Σ codes */
    int32_t minus_sum; /* −Σ codes */
    int32_t minus_low; /* that of the first 16 alone */
    int8_t codes[];    /* [planes][32] */
} mr_fast_block;

/* −Σ codes of the first (span = 0) or last (1) 16. */
static inline int32_t mr_fast_minus_span(const mr_fast_block *block, uint32_t span)
{
    return span == 0 ? block->minus_low : block->minus_sum - block->minus_low;
}

static inline size_t mr_fast_block_bytes(uint32_t planes)
{
    return sizeof(mr_fast_block) + (size_t)planes * MR_FAST_BLOCK;
}

/* One strip times some rows of activations. */
typedef struct mr_fast_linear {
    uint32_t layout;
    uint32_t k;
    const uint8_t *strip;
    uint32_t n; /* outputs that exist, 1 … MR_FAST_STRIP */
    uint32_t rows;
    const float *x;         /* [rows][k], for float layouts */
    const uint16_t *x_half; /* [rows][mr_fast_half_width(k)] bf16, for pairs of them; rows up to the
                             * next multiple of 16 can be read */
    const uint8_t *x_quant; /* [rows][k / 32] mr_fast_block, for quantised ones */
    uint32_t planes;        /* of those */
    const float *bias;      /* [n] or NULL */
    float *out;             /* [rows][out_stride] */
    size_t out_stride;
    uint8_t *scratch; /* mr_fast_linear_scratch(k) bytes, aligned to 64 */
} mr_fast_linear;

/* C[rows][cols] (+)= A[rows][depth] · B[depth][cols]; cols a multiple of 16. */
typedef struct mr_fast_product {
    const float *a;
    size_t a_stride;
    const float *b; /* aligned to 64 */
    size_t b_stride;
    float *c;
    size_t c_stride;
    uint32_t rows;
    uint32_t cols;
    uint32_t depth;
    bool accumulate;
} mr_fast_product;

/* C[rows][cols] (+)= A[rows][depth] · B[depth][cols] of bf16, summed in float32. Rows up to the
 * next multiple of 16 are read and written; cols are a multiple of 16, depth one of 32. */
typedef struct mr_fast_tiles {
    const uint16_t *a;
    size_t a_stride;
    const uint32_t *b; /* [depth / 2][cols] pairs: row 2i in the lower half, 2i + 1 in the upper */
    size_t b_stride;
    float *c;
    size_t c_stride;
    uint32_t rows;
    uint32_t cols;
    uint32_t depth;
    bool accumulate;
} mr_fast_tiles;

/* Every two rows of bf16 to one of pairs, as mr_fast_tiles wants them; after an odd number of rows
 * a 0 follows. */
typedef struct mr_fast_zip {
    const uint16_t *from; /* [rows][from_stride] */
    size_t from_stride;
    uint32_t *to; /* [rows / 2][to_stride] */
    size_t to_stride;
    uint32_t rows;
    uint32_t cols;
} mr_fast_zip;

/* Scores of one row against the keys of a split, [begin, end) of them visible. */
typedef struct mr_fast_softmax {
    float *scores;           /* [covered], replaced by exp(score − max); 0 where not visible */
    uint32_t first, covered; /* computed range, multiples of 16 */
    uint32_t begin, end;     /* inside it, not empty */
    float scale;
    float soft_cap; /* 0: none */
    float max, sum; /* out */
} mr_fast_softmax;

/* A rectangle of a KV dtype as floats. Strides in elements. */
typedef struct mr_fast_widen {
    mr_dtype dtype;
    const void *from; /* [rows][from_stride] */
    size_t from_stride;
    const float *scales; /* I8 only: of the columns, or of the rows */
    bool scales_of_rows;
    float *to; /* [rows][to_stride] */
    size_t to_stride;
    uint32_t rows;
    uint32_t cols;
} mr_fast_widen;

typedef struct mr_fast_kernels {
    /* x[count], count a multiple of 32, to blocks; a NaN makes the block's scale NaN. */
    void (*quantize)(const float *x, uint32_t count, uint32_t planes, uint8_t *out);
    void (*linear)(const mr_fast_linear *job);
    void (*product)(const mr_fast_product *job);
    void (*softmax)(mr_fast_softmax *row);
    /* total = total · a + part · b */
    void (*blend)(float *total, float a, const float *part, float b, uint32_t count);
    void (*scale)(float *x, float a, uint32_t count);
    void (*add)(float *x, const float *y, uint32_t count);
    float (*mean_square)(const float *x, float centre, uint32_t count);
    float (*mean)(const float *x, uint32_t count);
    /* out = (x − centre) · factor · gain (+ bias) */
    void (*normalize)(const float *x, float centre, float factor, const float *gain,
                      const float *bias, float *out, uint32_t count);
    /* out = act(gate) · up, or act(gate) with up NULL */
    void (*gated)(mr_activation activation, const float *gate, const float *up, float *out,
                  uint32_t count);
    /* dims elements of x in place, angles as mr_cpu_rope has them: [dims / 2] each. */
    void (*rotate)(mr_rope_pairing pairing, float *x, const float *cos, const float *sin,
                   uint32_t dims);
    void (*widen)(const mr_fast_widen *job);
    /* To F32, F16 or BF16, rounded to nearest even. */
    void (*narrow)(mr_dtype dtype, const float *from, void *to, uint32_t count);
    /* Multiplies bytes in registers, `rounds` times what the registers hold, with the instruction
     * that `linear` uses; returns the operations (2 a multiply-add). NULL: nothing to measure. */
    uint64_t (*burst)(uint32_t rounds, uint32_t *sink);
    /* mr_kv_quantize() bit for bit, but for the codes of what is not finite. */
    float (*quantize_kv)(const float *from, int8_t *codes, uint32_t count);
    /* Attention in bf16; all NULL where the instruction set has nothing for it. Calls of `tiles`
     * lie between a begin and an end on the same thread. */
    void (*tiles_begin)(void);
    void (*tiles)(const mr_fast_tiles *job);
    void (*tiles_end)(void);
    void (*zip)(const mr_fast_zip *job);
} mr_fast_kernels;

extern const mr_fast_kernels mr_fast_kernels_portable;
#if defined(__x86_64__)
extern const mr_fast_kernels mr_fast_kernels_avx2;
extern const mr_fast_kernels mr_fast_kernels_avx512;
#endif

/* Bytes of scratch that `linear` wants for inputs of `k`. */
static inline size_t mr_fast_linear_scratch(uint32_t k)
{
    return (size_t)(k / MR_FAST_BLOCK) * MR_FAST_STRIP * (MR_FAST_BLOCK + 4 * sizeof(float));
}

#endif
