/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights in the GPU's memory. Matrices are rows of the compute type, whatever they were stored as,
 * but for F8_E4M3 where the GPU multiplies it (coded.c); q, k and v (gate and up) lie side by side,
 * so that one product computes them. The host converts, on all its threads, into one of two pinned
 * areas while the other travels.
 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/random_weight.h"

#include <stdlib.h>
#include <string.h>

#define AREA_BYTES ((uint64_t)32 << 20)
#define PIECE      2048u /* elements a thread converts at a time; whole blocks of every type */

/* ---- converting and uploading ---- */

typedef struct upload {
    mr_cuda_backend *backend;
    mr_thread_pool *pool;
    uint8_t *area[2]; /* pinned, AREA_BYTES each */
    bool busy[2];     /* an event of that number says when its copy is over */
    uint32_t next;
    uint8_t *rows;      /* [threads][row_bytes], owns: rows that are put together from codes */
    uint64_t row_bytes; /* 0: there are none */
    float *scales;      /* [most outputs], owns: of the matrix under way, if it stays in codes */
    mr_error *err;
} upload;

typedef struct convert_job {
    const mr_plan_weight *weight;
    const mr_random_table *random; /* NULL: the weight has data */
    mr_dtype to;
    uint64_t begin; /* first element */
    uint64_t elements;
    uint8_t *dst;
    uint8_t *rows; /* as in upload */
    uint64_t row_bytes;
    float *scales;
} convert_job;

/* `count` of at most PIECE elements, stored as `from` at `src`. */
static void convert_piece(mr_dtype from, const uint8_t *src, mr_dtype to, uint8_t *dst,
                          uint32_t count)
{
    float values[PIECE];
    if (from == to) {
        memcpy(dst, src, (size_t)count * mr_cuda_size(to));
        return;
    }
    mr_dequantize(from, src, values, count);
    if (to == MR_DTYPE_F32) {
        memcpy(dst, values, count * sizeof(*values));
        return;
    }
    uint16_t *narrow = (uint16_t *)(void *)dst;
    for (uint32_t i = 0; i < count; i++) {
        narrow[i] = to == MR_DTYPE_F16 ? mr_f32_to_f16(values[i]) : mr_f32_to_bf16(values[i]);
    }
}

static uint32_t piece_of(uint64_t begin, uint64_t end)
{
    return (uint32_t)(end - begin < PIECE ? end - begin : PIECE);
}

/* Elements that lie in a row, or are made one by one. */
static void convert_elements(const convert_job *job, uint64_t begin, uint64_t end)
{
    uint8_t made[PIECE * sizeof(float)];
    const mr_dtype from = job->weight->dtype;
    const mr_dtype_info *type = mr_dtype_info_get(from);
    for (; begin < end; begin += PIECE) {
        const uint32_t count = piece_of(begin, end);
        const uint64_t first = job->begin + begin;
        const uint8_t *src = made;
        if (job->random != NULL) {
            mr_random_weight_fill(job->random, job->weight, first, count, made);
        } else {
            src = (const uint8_t *)job->weight->data +
                  first / type->block_elements * type->block_bytes;
        }
        convert_piece(from, src, job->to, job->dst + begin * mr_cuda_size(job->to), count);
    }
}

/* A row of blocks as codes alone; gives the scale that all blocks have. */
static float convert_codes(const uint8_t *row, uint8_t *dst, uint64_t k)
{
    const uint32_t bytes = mr_dtype_info_get(MR_DTYPE_CODES_F8)->block_bytes;
    float scale;
    memcpy(&scale, row, sizeof(scale));
    for (uint64_t at = 0; at < k; at += MR_CODES_BLOCK, row += bytes) {
        memcpy(dst + at, row + sizeof(scale), MR_CODES_BLOCK);
    }
    return scale;
}

/* Whole rows that are put together from codes and scales. */
static void convert_rows(const convert_job *job, uint8_t *row, uint64_t begin, uint64_t end)
{
    const mr_plan_weight *weight = job->weight;
    const mr_dtype_info *type = mr_dtype_info_get(weight->dtype);
    const uint64_t k = weight->k;
    for (; begin < end; begin++) {
        const uint64_t first = job->begin / k + begin;
        if (job->random != NULL) {
            mr_random_weight_fill(job->random, weight, first * k, k, row);
        } else {
            mr_weight_codes_fill(weight->codes, weight->k, first, 1, row);
        }
        if (job->to == MR_DTYPE_F8_E4M3) {
            job->scales[first] = convert_codes(row, job->dst + begin * k, k);
            continue;
        }
        for (uint64_t at = 0; at < k; at += PIECE) {
            convert_piece(weight->dtype, row + at / type->block_elements * type->block_bytes,
                          job->to, job->dst + (begin * k + at) * mr_cuda_size(job->to),
                          piece_of(at, k));
        }
    }
}

