/* SPDX-License-Identifier: Apache-2.0 */
#include "model/safetensors.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "model/json_sax.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES     8u
#define MAX_HEADER_BYTES 100000000u /* as the format's own reader has it */
#define MAX_DIMS         (sizeof(((mr_model_tensor *)0)->shape) / sizeof(uint64_t))
#define MAX_NAME_BYTES   512u
#define METADATA         "__metadata__"
/* The largest checkpoints have a hundred thousand in all their files together; each costs memory
 * and time, and a header has room for millions. */
#define MAX_TENSORS (1u << 18)

typedef struct entry {
    mr_model_tensor tensor;
    size_t name_at; /* in mr_safetensors.names, until all names are there */
    uint64_t begin; /* in the data */
    uint64_t end;
} entry;

struct mr_safetensors {
    entry *entries; /* [count], owns */
    size_t count;
    size_t capacity;
    mr_buffer names; /* each with its NUL */
};

enum { SEEN_DTYPE = 1, SEEN_SHAPE = 2, SEEN_OFFSETS = 4, SEEN_ALL = 7 };

typedef struct parser {
    mr_safetensors *file;
    uint64_t data_bytes;
    bool metadata; /* the header has had it */
    entry now;     /* the tensor being read */
    unsigned seen; /* fields of it */
    uint32_t n_offsets;
} parser;

static const struct {
    const char *name;
    mr_dtype dtype;
} types[] = {
    {"F32", MR_DTYPE_F32},         {"F16", MR_DTYPE_F16}, {"BF16", MR_DTYPE_BF16},
    {"F8_E4M3", MR_DTYPE_F8_E4M3}, {"I8", MR_DTYPE_I8},   {"U8", MR_DTYPE_U8},
    {"BOOL", MR_DTYPE_BOOL},       {"I16", MR_DTYPE_I16}, {"I32", MR_DTYPE_I32},
    {"I64", MR_DTYPE_I64},         {"F64", MR_DTYPE_F64},
};

/* MR_DTYPE_STORED_COUNT: the name is not known. */
static mr_dtype dtype_of(mr_bytes name)
{
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        if (mr_bytes_is(name, types[i].name)) {
            return types[i].dtype;
        }
    }
    return MR_DTYPE_STORED_COUNT;
}

/* ---- the header's events ---- */

static const char *name_of(const parser *p)
{
    return (const char *)p->file->names.data + p->now.name_at;
}

static mr_status fail_field(const parser *p, const char *field, const char *wanted, mr_error *err)
{
    return mr_fail(err, MR_DATA_LOSS, "tensor '%s': '%s' is not %s; the file is corrupt",
                   name_of(p), field, wanted);
}

/* Names get into messages, logs and C strings. */
static mr_status take_name(parser *p, mr_bytes key, mr_error *err)
{
    bool clean = key.size >= 1 && key.size <= MAX_NAME_BYTES;
    for (size_t i = 0; clean && i < key.size; i++) {
        clean =
            key.data[i] > 0x20 && key.data[i] < 0x7f && key.data[i] != '"' && key.data[i] != '\\';
    }
    if (!clean) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the name of tensor %zu is not 1 to %u printable characters without spaces; "
                       "the file is corrupt",
                       p->file->count, MAX_NAME_BYTES);
    }
    p->now = (entry){.name_at = p->file->names.size};
    p->seen = 0;
    p->n_offsets = 0;
    if (mr_buffer_append(&p->file->names, key.data, key.size) != MR_OK ||
        mr_buffer_append(&p->file->names, "", 1) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the names of tensors");
    }
    return MR_OK;
}

static mr_status once(parser *p, unsigned field, const char *name, mr_error *err)
{
    if ((p->seen & field) != 0) {
        return mr_fail(err, MR_DATA_LOSS, "tensor '%s' has '%s' twice; the file is corrupt",
                       name_of(p), name);
    }
    p->seen |= field;
    return MR_OK;
}

static mr_status take_dtype(parser *p, const mr_json_event *event, mr_error *err)
{
    MR_TRY(once(p, SEEN_DTYPE, "dtype", err));
    if (event->kind != MR_JSON_STRING) {
        return fail_field(p, "dtype", "a string", err);
    }
    p->now.tensor.dtype = dtype_of(event->text);
    if (p->now.tensor.dtype == MR_DTYPE_STORED_COUNT) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "tensor '%s' is of type '%.*s', which this build does not know; it reads "
                       "F32, F16, BF16, F8_E4M3, I8, U8, BOOL, I16, I32, I64 and F64",
                       name_of(p), event->text.size < 32 ? (int)event->text.size : 32,
                       (const char *)event->text.data);
    }
    return MR_OK;
}

static mr_status take_dim(parser *p, const mr_json_event *event, mr_error *err)
{
    uint64_t dim;
    mr_model_tensor *tensor = &p->now.tensor;
    if (tensor->n_dims == MAX_DIMS) {
        return mr_fail(err, MR_UNIMPLEMENTED, "tensor '%s' has more than %zu dimensions",
                       name_of(p), MAX_DIMS);
    }
    if (!mr_json_u64(event, INT64_MAX, &dim)) {
        return fail_field(p, "shape", "an array of whole numbers", err);
    }
    tensor->shape[tensor->n_dims++] = dim;
    return MR_OK;
}

