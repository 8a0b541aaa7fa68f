/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paged attention of the fast path. In a block of the KV pool the keys of a head lie transposed,
 * [D][block_size], and the values as they come, [block_size][D]; int8 scales are multiplied in
 * where keys and values become floats.
 *
 * A tile is some neighbouring queries of one sequence times all query heads of one KV head, so
 * that keys and values are read and widened once for all of them:
 *
 *   for each split of 256 positions        scores [rows][256] = Q · Kᵀ, 64 keys at a time
 *                                          exp(score − max of the split), and its sum
 *                                          part [rows][D] = those · V, 64 keys at a time
 *                                          total, max, sum: merged with those of the splits before
 *
 * Splits begin at multiples of 256 whatever the query, every part is summed in the order of its
 * keys, and a key that a row does not see adds nothing: a row's result does not depend on the tile
 * it is in. That is why prefill chunks, decodes and any mixture give the same bits.
 *
 * Where a step decodes so few sequences that threads would wait for each other, the splits of a
 * tile are shared out too: parts are kept until all are there, and merged in the same order.
 */
#include "kernels/cpu/fast_attention.h"

#include <math.h>
#include <string.h>

enum { TILE_ROWS = 96, CACHE_LINE = 64 };

static uint32_t queries_a_tile(uint32_t share)
{
    return share < TILE_ROWS ? TILE_ROWS / share : 1;
}

/* An array of `count` floats at *at of the scratch (may be NULL). */
static float *take(float *scratch, size_t *at, size_t count)
{
    float *array = scratch == NULL ? NULL : scratch + *at;
    *at += (count + MR_FAST_LANES - 1) / MR_FAST_LANES * MR_FAST_LANES;
    return array;
}

/* One of `count` halves. */
static uint16_t *take_half(float *scratch, size_t *at, size_t count)
{
    return (uint16_t *)(void *)take(scratch, at, (count + 1) / 2);
}

/* Points the arrays of `t` into `scratch` (may be NULL) and gives the bytes they take. */
static size_t place(mr_fast_tile *t, float *scratch)
{
    const size_t rows = mr_fast_tile_rows(t, queries_a_tile(t->share) * t->share);
    const size_t half_width = mr_fast_half_width(t->width);
    size_t at = 0;
    t->q = take(scratch, &at, rows * t->width);
    t->scores = take(scratch, &at, rows * MR_FAST_SPLIT);
    t->part = take(scratch, &at, rows * t->padded);
    t->total = take(scratch, &at, rows * t->padded);
    t->max = take(scratch, &at, rows);
    t->sum = take(scratch, &at, rows);
    t->part_max = take(scratch, &at, rows);
    t->part_sum = take(scratch, &at, rows);
    if (!t->half) {
        t->keys = take(scratch, &at, (size_t)t->width * MR_FAST_GROUP);
        t->values = take(scratch, &at, (size_t)t->padded * MR_FAST_GROUP);
        return at * sizeof(float);
    }
    const size_t most = half_width > t->padded ? half_width : t->padded;
    t->half_q = take_half(scratch, &at, rows * half_width);
    t->half_q_rest = take_half(scratch, &at, rows * half_width);
    t->half_weights = take_half(scratch, &at, rows * MR_FAST_SPLIT);
    t->half_values = take_half(scratch, &at, (size_t)t->padded * MR_FAST_GROUP);
    t->pairs = (uint32_t *)(void *)take(scratch, &at, most / 2 * MR_FAST_GROUP);
    return at * sizeof(float);
}

static mr_fast_tile tile_of(const mr_cpu_exec *exec, const mr_op_attention *op)
{
    const mr_plan_kv *kv = &exec->plan->kv;
    return (mr_fast_tile){.exec = exec,
                          .op = op,
                          .share = op->heads / kv->heads,
                          .width = kv->head_width,
                          .padded = mr_fast_round_up(kv->head_width, MR_FAST_LANES),
                          .half = mr_fast_attention_in_half(exec)};
}

