/* SPDX-License-Identifier: Apache-2.0 */
/* Names of GGUF's types, and typed access to its values. */
#include "model/gguf.h"

#include "base/checked.h"
#include "model/gguf_reader.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} types[MR_GGUF_TYPE_COUNT] = {
    [MR_GGUF_U8] = {"u8", 1},       [MR_GGUF_I8] = {"i8", 1},     [MR_GGUF_U16] = {"u16", 2},
    [MR_GGUF_I16] = {"i16", 2},     [MR_GGUF_U32] = {"u32", 4},   [MR_GGUF_I32] = {"i32", 4},
    [MR_GGUF_F32] = {"f32", 4},     [MR_GGUF_BOOL] = {"bool", 1}, [MR_GGUF_STRING] = {"string", 0},
    [MR_GGUF_ARRAY] = {"array", 0}, [MR_GGUF_U64] = {"u64", 8},   [MR_GGUF_I64] = {"i64", 8},
    [MR_GGUF_F64] = {"f64", 8},
};

static const char *const tensor_types[] = {
    "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
    "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
    "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
    "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
    "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
    "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0",
    "Q2_0",
};

size_t mr_gguf_scalar_bytes(mr_gguf_type type)
{
    return types[type].bytes;
}

static const char *type_name(mr_gguf_type type)
{
    return types[type].name;
}

const char *mr_gguf_tensor_type_name(uint32_t number)
{
    return number < sizeof(tensor_types) / sizeof(tensor_types[0]) ? tensor_types[number] : NULL;
}

/* Finds the key. *out is NULL, with MR_OK, for an optional key that is absent. */
static mr_status find(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                      const mr_gguf_value **out, mr_error *err)
{
    *out = mr_gguf_find(gguf, key);
    if (*out == NULL && need == MR_GGUF_REQUIRED) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' is missing; the file is incomplete, convert the model again",
                       key);
    }
    return MR_OK;
}

static mr_status fail_type(const mr_gguf_value *value, const char *wanted, mr_error *err)
{
    const bool array = value->type == MR_GGUF_ARRAY;
    return mr_fail(err, MR_DATA_LOSS,
                   "the key '%.*s' must be %s but is %s%s (value at byte %" PRIu64
                   "); the file is corrupt or another architecture's",
                   (int)value->key.size, (const char *)value->key.data, wanted,
                   array ? "an array of " : "", type_name(array ? value->element : value->type),
                   value->offset);
}

static bool is_integer(mr_gguf_type type)
{
    return type != MR_GGUF_F32 && type != MR_GGUF_F64 && type != MR_GGUF_BOOL &&
           type != MR_GGUF_STRING && type != MR_GGUF_ARRAY;
}

/* The integer at `data` as 64 bits in two's complement; *negative tells how to read them. */
static uint64_t load_integer(mr_gguf_type type, const uint8_t *data, bool *negative)
{
    const size_t bytes = mr_gguf_scalar_bytes(type);
    const bool is_signed =
        type == MR_GGUF_I8 || type == MR_GGUF_I16 || type == MR_GGUF_I32 || type == MR_GGUF_I64;
    uint64_t bits = 0;
    for (size_t i = 0; i < bytes; i++) {
        bits |= (uint64_t)data[i] << (8 * i);
    }
    *negative = is_signed && (data[bytes - 1] & 0x80u) != 0;
    if (*negative && bytes < 8) {
        bits |= UINT64_MAX << (8 * bytes);
    }
    return bits;
}

/* `index` of an array's element, for the message; UINT64_MAX for a scalar. */
static mr_status load_u32(const mr_gguf_value *value, mr_gguf_type type, const uint8_t *data,
                          uint64_t index, uint32_t *out, mr_error *err)
{
    bool negative;
    const uint64_t bits = load_integer(type, data, &negative);
    if (!negative && bits <= UINT32_MAX) {
        *out = (uint32_t)bits;
        return MR_OK;
    }
    char where[32] = "";
    if (index != UINT64_MAX) {
        snprintf(where, sizeof(where), "[%" PRIu64 "]", index);
    }
    char number[24];
    snprintf(number, sizeof(number), negative ? "%" PRId64 : "%" PRIu64, bits);
    return mr_fail(err, MR_DATA_LOSS,
                   "the key '%.*s'%s is %s where 0 to 4294967295 is allowed (value at byte %" PRIu64
                   "); the file is corrupt",
                   (int)value->key.size, (const char *)value->key.data, where, number,
                   value->offset);
}

mr_status mr_gguf_read_u32(const mr_gguf *gguf, const char *key, mr_gguf_need need, uint32_t *out,
                           mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find(gguf, key, need, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    if (!is_integer(value->type)) {
        return fail_type(value, "an integer", err);
    }
    return load_u32(value, value->type, value->data, UINT64_MAX, out, err);
}

mr_status mr_gguf_read_f32(const mr_gguf *gguf, const char *key, mr_gguf_need need, float *out,
                           mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find(gguf, key, need, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    float number;
    if (value->type == MR_GGUF_F32) {
        const uint32_t bits = mr_gguf_load_u32(value->data);
        memcpy(&number, &bits, sizeof(number));
    } else if (value->type == MR_GGUF_F64) {
        const uint64_t bits = mr_gguf_load_u64(value->data);
        double wide;
        memcpy(&wide, &bits, sizeof(wide));
        /* Out of float's range a conversion is undefined. */
        number = fabs(wide) <= 3.4028234663852886e38 ? (float)wide : INFINITY;
    } else {
        return fail_type(value, "a float", err);
    }
    if (!isfinite(number)) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' is not a finite float (value at byte %" PRIu64
                       "); the file is corrupt",
                       key, value->offset);
    }
    *out = number;
    return MR_OK;
}