static mr_status take_offset(parser *p, const mr_json_event *event, mr_error *err)
{
    uint64_t *to = p->n_offsets == 0 ? &p->now.begin : &p->now.end;
    if (p->n_offsets == 2 || !mr_json_u64(event, INT64_MAX, to)) {
        return fail_field(p, "data_offsets", "two whole numbers", err);
    }
    p->n_offsets++;
    return MR_OK;
}

/* A value of a tensor's object. */
static mr_status take_field(parser *p, const mr_json_event *event, mr_error *err)
{
    const bool opens = event->kind == MR_JSON_ARRAY_BEGIN;
    if (event->kind == MR_JSON_ARRAY_END) {
        return MR_OK;
    }
    if (mr_bytes_is(event->key, "dtype")) {
        return take_dtype(p, event, err);
    }
    if (mr_bytes_is(event->key, "shape")) {
        MR_TRY(once(p, SEEN_SHAPE, "shape", err));
        return opens ? MR_OK : fail_field(p, "shape", "an array", err);
    }
    if (mr_bytes_is(event->key, "data_offsets")) {
        MR_TRY(once(p, SEEN_OFFSETS, "data_offsets", err));
        return opens ? MR_OK : fail_field(p, "data_offsets", "an array", err);
    }
    return mr_fail(err, MR_DATA_LOSS, "tensor '%s' has an unknown field; the file is corrupt",
                   name_of(p));
}

/* Elements and bytes of the tensor that was read, against its place in the data. */
static mr_status check_tensor(const parser *p, mr_error *err)
{
    const mr_model_tensor *tensor = &p->now.tensor;
    uint64_t bytes = mr_dtype_info_get(tensor->dtype)->block_bytes;
    bool fits = true;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        fits = fits && mr_mul_u64(bytes, tensor->shape[i], &bytes);
    }
    if (!fits || p->now.begin > p->now.end || p->now.end - p->now.begin != bytes) {
        char shape[96];
        mr_tensor_shape_text(tensor, shape);
        return mr_fail(err, MR_DATA_LOSS,
                       "tensor '%s' of shape %s and type %s does not fit its %" PRIu64
                       " to %" PRIu64 " bytes of data; the file is corrupt",
                       name_of(p), shape, mr_dtype_info_get(tensor->dtype)->name, p->now.begin,
                       p->now.end);
    }
    if (p->now.end > p->data_bytes) {
        return mr_fail(err, MR_DATA_LOSS,
                       "tensor '%s' ends at byte %" PRIu64 " of the data, which has %" PRIu64
                       "; the file is cut off, download it again",
                       name_of(p), p->now.end, p->data_bytes);
    }
    return MR_OK;
}

static mr_status finish_tensor(parser *p, mr_error *err)
{
    if (p->seen != SEEN_ALL || p->n_offsets != 2) {
        return mr_fail(err, MR_DATA_LOSS,
                       "tensor '%s' lacks dtype, shape or data_offsets; the file is corrupt",
                       name_of(p));
    }
    MR_TRY(check_tensor(p, err));
    p->now.tensor.bytes = p->now.end - p->now.begin;
    mr_safetensors *file = p->file;
    if (file->count == MAX_TENSORS) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       "the file has more than %u tensors; split it into several files",
                       MAX_TENSORS);
    }
    if (file->count == file->capacity) {
        const size_t wanted = file->capacity == 0 ? 64 : 2 * file->capacity;
        entry *grown = mr_reallocarray(file->entries, wanted, sizeof(*grown));
        if (grown == NULL) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for %zu tensors", wanted);
        }
        file->entries = grown;
        file->capacity = wanted;
    }
    file->entries[file->count++] = p->now;
    return MR_OK;
}

static mr_status on_top(parser *p, const mr_json_event *event, mr_error *err)
{
    const bool metadata = mr_bytes_is(event->key, METADATA);
    if (event->kind == MR_JSON_OBJECT_END) {
        return metadata ? MR_OK : finish_tensor(p, err);
    }
    if (event->kind != MR_JSON_OBJECT_BEGIN || (metadata && p->metadata)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the header has an entry that is no tensor; the file is corrupt");
    }
    p->metadata = p->metadata || metadata;
    return metadata ? MR_OK : take_name(p, event->key, err);
}