size_t mr_fast_attention_scratch(const mr_cpu_exec *exec, const mr_op_attention *op)
{
    mr_fast_tile t = tile_of(exec, op);
    return place(&t, NULL);
}

/* First key that the query at `position` sees. */
static uint32_t first_seen(const mr_fast_tile *t, uint32_t position)
{
    return t->op->window > 0 && position >= t->op->window ? position - t->op->window + 1 : 0;
}

/* Asks for the keys (value = 0) or values of [key, key + count), which lie in short pieces all over
 * the pool, where the processor's own prefetching is of little use. */
static void prefetch(const mr_fast_tile *t, uint32_t key, uint32_t count, uint32_t value)
{
    const mr_kv_layout *layout = &t->exec->kv_layout;
    for (uint32_t done = 0; done < count;) {
        const mr_fast_piece p = mr_fast_next_piece(t, key + done, count - done, value);
        const uint64_t first = value ? p.offset * layout->row : 0;
        const uint64_t end = value ? first + p.count * layout->row : layout->piece - layout->scales;
        for (uint64_t at = 0; at < layout->scales; at += CACHE_LINE) {
            __builtin_prefetch((const uint8_t *)p.in.scales + at);
        }
        for (uint64_t at = first; at < end; at += CACHE_LINE) {
            __builtin_prefetch(p.in.elements + at);
        }
        done += p.count;
    }
}

/* Widens keys [key, key + count) into columns `column` … of the scratch, block by block. */
static void load_keys(const mr_fast_tile *t, uint32_t key, uint32_t count, uint32_t column)
{
    const mr_dtype dtype = t->exec->options.kv_dtype;
    for (uint32_t done = 0; done < count;) {
        const mr_fast_piece p = mr_fast_next_piece(t, key + done, count - done, 0);
        const mr_fast_widen job = {
            .dtype = dtype,
            .from = p.in.elements + p.offset * t->exec->kv_layout.element,
            .from_stride = t->exec->options.block_size,
            .scales = p.in.scales + p.offset,
            .to = t->keys + column + done,
            .to_stride = MR_FAST_GROUP,
            .rows = t->width,
            .cols = p.count,
        };
        mr_fast_kernels_of(t->exec)->widen(&job);
        done += p.count;
    }
}

/* Widens values [key, key + count) into the first rows of the scratch. */
static void load_values(const mr_fast_tile *t, uint32_t key, uint32_t count)
{
    for (uint32_t done = 0; done < count;) {
        const mr_fast_piece p = mr_fast_next_piece(t, key + done, count - done, 1);
        const mr_fast_widen job = {
            .dtype = t->exec->options.kv_dtype,
            .from = p.in.elements + p.offset * t->exec->kv_layout.row,
            .from_stride = t->width,
            .scales = p.in.scales + p.offset,
            .scales_of_rows = true,
            .to = t->values + (size_t)done * t->padded,
            .to_stride = t->padded,
            .rows = p.count,
            .cols = t->width,
        };
        mr_fast_kernels_of(t->exec)->widen(&job);
        done += p.count;
    }
}

/* scores = Q · Kᵀ for keys [begin, end) of the split at `base`. Keys outside are not read: they
 * may have left the window and belong to somebody else by now. */
static void score(const mr_fast_tile *t, uint32_t base, uint32_t begin, uint32_t end)
{
    for (uint32_t key = begin, next; key < end; key = next) {
        const uint32_t group = key / MR_FAST_GROUP * MR_FAST_GROUP;
        next = mr_fast_group_end(key, end);
        if (t->half) {
            prefetch(t, base + next, mr_fast_group_end(next, end) - next, 0);
            mr_fast_half_score(t, base, key, next);
            continue;
        }
        load_keys(t, base + key, next - key, key - group);
        prefetch(t, base + next, mr_fast_group_end(next, end) - next, 0);
        const mr_fast_product product = {.a = t->q,
                                         .a_stride = t->width,
                                         .b = t->keys,
                                         .b_stride = MR_FAST_GROUP,
                                         .c = t->scores + group,
                                         .c_stride = MR_FAST_SPLIT,
                                         .rows = t->rows,
                                         .cols = mr_fast_round_up(next - group, MR_FAST_LANES),
                                         .depth = t->width};
        mr_fast_kernels_of(t->exec)->product(&product);
    }
}

