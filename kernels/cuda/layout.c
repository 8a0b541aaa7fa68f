/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes: types of buffers, parts of the slab, the staging area, buckets. No call of the GPU. */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "kernels/kv_layout.h"

#include <string.h>

#define PARTIAL_BYTES  ((uint64_t)128 << 20) /* results of one launch of split attention */
#define MAX_ITEMS      ((uint64_t)1 << 23)
#define MAX_HISTORY    ((uint64_t)1 << 22)
#define MAX_BEAMS      16u
#define BIAS_A_SLOT    4096u
#define MAX_HEAD_WIDTH 256u

/* ---- buffer types ---- */

static mr_status refuse(const mr_plan *plan, uint32_t index, const char *what, mr_error *err)
{
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "the CUDA backend cannot run plan op %u (%s): %s; the CPU can (backend=cpu)",
                   index, mr_op_name(plan->ops[index].kind), what);
}

/* Streams and logits are float32, and so is what is gathered from or into one. */
static void mark_f32(const mr_plan *plan, mr_dtype *types)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if (op->kind == MR_OP_NORM) {
            types[op->norm.stream] = MR_DTYPE_F32;
        } else if (op->kind == MR_OP_SAMPLE) {
            types[op->unary.in] = MR_DTYPE_F32;
        }
    }
    bool changed = true;
    while (changed) {
        changed = false;
        for (uint32_t i = 0; i < plan->n_ops; i++) {
            const mr_op_unary *op = &plan->ops[i].unary;
            if (plan->ops[i].kind == MR_OP_GATHER && types[op->in] != types[op->out]) {
                types[op->in] = types[op->out] = MR_DTYPE_F32;
                changed = true;
            }
        }
    }
}

static mr_status check_op(const mr_plan *plan, uint32_t i, const mr_dtype *types, mr_dtype compute,
                          mr_error *err)
{
    const mr_op *op = &plan->ops[i];
    bool fits = true;
    switch (op->kind) {
    case MR_OP_NORM:
        fits = (op->norm.in == MR_NO_BUFFER || types[op->norm.in] == compute) &&
               types[op->norm.out] == compute;
        break;
    case MR_OP_LINEAR:
        fits = types[op->linear.in] == compute;
        break;
    case MR_OP_ROPE_KV:
        fits = types[op->rope_kv.qkv] == compute;
        if (op->rope_kv.rope != UINT16_MAX && plan->ropes[op->rope_kv.rope].rule != MR_ROPE_FIXED) {
            return refuse(plan, i, "its rotation follows the length of the prompt", err);
        }
        break;
    case MR_OP_ATTENTION:
        fits = types[op->attention.qkv] == compute && types[op->attention.out] == compute;
        if (plan->kv.head_width > MAX_HEAD_WIDTH) {
            return refuse(plan, i, "its heads have more than 256 elements", err);
        }
        break;
    case MR_OP_GATED:
        fits = types[op->gated.in] == compute && types[op->gated.out] == compute;
        break;
    case MR_OP_ACTIVATE:
        fits = types[op->activate.in] == compute && types[op->activate.out] == compute;
        break;
    case MR_OP_EMBED:
    case MR_OP_ALL_REDUCE:
    case MR_OP_GATHER:
    case MR_OP_SAMPLE:
        break;
    default:
        return refuse(plan, i, "this build has no kernel for it", err);
    }
    return fits ? MR_OK : refuse(plan, i, "it works on a residual stream or on logits", err);
}

mr_status mr_cuda_buffer_types(const mr_plan *plan, mr_dtype compute, mr_dtype *types,
                               mr_error *err)
{
    for (uint32_t i = 0; i < plan->n_buffers; i++) {
        types[i] = compute;
    }
    mark_f32(plan, types);
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        MR_TRY(check_op(plan, i, types, compute, err));
    }
    return MR_OK;
}

/* ---- the staging area ---- */

/* The next array of `count` elements of `size`: its offset. The area is bounded by the checks of
 * mr_cuda_sizes_get. */
static uint64_t array(uint64_t *end, uint64_t count, uint64_t size)
{
    const uint64_t at = *end;
    *end = (at + count * size + 15) / 16 * 16;
    return at;
}

