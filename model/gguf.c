/* SPDX-License-Identifier: Apache-2.0 */
#include "model/gguf.h"

#include "base/checked.h"
#include "model/format.h"
#include "model/gguf_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES      24u
#define MIN_KEY_BYTES     14u /* length, one byte of key, type, one byte of value */
#define MIN_TENSOR_BYTES  33u /* length, one byte of name, n_dims, one dimension, type, offset */
#define NAME_MAX_BYTES    95u /* what mr_plan_weight.name holds */
#define MAX_DIMS          4u
#define MAX_ARRAY_DEPTH   4u
#define DEFAULT_ALIGNMENT 32u
#define MIN_ALIGNMENT     8u
#define MAX_ALIGNMENT     65536u

struct mr_gguf {
    const uint8_t *data; /* borrowed */
    size_t size;
    mr_gguf_value *values; /* [n_values] owns */
    size_t n_values;
    mr_string_map *keys;
    mr_tensor_table tensors;
    char *names;       /* owns: the tensors' names, NUL-terminated, one after another */
    uint64_t *offsets; /* [tensors] relative to the data; owns; while parsing only */
    uint32_t alignment;
    uint64_t data_start;
};

static mr_status read_type(mr_gguf_reader *in, mr_gguf_type *out)
{
    const uint64_t start = in->at;
    uint32_t number = 0;
    MR_TRY(mr_gguf_reader_u32(in, "the type of a value", &number));
    if (number >= MR_GGUF_TYPE_COUNT) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "the value type %" PRIu32 " at byte %" PRIu64
                       " is not known; the file is corrupt or newer than this build",
                       number, start);
    }
    *out = (mr_gguf_type)number;
    return MR_OK;
}

static mr_status read_array(mr_gguf_reader *in, uint32_t depth, mr_gguf_value *value);

/* Reads what follows the type. */
static mr_status read_value(mr_gguf_reader *in, mr_gguf_type type, uint32_t depth,
                            mr_gguf_value *value)
{
    if (type == MR_GGUF_ARRAY) {
        return read_array(in, depth + 1, value);
    }
    if (type == MR_GGUF_STRING) {
        mr_bytes text;
        MR_TRY(mr_gguf_reader_string(in, "a string", &text));
        value->data = text.data;
        value->count = text.size;
        return MR_OK;
    }
    value->data = in->data + in->at;
    value->count = 1;
    return mr_gguf_reader_skip(in, "a value", 1, mr_gguf_scalar_bytes(type));
}

static mr_status read_array(mr_gguf_reader *in, uint32_t depth, mr_gguf_value *value)
{
    const uint64_t start = in->at;
    if (depth > MAX_ARRAY_DEPTH) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "the array at byte %" PRIu64
                       " is nested more than %u deep; the file is corrupt",
                       start, MAX_ARRAY_DEPTH);
    }
    MR_TRY(read_type(in, &value->element));
    MR_TRY(mr_gguf_reader_u64(in, "an array", &value->count));
    value->data = in->data + in->at;
    const size_t scalar = mr_gguf_scalar_bytes(value->element);
    if (scalar > 0) {
        return mr_gguf_reader_skip(in, "an array", value->count, scalar);
    }
    /* Every turn takes at least eight bytes of the file, so the count needs no other bound. */
    for (uint64_t i = 0; i < value->count; i++) {
        mr_gguf_value element;
        MR_TRY(read_value(in, value->element, depth, &element));
    }
    return MR_OK;
}

static mr_status read_header(mr_gguf_reader *in, uint64_t *n_tensors, uint64_t *n_values)
{
    if (!mr_format_is_gguf(in->data, (size_t)in->size)) {
        return mr_format_refuse(in->data, (size_t)in->size, in->err);
    }
    if (in->size < HEADER_BYTES) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "a GGUF file cut off after %" PRIu64 " bytes; download the model again",
                       in->size);
    }
    in->at = 4;
    uint32_t version = 0;
    MR_TRY(mr_gguf_reader_u32(in, "the header", &version));
    if ((version & 0xffffu) == 0 && version != 0) {
        return mr_fail(in->err, MR_UNIMPLEMENTED,
                       "a big-endian GGUF file (version field at byte 4); this build reads "
                       "little-endian files, convert it");
    }
    if (version != 2 && version != 3) {
        return mr_fail(in->err, version == 0 ? MR_DATA_LOSS : MR_UNIMPLEMENTED,
                       "GGUF version %" PRIu32 " (at byte 4) is not supported; this build reads "
                       "versions 2 and 3, convert the model again",
                       version);
    }
    MR_TRY(mr_gguf_reader_u64(in, "the header", n_tensors));
    MR_TRY(mr_gguf_reader_u64(in, "the header", n_values));
    return MR_OK;
}