/* part = weights · V over the same keys. */
static void weigh(const mr_fast_tile *t, uint32_t base, uint32_t begin, uint32_t end)
{
    for (uint32_t key = begin, next; key < end; key = next) {
        next = mr_fast_group_end(key, end);
        if (t->half) {
            prefetch(t, base + next, mr_fast_group_end(next, end) - next, 1);
            mr_fast_half_weigh(t, base, key, next, key == begin);
            continue;
        }
        load_values(t, base + key, next - key);
        prefetch(t, base + next, mr_fast_group_end(next, end) - next, 1);
        const mr_fast_product product = {.a = t->scores + key,
                                         .a_stride = MR_FAST_SPLIT,
                                         .b = t->values,
                                         .b_stride = t->padded,
                                         .c = t->part,
                                         .c_stride = t->padded,
                                         .rows = t->rows,
                                         .cols = t->padded,
                                         .depth = next - key,
                                         .accumulate = key > begin};
        mr_fast_kernels_of(t->exec)->product(&product);
    }
}

/* Scores of row `r` to weights: 0 for keys that it does not see. */
static void weights_of_row(const mr_fast_tile *t, uint32_t r, uint32_t base, uint32_t begin,
                           uint32_t end)
{
    const uint32_t position = t->positions[r / t->share];
    const uint32_t seen = first_seen(t, position);
    const uint32_t last = position >= base ? position - base + 1 : 0;
    mr_fast_softmax row = {.scores = t->scores + (size_t)r * MR_FAST_SPLIT,
                           .first = begin / MR_FAST_LANES * MR_FAST_LANES,
                           .covered = mr_fast_round_up(end, MR_FAST_LANES),
                           .begin = seen > base ? seen - base : 0,
                           .end = last < end ? last : end,
                           .scale = t->op->scale,
                           .soft_cap = t->op->soft_cap};
    if (row.begin < row.end) {
        mr_fast_kernels_of(t->exec)->softmax(&row);
    } else {
        memset(row.scores + row.first, 0, (row.covered - row.first) * sizeof(float));
    }
    t->part_max[r] = row.max;
    t->part_sum[r] = row.sum;
    if (t->half) {
        mr_fast_half_weights(t, r, begin, end);
    }
}

/* Merges row `r` of part into total. Both are relative to their own maximum. */
static void merge(const mr_fast_tile *t, uint32_t r)
{
    float *total = t->total + (size_t)r * t->padded;
    const float *part = t->part + (size_t)r * t->padded;
    if (t->part_sum[r] == 0.0f) {
        return;
    }
    if (t->sum[r] == 0.0f) {
        memcpy(total, part, t->padded * sizeof(*total));
        t->max[r] = t->part_max[r];
        t->sum[r] = t->part_sum[r];
        return;
    }
    const float max = t->part_max[r] > t->max[r] ? t->part_max[r] : t->max[r];
    const float a = expf(t->max[r] - max);
    const float b = expf(t->part_max[r] - max);
    mr_fast_kernels_of(t->exec)->blend(total, a, part, b, t->padded);
    t->max[r] = max;
    t->sum[r] = t->sum[r] * a + t->part_sum[r] * b;
}

