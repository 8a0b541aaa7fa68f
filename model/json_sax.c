/* SPDX-License-Identifier: Apache-2.0 */
#include "model/json_sax.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/digits.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yajl/yajl_parse.h>

#define NUMBER_BYTES     64u /* longer ones are nobody's */
#define FIRST_KEYS_BYTES 64u

enum { CONTINUE = 1, STOP = 0 }; /* what yajl's callbacks answer */

/* An open container and where in it we are. */
typedef struct level {
    bool object;
    size_t key_begin; /* in mr_json_path.keys */
    size_t key_bytes;
    uint64_t index; /* of the next element, after it began: of the element + 1 */
} level;

struct mr_json_path {
    level levels[MR_JSON_MAX_DEPTH];
    uint32_t depth;
    mr_buffer keys; /* of the open objects, one behind the other */
};

typedef struct parser {
    mr_json_path path;
    mr_json_event_fn handler;
    void *ctx;
    yajl_handle yajl;
    const uint8_t *data;
    size_t size;
    mr_status status; /* of whoever stopped the parse */
    mr_error *err;
} parser;

/* The key of a level; an empty one may stand before any memory was taken. */
static mr_bytes key_of(const mr_json_path *path, const level *in)
{
    return (mr_bytes){.data =
                          in->key_bytes > 0 ? path->keys.data + in->key_begin : (const uint8_t *)"",
                      .size = in->key_bytes};
}

static int stop(parser *p, mr_status status)
{
    p->status = status;
    return STOP;
}

static int emit(parser *p, mr_json_event event)
{
    mr_json_path *path = &p->path;
    event.path = path;
    const bool ends = event.kind == MR_JSON_OBJECT_END || event.kind == MR_JSON_ARRAY_END;
    if (path->depth > 0) {
        level *in = &path->levels[path->depth - 1];
        if (in->object) {
            event.key = key_of(path, in);
        } else if (!ends) {
            in->index++;
        }
    }
    const mr_status status = p->handler(p->ctx, &event, p->err);
    return status == MR_OK ? CONTINUE : stop(p, status);
}

static int begin(parser *p, mr_json_kind kind)
{
    if (emit(p, (mr_json_event){.kind = kind}) == STOP) {
        return STOP;
    }
    mr_json_path *path = &p->path;
    if (path->depth == MR_JSON_MAX_DEPTH) {
        return stop(p, mr_fail(p->err, MR_DATA_LOSS,
                               "JSON nested deeper than %u levels at byte %zu; the file is corrupt",
                               MR_JSON_MAX_DEPTH, yajl_get_bytes_consumed(p->yajl)));
    }
    path->levels[path->depth++] =
        (level){.object = kind == MR_JSON_OBJECT_BEGIN, .key_begin = path->keys.size};
    return CONTINUE;
}

static int end(parser *p, mr_json_kind kind)
{
    p->path.depth--;
    p->path.keys.size = p->path.levels[p->path.depth].key_begin;
    return emit(p, (mr_json_event){.kind = kind});
}

static int on_null(void *ctx)
{
    return emit(ctx, (mr_json_event){.kind = MR_JSON_NULL});
}

static int on_boolean(void *ctx, int value)
{
    return emit(ctx, (mr_json_event){.kind = MR_JSON_BOOL, .boolean = value != 0});
}

static int on_number(void *ctx, const char *text, size_t bytes)
{
    return emit(ctx, (mr_json_event){
                         .kind = MR_JSON_NUMBER,
                         .text = {.data = (const uint8_t *)text, .size = bytes},
                     });
}

static int on_string(void *ctx, const unsigned char *text, size_t bytes)
{
    return emit(ctx,
                (mr_json_event){.kind = MR_JSON_STRING, .text = {.data = text, .size = bytes}});
}

static int on_key(void *ctx, const unsigned char *text, size_t bytes)
{
    parser *p = ctx;
    level *in = &p->path.levels[p->path.depth - 1];
    p->path.keys.size = in->key_begin;
    in->key_bytes = bytes;
    if (mr_buffer_append(&p->path.keys, text, bytes) != MR_OK) {
        return stop(p, mr_fail(p->err, MR_RESOURCE_EXHAUSTED, "no memory for a JSON key"));
    }
    return CONTINUE;
}

static int on_object(void *ctx)
{
    return begin(ctx, MR_JSON_OBJECT_BEGIN);
}

static int on_object_end(void *ctx)
{
    return end(ctx, MR_JSON_OBJECT_END);
}

static int on_array(void *ctx)
{
    return begin(ctx, MR_JSON_ARRAY_BEGIN);
}

static int on_array_end(void *ctx)
{
    return end(ctx, MR_JSON_ARRAY_END);
}

