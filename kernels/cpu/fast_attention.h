/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the fast path's attention share; see fast_attention.c. */
#ifndef MILLRACE_KERNELS_CPU_FAST_ATTENTION_H
#define MILLRACE_KERNELS_CPU_FAST_ATTENTION_H

#include "kernels/cpu/fast_internal.h"

#define MR_FAST_TILE_ROWS 16u /* that the products of bf16 have, or a multiple */

/* A tile and its scratch; widths: D, and D rounded up to a vector. */
typedef struct mr_fast_tile {
    const mr_cpu_exec *exec;
    const mr_op_attention *op;
    const uint32_t *positions; /* [queries] */
    const uint32_t *table;     /* blocks of the sequence */
    uint32_t share;            /* query heads a KV head */
    uint32_t kv_head;
    uint32_t first_query; /* row of the step */
    uint32_t queries;
    uint32_t rows; /* queries · share */
    uint32_t width, padded;
    uint32_t first_key, last_key; /* that any row sees */
    bool half;                    /* products are of bf16: fast_attention_half.c */

    float *q;                   /* [rows][width] */
    float *keys;                /* [width][64] */
    float *values;              /* [64][padded] */
    float *scores;              /* [rows][256] */
    float *part;                /* [rows][padded] */
    float *total;               /* [rows][padded] */
    float *max, *sum;           /* [rows] of total; a sum of 0: nothing yet */
    float *part_max, *part_sum; /* [rows]; a sum of 0: the row sees no key of the split */

    /* With `half`, and then rows everywhere up to the next multiple of 16. */
    uint16_t *half_q;       /* [rows][mr_fast_half_width(width)] */
    uint16_t *half_q_rest;  /* likewise: what rounding left of them */
    uint16_t *half_weights; /* [rows][256] */
    uint16_t *half_values;  /* [64][padded] */
    uint32_t *pairs;        /* of keys [mr_fast_half_width(width) / 2][64], values [32][padded] */
} mr_fast_tile;

static inline uint32_t mr_fast_round_up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Rows of its arrays that a tile of `rows` takes. */
static inline uint32_t mr_fast_tile_rows(const mr_fast_tile *t, uint32_t rows)
{
    return t->half ? mr_fast_round_up(rows, MR_FAST_TILE_ROWS) : rows;
}

/* Positions next to each other that lie in one block of the pool: a run of keys or values is read
 * piece by piece. */
typedef struct mr_fast_piece {
    mr_cpu_kv_piece in; /* keys or values of the KV head in the block */
    uint32_t offset;    /* in the block */
    uint32_t count;
} mr_fast_piece;

/* The first piece of [key, key + count); keys (value = 0) or values. */
static inline mr_fast_piece mr_fast_next_piece(const mr_fast_tile *t, uint32_t key, uint32_t count,
                                               uint32_t value)
{
    const uint32_t block_size = t->exec->options.block_size;
    const uint32_t offset = key % block_size;
    const uint32_t room = block_size - offset;
    return (mr_fast_piece){
        .in = mr_cpu_kv(t->exec, t->op->layer, value, t->table[key / block_size], t->kv_head),
        .offset = offset,
        .count = count < room ? count : room,
    };
}

/* Where the group of key `key` (relative to its split) ends, at most `end`. */
static inline uint32_t mr_fast_group_end(uint32_t key, uint32_t end)
{
    const uint32_t after = (key / MR_FAST_GROUP + 1) * MR_FAST_GROUP;
    return after < end ? after : end;
}

/* Whether the path of `exec` multiplies its keys and values in bf16. */
static inline bool mr_fast_attention_in_half(const mr_cpu_exec *exec)
{
    return exec->options.kv_dtype == MR_DTYPE_BF16 && mr_fast_kernels_of(exec)->tiles != NULL;
}

/* Queries as bf16; those in floats are void afterwards. */
void mr_fast_half_queries(const mr_fast_tile *t);
/* Weights of row `r` for keys [begin, end) of a split as bf16, 0 around them. */
void mr_fast_half_weights(const mr_fast_tile *t, uint32_t r, uint32_t begin, uint32_t end);
/* Scores of keys [key, next) of the split at `base`, which are in one group. */
void mr_fast_half_score(const mr_fast_tile *t, uint32_t base, uint32_t key, uint32_t next);
/* Adds weights · values of the same keys to part; `first`: part is void. */
void mr_fast_half_weigh(const mr_fast_tile *t, uint32_t base, uint32_t key, uint32_t next,
                        bool first);

#endif
