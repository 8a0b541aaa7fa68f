/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/internal.h"

#include "base/checked.h"
#include "base/cpu.h"
#include "base/pages.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64

/* What the operators use each weight for. */
static void find_uses(const mr_plan *plan, mr_cpu_weight *items)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        const mr_op *op = &plan->ops[i];
        if (op->kind == MR_OP_EMBED) {
            items[op->embed.table].uses |= MR_CPU_USE_EMBED;
            if (op->embed.learned_positions) {
                items[op->embed.positions].uses |= MR_CPU_USE_EMBED;
            }
        } else if (op->kind == MR_OP_ROPE_KV && op->rope_kv.head_norms) {
            items[op->rope_kv.q_gain].uses |= MR_CPU_USE_VECTOR;
            items[op->rope_kv.k_gain].uses |= MR_CPU_USE_VECTOR;
        } else if (op->kind == MR_OP_NORM) {
            items[op->norm.gain].uses |= MR_CPU_USE_VECTOR;
            if (op->norm.bias != MR_NO_WEIGHT) {
                items[op->norm.bias].uses |= MR_CPU_USE_VECTOR;
            }
        } else if (op->kind == MR_OP_LINEAR) {
            for (uint32_t part = 0; part < op->linear.parts; part++) {
                items[op->linear.weight[part]].uses |= MR_CPU_USE_LINEAR;
                if (op->linear.bias[part] != MR_NO_WEIGHT) {
                    items[op->linear.bias[part]].uses |= MR_CPU_USE_VECTOR;
                }
            }
        }
    }
}

/* Decides layout and size of one weight; a weight that nothing uses takes no memory. */
static mr_status lay_out(const mr_cpu_path *path, const mr_plan_weight *from, mr_cpu_weight *to,
                         mr_error *err)
{
    to->dtype = from->dtype;
    to->n = from->n;
    to->k = from->k;
    if (to->uses == 0) {
        return MR_OK;
    }
    if ((to->uses & MR_CPU_USE_VECTOR) == 0) {
        return path->weight_layout(from, to, err);
    }
    if (to->uses != MR_CPU_USE_VECTOR) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "plan weight \"%s\" is used as a vector and as a matrix", from->name);
    }
    to->dtype = MR_DTYPE_F32;
    to->bytes = (uint64_t)from->n * from->k * sizeof(float);
    return MR_OK;
}

static mr_status lay_out_all(const mr_plan *plan, mr_cpu_weights *weights, mr_error *err)
{
    find_uses(plan, weights->items);
    for (uint32_t i = 0; i < weights->count; i++) {
        MR_TRY(lay_out(weights->path, &plan->weights[i], &weights->items[i], err));
        uint64_t end;
        if (!mr_add_u64(weights->bytes, weights->items[i].bytes, &end) ||
            !mr_align_u64(end, ALIGNMENT, &weights->bytes)) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "weights: more than 2^64 bytes");
        }
    }
    const uint64_t available = mr_memory_available();
    if (weights->bytes > available) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "weights: %llu MiB are needed and %llu MiB of memory are available; a "
                       "smaller or more quantised model would fit",
                       (unsigned long long)(weights->bytes >> 20),
                       (unsigned long long)(available >> 20));
    }
    return MR_OK;
}

const uint8_t *mr_cpu_source_rows(mr_cpu_source *source, uint64_t first, uint64_t count)
{
    const mr_plan_weight *weight = source->weight;
    if (source->random == NULL && weight->codes == NULL) {
        return (const uint8_t *)weight->data + first * source->row_bytes;
    }
    if (source->made == NULL) {
        source->made = mr_alloc_aligned(count * source->row_bytes);
        source->made_rows = count;
        source->failed = source->made == NULL;
    }
    if (source->failed) {
        return NULL;
    }
    MR_CHECK(count <= source->made_rows);
    if (source->random == NULL) {
        mr_weight_codes_fill(weight->codes, weight->k, first, count, source->made);
    } else {
        mr_random_weight_fill(source->random, weight, first * weight->k, count * weight->k,
                              source->made);
    }
    return source->made;
}

typedef struct pack_job {
    const mr_cpu_path *path;
    mr_cpu_source *sources; /* [threads] */
    mr_cpu_weight *to;
} pack_job;

static void pack(void *ctx, uint32_t thread, uint32_t threads)
{
    const pack_job *job = ctx;
    mr_cpu_source *source = &job->sources[thread];
    if (job->to->uses != MR_CPU_USE_VECTOR) {
        job->path->weight_pack(source, job->to, thread, threads);
        return;
    }
    const uint8_t *rows = thread == 0 ? mr_cpu_source_rows(source, 0, job->to->n) : NULL;
    if (rows != NULL) {
        mr_dequantize(source->weight->dtype, rows, job->to->data,
                      (uint64_t)job->to->n * job->to->k);
    }
}