static const yajl_callbacks callbacks = {
    .yajl_null = on_null,
    .yajl_boolean = on_boolean,
    .yajl_number = on_number,
    .yajl_string = on_string,
    .yajl_start_map = on_object,
    .yajl_map_key = on_key,
    .yajl_end_map = on_object_end,
    .yajl_start_array = on_array,
    .yajl_end_array = on_array_end,
};

/* yajl's words for what is wrong, with the place. */
static mr_status fail_syntax(parser *p)
{
    const size_t at = yajl_get_bytes_consumed(p->yajl);
    unsigned char *text = yajl_get_error(p->yajl, 0, p->data, p->size);
    const char *words = text != NULL ? (const char *)text : "parse error";
    const size_t bytes = strcspn(words, "\n");
    (void)mr_fail(p->err, MR_DATA_LOSS, "no valid JSON, byte %zu: %.*s; the file is corrupt", at,
                  (int)(bytes < 160 ? bytes : 160), words);
    yajl_free_error(p->yajl, text);
    return MR_DATA_LOSS;
}

static mr_status run(parser *p)
{
    yajl_status status = yajl_parse(p->yajl, p->data, p->size);
    if (status == yajl_status_ok) {
        status = yajl_complete_parse(p->yajl);
    }
    if (status == yajl_status_ok) {
        return MR_OK;
    }
    return status == yajl_status_client_canceled ? p->status : fail_syntax(p);
}

mr_status mr_json_sax_parse(const void *data, size_t size, size_t max_bytes,
                            mr_json_event_fn handler, void *ctx, mr_error *err)
{
    if (size == 0 || size > max_bytes) {
        return mr_fail(err, MR_DATA_LOSS,
                       "JSON of %zu bytes where 1 to %zu are allowed; the file is corrupt", size,
                       max_bytes);
    }
    size_t bad = 0;
    /* yajl takes some overlong forms. */
    if (!mr_utf8_valid(data, size, &bad)) {
        return mr_fail(err, MR_DATA_LOSS, "JSON that is not UTF-8 at byte %zu; the file is corrupt",
                       bad);
    }
    parser *p = mr_calloc(1, sizeof(*p));
    if (p == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to parse JSON");
    }
    p->handler = handler;
    p->ctx = ctx;
    p->data = data;
    p->size = size;
    p->err = err;
    mr_status status = mr_buffer_reserve(&p->path.keys, FIRST_KEYS_BYTES);
    p->yajl = status == MR_OK ? yajl_alloc(&callbacks, NULL, p) : NULL;
    if (p->yajl != NULL) {
        status = run(p);
        yajl_free(p->yajl);
    } else {
        status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to parse JSON");
    }
    mr_buffer_deinit(&p->path.keys);
    free(p);
    return status;
}

uint32_t mr_json_depth(const mr_json_event *event)
{
    return event->path->depth;
}

mr_bytes mr_json_path_key(const mr_json_event *event, uint32_t level_index)
{
    MR_CHECK(level_index < event->path->depth);
    const level *in = &event->path->levels[level_index];
    if (!in->object) {
        return (mr_bytes){0};
    }
    return key_of(event->path, in);
}

uint64_t mr_json_path_index(const mr_json_event *event, uint32_t level_index)
{
    MR_CHECK(level_index < event->path->depth);
    const level *in = &event->path->levels[level_index];
    return in->index > 0 ? in->index - 1 : 0;
}

bool mr_json_at(const mr_json_event *event, const char *pattern)
{
    for (uint32_t i = 0; i < event->path->depth; i++) {
        if (*pattern != '/') {
            return false;
        }
        pattern++;
        const size_t bytes = strcspn(pattern, "/");
        const bool any = bytes == 1 && *pattern == '*';
        const mr_bytes key = mr_json_path_key(event, i);
        if (!any && (!event->path->levels[i].object || key.size != bytes ||
                     (bytes > 0 && memcmp(key.data, pattern, bytes) != 0))) {
            return false;
        }
        pattern += bytes;
    }
    return *pattern == '\0';
}

bool mr_json_u64(const mr_json_event *event, uint64_t max, uint64_t *out)
{
    uint64_t value = 0;
    if (event->kind != MR_JSON_NUMBER ||
        !mr_digits_u64((const char *)event->text.data, event->text.size, &value) || value > max) {
        return false;
    }
    *out = value;
    return true;
}

bool mr_json_double(const mr_json_event *event, double *out)
{
    char text[NUMBER_BYTES];
    if (event->kind != MR_JSON_NUMBER || event->text.size == 0 ||
        event->text.size >= NUMBER_BYTES) {
        return false;
    }
    memcpy(text, event->text.data, event->text.size);
    text[event->text.size] = '\0';
    char *after = NULL;
    const double value = strtod(text, &after);
    if (*after != '\0' || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}
