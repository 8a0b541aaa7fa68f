/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reader of safetensors files.
 *
 *   u64 header bytes | header: JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, …,
 *                               "__metadata__": {"key": "text", …}} | tensor data
 *
 * The file is not trusted: the header's length is held against the file's, every tensor's bytes
 * against its shape and type, and the tensors must cover the data without overlap and without a
 * hole, so that nothing hides in a file and no byte is read as two things.
 */
#ifndef MILLRACE_MODEL_SAFETENSORS_H
#define MILLRACE_MODEL_SAFETENSORS_H

#include "base/status.h"
#include "model/tensor_table.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_safetensors mr_safetensors;

/* Parses data[size], which must stay until destroy. Gives the file. DATA_LOSS (corrupt: names the
 * tensor, or the byte of the header), UNIMPLEMENTED (a type that is not known, named),
 * RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_safetensors_create(const void *data, size_t size, mr_safetensors **out,
                                            mr_error *err);
void mr_safetensors_destroy(mr_safetensors *file);

/* Tensors in the order of their data. Names and items are borrowed until destroy. */
size_t mr_safetensors_count(const mr_safetensors *file);
const mr_model_tensor *mr_safetensors_at(const mr_safetensors *file, size_t index);

#endif