/* Refuses a count of records that cannot fit into what is left of the file. */
static mr_status check_count(mr_gguf_reader *in, const char *what, uint64_t count,
                             uint64_t min_bytes)
{
    if (count > (in->size - in->at) / min_bytes || count >= UINT32_MAX) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "the header claims %" PRIu64 " %s, more than the %" PRIu64
                       " bytes after byte %" PRIu64 " can hold; the file is cut off or corrupt",
                       count, what, in->size - in->at, in->at);
    }
    return MR_OK;
}

static mr_status read_values(mr_gguf *gguf, mr_gguf_reader *in, uint64_t count)
{
    MR_TRY(check_count(in, "keys", count, MIN_KEY_BYTES));
    gguf->values = mr_calloc(count > 0 ? (size_t)count : 1, sizeof(*gguf->values));
    if (gguf->values == NULL || mr_string_map_create((size_t)count, &gguf->keys) != MR_OK) {
        return mr_fail(in->err, MR_RESOURCE_EXHAUSTED, "no memory for %" PRIu64 " keys", count);
    }
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t start = in->at;
        mr_gguf_value *value = &gguf->values[i];
        MR_TRY(mr_gguf_reader_identifier(in, "a key", UINT16_MAX, &value->key));
        MR_TRY(read_type(in, &value->type));
        MR_TRY(read_value(in, value->type, 0, value));
        value->offset = (uint64_t)(value->data - in->data);
        const mr_status status =
            mr_string_map_put(gguf->keys, value->key.data, value->key.size, (uint32_t)i);
        if (status == MR_ALREADY_EXISTS) {
            return mr_fail(in->err, MR_DATA_LOSS,
                           "the key '%.*s' at byte %" PRIu64
                           " is there twice; the file is corrupt, convert the model again",
                           (int)value->key.size, (const char *)value->key.data, start);
        }
        if (status != MR_OK) {
            return mr_fail(in->err, status, "no memory for %" PRIu64 " keys", count);
        }
        gguf->n_values = (size_t)i + 1;
    }
    return MR_OK;
}

static mr_status read_alignment(mr_gguf *gguf, mr_error *err)
{
    gguf->alignment = DEFAULT_ALIGNMENT;
    MR_TRY(mr_gguf_read_u32(gguf, "general.alignment", MR_GGUF_OPTIONAL, &gguf->alignment, err));
    const uint32_t a = gguf->alignment;
    if (a < MIN_ALIGNMENT || a > MAX_ALIGNMENT || (a & (a - 1)) != 0) {
        return mr_fail(err, MR_DATA_LOSS,
                       "general.alignment is %" PRIu32 " where a power of two from %u to %u is "
                       "allowed; the file is corrupt",
                       a, MIN_ALIGNMENT, MAX_ALIGNMENT);
    }
    return MR_OK;
}

static mr_status fail_tensor(mr_gguf_reader *in, uint64_t start, const mr_model_tensor *tensor,
                             const char *what)
{
    return mr_fail(in->err, MR_DATA_LOSS,
                   "tensor '%s' (record at byte %" PRIu64 ") %s; the file is corrupt", tensor->name,
                   start, what);
}

static mr_status map_tensor_type(mr_gguf_reader *in, uint64_t start, uint32_t number,
                                 mr_model_tensor *tensor)
{
    const char *name = mr_gguf_tensor_type_name(number);
    for (unsigned dtype = 0; name != NULL && dtype < MR_DTYPE_COUNT; dtype++) {
        if (strcmp(mr_dtype_info_get((mr_dtype)dtype)->name, name) == 0) {
            tensor->dtype = (mr_dtype)dtype;
            return MR_OK;
        }
    }
    if (name == NULL) {
        return mr_fail(in->err, MR_UNIMPLEMENTED,
                       "tensor '%s' (record at byte %" PRIu64 ") has type number %" PRIu32
                       ", which is not known; the file is corrupt or newer than this build",
                       tensor->name, start, number);
    }
    return mr_fail(in->err, MR_UNIMPLEMENTED,
                   "tensor '%s' (record at byte %" PRIu64
                   ") has type %s; take the model in " MR_DTYPE_NAMES,
                   tensor->name, start, name);
}

