/* SPDX-License-Identifier: Apache-2.0 */
/* The small JSON files of a Hugging Face model directory: typed access with messages that name the
 * key. Large ones (tokenizer.json, headers, indices) go through json_sax.h. */
#ifndef MILLRACE_MODEL_HF_JSON_H
#define MILLRACE_MODEL_HF_JSON_H

#include "base/file_map.h"
#include "base/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_HF_JSON_MAX_BYTES (4u << 20)

/* Gives "dir/file" (free with free()). RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_hf_path(const char *dir, const char *file, char **out, mr_error *err);

/* Maps dir/file; *found tells whether it is there, which is no error. */
MR_MUST_USE mr_status mr_hf_map_file(const char *dir, const char *file, mr_file_map *out,
                                     bool *found, mr_error *err);

/* Reads dir/file of at most MR_HF_JSON_MAX_BYTES, an object. Gives it (json_decref), NULL if there
 * is no such file. DATA_LOSS: no JSON, a key twice, another value than an object; names the file.
 */
MR_MUST_USE mr_status mr_hf_json_read(const char *dir, const char *file, json_t **out,
                                      mr_error *err);
/* The same of text in memory; `label` names it. */
MR_MUST_USE mr_status mr_hf_json_parse(const void *data, size_t size, const char *label,
                                       json_t **out, mr_error *err);

/* Typed access. A key that is absent or null leaves *out alone. DATA_LOSS, naming the key, for
 * another type or a value out of range. */
MR_MUST_USE mr_status mr_hf_json_u32(const json_t *object, const char *key, uint32_t *out,
                                     mr_error *err);
MR_MUST_USE mr_status mr_hf_json_double(const json_t *object, const char *key, double *out,
                                        mr_error *err);
MR_MUST_USE mr_status mr_hf_json_bool(const json_t *object, const char *key, bool *out,
                                      mr_error *err);
/* Borrowed from the object. */
MR_MUST_USE mr_status mr_hf_json_string(const json_t *object, const char *key, const char **out,
                                        mr_error *err);

#endif
