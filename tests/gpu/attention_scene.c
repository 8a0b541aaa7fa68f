/* SPDX-License-Identifier: Apache-2.0 */
#include "attention_scene.h"

#include "kernels/kv_layout.h"
#include "kernels/weight_codes.h"
#include "tiny_codes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    PADDING = 3, /* tokens of a bucket behind those of the step */
    GUARD = 256, /* bytes behind what a launch writes */
    STEPS = 64,  /* of a number of F8_E4M3, before it is rounded */
};

static const float kv_scales[2] = {0.011f, 0.023f};

uint32_t scene_heads(const scene *c)
{
    return c->s.kv_heads * c->s.share;
}

static uint32_t window_of(const scene *c, uint32_t position)
{
    return c->s.window > 0 && position >= c->s.window ? position - c->s.window + 1 : 0;
}

void scene_add_row(scene_rows *r, uint32_t slot, uint32_t position)
{
    assert_true(r->count < SCENE_ROWS);
    r->slot[r->count] = slot;
    r->position[r->count++] = position;
    r->slots = slot >= r->slots ? slot + 1 : r->slots;
}

/* ---- the cache ---- */

size_t scene_piece_bytes(const scene_shape *s)
{
    const size_t elements = (size_t)s->block_size * s->width;
    return s->kv == MR_DTYPE_I8 ? (elements + (size_t)s->block_size * 4 + 3) / 4 * 4
                                : elements * mr_dtype_info_get(s->kv)->block_bytes;
}

static void put_number(mr_dtype type, uint8_t *to, float x, float scale, float *kept)
{
    static uint8_t codes[2][12 * STEPS][2]; /* the code, and whether it is there */
    const uint16_t half = type == MR_DTYPE_F16 ? mr_f32_to_f16(x) : mr_f32_to_bf16(x);
    switch (type) {
    case MR_DTYPE_F8_E4M3: {
        /* Searching the code takes long, and there are few numbers. */
        const long step = lrintf(x * STEPS);
        uint8_t *code = codes[scale == kv_scales[0]][step + 6 * STEPS];
        if (code[1] == 0) {
            code[0] = tiny_e4m3((float)step / STEPS / scale);
            code[1] = 1;
        }
        *to = code[0];
        *kept = mr_f8_e4m3_to_f32(*to) * scale;
        return;
    }
    case MR_DTYPE_F32:
        memcpy(to, &x, sizeof(x));
        *kept = x;
        return;
    default:
        memcpy(to, &half, sizeof(half));
        *kept = type == MR_DTYPE_F16 ? mr_f16_to_f32(half) : mr_bf16_to_f32(half);
    }
}

/* One token's vector in a piece; `kept`: as it reads. */
static void put_vector(const scene_shape *s, uint8_t *piece, uint32_t within, const float *x,
                       float scale, float *kept)
{
    if (s->kv == MR_DTYPE_I8) {
        int8_t *codes = (int8_t *)piece + (size_t)s->block_size * 4 + (size_t)within * s->width;
        const float of = mr_kv_quantize(x, codes, s->width);
        memcpy(piece + (size_t)within * 4, &of, sizeof(of));
        for (uint32_t i = 0; i < s->width; i++) {
            kept[i] = of * (float)codes[i];
        }
        return;
    }
    const size_t size = mr_dtype_info_get(s->kv)->block_bytes;
    for (uint32_t i = 0; i < s->width; i++) {
        const size_t at = (size_t)within * s->width + i;
        put_number(s->kv, piece + at * size, x[i], scale, &kept[i]);
    }
}

/* NaN, and every second token infinite where there is such. */
static void poison(const scene_shape *s, uint8_t *piece)
{
    static const uint32_t f32[2] = {0x7fc00000u, 0x7f800000u};
    static const uint16_t f16[2] = {0x7e00u, 0xfc00u};
    static const uint16_t bf16[2] = {0xffc0u, 0x7f80u};
    memset(piece, 0x7f, scene_piece_bytes(s)); /* F8_E4M3: NaN */
    for (uint32_t t = 0; t < s->block_size; t++) {
        if (s->kv == MR_DTYPE_I8) {
            memcpy(piece + (size_t)t * 4, &f32[t % 2], 4);
            continue;
        }
        for (uint32_t i = 0; i < s->width; i++) {
            const size_t at = (size_t)t * s->width + i;
            if (s->kv == MR_DTYPE_F32) {
                memcpy(piece + at * 4, &f32[t % 2], 4);
            } else if (s->kv != MR_DTYPE_F8_E4M3) {
                memcpy(piece + at * 2, s->kv == MR_DTYPE_F16 ? &f16[t % 2] : &bf16[t % 2], 2);
            }
        }
    }
}