/* A decode step reads all weights once, and misses of the TLB cost it a sixth of its time where
 * pages are small; without huge pages it works as well. */
static bool make_slab(mr_cpu_weights *weights)
{
    if (weights->bytes == 0) {
        return true;
    }
    if (weights->bytes > PTRDIFF_MAX) {
        return false;
    }
    weights->slab = mr_pages_alloc(weights->bytes);
    if (weights->slab == NULL) {
        return false;
    }
    (void)madvise(weights->slab, weights->bytes, MADV_HUGEPAGE);
    return true;
}

/* What packing needs besides the weights. */
typedef struct packer {
    mr_thread_pool *pool;
    const mr_plan *plan;
    mr_cpu_source *sources; /* [threads], owns */
    mr_random_tables tables;
} packer;

static mr_status pack_one(packer *p, const mr_cpu_path *path, const mr_plan_weight *from,
                          mr_cpu_weight *to)
{
    const uint32_t threads = mr_thread_pool_size(p->pool);
    mr_cpu_source source = {.weight = from};
    MR_CHECK(mr_dtype_row_bytes(from->dtype, from->k, &source.row_bytes));
    if (from->random) {
        MR_TRY(mr_random_tables_find(&p->tables, from, &source.random));
    }
    for (uint32_t i = 0; i < threads; i++) {
        p->sources[i] = source;
    }
    pack_job job = {.path = path, .sources = p->sources, .to = to};
    mr_thread_pool_run(p->pool, pack, &job);
    bool failed = false;
    for (uint32_t i = 0; i < threads; i++) {
        failed = failed || p->sources[i].failed;
        free(p->sources[i].made);
    }
    mr_plan_release(p->plan, from);
    return failed ? MR_RESOURCE_EXHAUSTED : MR_OK;
}

static mr_status pack_weights(packer *p, mr_cpu_weights *weights, mr_progress_fn progress,
                              void *progress_ctx)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < weights->count; i++) {
        total += p->plan->weights[i].bytes;
    }
    uint64_t done = 0;
    uint64_t offset = 0;
    for (uint32_t i = 0; i < weights->count; i++) {
        mr_cpu_weight *to = &weights->items[i];
        if (to->bytes > 0) {
            to->data = weights->slab + offset;
            offset += (to->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
            MR_TRY(pack_one(p, weights->path, &p->plan->weights[i], to));
        }
        done += p->plan->weights[i].bytes;
        if (progress != NULL) {
            progress(progress_ctx, done, total);
        }
    }
    return MR_OK;
}

static mr_status pack_all(mr_thread_pool *pool, const mr_plan *plan, mr_cpu_weights *weights,
                          mr_progress_fn progress, void *progress_ctx)
{
    packer p = {.pool = pool, .plan = plan};
    p.sources = mr_calloc(mr_thread_pool_size(pool), sizeof(*p.sources));
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (p.sources != NULL && make_slab(weights)) {
        status = pack_weights(&p, weights, progress, progress_ctx);
    }
    free(p.sources);
    mr_random_tables_deinit(&p.tables);
    return status;
}

mr_status mr_cpu_weights_create(const mr_cpu_path *path, mr_thread_pool *pool, const mr_plan *plan,
                                mr_progress_fn progress, void *progress_ctx, mr_cpu_weights **out,
                                mr_error *err)
{
    mr_status status = MR_RESOURCE_EXHAUSTED;
    mr_cpu_weights *weights = mr_calloc(1, sizeof(*weights));
    if (weights != NULL) {
        weights->path = path;
        weights->count = plan->n_weights;
        weights->items = mr_calloc((size_t)plan->n_weights + 1, sizeof(*weights->items));
    }
    if (weights == NULL || weights->items == NULL) {
        (void)mr_fail(err, status, "weights: out of memory");
        goto cleanup;
    }
    MR_TRY_CLEANUP(status, lay_out_all(plan, weights, err));
    status = pack_all(pool, plan, weights, progress, progress_ctx);
    if (status != MR_OK) {
        (void)mr_fail(err, status,
                      "weights: out of memory at %llu MiB; free memory, raise its limit "
                      "(ulimit -v), or take a smaller model",
                      (unsigned long long)(weights->bytes >> 20));
        goto cleanup;
    }
    *out = weights;
    weights = NULL;
cleanup:
    mr_cpu_weights_destroy(weights);
    return status;
}

void mr_cpu_weights_destroy(mr_cpu_weights *weights)
{
    if (weights == NULL) {
        return;
    }
    mr_pages_free(weights->slab, weights->bytes);
    free(weights->items);
    free(weights);
}