void mr_cuda_stage_lay_out(const mr_cuda_counts *c, uint32_t kv_groups, mr_cuda_stage *out)
{
    uint64_t end = sizeof(mr_cuda_step_header);
    out->token_src = array(&end, c->tokens, sizeof(int32_t));
    out->positions = array(&end, c->tokens, sizeof(uint32_t));
    out->token_slot = array(&end, c->tokens, sizeof(uint32_t));
    out->kv_slot = array(&end, (uint64_t)c->tokens * kv_groups, sizeof(uint32_t));
    out->logit_rows = array(&end, c->rows, sizeof(uint32_t));
    out->rows = array(&end, c->rows, sizeof(mr_cuda_row));
    out->bias_tokens = array(&end, c->bias, sizeof(uint32_t));
    out->bias_values = array(&end, c->bias, sizeof(float));
    out->block_deltas = array(&end, c->block_deltas, sizeof(mr_cuda_block_entry));
    out->history_deltas = array(&end, c->history_deltas, sizeof(mr_history_delta));
    out->history_tokens = array(&end, c->history_tokens, sizeof(uint32_t));
    out->tiles = array(&end, c->tiles, sizeof(mr_cuda_tile));
    out->items = array(&end, c->items, sizeof(mr_cuda_item));
    out->bytes = end;
}

/* ---- sizes ---- */

bool mr_cuda_takes_tiles(const mr_cuda_backend *backend, const mr_plan *plan,
                         const mr_exec_options *o)
{
    return !backend->batch_invariant && mr_cuda_is_for_matrices(backend->compute, o->kv_dtype,
                                                                o->block_size, plan->kv.head_width);
}

/* Most query heads of an attention operator. */
static uint32_t most_heads(const mr_plan *plan)
{
    uint32_t most = 1;
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].kind == MR_OP_ATTENTION && plan->ops[i].attention.heads > most) {
            most = plan->ops[i].attention.heads;
        }
    }
    return most;
}

static mr_status size_counts(const mr_cuda_backend *backend, const mr_plan *plan,
                             const mr_exec_options *o, mr_cuda_sizes *s, mr_error *err)
{
    const uint64_t groups = plan->kv.groups > 0 ? plan->kv.groups : 1;
    s->max_blocks = (o->max_context - 1) / o->block_size + 1;
    s->max_splits = (o->max_context - 1) / MR_CUDA_SPLIT_KEYS + 1;
    s->heads = most_heads(plan);
    uint64_t split_tokens = o->max_tokens;
    if (mr_cuda_takes_tiles(backend, plan, o)) {
        split_tokens = mr_min_u64(split_tokens, (uint64_t)o->max_seqs * MR_CUDA_SPLIT_TOKENS);
    }
    const uint64_t items = split_tokens * s->max_splits;
    const uint64_t entries = groups * o->max_seqs * s->max_blocks;
    const uint64_t all = (uint64_t)o->max_seqs * o->max_context;
    const uint64_t beams = (uint64_t)MAX_BEAMS * o->max_context;
    const uint64_t history = mr_min_u64(all, beams > MAX_HISTORY ? beams : MAX_HISTORY);
    if (items > MAX_ITEMS || entries > UINT32_MAX / 4 || history + o->max_tokens > UINT32_MAX / 4 ||
        (uint64_t)o->max_seqs * BIAS_A_SLOT > UINT32_MAX / 4) {
        return mr_fail_field(err, MR_RESOURCE_EXHAUSTED, "max_batch_tokens",
                             "the GPU's tables for %u tokens a step and %u sequences of %u tokens "
                             "would be too large: lower max_batch_tokens, max_batch_size or "
                             "max_seq_length",
                             o->max_tokens, o->max_seqs, o->max_context);
    }
    s->most = (mr_cuda_counts){
        .tokens = o->max_tokens,
        .rows = o->max_rows,
        .items = (uint32_t)items,
        .tiles = o->max_tokens / MR_CUDA_TILE_ROWS + o->max_seqs,
        .block_deltas = (uint32_t)entries,
        .history_deltas = 4 * o->max_seqs,
        .history_tokens = (uint32_t)history + o->max_tokens,
        .bias = o->max_seqs * BIAS_A_SLOT,
    };
    mr_cuda_stage_lay_out(&s->most, (uint32_t)groups, &s->stage);
    s->table_bytes = entries * sizeof(uint32_t);
    return MR_OK;
}

/* Adds `count` elements of `size`, aligned as the slab aligns; false on overflow. */
static bool add(uint64_t *sum, uint64_t count, uint64_t size)
{
    uint64_t bytes;
    return mr_mul_u64(count, size, &bytes) && mr_align_u64(bytes, MR_CUDA_ALIGNMENT, &bytes) &&
           mr_add_u64(*sum, bytes, sum);
}

