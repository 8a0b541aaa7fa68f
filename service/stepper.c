/* SPDX-License-Identifier: Apache-2.0 */
#include "service/stepper.h"

#include "base/checked.h"
#include "cache/block_pool.h"

#include <inttypes.h>
#include <stdlib.h>

struct mr_stepper {
    mr_exec *exec;
    mr_batch_storage *storages[2]; /* of the last step, which may be under way, and the other */
    mr_batch_storage *storage;     /* the one that is being filled, or was last */
    uint32_t block_size;
    uint32_t groups; /* of the KV cache; a block serves the layers of all of them */
    uint32_t sequences;
    uint32_t tokens;      /* that a sequence may have */
    uint32_t blocks;      /* of each sequence: s has 1 + s · blocks and those that follow */
    uint32_t *position;   /* [sequences] of the next token */
    uint32_t *sent;       /* [sequences] blocks that the device's table knows */
    uint32_t *kv_slot;    /* [groups], scratch */
    uint32_t current;     /* the sequence that tokens go to */
    uint32_t rope_length; /* of every sequence; 0: its context length */
};

static mr_status check_room(const mr_stepper *s, const mr_exec_options *options, mr_error *err)
{
    const uint64_t need = (uint64_t)s->sequences * s->blocks + 1;
    if (s->tokens > options->max_context || s->sequences > options->max_seqs) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "%" PRIu32 " sequences of %" PRIu32 " tokens are more than %" PRIu32
                       " of %" PRIu32 ", which fit: use fewer or shorter ones",
                       s->sequences, s->tokens, options->max_seqs, options->max_context);
    }
    if (need > options->n_blocks) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "%" PRIu64 " KV blocks are needed and %" PRIu32
                       " fit: raise kv_cache_memory, or use fewer or shorter sequences",
                       need, options->n_blocks);
    }
    return MR_OK;
}

static mr_status allocate(mr_stepper *s, const mr_exec_options *options, mr_error *err)
{
    const mr_batch_limits limits = {
        .max_tokens = options->max_tokens,
        .max_seqs = options->max_seqs,
        .max_rows = options->max_rows,
        .max_context = options->max_context,
        .block_size = options->block_size,
        .kv_groups = s->groups,
    };
    s->position = mr_calloc(s->sequences, sizeof(*s->position));
    s->sent = mr_calloc(s->sequences, sizeof(*s->sent));
    s->kv_slot = mr_calloc(s->groups, sizeof(*s->kv_slot));
    if (s->position == NULL || s->sent == NULL || s->kv_slot == NULL ||
        mr_batch_storage_create(&limits, &s->storages[0]) != MR_OK ||
        mr_batch_storage_create(&limits, &s->storages[1]) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a step");
    }
    s->storage = s->storages[0];
    return MR_OK;
}

mr_status mr_stepper_create(mr_runtime *runtime, uint32_t sequences, uint32_t tokens,
                            mr_stepper **out, mr_error *err)
{
    const mr_exec_options *options = mr_runtime_exec_options(runtime);
    mr_stepper *s = mr_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a step");
    }
    s->exec = mr_runtime_exec(runtime);
    s->block_size = options->block_size;
    s->groups = mr_runtime_plan(runtime)->kv.groups;
    s->sequences = sequences;
    s->tokens = tokens;
    s->blocks = mr_blocks_for(tokens, s->block_size);
    mr_status status = check_room(s, options, err);
    if (status == MR_OK) {
        status = allocate(s, options, err);
    }
    if (status != MR_OK) {
        mr_stepper_destroy(s);
        return status;
    }
    *out = s;
    return MR_OK;
}

void mr_stepper_destroy(mr_stepper *s)
{
    if (s == NULL) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (s->storages[i] != NULL) {
            mr_batch_storage_destroy(s->storages[i]);
        }
    }
    free(s->position);
    free(s->sent);
    free(s->kv_slot);
    free(s);
}

void mr_stepper_rewind(mr_stepper *s, uint32_t sequence, uint32_t position)
{
    MR_CHECK(sequence < s->sequences && position <= s->position[sequence]);
    s->position[sequence] = position;
}

void mr_stepper_set_rope_length(mr_stepper *s, uint32_t tokens)
{
    s->rope_length = tokens;
}

void mr_stepper_begin(mr_stepper *s)
{
    const uint64_t last = mr_batch_get(s->storage)->step;
    s->storage = s->storages[s->storage == s->storages[0] ? 1 : 0];
    mr_batch_follow(s->storage, last);
    mr_batch_reset(s->storage);
}

static uint32_t block_of(const mr_stepper *s, uint32_t sequence, uint32_t index)
{
    return 1 + sequence * s->blocks + index;
}

mr_status mr_stepper_sequence(mr_stepper *s, uint32_t sequence, uint32_t count)
{
    MR_CHECK(sequence < s->sequences && count <= s->tokens - s->position[sequence]);
    const uint32_t end = s->position[sequence] + count;
    const uint32_t needed = mr_blocks_for(end, s->block_size);
    for (; s->sent[sequence] < needed; s->sent[sequence]++) {
        for (uint32_t group = 0; group < s->groups; group++) {
            const mr_block_delta delta = {
                .slot = sequence,
                .group = group,
                .index = s->sent[sequence],
                .block = block_of(s, sequence, s->sent[sequence]),
            };
            MR_TRY(mr_batch_add_block(s->storage, &delta));
        }
    }
    s->current = sequence;
    MR_TRY(mr_batch_add_seq(s->storage, sequence, end, 0));
    if (s->rope_length > 0) {
        mr_batch_set_rope_length(s->storage, s->rope_length);
    }
    return MR_OK;
}

mr_status mr_stepper_token(mr_stepper *s, int32_t src, const mr_row_params *row)
{
    const uint32_t position = s->position[s->current]++;
    const uint32_t block = block_of(s, s->current, position / s->block_size);
    for (uint32_t group = 0; group < s->groups; group++) {
        s->kv_slot[group] = block * s->block_size + position % s->block_size;
    }
    MR_TRY(mr_batch_add_token(s->storage, src, position, s->kv_slot));
    if (row == NULL) {
        return MR_OK;
    }
    mr_row_params params = *row;
    params.position = position + 1;
    return mr_batch_add_row(s->storage, &params, NULL, NULL);
}

mr_status mr_stepper_run(mr_stepper *s, mr_step_output *out, mr_error *err)
{
    return mr_exec_run(s->exec, mr_batch_get(s->storage), out, err);
}

mr_status mr_stepper_submit(mr_stepper *s, mr_error *err)
{
    return s->exec->vt->submit(s->exec, mr_batch_get(s->storage), err);
}

mr_status mr_stepper_wait(mr_stepper *s, mr_step_output *out, mr_error *err)
{
    return s->exec->vt->wait(s->exec, out, err);
}
