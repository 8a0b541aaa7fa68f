/* SPDX-License-Identifier: Apache-2.0 */
#include "model/checkpoint.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/file_map.h"
#include "model/hf_json.h"
#include "model/json_sax.h"
#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>

#define SINGLE          "model.safetensors"
#define INDEX           "model.safetensors.index.json"
#define MAX_INDEX_BYTES (64u << 20)
#define MAX_SHARDS      4096u
#define MAX_FILE_NAME   255u

typedef struct shard {
    char *name; /* owns */
    mr_file_map map;
    mr_safetensors *file;
} shard;

struct mr_checkpoint {
    shard *shards; /* [n_shards], owns */
    uint32_t n_shards;
    mr_string_map *by_name; /* owns: name → shard; the keys are the shards' */
    mr_tensor_table tensors;
};

/* What the index says: tensor → shard. */
typedef struct index_reader {
    mr_checkpoint *checkpoint;
    mr_buffer entries; /* u32 shard, name, NUL; one after another */
} index_reader;

static mr_status add_shard(mr_checkpoint *c, mr_bytes name, uint32_t *index, mr_error *err)
{
    if (mr_string_map_get(c->by_name, name.data, name.size, index)) {
        return MR_OK;
    }
    *index = c->n_shards;
    bool plain = name.size >= 1 && name.size <= MAX_FILE_NAME && name.data[0] != '.';
    for (size_t i = 0; plain && i < name.size; i++) {
        plain = name.data[i] > 0x20 && name.data[i] != 0x7f && name.data[i] != '/' &&
                name.data[i] != '"' && name.data[i] != '\\';
    }
    if (!plain || c->n_shards == MAX_SHARDS) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the index names more than %u files, or one outside the directory",
                       MAX_SHARDS);
    }
    shard *grown = mr_reallocarray(c->shards, (size_t)c->n_shards + 1, sizeof(*grown));
    if (grown == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the list of shards");
    }
    c->shards = grown;
    char *copy = strndup((const char *)name.data, name.size);
    if (copy == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the list of shards");
    }
    c->shards[c->n_shards++] = (shard){.name = copy};
    const mr_status status = mr_string_map_put(c->by_name, copy, name.size, *index);
    return status == MR_OK ? MR_OK : mr_fail(err, status, "no memory for the list of shards");
}

static mr_status on_index(void *ctx, const mr_json_event *event, mr_error *err)
{
    index_reader *r = ctx;
    if (!mr_json_at(event, "/weight_map/*")) {
        return MR_OK;
    }
    uint32_t index;
    if (event->kind != MR_JSON_STRING || memchr(event->key.data, '\0', event->key.size) != NULL) {
        return mr_fail(err, MR_DATA_LOSS, "weight_map is not a map from tensors to files");
    }
    MR_TRY(add_shard(r->checkpoint, event->text, &index, err));
    if (mr_buffer_append(&r->entries, &index, sizeof(index)) != MR_OK ||
        mr_buffer_append(&r->entries, event->key.data, event->key.size) != MR_OK ||
        mr_buffer_append(&r->entries, "", 1) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the index of tensors");
    }
    return MR_OK;
}

static mr_status open_shard(shard *s, const char *dir, mr_error *err)
{
    char *path;
    MR_TRY(mr_hf_path(dir, s->name, &path, err));
    mr_status status = mr_file_map_open(path, &s->map, err);
    if (status == MR_OK) {
        status = mr_safetensors_create(s->map.data, s->map.size, &s->file, err);
        if (status != MR_OK) {
            (void)mr_fail_context(err, "%s", s->name);
        }
    }
    free(path);
    return status;
}

static mr_status open_shards(mr_checkpoint *c, const char *dir, mr_error *err)
{
    size_t count = 0;
    for (uint32_t i = 0; i < c->n_shards; i++) {
        MR_TRY(open_shard(&c->shards[i], dir, err));
        count += mr_safetensors_count(c->shards[i].file);
    }
    if (mr_tensor_table_init(&c->tensors, count) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for a table of %zu tensors", count);
    }
    for (uint32_t i = 0; i < c->n_shards; i++) {
        for (size_t t = 0; t < mr_safetensors_count(c->shards[i].file); t++) {
            const mr_model_tensor *tensor = mr_safetensors_at(c->shards[i].file, t);
            const mr_status status = mr_tensor_table_add(&c->tensors, tensor);
            if (status == MR_ALREADY_EXISTS) {
                return mr_fail(err, MR_DATA_LOSS,
                               "tensor '%s' is in two shards, one of them %s; the directory is "
                               "inconsistent, download the model again",
                               tensor->name, c->shards[i].name);
            }
            if (status != MR_OK) {
                return mr_fail(err, status, "no memory for a table of %zu tensors", count);
            }
        }
    }
    return MR_OK;
}

