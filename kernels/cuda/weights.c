/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights in the GPU's memory. Matrices are rows of the compute type, whatever they were stored as,
 * but for F8_E4M3 where the GPU multiplies it (coded.c); q, k and v (gate and up) lie side by side,
 * so that one product computes them. The host converts, on all its threads, into one of two pinned
 * areas while the other travels. Matrices made of nothing the GPU makes itself.
 */
#include "kernels/cuda/internal.h"

#include "base/checked.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "kernels/float_bits.h"
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
    mr_random_tables tables;
    mr_cuda_ptr table;               /* on the device; 0: nothing is made there */
    const mr_plan_weight *table_for; /* whose table is there, its elements of this type; or NULL */
    mr_dtype table_type;
    uint64_t mark; /* of the slab, before the table and behind it */
    uint64_t end;
    mr_error *err;
} upload;

/* Where a weight goes. */
typedef struct target {
    mr_dtype type;
    mr_cuda_ptr at;
    mr_cuda_ptr scales; /* F8_E4M3: f32 [n] */
} target;

typedef struct convert_job {
    const mr_plan_weight *weight;
    const mr_random_table *random; /* NULL: the weight has data */
    mr_dtype to;
    uint64_t begin; /* first element */
    uint64_t elements;
    uint8_t *dst;
    uint8_t *rows; /* as in upload */
    uint64_t row_bytes;
    float *scales; /* of the job's rows, if they stay in codes */
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
    for (uint32_t i = 0; to == MR_DTYPE_F16 && i < count; i++) {
        narrow[i] = mr_f16_narrow(values[i]);
    }
    for (uint32_t i = 0; to != MR_DTYPE_F16 && i < count; i++) {
        narrow[i] = mr_bf16_narrow(values[i]);
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

/* Whole rows that are put together from codes and scales. */
static void convert_rows(const convert_job *job, uint8_t *row, uint64_t begin, uint64_t end)
{
    const mr_plan_weight *weight = job->weight;
    const mr_dtype_info *type = mr_dtype_info_get(weight->dtype);
    const uint64_t k = weight->k;
    for (; begin < end; begin++) {
        const uint64_t first = job->begin / k + begin;
        if (job->to == MR_DTYPE_F8_E4M3) {
            job->scales[begin] = mr_weight_codes_scale(weight->codes, first, 0);
            memcpy(job->dst + begin * k, mr_weight_codes_row(weight->codes, first), k);
            continue;
        }
        if (job->random != NULL) {
            mr_random_weight_fill(job->random, weight, first * k, k, row);
        } else {
            mr_weight_codes_fill(weight->codes, weight->k, first, 1, row);
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

/* An area whose copy is over. */
static mr_status take_area(upload *u, uint32_t *area)
{
    *area = u->next;
    u->next ^= 1;
    return u->busy[*area]
               ? mr_cuda_check(u->backend, u->backend->api->await(u->backend->context, *area),
                               "copying weights", u->err)
               : MR_OK;
}

static mr_status copy(upload *u, mr_cuda_ptr to, const void *from, uint64_t bytes)
{
    return mr_cuda_check(u->backend,
                         u->backend->api->to_device(u->backend->context, to, from, bytes),
                         "copying weights", u->err);
}

/* Behind the copies of what is in the area. */
static mr_status leave_area(upload *u, uint32_t area)
{
    u->busy[area] = true;
    return mr_cuda_check(u->backend, u->backend->api->record(u->backend->context, area),
                         "copying weights", u->err);
}

/* Elements of an area; whole rows with their scales behind them, whole rows, or pieces. */
static uint64_t room_of(const mr_plan_weight *weight, mr_dtype type)
{
    if (type == MR_DTYPE_F8_E4M3) {
        return AREA_BYTES / ((uint64_t)weight->k + sizeof(float)) * weight->k;
    }
    const uint64_t unit = weight->codes != NULL ? weight->k : PIECE;
    return AREA_BYTES / mr_cuda_size(type) / unit * unit;
}

/* A weight that the host converts, or makes if `random` is there. */
static mr_status send_elements(upload *u, const mr_plan_weight *from, const mr_random_table *random,
                               const target *to)
{
    const uint64_t total = (uint64_t)from->n * from->k;
    const uint64_t room = room_of(from, to->type);
    if (room == 0) {
        return mr_fail(u->err, MR_UNIMPLEMENTED,
                       "weight \"%s\": rows of %u elements are longer than the CUDA backend loads",
                       from->name, from->k);
    }
    for (uint64_t begin = 0; begin < total; begin += room) {
        uint32_t area = 0;
        MR_TRY(take_area(u, &area));
        const uint64_t elements = total - begin < room ? total - begin : room;
        const uint64_t bytes = elements * mr_cuda_size(to->type);
        convert_job job = {
            .weight = from,
            .random = random,
            .to = to->type,
            .begin = begin,
            .elements = elements,
            .dst = u->area[area],
            .rows = u->rows,
            .row_bytes = u->row_bytes,
            .scales = (float *)(void *)(u->area[area] + bytes),
        };
        mr_thread_pool_run(u->pool, convert, &job);
        MR_TRY(copy(u, to->at + begin * mr_cuda_size(to->type), job.dst, bytes));
        if (to->type == MR_DTYPE_F8_E4M3) {
            MR_TRY(copy(u, to->scales + begin / from->k * sizeof(float), job.scales,
                        elements / from->k * sizeof(float)));
        }
        MR_TRY(leave_area(u, area));
    }
    return MR_OK;
}

/* ---- weights made of nothing ---- */

/* Blocks that are decoded here are made here, and so is what is smaller than the table. */
static bool made_there(const mr_plan_weight *weight, mr_dtype type)
{
    return type == MR_DTYPE_F8_E4M3 ||
           (weight->codes == NULL && (uint64_t)weight->n * weight->k >= MR_RANDOM_PATTERNS);
}

/* The table, its elements converted, to where the GPU looks them up. */
static mr_status send_table(upload *u, const mr_plan_weight *weight, const mr_random_table *table,
                            mr_dtype type)
{
    if (u->table_for != NULL && u->table_type == type &&
        mr_random_same_table(u->table_for, weight)) {
        return MR_OK;
    }
    uint32_t area = 0;
    MR_TRY(take_area(u, &area));
    const uint8_t *elements = mr_random_table_elements(table);
    const uint32_t bytes =
        type == MR_DTYPE_F8_E4M3 ? 1 : mr_dtype_info_get(weight->dtype)->block_bytes;
    for (uint32_t i = 0; i < MR_RANDOM_PATTERNS; i += PIECE) {
        convert_piece(type == MR_DTYPE_F8_E4M3 ? type : weight->dtype, elements + i * bytes, type,
                      u->area[area] + i * mr_cuda_size(type), PIECE);
    }
    MR_TRY(copy(u, u->table, u->area[area], MR_RANDOM_PATTERNS * mr_cuda_size(type)));
    u->table_for = weight;
    u->table_type = type;
    return leave_area(u, area);
}

static mr_status make_scales(upload *u, const mr_plan_weight *weight, mr_cuda_ptr to)
{
    const uint32_t room = AREA_BYTES / sizeof(float);
    for (uint32_t begin = 0; begin < weight->n;) {
        uint32_t area = 0;
        MR_TRY(take_area(u, &area));
        float *scales = (float *)(void *)u->area[area];
        const uint32_t count = weight->n - begin < room ? weight->n - begin : room;
        for (uint32_t i = 0; i < count; i++) {
            scales[i] = mr_random_weight_scale(weight, begin + i);
        }
        MR_TRY(copy(u, to + begin * sizeof(float), scales, count * sizeof(float)));
        MR_TRY(leave_area(u, area));
        begin += count;
    }
    return MR_OK;
}

/* A weight that the GPU makes. */
static mr_status make_elements(upload *u, const mr_plan_weight *weight,
                               const mr_random_table *table, const target *to)
{
    MR_TRY(send_table(u, weight, table, to->type));
    const mr_cuda_random random = {
        .table = u->table,
        .out = to->at,
        .count = (uint64_t)weight->n * weight->k,
        .seed = weight->random_seed,
        .stream = weight->random_stream,
        .bytes = mr_cuda_size(to->type),
    };
    MR_TRY(mr_cuda_check(u->backend, u->backend->api->random(u->backend->context, &random),
                         "making weights", u->err));
    return to->type == MR_DTYPE_F8_E4M3 ? make_scales(u, weight, to->scales) : MR_OK;
}

static mr_status send(upload *u, const mr_plan_weight *from, const target *to)
{
    const mr_random_table *table = NULL;
    if (!from->random) {
        return send_elements(u, from, NULL, to);
    }
    if (mr_random_tables_find(&u->tables, from, &table) != MR_OK) {
        return mr_fail(u->err, MR_RESOURCE_EXHAUSTED, "weights: out of memory");
    }
    return made_there(from, to->type) ? make_elements(u, from, table, to)
                                      : send_elements(u, from, table, to);
}

/* ---- all of them ---- */

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
                const target bias = {.type = MR_DTYPE_F32, .at = to};
                MR_TRY(send(u, &plan->weights[op->bias[part]], &bias));
                mr_plan_release(plan, &plan->weights[op->bias[part]]);
            }
            to += (uint64_t)plan->weights[op->weight[part]].n * 4;
        }
    }
    return MR_OK;
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
            const target to = {.type = mr_cuda_weight_type(w, item),
                               .at = w->base + item->offset,
                               .scales = w->base + item->scales};
            MR_TRY(send(u, &plan->weights[i], &to));
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
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const mr_plan_weight *weight = &plan->weights[i];
        uint64_t bytes = 0;
        if (weight->codes != NULL && mr_dtype_row_bytes(weight->dtype, weight->k, &bytes)) {
            u->row_bytes = bytes > u->row_bytes ? bytes : u->row_bytes;
        }
    }
    u->rows = mr_calloc(u->backend->threads, u->row_bytes > 0 ? u->row_bytes : 1);
    return u->rows != NULL ? MR_OK
                           : mr_fail(u->err, MR_RESOURCE_EXHAUSTED, "weights: out of memory");
}