/* Keys that stand out are those at borders, in front of windows, and some one of every 64. */
static void mark_loud(scene *c)
{
    const scene_rows *r = c->rows;
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        uint8_t *loud = c->loud + c->first[slot];
        for (uint32_t t = 0; t < c->first[slot + 1] - c->first[slot]; t++) {
            const uint32_t within = t % MR_CUDA_SPLIT_KEYS;
            loud[t] = within == 0 || within == MR_CUDA_SPLIT_KEYS - 1 ||
                      t % 64 == (slot * 7 + t / 64 * 13) % 64;
            loud[t] = c->s.behind_sink > 0.0f ? t == 0 : loud[t];
        }
    }
    for (uint32_t i = 0; i < r->count && c->s.behind_sink == 0.0f; i++) {
        uint8_t *loud = c->loud + c->first[r->slot[i]];
        const uint32_t from = window_of(c, r->position[i]);
        loud[r->position[i]] = loud[from] = loud[from > 0 ? from - 1 : 0] = 1;
    }
}

/* Blocks in any order; behind a slot's last stands the null block. */
static void make_tables(gpu_bench *b, scene *c)
{
    uint32_t *order = gpu_array(c->n_blocks, sizeof(*order));
    for (uint32_t i = 1; i < c->n_blocks; i++) {
        const uint32_t other = 1 + (uint32_t)(tiny_random(&b->state) % i);
        order[i] = order[other];
        order[other] = i;
    }
    uint32_t next = 1;
    for (uint32_t slot = 0; slot < c->rows->slots; slot++) {
        const uint32_t tokens = c->first[slot + 1] - c->first[slot];
        for (uint32_t i = 0; i * c->s.block_size < tokens; i++) {
            c->tables[(size_t)slot * c->max_blocks + i] = order[next++];
        }
    }
    free(order);
}

/* What keys and queries that meet have in common: ±1. */
static float common(uint32_t i)
{
    return (i * 2654435761u >> 16 & 1) != 0 ? 1.0f : -1.0f;
}

static void draw_key(gpu_bench *b, const scene_shape *s, bool loud, float *x)
{
    const float loudness = (s->behind_sink > 0.0f ? 22.0f : 16.0f) / sqrtf((float)s->width);
    for (uint32_t i = 0; i < s->width; i++) {
        x[i] = (loud ? loudness * common(i) : 0.0f) + tiny_uniform(&b->state, -0.5f, 0.5f);
    }
}

static void draw_value(gpu_bench *b, const scene_shape *s, uint32_t position, float *x)
{
    for (uint32_t i = 0; i < s->width; i++) {
        x[i] = tiny_uniform(&b->state, -1.0f, 1.0f);
        if (s->behind_sink > 0.0f) {
            x[i] = position == 0 ? x[i] * 1e-4f : common(i) * s->behind_sink * (1.0f + x[i] / 4.0f);
        }
    }
}

static void fill_cache(gpu_bench *b, scene *c)
{
    const scene_shape *s = &c->s;
    const size_t bytes = scene_piece_bytes(s);
    float *x = gpu_array(s->width, sizeof(*x));
    for (uint32_t i = 0; i < 2 * c->n_blocks * s->kv_heads; i++) {
        poison(s, c->planes[i % 2] + i / 2 * bytes);
    }
    for (uint32_t slot = 0; slot < c->rows->slots; slot++) {
        for (uint32_t t = c->first[slot]; t < c->first[slot + 1]; t++) {
            const uint32_t position = t - c->first[slot];
            const uint32_t block =
                c->tables[(size_t)slot * c->max_blocks + position / s->block_size];
            for (uint32_t g = 0; g < s->kv_heads; g++) {
                const size_t piece = (size_t)block * s->kv_heads + g;
                const size_t kept = ((size_t)t * s->kv_heads + g) * s->width;
                draw_key(b, s, c->loud[t] != 0, x);
                put_vector(s, c->planes[0] + piece * bytes, position % s->block_size, x,
                           kv_scales[0], c->keys + kept);
                draw_value(b, s, position, x);
                put_vector(s, c->planes[1] + piece * bytes, position % s->block_size, x,
                           kv_scales[1], c->values + kept);
            }
        }
    }
    free(x);
}