/* Bytes of the tensor from shape and type. */
static mr_status measure_tensor(mr_gguf_reader *in, uint64_t start, mr_model_tensor *tensor)
{
    uint64_t rows = 1;
    for (uint32_t i = 0; i < tensor->n_dims; i++) {
        if (tensor->shape[i] == 0) {
            return fail_tensor(in, start, tensor, "has a dimension of 0");
        }
        if (i + 1 < tensor->n_dims && !mr_mul_u64(rows, tensor->shape[i], &rows)) {
            return fail_tensor(in, start, tensor, "has more elements than 64 bits can count");
        }
    }
    const uint64_t k = tensor->shape[tensor->n_dims - 1];
    uint64_t elements;
    uint64_t row_bytes;
    if (!mr_mul_u64(rows, k, &elements) || elements > INT64_MAX) {
        return fail_tensor(in, start, tensor, "has more elements than 63 bits can count");
    }
    if (!mr_dtype_row_bytes(tensor->dtype, k, &row_bytes)) {
        return mr_fail(
            in->err, MR_DATA_LOSS,
            "tensor '%s' (record at byte %" PRIu64 ") has rows of %" PRIu64
            " elements, too long or not a whole number of %s blocks; the file is corrupt",
            tensor->name, start, k, mr_dtype_info_get(tensor->dtype)->name);
    }
    if (!mr_mul_u64(rows, row_bytes, &tensor->bytes)) {
        return fail_tensor(in, start, tensor, "has more bytes than 64 bits can count");
    }
    return MR_OK;
}

/* Reads one record; *name is where its name is copied to, and is moved behind it. */
static mr_status read_tensor(mr_gguf_reader *in, char **name, mr_model_tensor *tensor,
                             uint64_t *offset)
{
    const uint64_t start = in->at;
    mr_bytes text;
    MR_TRY(mr_gguf_reader_identifier(in, "a tensor name", NAME_MAX_BYTES, &text));
    memcpy(*name, text.data, text.size);
    (*name)[text.size] = '\0';
    tensor->name = *name;
    *name += text.size + 1;

    MR_TRY(mr_gguf_reader_u32(in, "a tensor record", &tensor->n_dims));
    if (tensor->n_dims < 1 || tensor->n_dims > MAX_DIMS) {
        return mr_fail(in->err, MR_DATA_LOSS,
                       "tensor '%s' (record at byte %" PRIu64 ") has %" PRIu32
                       " dimensions where 1 to %u are allowed; the file is corrupt",
                       tensor->name, start, tensor->n_dims, MAX_DIMS);
    }
    for (uint32_t i = tensor->n_dims; i > 0; i--) {
        MR_TRY(mr_gguf_reader_u64(in, "a tensor record", &tensor->shape[i - 1]));
    }
    uint32_t type = 0;
    MR_TRY(mr_gguf_reader_u32(in, "a tensor record", &type));
    MR_TRY(mr_gguf_reader_u64(in, "a tensor record", offset));
    MR_TRY(map_tensor_type(in, start, type, tensor));
    return measure_tensor(in, start, tensor);
}

static mr_status read_tensors(mr_gguf *gguf, mr_gguf_reader *in, uint64_t count)
{
    MR_TRY(check_count(in, "tensors", count, MIN_TENSOR_BYTES));
    /* A name and its NUL are shorter than its record. */
    const uint64_t left = in->size - in->at;
    const uint64_t most = count * (NAME_MAX_BYTES + 1);
    gguf->names = mr_calloc((size_t)(most < left ? most : left) + 1, 1);
    gguf->offsets = mr_calloc((size_t)count + 1, sizeof(*gguf->offsets));
    if (gguf->names == NULL || gguf->offsets == NULL ||
        mr_tensor_table_init(&gguf->tensors, (size_t)count) != MR_OK) {
        return mr_fail(in->err, MR_RESOURCE_EXHAUSTED, "no memory for %" PRIu64 " tensors", count);
    }
    char *name = gguf->names;
    for (uint64_t i = 0; i < count; i++) {
        const uint64_t start = in->at;
        mr_model_tensor tensor = {0};
        MR_TRY(read_tensor(in, &name, &tensor, &gguf->offsets[i]));
        const mr_status status = mr_tensor_table_add(&gguf->tensors, &tensor);
        if (status == MR_ALREADY_EXISTS) {
            return fail_tensor(in, start, &tensor, "is there twice");
        }
        if (status != MR_OK) {
            return mr_fail(in->err, status, "no memory for %" PRIu64 " tensors", count);
        }
    }
    return MR_OK;
}

