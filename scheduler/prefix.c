/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/prefix.h"

#include "base/checked.h"
#include "scheduler/internal.h"
#include "scheduler/swap.h"

/* Blocks whose places are fetched while those before them are registered. */
#define AHEAD 8u

/* NULL: the sequence neither finds nor registers anything. */
static mr_prefix_index *index_of(const mr_scheduler *s, const mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    mr_prefix_index *index = mr_block_pool_index(s->pool);
    const bool fits = index != NULL && request->hashes != NULL &&
                      request->prefix.block_size == s->block_size &&
                      request->prefix.generation == mr_prefix_index_generation(index);
    return fits ? index : NULL;
}

static uint32_t prompt_blocks(const mr_scheduler *s, const mr_sequence *sequence)
{
    return sequence->request->n_prompt / s->block_size;
}

/* Of the blocks whose hashes are known. */
static const mr_block_hash *hash_at(const mr_scheduler *s, const mr_sequence *sequence,
                                    uint32_t block)
{
    const uint32_t n_prompt = prompt_blocks(s, sequence);
    return block < n_prompt ? &sequence->request->hashes[block]
                            : &sequence->hashes[block - n_prompt];
}

uint32_t mr_scheduler_prefix_limit(const mr_scheduler *s, const mr_sequence *sequence)
{
    if (index_of(s, sequence) == NULL) {
        return 0;
    }
    const mr_request *request = sequence->request;
    const bool beams = sequence->group->beams != NULL;
    const uint32_t tokens = beams ? request->n_prompt : sequence->n_tokens;
    uint32_t limit = (tokens - 1) / s->block_size;
    if (request->prompt_logprobs != NULL && request->n_prompt_scored < request->n_prompt) {
        /* The row of the token before scores the next one. */
        limit = mr_min_u32(limit, (request->n_prompt_scored - 1) / s->block_size);
    }
    return mr_min_u32(limit, prompt_blocks(s, sequence) + sequence->n_hashes);
}

mr_prefix_hits mr_scheduler_prefix_find(const mr_scheduler *s, const mr_sequence *sequence,
                                        uint32_t *blocks)
{
    mr_prefix_hits hits = {0};
    const mr_prefix_index *index = index_of(s, sequence);
    const uint32_t limit = mr_scheduler_prefix_limit(s, sequence);
    for (; hits.count < limit; hits.count++) {
        const uint32_t block =
            mr_prefix_index_find(index, hash_at(s, sequence, hits.count),
                                 sequence->tokens + (size_t)hits.count * s->block_size);
        if (block == MR_NULL_BLOCK) {
            break;
        }
        blocks[hits.count] = block;
        hits.idle += mr_block_pool_refs(s->pool, block) == 0;
    }
    return hits;
}

void mr_scheduler_prefix_take(mr_scheduler *s, mr_sequence *sequence, const mr_prefix_hits *hits,
                              const uint32_t *blocks)
{
    const mr_prefix_index *index = index_of(s, sequence);
    if (index == NULL) {
        return;
    }
    for (uint32_t i = 0; i < hits->count; i++) {
        mr_block_pool_reuse(s->pool, blocks[i]);
    }
    sequence->n_computed = hits->count * s->block_size;
    sequence->prefix_epoch = mr_prefix_index_epoch(index);
    mr_request *request = sequence->request;
    /* Only a first look counts: what a preempted one finds again is its own. */
    if (request->usage.scheduled_ns == 0 && request->prompt_logprobs == NULL) {
        request->usage.cached_tokens = sequence->n_computed;
        s->stats.prefix_queries += request->n_prompt;
        s->stats.prefix_hits += sequence->n_computed;
    }
}

/* True when the block of the sequence has come from the host tier. */
static bool promote_block(mr_scheduler *s, const mr_sequence *sequence, uint32_t block)
{
    mr_host_tier *tier = s->options.host_tier;
    const mr_host_key key = {.hash = hash_at(s, sequence, block),
                             .tokens = sequence->tokens + (size_t)block * s->block_size};
    mr_host_handle handle;
    if (mr_host_tier_pin(tier, &key, &handle) != MR_OK) {
        return false;
    }
    const bool found = mr_swap_settle_copies(s) &&
                       mr_host_tier_load(tier, handle, 0, &sequence->blocks[block], 1) == MR_OK &&
                       mr_host_tier_state(tier, handle) == MR_HOST_READY;
    mr_host_tier_drop(tier, handle);
    return found;
}