/* ---- a step ---- */

static mr_cuda_ptr put_queries(gpu_bench *b, scene *c)
{
    const scene_shape *s = &c->s;
    const size_t size = mr_dtype_info_get(s->type)->block_bytes;
    const size_t line = (size_t)(scene_heads(c) + 2 * s->kv_heads) * s->width;
    uint8_t *qkv = gpu_array(c->rows->count + PADDING, line * size);
    memset(qkv, 0xff, (c->rows->count + PADDING) * line * size);
    for (uint32_t row = 0; row < c->rows->count; row++) {
        for (uint32_t i = 0; i < scene_heads(c) * s->width; i++) {
            const float x = 0.5f * common(i % s->width) + tiny_uniform(&b->state, -0.4f, 0.4f);
            put_number(s->type, qkv + (row * line + i) * size, x, 1.0f,
                       &c->q[(size_t)row * scene_heads(c) * s->width + i]);
        }
    }
    const mr_cuda_ptr at = gpu_put(b, qkv, (c->rows->count + PADDING) * line * size);
    free(qkv);
    return at;
}

static void make_items(scene *c)
{
    c->n_items = 0;
    for (uint32_t row = 0; row < c->rows->count; row++) {
        const uint32_t base = c->n_items;
        for (uint32_t split = 0; split * MR_CUDA_SPLIT_KEYS <= c->rows->position[row]; split++) {
            c->items[c->n_items++] = (mr_cuda_item){.token = row, .split = split, .base = base};
        }
    }
}

static mr_cuda_ptr put_per_token(gpu_bench *b, const scene *c, const uint32_t *from)
{
    uint32_t padded[SCENE_ROWS + PADDING] = {0};
    memcpy(padded, from, c->rows->count * sizeof(*from));
    return gpu_put(b, padded, (c->rows->count + PADDING) * sizeof(*from));
}

static void put_step(gpu_bench *b, scene *c)
{
    const scene_shape *s = &c->s;
    const uint32_t tokens = c->rows->count + PADDING;
    const size_t plane = (size_t)c->n_blocks * s->kv_heads * scene_piece_bytes(s);
    const mr_cuda_step_header header = {.n_tokens = c->rows->count, .n_items = c->n_items};
    c->out_bytes =
        (uint64_t)tokens * scene_heads(c) * s->width * mr_dtype_info_get(s->type)->block_bytes;
    c->partial_bytes = (uint64_t)c->n_items * scene_heads(c) * (s->width + 2) * 4;
    c->p = (mr_cuda_attention){
        .qkv = put_queries(b, c),
        .out = gpu_room(b, c->out_bytes + GUARD),
        .positions = put_per_token(b, c, c->rows->position),
        .token_slot = put_per_token(b, c, c->rows->slot),
        .block_tables = gpu_put(b, c->tables, (uint64_t)c->rows->slots * c->max_blocks * 4),
        .kv = {.keys = gpu_put(b, c->planes[0], plane),
               .values = gpu_put(b, c->planes[1], plane),
               .type = s->kv,
               .key_scale = kv_scales[0],
               .value_scale = kv_scales[1],
               .heads = s->kv_heads,
               .width = s->width,
               .block_size = s->block_size},
        .type = s->type,
        .heads = scene_heads(c),
        .tokens = tokens,
        .max_blocks = c->max_blocks,
        .window = s->window,
        .scale = 1.0f / sqrtf((float)s->width),
        .soft_cap = s->soft_cap,
        .header = gpu_put(b, &header, sizeof(header)),
        .items = gpu_put(b, c->items, c->n_items * sizeof(*c->items)),
        .partials = gpu_room(b, c->partial_bytes + GUARD),
        .counters = gpu_room(b, (uint64_t)tokens * scene_heads(c) * 4 + GUARD),
    };
}