static mr_status on_event(void *ctx, const mr_json_event *event, mr_error *err)
{
    parser *p = ctx;
    const uint32_t depth = mr_json_depth(event);
    if (depth == 0) {
        const bool object =
            event->kind == MR_JSON_OBJECT_BEGIN || event->kind == MR_JSON_OBJECT_END;
        return object ? MR_OK
                      : mr_fail(err, MR_DATA_LOSS, "the header is no object; the file is corrupt");
    }
    if (depth == 1) {
        return on_top(p, event, err);
    }
    const mr_bytes name = mr_json_path_key(event, 0);
    if (mr_bytes_is(name, METADATA)) {
        /* Free text, and nothing else. */
        return event->kind == MR_JSON_STRING
                   ? MR_OK
                   : mr_fail(err, MR_DATA_LOSS,
                             "the header's " METADATA " has a value that is no text; the file is "
                             "corrupt");
    }
    if (depth == 2) {
        return take_field(p, event, err);
    }
    if (depth == 3 && event->kind == MR_JSON_NUMBER) {
        const bool shape = mr_bytes_is(mr_json_path_key(event, 1), "shape");
        return shape ? take_dim(p, event, err) : take_offset(p, event, err);
    }
    return mr_fail(err, MR_DATA_LOSS,
                   "tensor '%s' has something else than numbers in an array; the file is corrupt",
                   name_of(p));
}

/* ---- the whole ---- */

static int by_place(const void *a, const void *b)
{
    const entry *x = a;
    const entry *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    if (x->end != y->end) {
        return x->end < y->end ? -1 : 1;
    }
    return x->name_at < y->name_at ? -1 : 1;
}

/* Sorts by place; the tensors must follow each other from the first byte to the last. */
static mr_status check_places(const mr_safetensors *file, uint64_t data_bytes, mr_error *err)
{
    uint64_t end = 0;
    if (file->count > 0) {
        qsort(file->entries, file->count, sizeof(*file->entries), by_place);
    }
    for (size_t i = 0; i < file->count; i++) {
        const entry *e = &file->entries[i];
        if (e->begin != end) {
            return mr_fail(
                err, MR_DATA_LOSS,
                "tensor '%s' begins at byte %" PRIu64 " of the data where %" PRIu64
                " is wanted: tensors may not overlap or leave holes; the file is corrupt",
                e->tensor.name, e->begin, end);
        }
        end = e->end;
    }
    if (end != data_bytes) {
        return mr_fail(err, MR_DATA_LOSS,
                       "%" PRIu64
                       " bytes behind the last tensor belong to none; the file is corrupt",
                       data_bytes - end);
    }
    return MR_OK;
}

static mr_status check_names(const mr_safetensors *file, mr_error *err)
{
    mr_string_map *seen = NULL;
    mr_status status = mr_string_map_create(file->count, &seen);
    for (size_t i = 0; i < file->count && status == MR_OK; i++) {
        const char *name = file->entries[i].tensor.name;
        status = mr_string_map_put(seen, name, strlen(name), (uint32_t)i);
        if (status == MR_ALREADY_EXISTS) {
            status =
                mr_fail(err, MR_DATA_LOSS, "tensor '%s' is there twice; the file is corrupt", name);
        }
    }
    if (status == MR_RESOURCE_EXHAUSTED) {
        (void)mr_fail(err, status, "no memory for the names of %zu tensors", file->count);
    }
    mr_string_map_destroy(seen);
    return status;
}

static mr_status parse(mr_safetensors *file, const uint8_t *data, size_t size, mr_error *err)
{
    uint64_t header = 0;
    if (size < LENGTH_BYTES) {
        return mr_fail(err, MR_DATA_LOSS,
                       "a safetensors file of %zu bytes has no header; download it again", size);
    }
    for (unsigned i = 0; i < LENGTH_BYTES; i++) {
        header |= (uint64_t)data[i] << (8 * i);
    }
    if (header > size - LENGTH_BYTES) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the header says it has %" PRIu64 " bytes and the file has %zu: it is cut "
                       "off, or no safetensors file; download it again",
                       header, size);
    }
    const uint8_t *body = data + LENGTH_BYTES + header;
    parser p = {.file = file, .data_bytes = size - LENGTH_BYTES - header};
    MR_TRY(mr_json_sax_parse(data + LENGTH_BYTES, (size_t)header, MAX_HEADER_BYTES, on_event, &p,
                             err));
    for (size_t i = 0; i < file->count; i++) {
        entry *e = &file->entries[i];
        e->tensor.name = (const char *)file->names.data + e->name_at;
        e->tensor.data = body + e->begin;
    }
    MR_TRY(check_names(file, err));
    return check_places(file, p.data_bytes, err);
}

mr_status mr_safetensors_create(const void *data, size_t size, mr_safetensors **out, mr_error *err)
{
    *out = NULL;
    mr_safetensors *file = mr_calloc(1, sizeof(*file));
    if (file == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to read a safetensors file");
    }
    const mr_status status = parse(file, data, size, err);
    if (status != MR_OK) {
        mr_safetensors_destroy(file);
        return status;
    }
    *out = file;
    return MR_OK;
}

void mr_safetensors_destroy(mr_safetensors *file)
{
    if (file == NULL) {
        return;
    }
    free(file->entries);
    mr_buffer_deinit(&file->names);
    free(file);
}

size_t mr_safetensors_count(const mr_safetensors *file)
{
    return file->count;
}

const mr_model_tensor *mr_safetensors_at(const mr_safetensors *file, size_t index)
{
    MR_CHECK(index < file->count);
    return &file->entries[index].tensor;
}