static mr_status take(mr_cuda_backend *backend, uint64_t bytes, mr_cuda_ptr *out, mr_error *err)
{
    const uint64_t left = mr_cuda_slab_left(&backend->slab);
    if (!mr_cuda_slab_take(&backend->slab, bytes, out)) {
        return mr_fail_field(
            err, MR_RESOURCE_EXHAUSTED, "gpu_memory_utilization",
            "weights: %llu MiB are needed, and %llu MiB of the GPU's memory are left of "
            "the share that gpu_memory_utilization gives: raise it, or take a smaller model",
            (unsigned long long)(bytes >> 20), (unsigned long long)(left >> 20));
    }
    return MR_OK;
}

/* Room for the table of random elements, while weights are made. */
static mr_status take_table(upload *u, const mr_plan *plan)
{
    bool needed = false;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        needed = needed || plan->weights[i].random;
    }
    u->mark = u->backend->slab.used;
    if (needed) {
        MR_TRY(take(u->backend, MR_RANDOM_PATTERNS * sizeof(float), &u->table, u->err));
    }
    u->end = u->backend->slab.used;
    return MR_OK;
}

static mr_status open_upload(upload *u, const mr_plan *plan)
{
    MR_TRY(take_table(u, plan));
    MR_TRY(make_rows(u, plan));
    for (uint32_t i = 0; i < 2; i++) {
        void *area = NULL;
        if (u->backend->api->alloc_host(u->backend->context, AREA_BYTES, &area) != 0) {
            return mr_fail(
                u->err, MR_RESOURCE_EXHAUSTED,
                "weights: no %llu MiB of host memory that the GPU can read; free memory, "
                "or raise the limit on locked memory (ulimit -l)",
                (unsigned long long)(AREA_BYTES >> 20));
        }
        u->area[i] = area;
    }
    return mr_thread_pool_create(u->backend->threads, &u->pool, u->err);
}

static void close_upload(upload *u)
{
    if (u->pool != NULL) {
        mr_thread_pool_destroy(u->pool);
    }
    free(u->rows);
    mr_random_tables_deinit(&u->tables);
    for (uint32_t i = 0; i < 2; i++) {
        if (u->area[i] != NULL) {
            u->backend->api->release_host(u->backend->context, u->area[i]);
        }
    }
    if (u->table != 0) {
        mr_cuda_slab_reset(&u->backend->slab, u->mark, u->end);
    }
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
    upload u = {.backend = backend, .err = err};
    mr_status status;
    MR_TRY(mr_cuda_weights_place(plan, backend->compute, mr_cuda_takes_codes(backend), &w, err));
    MR_CHECK(w != NULL);
    w->mark = backend->slab.used;
    MR_TRY_CLEANUP(status, take(backend, w->bytes, &w->base, err));
    w->end = backend->slab.used;
    MR_TRY_CLEANUP(status, open_upload(&u, plan));
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
