/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention in bf16, for paths with instructions that multiply it: weights are rounded to it, keys
 * and values are kept in it. A query is two of it, what rounding leaves of it being the second:
 * what scores of 30 or more are off by would be seen in the perplexity. A product sums 32 elements
 * of its depth at a time, which begin at multiples of 32 of D and of the keys of a split whatever
 * the tile; keys that are not there have a weight and a value of 0.
 */
#include "kernels/cpu/fast_attention.h"
#include "kernels/float_bits.h"

#include <string.h>

enum { DEPTH = 32 };

void mr_fast_half_queries(const mr_fast_tile *t)
{
    const size_t width = mr_fast_half_width(t->width);
    for (uint32_t r = 0; r < t->rows; r++) {
        float *query = t->q + (size_t)r * t->width;
        uint16_t *row = t->half_q + r * width;
        uint16_t *rest = t->half_q_rest + r * width;
        mr_fast_kernels_of(t->exec)->narrow(MR_DTYPE_BF16, query, row, t->width);
        for (uint32_t d = 0; d < t->width; d++) {
            query[d] -= mr_bf16_widen(row[d]);
        }
        mr_fast_kernels_of(t->exec)->narrow(MR_DTYPE_BF16, query, rest, t->width);
        memset(row + t->width, 0, (width - t->width) * sizeof(*row));
        memset(rest + t->width, 0, (width - t->width) * sizeof(*rest));
    }
}

void mr_fast_half_weights(const mr_fast_tile *t, uint32_t r, uint32_t begin, uint32_t end)
{
    const float *weights = t->scores + (size_t)r * MR_FAST_SPLIT;
    uint16_t *row = t->half_weights + (size_t)r * MR_FAST_SPLIT;
    const uint32_t from = begin / DEPTH * DEPTH;
    const uint32_t to = mr_fast_round_up(end, DEPTH);
    memset(row + from, 0, (begin - from) * sizeof(*row));
    mr_fast_kernels_of(t->exec)->narrow(MR_DTYPE_BF16, weights + begin, row + begin, end - begin);
    memset(row + end, 0, (to - end) * sizeof(*row));
}

/* Keys [key, key + count) into columns `column` … of the pairs, block by block. */
static void pair_keys(const mr_fast_tile *t, uint32_t key, uint32_t count, uint32_t column)
{
    const uint32_t pairs = (t->width + 1) / 2;
    for (uint32_t done = 0; done < count;) {
        const mr_fast_piece p = mr_fast_next_piece(t, key + done, count - done, 0);
        const mr_fast_zip job = {
            .from = (const uint16_t *)(const void *)p.in.elements + p.offset,
            .from_stride = t->exec->options.block_size,
            .to = t->pairs + column + done,
            .to_stride = MR_FAST_GROUP,
            .rows = t->width,
            .cols = p.count,
        };
        mr_fast_kernels_of(t->exec)->zip(&job);
        done += p.count;
    }
    const size_t all = mr_fast_half_width(t->width) / 2;
    memset(t->pairs + pairs * MR_FAST_GROUP, 0, (all - pairs) * MR_FAST_GROUP * sizeof(*t->pairs));
}

/* Values [key, key + count) to rows `first` … of `rows`, of which the others are 0, and those to
 * pairs. */
static void pair_values(const mr_fast_tile *t, uint32_t key, uint32_t count, uint32_t first,
                        uint32_t rows)
{
    const size_t padded_bytes = t->padded * sizeof(*t->half_values);
    if (count < rows || t->width < t->padded) {
        memset(t->half_values, 0, rows * padded_bytes);
    }
    for (uint32_t done = 0; done < count;) {
        const mr_fast_piece p = mr_fast_next_piece(t, key + done, count - done, 1);
        const uint16_t *from = (const uint16_t *)(const void *)p.in.elements;
        for (uint32_t i = 0; i < p.count; i++) {
            memcpy(t->half_values + (size_t)(first + done + i) * t->padded,
                   from + (size_t)(p.offset + i) * t->width, t->width * sizeof(*from));
        }
        done += p.count;
    }
    const mr_fast_zip job = {.from = t->half_values,
                             .from_stride = t->padded,
                             .to = t->pairs,
                             .to_stride = t->padded,
                             .rows = rows,
                             .cols = t->padded};
    mr_fast_kernels_of(t->exec)->zip(&job);
}

void mr_fast_half_score(const mr_fast_tile *t, uint32_t base, uint32_t key, uint32_t next)
{
    const uint32_t group = key / MR_FAST_GROUP * MR_FAST_GROUP;
    pair_keys(t, base + key, next - key, key - group);
    mr_fast_tiles product = {.a = t->half_q_rest,
                             .a_stride = mr_fast_half_width(t->width),
                             .b = t->pairs,
                             .b_stride = MR_FAST_GROUP,
                             .c = t->scores + group,
                             .c_stride = MR_FAST_SPLIT,
                             .rows = t->rows,
                             .cols = mr_fast_round_up(next - group, MR_FAST_LANES),
                             .depth = (uint32_t)mr_fast_half_width(t->width)};
    mr_fast_kernels_of(t->exec)->tiles(&product);
    product.a = t->half_q;
    product.accumulate = true;
    mr_fast_kernels_of(t->exec)->tiles(&product);
}

void mr_fast_half_weigh(const mr_fast_tile *t, uint32_t base, uint32_t key, uint32_t next,
                        bool first)
{
    const uint32_t from = key / DEPTH * DEPTH;
    const uint32_t rows = mr_fast_round_up(next, DEPTH) - from;
    pair_values(t, base + key, next - key, key - from, rows);
    const mr_fast_tiles product = {.a = t->half_weights + from,
                                   .a_stride = MR_FAST_SPLIT,
                                   .b = t->pairs,
                                   .b_stride = t->padded,
                                   .c = t->part,
                                   .c_stride = t->padded,
                                   .rows = t->rows,
                                   .cols = t->padded,
                                   .depth = rows,
                                   .accumulate = !first};
    mr_fast_kernels_of(t->exec)->tiles(&product);
}