mr_status mr_gguf_read_bool(const mr_gguf *gguf, const char *key, mr_gguf_need need, bool *out,
                            mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find(gguf, key, need, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    if (value->type != MR_GGUF_BOOL) {
        return fail_type(value, "a bool", err);
    }
    if (value->data[0] > 1) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' is a bool of value %u (at byte %" PRIu64
                       "); the file is corrupt",
                       key, value->data[0], value->offset);
    }
    *out = value->data[0] == 1;
    return MR_OK;
}

mr_status mr_gguf_read_string(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                              mr_bytes *out, mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find(gguf, key, need, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    if (value->type != MR_GGUF_STRING) {
        return fail_type(value, "a string", err);
    }
    *out = (mr_bytes){.data = value->data, .size = (size_t)value->count};
    return MR_OK;
}

mr_status mr_gguf_read_name(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                            char out[MR_GGUF_NAME_MAX], mr_error *err)
{
    mr_bytes text = {0};
    MR_TRY(mr_gguf_read_string(gguf, key, need, &text, err));
    if (text.data == NULL) {
        return MR_OK;
    }
    bool fits = text.size > 0 && text.size < MR_GGUF_NAME_MAX;
    for (size_t i = 0; fits && i < text.size; i++) {
        fits = text.data[i] > 0x20 && text.data[i] < 0x7f;
    }
    if (!fits) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' must be a name of 1 to %d printable ASCII characters; "
                       "the file is corrupt",
                       key, MR_GGUF_NAME_MAX - 1);
    }
    memcpy(out, text.data, text.size);
    out[text.size] = '\0';
    return MR_OK;
}

static bool is_string(mr_gguf_type type)
{
    return type == MR_GGUF_STRING;
}

static bool is_f32(mr_gguf_type type)
{
    return type == MR_GGUF_F32;
}

/* As find, for an array short enough for 32-bit indices and of an element type that `fits`. */
static mr_status find_array(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                            bool (*fits)(mr_gguf_type), const mr_gguf_value **out, mr_error *err)
{
    MR_TRY(find(gguf, key, need, out, err));
    const mr_gguf_value *value = *out;
    if (value != NULL && value->type == MR_GGUF_ARRAY && value->count >= UINT32_MAX) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' has %" PRIu64 " elements, too many; the file is corrupt", key,
                       value->count);
    }
    if (value != NULL && (value->type != MR_GGUF_ARRAY || !fits(value->element))) {
        return fail_type(value,
                         fits == is_integer  ? "an array of integers"
                         : fits == is_string ? "an array of strings"
                                             : "an array of f32",
                         err);
    }
    return MR_OK;
}

mr_status mr_gguf_read_strings(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                               mr_bytes **out, uint32_t *count, mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find_array(gguf, key, need, is_string, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    mr_bytes *strings = mr_calloc((size_t)value->count + 1, sizeof(*strings));
    if (strings == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the key '%s'", key);
    }
    /* Parsing has walked the same lengths and found them inside the file. */
    const uint8_t *at = value->data;
    for (uint64_t i = 0; i < value->count; i++) {
        const uint64_t bytes = mr_gguf_load_u64(at);
        strings[i] = (mr_bytes){.data = at + 8, .size = (size_t)bytes};
        at += 8 + bytes;
    }
    *out = strings;
    *count = (uint32_t)value->count;
    return MR_OK;
}

mr_status mr_gguf_read_u32s(const mr_gguf *gguf, const char *key, mr_gguf_need need, uint32_t **out,
                            uint32_t *count, mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find_array(gguf, key, need, is_integer, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    uint32_t *numbers = mr_calloc((size_t)value->count + 1, sizeof(*numbers));
    if (numbers == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the key '%s'", key);
    }
    const size_t bytes = mr_gguf_scalar_bytes(value->element);
    for (uint64_t i = 0; i < value->count; i++) {
        const mr_status status =
            load_u32(value, value->element, value->data + i * bytes, i, &numbers[i], err);
        if (status != MR_OK) {
            free(numbers);
            return status;
        }
    }
    *out = numbers;
    *count = (uint32_t)value->count;
    return MR_OK;
}

mr_status mr_gguf_read_f32s(const mr_gguf *gguf, const char *key, mr_gguf_need need, float **out,
                            uint32_t *count, mr_error *err)
{
    const mr_gguf_value *value;
    MR_TRY(find_array(gguf, key, need, is_f32, &value, err));
    if (value == NULL) {
        return MR_OK;
    }
    float *numbers = mr_calloc((size_t)value->count + 1, sizeof(*numbers));
    if (numbers == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the key '%s'", key);
    }
    memcpy(numbers, value->data, (size_t)value->count * sizeof(*numbers));
    *out = numbers;
    *count = (uint32_t)value->count;
    return MR_OK;
}
