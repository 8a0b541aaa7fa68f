/* SPDX-License-Identifier: Apache-2.0 */
/* The safetensors files of a model directory: one file, or the shards that
 * model.safetensors.index.json names. */
#ifndef MILLRACE_MODEL_CHECKPOINT_H
#define MILLRACE_MODEL_CHECKPOINT_H

#include "base/status.h"
#include "model/tensor_table.h"

#include <stddef.h>

typedef struct mr_checkpoint mr_checkpoint;

/* Maps and parses all files. Gives the checkpoint. NOT_FOUND (the directory has no weights: says
 * what to do), DATA_LOSS (corrupt; a tensor in two shards; one that the index names and no shard
 * has: names file and tensor), UNIMPLEMENTED, RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_checkpoint_open(const char *dir, mr_checkpoint **out, mr_error *err);
void mr_checkpoint_close(mr_checkpoint *checkpoint);

/* Borrowed until close; `used` is the reader's to set. */
mr_tensor_table *mr_checkpoint_tensors(mr_checkpoint *checkpoint);

/* The pages of data[bytes], part of a tensor, may be dropped: somebody has a copy. Any thread. */
void mr_checkpoint_release(const mr_checkpoint *checkpoint, const void *data, size_t bytes);

#endif