/* Every tensor of the index is in the shard that it names. */
static mr_status check_index(const mr_checkpoint *c, const mr_buffer *entries, mr_error *err)
{
    for (size_t at = 0; at < entries->size;) {
        uint32_t index;
        memcpy(&index, entries->data + at, sizeof(index));
        const char *name = (const char *)entries->data + at + sizeof(index);
        at += sizeof(index) + strlen(name) + 1;
        const mr_file_map *map = &c->shards[index].map;
        const mr_model_tensor *tensor = mr_tensor_table_find(&c->tensors, name);
        const uint8_t *data = tensor != NULL ? tensor->data : NULL;
        if (data == NULL || data < map->data || data > map->data + map->size) {
            return mr_fail(err, MR_DATA_LOSS,
                           "tensor '%.128s' is not in %.128s, where " INDEX " has it; download the "
                           "model again",
                           name, c->shards[index].name);
        }
    }
    return MR_OK;
}

static mr_status open_indexed(mr_checkpoint *c, const char *dir, const mr_file_map *index,
                              mr_error *err)
{
    index_reader r = {.checkpoint = c};
    mr_status status =
        mr_json_sax_parse(index->data, index->size, MAX_INDEX_BYTES, on_index, &r, err);
    if (status == MR_OK && c->n_shards == 0) {
        status = mr_fail(err, MR_DATA_LOSS, "no weight_map in it; download the model again");
    }
    if (status != MR_OK) {
        (void)mr_fail_context(err, INDEX);
    } else {
        status = open_shards(c, dir, err);
    }
    if (status == MR_OK) {
        status = check_index(c, &r.entries, err);
    }
    mr_buffer_deinit(&r.entries);
    return status;
}

static mr_status open_files(mr_checkpoint *c, const char *dir, mr_error *err)
{
    mr_file_map index;
    bool found;
    MR_TRY(mr_hf_map_file(dir, INDEX, &index, &found, err));
    if (found) {
        const mr_status status = open_indexed(c, dir, &index, err);
        mr_file_map_close(&index);
        return status;
    }
    uint32_t first;
    const mr_bytes single = mr_bytes_of(SINGLE);
    MR_TRY(add_shard(c, single, &first, err));
    const mr_status status = open_shards(c, dir, err);
    if (status == MR_NOT_FOUND) {
        return mr_fail(err, MR_NOT_FOUND,
                       "the directory has neither " SINGLE " nor " INDEX
                       "; download the weights in "
                       "safetensors form, or set load_format to random");
    }
    return status;
}

mr_status mr_checkpoint_open(const char *dir, mr_checkpoint **out, mr_error *err)
{
    *out = NULL;
    mr_checkpoint *c = mr_calloc(1, sizeof(*c));
    if (c == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory to open a checkpoint");
    }
    mr_status status = mr_string_map_create(1, &c->by_name);
    status = status == MR_OK ? open_files(c, dir, err)
                             : mr_fail(err, status, "no memory to open a checkpoint");
    if (status != MR_OK) {
        mr_checkpoint_close(c);
        return status;
    }
    *out = c;
    return MR_OK;
}

void mr_checkpoint_close(mr_checkpoint *checkpoint)
{
    if (checkpoint == NULL) {
        return;
    }
    mr_tensor_table_deinit(&checkpoint->tensors);
    for (uint32_t i = 0; i < checkpoint->n_shards; i++) {
        mr_safetensors_destroy(checkpoint->shards[i].file);
        mr_file_map_close(&checkpoint->shards[i].map);
        free(checkpoint->shards[i].name);
    }
    mr_string_map_destroy(checkpoint->by_name);
    free(checkpoint->shards);
    free(checkpoint);
}

mr_tensor_table *mr_checkpoint_tensors(mr_checkpoint *checkpoint)
{
    return &checkpoint->tensors;
}

void mr_checkpoint_release(const mr_checkpoint *checkpoint, const void *data, size_t bytes)
{
    const uintptr_t at = (uintptr_t)data;
    for (uint32_t i = 0; i < checkpoint->n_shards; i++) {
        const mr_file_map *map = &checkpoint->shards[i].map;
        const uintptr_t base = (uintptr_t)map->data;
        if (map->data != NULL && at >= base && at - base < map->size) {
            mr_file_map_release(map, data, bytes);
            return;
        }
    }
}