static bool size_parts(const mr_plan *plan, const mr_dtype *types, const mr_exec_options *o,
                       uint32_t processors, mr_cuda_sizes *s)
{
    uint64_t *parts = s->parts;
    const mr_plan_kv *kv = &plan->kv;
    const uint64_t partial = (uint64_t)s->heads * (kv->head_width + 2) * sizeof(float);
    const uint64_t fit = PARTIAL_BYTES / partial;
    s->launch_items =
        (uint32_t)mr_min_u64(fit > s->max_splits ? fit : s->max_splits, s->most.items);
    s->workers = mr_min_u32(o->max_rows, processors);
    mr_kv_layout layout = {0};
    bool fits = mr_kv_layout_make(kv, o->kv_dtype, o->block_size, &layout);
    /* Pieces without scales lie without gaps. */
    s->kv_block_bytes = layout.scales > 0 ? layout.block : layout.row * o->block_size * kv->heads;
    fits = fits && mr_mul_u64(s->kv_block_bytes, o->n_blocks, &s->kv_plane_bytes) &&
           add(&parts[MR_CUDA_PART_KV], s->kv_plane_bytes, 2 * (uint64_t)kv->layers);
    for (uint32_t i = 0; fits && i < plan->n_buffers; i++) {
        const uint64_t rows = plan->buffers[i].rows == MR_ROWS_TOKENS ? o->max_tokens : o->max_rows;
        fits = add(&parts[MR_CUDA_PART_BUFFERS], rows,
                   (uint64_t)plan->buffers[i].width * mr_cuda_size(types[i]));
    }
    fits = fits && add(&parts[MR_CUDA_PART_BUFFERS], o->max_tokens, s->coded_width) &&
           add(&parts[MR_CUDA_PART_BUFFERS], s->coded_width > 0 ? o->max_tokens : 0, 4) &&
           add(&parts[MR_CUDA_PART_TABLES], s->table_bytes, 1) &&
           add(&parts[MR_CUDA_PART_TABLES], (uint64_t)o->max_seqs * o->max_context, 4);
    for (uint32_t i = 0; fits && i < plan->n_ropes; i++) {
        fits =
            add(&parts[MR_CUDA_PART_TABLES], (uint64_t)o->max_context * plan->ropes[i].dims, 4) &&
            add(&parts[MR_CUDA_PART_TABLES], plan->ropes[i].dims / 2, 4);
    }
    return fits && add(&parts[MR_CUDA_PART_SCRATCH], s->launch_items, partial) &&
           add(&parts[MR_CUDA_PART_SCRATCH], (uint64_t)o->max_tokens * s->heads, 4) &&
           add(&parts[MR_CUDA_PART_SCRATCH], kv->layers, sizeof(mr_cuda_decode_layer)) &&
           add(&parts[MR_CUDA_PART_SCRATCH], MR_CUDA_DECODE_SYNC, sizeof(uint32_t)) &&
           add(&parts[MR_CUDA_PART_SCRATCH], (uint64_t)s->workers * plan->vocab_size, 4) &&
           add(&parts[MR_CUDA_PART_SCRATCH], (uint64_t)s->workers * plan->vocab_size, 4) &&
           add(&parts[MR_CUDA_PART_STEP], s->stage.bytes, 1) &&
           add(&parts[MR_CUDA_PART_STEP], o->max_tokens, 4) &&
           add(&parts[MR_CUDA_PART_STEP], (uint64_t)o->max_rows,
               16 + MR_MAX_TOP * sizeof(mr_alternative));
}

mr_status mr_cuda_sizes_get(const mr_cuda_backend *backend, const mr_plan *plan,
                            const mr_dtype *types, const mr_exec_options *options,
                            mr_cuda_sizes *out, mr_error *err)
{
    memset(out, 0, sizeof(*out));
    MR_TRY(size_counts(backend, plan, options, out, err));
    out->coded_width = mr_cuda_takes_codes(backend) ? mr_cuda_coded_width(plan) : 0;
    if (!size_parts(plan, types, options, backend->properties.processors, out)) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "compile: more than 2^64 bytes of GPU memory");
    }
    return MR_OK;
}

/* ---- buckets ---- */

static const uint16_t buckets[] = {1,  2,  4,  8,   16,  24,  32,  40,  48, 56,
                                   64, 80, 96, 112, 128, 160, 192, 224, 256};
_Static_assert(sizeof(buckets) / sizeof(buckets[0]) <= MR_CUDA_BUCKETS, "a place for each");

uint32_t mr_cuda_bucket(uint32_t tokens)
{
    for (size_t i = 0; i < sizeof(buckets) / sizeof(buckets[0]); i++) {
        if (tokens <= buckets[i]) {
            return buckets[i];
        }
    }
    return 0;
}

uint32_t mr_cuda_bucket_index(uint32_t bucket)
{
    uint32_t index = 0;
    while (buckets[index] != bucket) {
        index++;
    }
    return index;
}