void scene_make(gpu_bench *b, const scene_shape *s, const scene_rows *r, scene *c)
{
    *c = (scene){.s = *s, .rows = r, .n_blocks = 1};
    uint32_t most_items = 0;
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        uint32_t tokens = 0;
        for (uint32_t i = 0; i < r->count; i++) {
            tokens = r->slot[i] == slot && r->position[i] >= tokens ? r->position[i] + 1 : tokens;
        }
        const uint32_t blocks = (tokens + s->block_size - 1) / s->block_size;
        c->first[slot + 1] = c->first[slot] + tokens;
        c->n_blocks += blocks;
        c->max_blocks = blocks + 2 > c->max_blocks ? blocks + 2 : c->max_blocks;
    }
    for (uint32_t i = 0; i < r->count; i++) {
        most_items += r->position[i] / MR_CUDA_SPLIT_KEYS + 1;
    }
    const size_t tokens = c->first[r->slots];
    const size_t plane = (size_t)c->n_blocks * s->kv_heads * scene_piece_bytes(s);
    c->loud = gpu_array(tokens, 1);
    c->tables = gpu_array((size_t)r->slots * c->max_blocks, sizeof(*c->tables));
    c->q = gpu_array((size_t)r->count * scene_heads(c) * s->width, sizeof(*c->q));
    c->keys = gpu_array(tokens * s->kv_heads * s->width, sizeof(*c->keys));
    c->values = gpu_array(tokens * s->kv_heads * s->width, sizeof(*c->values));
    c->planes[0] = gpu_array(plane, 1);
    c->planes[1] = gpu_array(plane, 1);
    c->items = gpu_array(most_items, sizeof(*c->items));
    b->used = 0;
    mark_loud(c);
    make_tables(b, c);
    fill_cache(b, c);
    make_items(c);
    put_step(b, c);
}

void scene_free(scene *c)
{
    free(c->loud);
    free(c->tables);
    free(c->q);
    free(c->keys);
    free(c->values);
    free(c->planes[0]);
    free(c->planes[1]);
    free(c->items);
    free(c->want);
    free(c->size);
}

/* ---- what comes out ---- */

static bool is_poison(const uint8_t *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (bytes[i] != 0xff) {
            return false;
        }
    }
    return true;
}

static void check_guard(gpu_bench *b, mr_cuda_ptr behind, const char *what, const char *array)
{
    uint8_t guard[GUARD];
    gpu_get(b, guard, behind, GUARD);
    if (!is_poison(guard, GUARD)) {
        fail_msg("%s: written behind %s", what, array);
    }
}

static void launch(gpu_bench *b, const scene *c, const char *what)
{
    const int code = b->api->attention_split(b->context, &c->p);
    if (code != 0) {
        fail_msg("%s: %s (%d)", what, b->api->error_text(code), code);
    }
}

void scene_run(gpu_bench *b, scene *c, uint32_t most, uint8_t *out, const char *what)
{
    const uint32_t counters = c->p.tokens * c->p.heads;
    uint32_t *count = gpu_array(counters, sizeof(*count));
    assert_int_equal(b->api->fill(b->context, c->p.out, 0xff, c->out_bytes), 0);
    assert_int_equal(b->api->fill(b->context, c->p.partials, 0xff, c->partial_bytes), 0);
    assert_int_equal(b->api->fill(b->context, c->p.counters, 0, (uint64_t)counters * 4), 0);
    c->p.first = 0;
    c->p.count = 0;
    if (most == 0) {
        launch(b, c, what);
    }
    for (uint32_t end = 0; most > 0 && end < c->n_items; c->p.first = end) {
        do {
            end++;
        } while (end < c->n_items &&
                 (c->items[end].token == c->items[end - 1].token || end - c->p.first < most));
        c->p.count = end - c->p.first;
        launch(b, c, what);
    }
    gpu_get(b, out, c->p.out, c->out_bytes);
    gpu_get(b, count, c->p.counters, (uint64_t)counters * 4);
    for (uint32_t i = 0; i < counters; i++) {
        if (count[i] != 0) {
            fail_msg("%s: counter %u is left at %u", what, i, count[i]);
        }
    }
    free(count);
    check_guard(b, c->p.out + c->out_bytes, what, "out");
    check_guard(b, c->p.partials + c->partial_bytes, what, "partials");
    check_guard(b, c->p.counters + (uint64_t)counters * 4, what, "counters");
}