/* The part of split `split`, with its maxima and sums. */
static void run_split(const mr_fast_tile *t, uint32_t split)
{
    const uint32_t base = split * MR_FAST_SPLIT;
    const uint32_t begin = t->first_key > base ? t->first_key - base : 0;
    const uint32_t after = t->last_key - base + 1;
    const uint32_t end = after < MR_FAST_SPLIT ? after : MR_FAST_SPLIT;
    score(t, base, begin, end);
    prefetch(t, base + begin, mr_fast_group_end(begin, end) - begin, 1);
    for (uint32_t r = 0; r < t->rows; r++) {
        weights_of_row(t, r, base, begin, end);
    }
    weigh(t, base, begin, end);
}

static void merge_rows(const mr_fast_tile *t)
{
    for (uint32_t r = 0; r < t->rows; r++) {
        merge(t, r);
    }
}

static uint32_t first_split(const mr_fast_tile *t)
{
    return t->first_key / MR_FAST_SPLIT;
}

static uint32_t last_split(const mr_fast_tile *t)
{
    return t->last_key / MR_FAST_SPLIT;
}

/* Aims the tile at queries [query, query + count) of sequence `seq`. */
static void aim(mr_fast_tile *t, const mr_batch *batch, uint32_t seq, uint32_t query,
                uint32_t count)
{
    t->table = mr_cpu_block_table(t->exec, t->op->layer, seq);
    t->first_query = query;
    t->positions = batch->positions + query;
    t->queries = count;
    t->rows = count * t->share;
    t->first_key = UINT32_MAX;
    t->last_key = 0;
    for (uint32_t i = 0; i < t->queries; i++) {
        const uint32_t seen = first_seen(t, t->positions[i]);
        t->first_key = seen < t->first_key ? seen : t->first_key;
        t->last_key = t->positions[i] > t->last_key ? t->positions[i] : t->last_key;
    }
}

/* Takes the queries of the KV head in, and nothing is added up yet. */
static void begin_head(mr_fast_tile *t, uint32_t kv_head)
{
    t->kv_head = kv_head;
    for (uint32_t r = 0; r < t->rows; r++) {
        const float *row = mr_cpu_row(t->exec, t->op->qkv, t->first_query + r / t->share);
        const size_t head = (size_t)t->kv_head * t->share + r % t->share;
        memcpy(t->q + (size_t)r * t->width, row + head * t->width, t->width * sizeof(float));
        t->sum[r] = 0.0f;
    }
    if (t->half) {
        mr_fast_half_queries(t);
    }
}

/* The sum of all parts is the output. */
static void end_head(const mr_fast_tile *t, const mr_op *op)
{
    const size_t head_bytes = t->width * sizeof(float);
    for (uint32_t r = 0; r < t->rows; r++) {
        const uint32_t query = t->first_query + r / t->share;
        const uint32_t first = (t->kv_head * t->share + r % t->share) * t->width;
        float *out = mr_cpu_row(t->exec, t->op->out, query) + first;
        memcpy(out, t->total + (size_t)r * t->padded, head_bytes);
        mr_fast_kernels_of(t->exec)->scale(out, 1.0f / t->sum[r], t->width);
        if (mr_fast_quantizes(t->exec, op)) {
            mr_fast_quantize_row(t->exec, t->op->out, query, first, t->width);
        }
    }
}

static void run_head(mr_fast_tile *t, const mr_op *op, uint32_t kv_head)
{
    begin_head(t, kv_head);
    for (uint32_t s = first_split(t); s <= last_split(t); s++) {
        run_split(t, s);
        merge_rows(t);
    }
    end_head(t, op);
}

/* ---- splits shared out over the threads ---- */

/* Tiles of one query (times KV heads) below which a step shares them out. */
static uint32_t shared_heads(uint32_t threads)
{
    return threads > 1 ? 2 * threads : 0;
}

/* Floats of a part of one query with its maxima and sums. */
static size_t part_floats(const mr_fast_tile *t)
{
    const uint32_t rows = mr_fast_tile_rows(t, t->share);
    return mr_fast_round_up(rows * t->padded + 2 * t->share, MR_FAST_LANES);
}

static size_t splits_of(const mr_cpu_exec *exec)
{
    return (size_t)(exec->options.max_context - 1) / MR_FAST_SPLIT + 1;
}