static void convert(void *ctx, uint32_t thread, uint32_t threads)
{
    const convert_job *job = ctx;
    uint64_t begin;
    uint64_t end;
    if (job->weight->codes != NULL) {
        mr_share(job->elements / job->weight->k, 1, thread, threads, &begin, &end);
        convert_rows(job, job->rows + thread * job->row_bytes, begin, end);
        return;
    }
    mr_share(job->elements, PIECE, thread, threads, &begin, &end);
    convert_elements(job, begin, end);
}

/* Elements [0, n · k) of a weight to `to`, as `type`. */
static mr_status send_elements(upload *u, const mr_plan_weight *from, const mr_random_table *random,
                               mr_dtype type, mr_cuda_ptr to)
{
    const mr_cuda_api *api = u->backend->api;
    const uint64_t total = (uint64_t)from->n * from->k;
    const uint64_t unit = from->codes != NULL ? from->k : PIECE;
    const uint64_t room = AREA_BYTES / mr_cuda_size(type) / unit * unit;
    if (room == 0) {
        return mr_fail(u->err, MR_UNIMPLEMENTED,
                       "weight \"%s\": rows of %u elements are longer than the CUDA backend loads",
                       from->name, from->k);
    }
    for (uint64_t begin = 0; begin < total; begin += room) {
        const uint32_t area = u->next;
        u->next ^= 1;
        if (u->busy[area]) {
            MR_TRY(mr_cuda_check(u->backend, api->await(u->backend->context, area),
                                 "copying weights", u->err));
        }
        convert_job job = {
            .weight = from,
            .random = random,
            .to = type,
            .begin = begin,
            .elements = total - begin < room ? total - begin : room,
            .dst = u->area[area],
            .rows = u->rows,
            .row_bytes = u->row_bytes,
            .scales = u->scales,
        };
        mr_thread_pool_run(u->pool, convert, &job);
        int code = api->to_device(u->backend->context, to + begin * mr_cuda_size(type),
                                  u->area[area], job.elements * mr_cuda_size(type));
        code = code == 0 ? api->record(u->backend->context, area) : code;
        MR_TRY(mr_cuda_check(u->backend, code, "copying weights", u->err));
        u->busy[area] = true;
    }
    return MR_OK;
}

static mr_status send(upload *u, const mr_plan_weight *from, mr_dtype type, mr_cuda_ptr to)
{
    mr_random_table *table = NULL;
    mr_status made = MR_OK;
    if (from->random) {
        made = from->codes != NULL ? mr_random_codes_table_create(from->codes, &table)
                                   : mr_random_table_create(from->dtype, from->random_mean, &table);
    }
    if (made != MR_OK) {
        return mr_fail(u->err, MR_RESOURCE_EXHAUSTED, "weights: out of memory");
    }
    const mr_status status = send_elements(u, from, table, type, to);
    mr_random_table_destroy(table);
    return status;
}

static mr_status send_biases(upload *u, const mr_plan *plan, const mr_cuda_weights *w)
{
    for (uint32_t i = 0; i < plan->n_ops; i++) {
        if (w->biases[i] == MR_CUDA_NONE) {
            continue;
        }
        const mr_op_linear *op = &plan->ops[i].linear;
        mr_cuda_ptr to = w->base + w->biases[i];
        MR_TRY(mr_cuda_check(
            u->backend,
            u->backend->api->fill(u->backend->context, to, 0, mr_cuda_outputs_of(plan, op) * 4),
            "copying weights", u->err));
        for (uint32_t part = 0; part < op->parts; part++) {
            if (op->bias[part] != MR_NO_WEIGHT) {
                MR_TRY(send(u, &plan->weights[op->bias[part]], MR_DTYPE_F32, to));
                mr_plan_release(plan, &plan->weights[op->bias[part]]);
            }
            to += (uint64_t)plan->weights[op->weight[part]].n * 4;
        }
    }
    return MR_OK;
}

/* Of the matrix that was just sent. */
static mr_status send_scales(upload *u, const mr_cuda_weights *w, const mr_cuda_weight *item)
{
    const mr_cuda_api *api = u->backend->api;
    if (!item->coded) {
        return MR_OK;
    }
    int code = api->to_device(u->backend->context, w->base + item->scales, u->scales,
                              (uint64_t)item->n * 4);
    code = code == 0 ? api->synchronize(u->backend->context) : code; /* before they are others' */
    return mr_cuda_check(u->backend, code, "copying weights", u->err);
}

static mr_status send_all(upload *u, const mr_plan *plan, const mr_cuda_weights *w,
                          mr_progress_fn progress, void *progress_ctx)
{
    uint64_t total = 0;
    uint64_t done = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        total += plan->weights[i].bytes;
    }
    for (uint32_t i = 0; i < w->count; i++) {
        const mr_cuda_weight *item = &w->items[i];
        if (item->used) {
            MR_TRY(
                send(u, &plan->weights[i], mr_cuda_weight_type(w, item), w->base + item->offset));
            MR_TRY(send_scales(u, w, item));
            mr_plan_release(plan, &plan->weights[i]);
        }
        done += plan->weights[i].bytes;
        if (progress != NULL) {
            progress(progress_ctx, done, total);
        }
    }
    MR_TRY(send_biases(u, plan, w));
    return mr_cuda_check(u->backend, u->backend->api->synchronize(u->backend->context),
                         "copying weights", u->err);
}