/* Gives each tensor its data, which must lie inside the file. */
static mr_status place_tensors(mr_gguf *gguf, mr_error *err)
{
    const uint64_t room = gguf->size - gguf->data_start;
    for (size_t i = 0; i < gguf->tensors.count; i++) {
        mr_model_tensor *tensor = &gguf->tensors.items[i];
        const uint64_t offset = gguf->offsets[i];
        if (offset % gguf->alignment != 0) {
            return mr_fail(err, MR_DATA_LOSS,
                           "tensor '%s' begins %" PRIu64 " bytes into the data at byte %" PRIu64
                           ", not at a multiple of the alignment %" PRIu32 "; the file is corrupt",
                           tensor->name, offset, gguf->data_start, gguf->alignment);
        }
        if (offset > room || tensor->bytes > room - offset) {
            return mr_fail(err, MR_DATA_LOSS,
                           "tensor '%s' wants %" PRIu64 " bytes, %" PRIu64
                           " bytes into the data at byte %" PRIu64 ", but the file has %zu bytes; "
                           "it is cut off or corrupt, download it again",
                           tensor->name, tensor->bytes, offset, gguf->data_start, gguf->size);
        }
        tensor->data = gguf->data + gguf->data_start + offset;
    }
    return MR_OK;
}

static int by_data(const void *left, const void *right)
{
    const mr_model_tensor *a = *(const mr_model_tensor *const *)left;
    const mr_model_tensor *b = *(const mr_model_tensor *const *)right;
    return (a->data > b->data) - (a->data < b->data);
}

static mr_status check_overlap(const mr_gguf *gguf, mr_error *err)
{
    const size_t count = gguf->tensors.count;
    if (count == 0) {
        return MR_OK;
    }
    const mr_model_tensor **order = mr_calloc(count, sizeof(*order));
    if (order == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        order[i] = &gguf->tensors.items[i];
    }
    qsort(order, count, sizeof(*order), by_data);
    mr_status status = MR_OK;
    for (size_t i = 1; i < count && status == MR_OK; i++) {
        const uint8_t *before = order[i - 1]->data;
        const uint8_t *here = order[i]->data;
        if ((uint64_t)(here - before) < order[i - 1]->bytes) {
            status =
                mr_fail(err, MR_DATA_LOSS,
                        "tensors '%s' and '%s' overlap at byte %" PRIu64 "; the file is corrupt",
                        order[i - 1]->name, order[i]->name, (uint64_t)(here - gguf->data));
        }
    }
    free(order);
    return status;
}

static mr_status parse(mr_gguf *gguf, mr_error *err)
{
    mr_gguf_reader in = {.data = gguf->data, .size = gguf->size, .err = err};
    uint64_t n_tensors = 0;
    uint64_t n_values = 0;
    MR_TRY(read_header(&in, &n_tensors, &n_values));
    MR_TRY(read_values(gguf, &in, n_values));
    MR_TRY(read_alignment(gguf, err));
    MR_TRY(read_tensors(gguf, &in, n_tensors));
    if (!mr_align_u64(in.at, gguf->alignment, &gguf->data_start) || gguf->data_start > gguf->size) {
        if (n_tensors > 0) {
            return mr_gguf_reader_cut_off(&in, "the padding before the tensor data");
        }
        gguf->data_start = gguf->size;
    }
    MR_TRY(place_tensors(gguf, err));
    return check_overlap(gguf, err);
}

mr_status mr_gguf_create(const void *data, size_t size, mr_gguf **out, mr_error *err)
{
    *out = NULL;
    MR_CHECK(((uintptr_t)data & 7u) == 0);
    mr_gguf *gguf = mr_calloc(1, sizeof(*gguf));
    if (gguf == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to read the model file");
    }
    gguf->data = data;
    gguf->size = size;
    const mr_status status = parse(gguf, err);
    free(gguf->offsets);
    gguf->offsets = NULL;
    if (status != MR_OK) {
        mr_gguf_destroy(gguf);
        return status;
    }
    *out = gguf;
    return MR_OK;
}

void mr_gguf_destroy(mr_gguf *gguf)
{
    if (gguf == NULL) {
        return;
    }
    mr_tensor_table_deinit(&gguf->tensors);
    mr_string_map_destroy(gguf->keys);
    free(gguf->names);
    free(gguf->values);
    free(gguf);
}

const mr_tensor_table *mr_gguf_tensors(const mr_gguf *gguf)
{
    return &gguf->tensors;
}

void mr_gguf_mark_used(mr_gguf *gguf, const char *name)
{
    const mr_model_tensor *tensor = mr_tensor_table_find(&gguf->tensors, name);
    if (tensor != NULL) {
        gguf->tensors.items[tensor - gguf->tensors.items].used = true;
    }
}

size_t mr_gguf_value_count(const mr_gguf *gguf)
{
    return gguf->n_values;
}

const mr_gguf_value *mr_gguf_value_at(const mr_gguf *gguf, size_t index)
{
    MR_CHECK(index < gguf->n_values);
    return &gguf->values[index];
}

const mr_gguf_value *mr_gguf_find(const mr_gguf *gguf, const char *key)
{
    uint32_t index;
    if (!mr_string_map_get(gguf->keys, key, strlen(key), &index)) {
        return NULL;
    }
    return &gguf->values[index];
}