void mr_scheduler_prefix_promote(mr_scheduler *s, mr_sequence *sequence)
{
    const mr_host_tier *tier = s->options.host_tier;
    if (tier == NULL || !mr_host_tier_immediate(tier) || index_of(s, sequence) == NULL ||
        sequence->kept != 0) {
        return;
    }
    const uint32_t before = sequence->n_computed;
    const uint32_t limit = mr_scheduler_prefix_limit(s, sequence);
    for (uint32_t block = before / s->block_size;
         block < limit && promote_block(s, sequence, block); block++) {
        sequence->n_computed += s->block_size;
    }
    mr_request *request = sequence->request;
    if (request->usage.scheduled_ns == 0 && request->prompt_logprobs == NULL) {
        request->usage.cached_tokens = sequence->n_computed;
        s->stats.prefix_hits += sequence->n_computed - before;
    }
}

static void demote(void *ctx, uint32_t block)
{
    const mr_scheduler *s = ctx;
    const mr_prefix_index *index = mr_block_pool_index(s->pool);
    const mr_host_key key = {.hash = mr_prefix_index_hash(index, block),
                             .tokens = mr_prefix_index_tokens(index, block)};
    if (mr_host_tier_cache(s->options.host_tier, &key, block) != MR_OK) {
        return; /* it is only a cache: what does not fit is computed again */
    }
}

void mr_scheduler_prefix_demote_to(mr_scheduler *s, mr_host_tier *tier)
{
    const bool able = tier != NULL && mr_host_tier_immediate(tier);
    mr_block_pool_on_evict(s->pool, able ? demote : NULL, s);
}

/* Hashes of generated blocks up to `end`. */
static void hash_until(mr_scheduler *s, mr_sequence *sequence, uint32_t end)
{
    const uint32_t n_prompt = prompt_blocks(s, sequence);
    for (uint32_t block = n_prompt + sequence->n_hashes; block < end; block++) {
        const mr_block_hash *parent =
            block == 0 ? &sequence->request->prefix.hash : hash_at(s, sequence, block - 1);
        mr_prefix_block_hash(s->hasher, parent, sequence->tokens + (size_t)block * s->block_size,
                             s->block_size, &sequence->hashes[block - n_prompt]);
        sequence->n_hashes++;
    }
}

static void register_block(const mr_scheduler *s, mr_prefix_index *index,
                           const mr_sequence *sequence, uint32_t block)
{
    if (mr_prefix_index_has_block(index, sequence->blocks[block])) {
        return; /* it was found, or a fork that shares it came first */
    }
    const mr_prefix_entry entry = {
        .hash = hash_at(s, sequence, block),
        .parent = block == 0 ? NULL : hash_at(s, sequence, block - 1),
        .tokens = sequence->tokens + (size_t)block * s->block_size,
        .block = sequence->blocks[block],
        .before = block == 0 ? MR_NULL_BLOCK : sequence->blocks[block - 1],
    };
    (void)mr_prefix_index_add(index, &entry);
}

void mr_scheduler_prefix_register(mr_scheduler *s, mr_sequence *sequence, uint32_t count)
{
    mr_prefix_index *index = index_of(s, sequence);
    if (index == NULL || sequence->prefix_epoch != mr_prefix_index_epoch(index)) {
        return;
    }
    uint32_t end = sequence->n_computed / s->block_size;
    uint32_t first = (sequence->n_computed - count) / s->block_size;
    if (sequence->group->beams != NULL) {
        end = mr_min_u32(end, prompt_blocks(s, sequence));
    }
    if (first >= end) {
        return;
    }
    hash_until(s, sequence, end);
    /* A twin's blocks, below which its own would hang, may be gone by now. */
    while (first > 0 && !mr_prefix_index_has_hash(index, hash_at(s, sequence, first - 1),
                                                  sequence->blocks[first - 1])) {
        first--;
    }
    for (uint32_t block = first; block < end; block++) {
        if (block + AHEAD < end) {
            mr_prefix_index_expect(index, hash_at(s, sequence, block + AHEAD),
                                   sequence->blocks[block + AHEAD]);
        }
        register_block(s, index, sequence, block);
    }
}

void mr_scheduler_prefix_forget(mr_scheduler *s, const mr_sequence *sequence)
{
    const mr_prefix_index *index = mr_block_pool_index(s->pool);
    const uint32_t end = sequence->n_computed / s->block_size;
    for (uint32_t i = sequence->first_block; index != NULL && i < end; i++) {
        if (mr_prefix_index_has_block(index, sequence->blocks[i])) {
            mr_block_pool_forget(s->pool, sequence->blocks[i]);
        }
    }
}
