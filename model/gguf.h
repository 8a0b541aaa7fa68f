/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of GGUF files, versions 2 and 3, little-endian.
 *
 *   magic "GGUF" | u32 version | u64 tensors | u64 keys
 *   keys:    string key | u32 type | value                      (string: u64 bytes | bytes)
 *   tensors: string name | u32 n_dims | u64 dims[], innermost first | u32 type | u64 offset
 *   padding to general.alignment | tensor data, each at its offset from here
 *
 * The file is not trusted: every count is held against the bytes that are left before anything is
 * allocated for it, and nothing is looked at twice that is not checked here once. Messages name
 * the byte offset; the caller adds the path.
 */
#ifndef MILLRACE_MODEL_GGUF_H
#define MILLRACE_MODEL_GGUF_H

#include "base/bytes.h"
#include "base/status.h"
#include "model/tensor_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mr_gguf_type {
    MR_GGUF_U8,
    MR_GGUF_I8,
    MR_GGUF_U16,
    MR_GGUF_I16,
    MR_GGUF_U32,
    MR_GGUF_I32,
    MR_GGUF_F32,
    MR_GGUF_BOOL,
    MR_GGUF_STRING,
    MR_GGUF_ARRAY,
    MR_GGUF_U64,
    MR_GGUF_I64,
    MR_GGUF_F64,
    MR_GGUF_TYPE_COUNT,
} mr_gguf_type;

typedef struct mr_gguf_value {
    mr_bytes key; /* borrowed from the file: printable ASCII without '"' and '\' */
    mr_gguf_type type;
    mr_gguf_type element; /* of an array */
    uint64_t count;       /* bytes of a string, elements of an array */
    const uint8_t *data;  /* borrowed: a scalar, a string's bytes, an array's first element */
    uint64_t offset;      /* of data in the file */
} mr_gguf_value;

typedef struct mr_gguf mr_gguf;

/* Parses data[size], which must be aligned to 8 and stay until destroy. Gives the file.
 * DATA_LOSS (corrupt), UNIMPLEMENTED (version, byte order or tensor type, named),
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_gguf_create(const void *data, size_t size, mr_gguf **out, mr_error *err);
void mr_gguf_destroy(mr_gguf *gguf);

const mr_tensor_table *mr_gguf_tensors(const mr_gguf *gguf);
/* Notes that the tensor of this name is read; a name that is not there is ignored. */
void mr_gguf_mark_used(mr_gguf *gguf, const char *name);

size_t mr_gguf_value_count(const mr_gguf *gguf);
const mr_gguf_value *mr_gguf_value_at(const mr_gguf *gguf, size_t index);
/* NULL if there is no such key. */
const mr_gguf_value *mr_gguf_find(const mr_gguf *gguf, const char *key);

/* Typed access. A key that is absent is DATA_LOSS if required, else leaves *out alone and is OK.
 * A value of the wrong type or range is DATA_LOSS, naming key, type wanted and type found. */
typedef enum mr_gguf_need {
    MR_GGUF_OPTIONAL,
    MR_GGUF_REQUIRED,
} mr_gguf_need;

/* Any integer type, 0 … UINT32_MAX. */
MR_MUST_USE mr_status mr_gguf_read_u32(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                       uint32_t *out, mr_error *err);
/* A finite float. */
MR_MUST_USE mr_status mr_gguf_read_f32(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                       float *out, mr_error *err);
MR_MUST_USE mr_status mr_gguf_read_bool(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                        bool *out, mr_error *err);
/* Borrowed from the file. */
MR_MUST_USE mr_status mr_gguf_read_string(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                          mr_bytes *out, mr_error *err);
#define MR_GGUF_NAME_MAX 64
/* A name (of an architecture, a component): printable ASCII shorter than MR_GGUF_NAME_MAX. */
MR_MUST_USE mr_status mr_gguf_read_name(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                        char out[MR_GGUF_NAME_MAX], mr_error *err);
/* Gives an array (free with free(); the bytes are borrowed from the file) and its count. */
MR_MUST_USE mr_status mr_gguf_read_strings(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                           mr_bytes **out, uint32_t *count, mr_error *err);
/* Gives an array of integers 0 … UINT32_MAX (free with free()) and its count. */
MR_MUST_USE mr_status mr_gguf_read_u32s(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                        uint32_t **out, uint32_t *count, mr_error *err);
/* Gives an array of f32 (free with free()) and its count. */
MR_MUST_USE mr_status mr_gguf_read_f32s(const mr_gguf *gguf, const char *key, mr_gguf_need need,
                                        float **out, uint32_t *count, mr_error *err);

/* Bytes of a scalar; 0 for strings and arrays. */
size_t mr_gguf_scalar_bytes(mr_gguf_type type);
/* The name of a tensor type by its number in files, "Q6_K"; NULL if the number is not known. */
const char *mr_gguf_tensor_type_name(uint32_t number);

#endif