/* In four sums: the compiler then has them side by side. Widths are multiples of 4. */
static double dot_of(const float *x, const float *y, uint32_t width)
{
    double sums[4] = {0};
    for (uint32_t i = 0; i < width; i += 4) {
        for (uint32_t k = 0; k < 4; k++) {
            sums[k] += (double)x[i + k] * (double)y[i + k];
        }
    }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

/* One head of one row in double, and what its terms' magnitudes sum to. */
static void attend(const scene *c, uint32_t row, uint32_t head, double *out, double *size)
{
    const uint32_t width = c->s.width;
    const uint32_t position = c->rows->position[row];
    const uint32_t from = window_of(c, position);
    const float *q = c->q + ((size_t)row * scene_heads(c) + head) * width;
    const size_t step = (size_t)c->s.kv_heads * width;
    const size_t at = c->first[c->rows->slot[row]] * step + head / c->s.share * width;
    double *scores = gpu_array(position + 1, sizeof(*scores));
    double top = -INFINITY;
    for (uint32_t t = from; t <= position; t++) {
        double dot = dot_of(q, c->keys + at + t * step, width);
        dot *= (double)c->p.scale;
        const double cap = (double)c->s.soft_cap;
        scores[t] = cap > 0.0 ? cap * tanh(dot / cap) : dot;
        top = scores[t] > top ? scores[t] : top;
    }
    double sum = 0.0;
    memset(out, 0, width * sizeof(*out));
    memset(size, 0, width * sizeof(*size));
    for (uint32_t t = from; t <= position; t++) {
        const double weight = exp(scores[t] - top);
        sum += weight;
        for (uint32_t i = 0; i < width; i++) {
            const double term = weight * (double)c->values[at + t * step + i];
            out[i] += term;
            size[i] += fabs(term);
        }
    }
    for (uint32_t i = 0; i < width; i++) {
        out[i] /= sum;
        size[i] /= sum;
    }
    free(scores);
}

double scene_number(mr_dtype type, const uint8_t *from, size_t index)
{
    uint16_t half;
    float x;
    if (type == MR_DTYPE_F32) {
        memcpy(&x, from + index * 4, 4);
        return (double)x;
    }
    memcpy(&half, from + index * 2, 2);
    return (double)(type == MR_DTYPE_F16 ? mr_f16_to_f32(half) : mr_bf16_to_f32(half));
}

/* Probabilities are rounded to the type, and so is the result. */
static double allowed_of(mr_dtype type, double want, double size)
{
    const double unit = type == MR_DTYPE_BF16 ? 0x1p-8 : type == MR_DTYPE_F16 ? 0x1p-11 : 0x1p-20;
    return unit * (1.25 * size + fabs(want)) + 1e-5;
}

static void attend_all(scene *c)
{
    const uint32_t width = c->s.width;
    const size_t heads = (size_t)c->rows->count * scene_heads(c);
    c->want = gpu_array(heads * width, sizeof(*c->want));
    c->size = gpu_array(heads * width, sizeof(*c->size));
    for (size_t i = 0; i < heads; i++) {
        attend(c, (uint32_t)(i / scene_heads(c)), (uint32_t)(i % scene_heads(c)),
               c->want + i * width, c->size + i * width);
    }
}

void scene_compare(scene *c, const uint8_t *out, const char *what)
{
    const uint32_t width = c->s.width;
    if (c->want == NULL) {
        attend_all(c);
    }
    for (size_t i = 0; i < (size_t)c->rows->count * scene_heads(c) * width; i++) {
        const size_t row = i / width / scene_heads(c);
        const double got = scene_number(c->s.type, out, i);
        if (!(fabs(got - c->want[i]) <= allowed_of(c->s.type, c->want[i], c->size[i]))) {
            fail_msg("%s: row %zu at position %u, head %zu, element %zu is %g, not %g", what, row,
                     c->rows->position[row], i / width % scene_heads(c), i % width, got,
                     c->want[i]);
        }
    }
}