size_t mr_fast_attention_parts(const mr_cpu_exec *exec, const mr_op_attention *op)
{
    const mr_fast_tile t = tile_of(exec, op);
    return shared_heads(exec->threads) * splits_of(exec) * part_floats(&t);
}

/* Lets the tile's part be the kept one of unit `head` (of the step) and `split`. */
static void use_part(mr_fast_tile *t, uint64_t head, uint32_t split)
{
    float *parts = mr_fast_state_of(t->exec)->parts;
    t->part = parts + (head * splits_of(t->exec) + split) * part_floats(t);
    t->part_max = t->part + (size_t)mr_fast_tile_rows(t, t->share) * t->padded;
    t->part_sum = t->part_max + t->share;
}

static bool is_shared(const mr_cpu_exec *exec, const mr_batch *batch, uint32_t threads)
{
    const uint64_t heads = (uint64_t)batch->n_seqs * exec->plan->kv.heads;
    bool longer = false; /* than one split */
    for (uint32_t i = 0; i < batch->n_tokens; i++) {
        longer = longer || batch->positions[i] >= MR_FAST_SPLIT;
    }
    return longer && batch->n_tokens == batch->n_seqs && heads < shared_heads(threads);
}

static void run_shared(mr_fast_tile *t, const mr_op *op, const mr_batch *batch, uint32_t thread,
                       uint32_t threads)
{
    const uint32_t kv_heads = t->exec->plan->kv.heads;
    uint64_t unit = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        aim(t, batch, seq, batch->seq_start[seq], 1);
        for (uint32_t head = 0; head < kv_heads; head++) {
            for (uint32_t s = first_split(t); s <= last_split(t); s++, unit++) {
                if (unit % threads == thread) {
                    begin_head(t, head);
                    use_part(t, (uint64_t)seq * kv_heads + head, s);
                    run_split(t, s);
                }
            }
        }
    }
    mr_thread_pool_barrier(t->exec->pool);
    for (uint64_t i = thread; i < (uint64_t)batch->n_seqs * kv_heads; i += threads) {
        const uint32_t seq = (uint32_t)(i / kv_heads);
        aim(t, batch, seq, batch->seq_start[seq], 1);
        begin_head(t, (uint32_t)(i % kv_heads));
        for (uint32_t s = first_split(t); s <= last_split(t); s++) {
            use_part(t, i, s);
            merge_rows(t);
        }
        end_head(t, op);
    }
}

/* Tiles of some queries, dealt out in turn, because later ones of a chunk see more keys. */
static void run_tiles(mr_fast_tile *t, const mr_op *op, const mr_batch *batch, uint32_t thread,
                      uint32_t threads)
{
    const uint32_t height = queries_a_tile(t->share);
    uint64_t unit = 0;
    for (uint32_t seq = 0; seq < batch->n_seqs; seq++) {
        const uint32_t end = batch->seq_start[seq + 1];
        for (uint32_t query = batch->seq_start[seq]; query < end; query += height) {
            aim(t, batch, seq, query, end - query < height ? end - query : height);
            for (uint32_t head = 0; head < t->exec->plan->kv.heads; head++, unit++) {
                if (unit % threads == thread) {
                    run_head(t, op, head);
                }
            }
        }
    }
}

void mr_fast_op_attention(mr_cpu_exec *exec, const mr_op *op, const mr_batch *batch,
                          uint32_t thread, uint32_t threads)
{
    mr_fast_tile t = tile_of(exec, &op->attention);
    (void)place(&t, mr_cpu_scratch(exec, thread));
    if (t.half) {
        mr_fast_kernels_of(exec)->tiles_begin();
    }
    if (is_shared(exec, batch, threads)) {
        run_shared(&t, op, batch, thread, threads);
    } else {
        run_tiles(&t, op, batch, thread, threads);
    }
    if (t.half) {
        mr_fast_kernels_of(exec)->tiles_end();
    }
}
