/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sequences that go on from the same tokens share the blocks that those fill, and each has a copy
 * of the one that they fill in part:
 *
 *   first   [ 5 ][ 9 ][ 2 ][ 7· ]        block 7 holds the end of the prompt and room
 *   forked  [ 5 ][ 9 ][ 2 ][ 4· ]        copy 7 → 4; 5, 9 and 2 have a reference more
 *
 * Copies are listed for the engine, which makes them before the next step. A listed block may be
 * given back and taken again meanwhile: copies are made in order, and before anything is computed,
 * so what is copied into it then is overwritten or never read.
 */
#include "scheduler/internal.h"

#include <string.h>

static void list_copy(mr_scheduler *s, uint32_t from, uint32_t to)
{
    MR_CHECK(s->n_copies < s->max_copies);
    s->copies[s->n_copies++] = (mr_block_copy){.from = from, .to = to};
}

/* Gives `to`, whose own blocks begin at the first one that `count` tokens do not fill, the first
 * `count` tokens of `from`. */
static void share(mr_scheduler *s, mr_sequence *to, const mr_sequence *from, uint32_t count)
{
    const uint32_t full = count / s->block_size;
    MR_CHECK(to->first_block == full && to->n_blocks > full);
    for (uint32_t i = 0; i < full; i++) {
        mr_block_pool_ref(s->pool, from->blocks[i]);
        to->blocks[i] = from->blocks[i];
    }
    if (count % s->block_size != 0) {
        list_copy(s, from->blocks[full], to->blocks[full]);
    }
    to->first_block = 0;
    to->n_sent = 0;
    to->n_computed = count;
    to->prefix_epoch = from->prefix_epoch;
}

/* Slot and own blocks for a choice that starts behind the prompt; false when they are not there. */
static bool enter_fork(mr_scheduler *s, mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    const uint32_t full = request->n_prompt / s->block_size;
    uint32_t own = mr_blocks_for(request->n_prompt + 1, s->block_size) - full;
    if (mr_scheduler_protects(s, sequence)) {
        const uint32_t life = mr_scheduler_life_blocks(s, request) - full;
        own = life > own ? life : own;
    }
    if (s->n_free_slots == 0 || mr_block_pool_available(s->pool) < own) {
        return false;
    }
    mr_scheduler_take(s, sequence, full, own);
    mr_scheduler_enter(s, sequence);
    return true;
}

void mr_scheduler_fork(mr_scheduler *s, mr_sequence *first, uint32_t drawn)
{
    mr_group *group = first->group;
    for (uint32_t i = 1; i < group->n_sequences; i++) {
        mr_sequence *sequence = &group->sequences[i];
        if (i < drawn && enter_fork(s, sequence)) {
            share(s, sequence, first, first->n_computed);
        } else {
            mr_scheduler_queue(s, sequence);
        }
    }
}

/* ---- beams ---- */

void mr_scheduler_idle_beam(mr_scheduler *s, mr_sequence *beam)
{
    /* Its last token was written into a block of its own; those before may be shared. */
    const uint32_t own = (beam->n_computed - 1) / s->block_size;
    for (uint32_t i = beam->first_block; i < own; i++) {
        mr_block_pool_unref(s->pool, beam->blocks[i]);
    }
    beam->first_block = own;
}

/* Moves an idle beam's own blocks to where they are wanted. */
static void move_own(mr_scheduler *s, mr_sequence *beam, uint32_t first)
{
    uint32_t count = beam->n_blocks - beam->first_block;
    for (; count > s->max_blocks - first; count--) {
        mr_block_pool_unref(s->pool, beam->blocks[--beam->n_blocks]);
    }
    memmove(beam->blocks + first, beam->blocks + beam->first_block, count * sizeof(*beam->blocks));
    beam->first_block = first;
    beam->n_blocks = first + count;
}

void mr_scheduler_copy_beam(mr_scheduler *s, mr_sequence *to, const mr_sequence *from)
{
    const uint32_t n_prompt = to->request->n_prompt;
    const uint32_t n_generated = mr_sequence_generated(from);
    move_own(s, to, from->n_computed / s->block_size);
    share(s, to, from, from->n_computed);
    memcpy(to->tokens + n_prompt, from->tokens + n_prompt, n_generated * sizeof(*to->tokens));
    memcpy(to->logprobs, from->logprobs, n_generated * sizeof(*to->logprobs));
    to->n_tokens = from->n_tokens;
    to->text = from->text;
    /* Of what its slot knew before, the prompt is still right. */
    to->history_sent = to->history_sent < n_prompt ? to->history_sent : n_prompt;
}

void mr_scheduler_attach_beams(mr_scheduler *s, mr_group *group)
{
    for (uint32_t i = 1; i < group->beams->n_live; i++) {
        share(s, &group->sequences[i], &group->sequences[0], group->request->n_prompt);
    }
    group->beams->attached = true;
}
