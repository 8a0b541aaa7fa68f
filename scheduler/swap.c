/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/swap.h"

/* Tokens a sequence of the step, at least, that make it one of prompts. */
#define PREFILL_TOKENS 8u

bool mr_swap_pays(const mr_swap_cost *cost)
{
    if (!(cost->prefill_ns_per_token > 0.0) || !(cost->copy_ns_per_byte > 0.0)) {
        return true;
    }
    return 2.0 * (double)cost->bytes * cost->copy_ns_per_byte <
           (double)cost->tokens * cost->prefill_ns_per_token;
}

bool mr_swap_settle_copies(mr_scheduler *s)
{
    mr_exec *exec = mr_host_tier_exec(s->options.host_tier);
    if (s->n_copies > 0 && exec->vt->copy_blocks(exec, s->copies, s->n_copies, NULL) != MR_OK) {
        return false; /* they stay listed: the engine meets the failure */
    }
    s->n_copies = 0;
    return true;
}

static void set_moving(mr_scheduler *s, mr_sequence *sequence, bool moving)
{
    s->n_moving += moving;
    s->n_moving -= sequence->moving;
    sequence->moving = moving;
}

bool mr_swap_out(mr_scheduler *s, mr_sequence *victim)
{
    mr_host_tier *tier = s->options.host_tier;
    if (tier == NULL || victim->group->beams != NULL || victim->n_computed == 0) {
        return false;
    }
    const uint32_t count = mr_blocks_for(victim->n_computed, s->block_size);
    const mr_swap_cost cost = {
        .tokens = victim->n_computed,
        .bytes = count * mr_host_tier_block_bytes(tier),
        .prefill_ns_per_token = s->prefill_ns_per_token,
        .copy_ns_per_byte = mr_host_tier_ns_per_byte(tier),
    };
    MR_CHECK(victim->kept == 0 && count <= victim->n_blocks);
    if (!mr_swap_pays(&cost) || !mr_swap_settle_copies(s) ||
        mr_host_tier_store(tier, victim->blocks, count, &victim->kept) != MR_OK) {
        return false;
    }
    const mr_host_state state = mr_host_tier_state(tier, victim->kept);
    if (state == MR_HOST_FAILED) {
        mr_swap_forget(s, victim);
        return false;
    }
    victim->n_kept = victim->n_computed;
    victim->kept_epoch = victim->prefix_epoch;
    set_moving(s, victim, state == MR_HOST_MOVING);
    s->stats.swapped_out++;
    return true;
}

void mr_swap_forget(mr_scheduler *s, mr_sequence *sequence)
{
    if (sequence->kept != 0) {
        mr_host_tier_drop(s->options.host_tier, sequence->kept);
    }
    sequence->kept = 0;
    sequence->n_kept = 0;
    set_moving(s, sequence, false);
}

/* Its K/V is in its blocks. */
static void complete(mr_scheduler *s, mr_sequence *sequence)
{
    sequence->n_computed = sequence->n_kept;
    /* What was computed before a reset is registered no more than if it had stayed (X4). */
    sequence->prefix_epoch = sequence->kept_epoch;
    s->stats.swapped_in++;
    mr_swap_forget(s, sequence);
}

/* Its blocks may still be written, for all we know: it gets others. */
static void evict(mr_scheduler *s, mr_sequence *sequence)
{
    mr_swap_forget(s, sequence);
    mr_scheduler_release(s, sequence);
    mr_scheduler_queue(s, sequence);
}

void mr_swap_in(mr_scheduler *s, mr_sequence *sequence)
{
    mr_host_tier *tier = s->options.host_tier;
    if (sequence->kept == 0) {
        return;
    }
    const uint32_t first = sequence->n_computed / s->block_size;
    const uint32_t count = mr_blocks_for(sequence->n_kept, s->block_size);
    if (sequence->n_computed >= sequence->n_kept || !mr_swap_settle_copies(s) ||
        mr_host_tier_load(tier, sequence->kept, first, sequence->blocks + first, count - first) !=
            MR_OK) {
        mr_swap_forget(s, sequence);
        return;
    }
    /* Should it have failed already, the next plan sees that. */
    set_moving(s, sequence, true);
    if (mr_host_tier_state(tier, sequence->kept) == MR_HOST_READY) {
        complete(s, sequence);
    }
}

/* Whether a moving sequence moves on. */
static void look_at(mr_scheduler *s, mr_sequence *sequence)
{
    const mr_host_state state = mr_host_tier_state(s->options.host_tier, sequence->kept);
    if (state == MR_HOST_MOVING) {
        return;
    }
    const bool in = sequence->state == MR_SEQUENCE_RUNNING;
    if (state == MR_HOST_READY && in) {
        complete(s, sequence);
    } else if (state == MR_HOST_READY) {
        set_moving(s, sequence, false);
    } else if (in) {
        evict(s, sequence);
    } else {
        mr_swap_forget(s, sequence);
    }
}

static void look_at_all(mr_scheduler *s, const mr_sequence_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->items[i]->moving) {
            look_at(s, list->items[i]);
        }
    }
}

void mr_swap_poll(mr_scheduler *s, uint64_t now_ns)
{
    s->planned_ns = now_ns;
    if (s->options.host_tier == NULL) {
        return;
    }
    mr_host_tier_poll(s->options.host_tier);
    if (s->n_moving > 0) {
        look_at_all(s, &s->waiting);
        look_at_all(s, &s->running);
        mr_sequence_list_keep(&s->running, MR_SEQUENCE_RUNNING);
    }
}

bool mr_swap_moving(const mr_scheduler *s)
{
    return s->n_moving > 0 ||
           (s->options.host_tier != NULL && mr_host_tier_moving(s->options.host_tier));
}

uint32_t mr_swap_freeing(const mr_scheduler *s)
{
    return s->options.host_tier == NULL ? 0 : mr_host_tier_freeing(s->options.host_tier);
}

void mr_swap_measure(mr_scheduler *s, uint32_t tokens, uint64_t now_ns)
{
    if (tokens < PREFILL_TOKENS * s->n_planned || now_ns <= s->planned_ns) {
        return;
    }
    const double found = (double)(now_ns - s->planned_ns) / tokens;
    const double known = s->prefill_ns_per_token;
    s->prefill_ns_per_token = known > 0.0 ? 0.75 * known + 0.25 * found : found;
}