/* Room for the longest row with codes, one a thread. */
static mr_status make_rows(upload *u, const mr_plan *plan)
{
    uint32_t outputs = 1;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        uint64_t bytes = 0;
        outputs = weight->codes != NULL && weight->n > outputs ? weight->n : outputs;
        if (weight->codes != NULL && mr_dtype_row_bytes(weight->dtype, weight->k, &bytes)) {
            u->row_bytes = bytes > u->row_bytes ? bytes : u->row_bytes;
        }
    }
    u->rows = mr_calloc(u->backend->threads, u->row_bytes > 0 ? u->row_bytes : 1);
    u->scales = mr_calloc(outputs, sizeof(*u->scales));
    return u->rows != NULL && u->scales != NULL
               ? MR_OK
               : mr_fail(u->err, MR_RESOURCE_EXHAUSTED, "weights: out of memory");
}

static mr_status open_upload(upload *u, mr_cuda_backend *backend, const mr_plan *plan,
                             mr_error *err)
{
    *u = (upload){.backend = backend, .err = err};
    MR_TRY(make_rows(u, plan));
    for (uint32_t i = 0; i < 2; i++) {
        void *area = NULL;
        if (backend->api->alloc_host(backend->context, AREA_BYTES, &area) != 0) {
            return mr_fail(
                err, MR_RESOURCE_EXHAUSTED,
                "weights: no %llu MiB of host memory that the GPU can read; free memory, "
                "or raise the limit on locked memory (ulimit -l)",
                (unsigned long long)(AREA_BYTES >> 20));
        }
        u->area[i] = area;
    }
    return mr_thread_pool_create(backend->threads, &u->pool, err);
}

static void close_upload(upload *u)
{
    if (u->pool != NULL) {
        mr_thread_pool_destroy(u->pool);
    }
    free(u->rows);
    free(u->scales);
    for (uint32_t i = 0; i < 2; i++) {
        if (u->area[i] != NULL) {
            u->backend->api->release_host(u->backend->context, u->area[i]);
        }
    }
}

static mr_status take(mr_cuda_backend *backend, mr_cuda_weights *w, mr_error *err)
{
    w->mark = backend->slab.used;
    const uint64_t left = mr_cuda_slab_left(&backend->slab);
    if (!mr_cuda_slab_take(&backend->slab, w->bytes, &w->base)) {
        return mr_fail_field(
            err, MR_RESOURCE_EXHAUSTED, "gpu_memory_utilization",
            "weights: %llu MiB are needed, and %llu MiB of the GPU's memory are left of "
            "the share that gpu_memory_utilization gives: raise it, or take a smaller model",
            (unsigned long long)(w->bytes >> 20), (unsigned long long)(left >> 20));
    }
    w->end = backend->slab.used;
    return MR_OK;
}

/* What became of matrices with codes, if there are any. */
static void log_codes(const mr_plan *plan, const mr_cuda_weights *w)
{
    uint64_t kept = 0;
    uint64_t decoded = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        if (w->items[i].used && plan->weights[i].codes != NULL) {
            *(w->items[i].coded ? &kept : &decoded) += w->items[i].bytes;
        }
    }
    if (kept + decoded > 0) {
        mr_log(
            MR_LOG_INFO, "cuda", "quantised weights",
            "fp8_mib=%.1f dequantised_mib=%.1f why=\"FP8 with one scale an output stays as it is "
            "on compute capability 9; other codes, blocks and the vocabulary do not\"",
            (double)kept / (1 << 20), (double)decoded / (1 << 20));
    }
}

mr_status mr_cuda_weights_create(mr_cuda_backend *backend, const mr_plan *plan,
                                 mr_progress_fn progress, void *progress_ctx, mr_cuda_weights **out,
                                 mr_error *err)
{
    mr_cuda_weights *w = NULL;
    upload u = {.backend = backend};
    mr_status status;
    MR_TRY(mr_cuda_weights_place(plan, backend->compute, mr_cuda_takes_codes(backend), &w, err));
    MR_CHECK(w != NULL);
    MR_TRY_CLEANUP(status, take(backend, w, err));
    MR_TRY_CLEANUP(status, open_upload(&u, backend, plan, err));
    MR_TRY_CLEANUP(status, send_all(&u, plan, w, progress, progress_ctx));
    log_codes(plan, w);
    *out = w;
    w = NULL;
cleanup:
    close_upload(&u);
    mr_cuda_weights_destroy(backend, w);
    return status;
}

void mr_cuda_weights_destroy(mr_cuda_backend *backend, mr_cuda_weights *weights)
{
    if (weights == NULL) {
        return;
    }
    if (weights->base != 0) {
        mr_cuda_slab_reset(&backend->slab, weights->mark, weights->end);
    }
    free(weights->items);
    free(weights->biases);
    free(weights);
}
