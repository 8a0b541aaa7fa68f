/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has a slot and blocks. Why everybody ends: a sequence that was preempted max_preemptions
 * times comes back only with the blocks of its whole remaining life, needs nothing more and is
 * preempted no more; of the others the one with the best claim (priority, then arrival) takes from
 * those with a worse one, and the preempted one from all of them; and one that runs alone
 * and has the whole pool is ended if that is not enough. The beams of a search come and go
 * together and count as one sequence here.
 *
 * Blocks that are full may be shared, by reference counts; nobody writes into them. The block that
 * a sequence writes next is always its own.
 */
#include "base/log.h"
#include "scheduler/internal.h"
#include "scheduler/prefix.h"
#include "scheduler/swap.h"

/* Blocks whose bookkeeping is fetched while those before them are released. */
#define AHEAD 8u

bool mr_scheduler_protects(const mr_scheduler *s, const mr_sequence *sequence)
{
    return sequence->preemptions >= s->options.max_preemptions;
}

/* All but the very last token are computed. */
uint32_t mr_scheduler_life_blocks(const mr_scheduler *s, const mr_request *request)
{
    uint64_t tokens = (uint64_t)request->n_prompt + request->params.max_tokens;
    if (tokens > s->options.max_seq_length) {
        tokens = s->options.max_seq_length;
    }
    return mr_blocks_for((uint32_t)tokens - 1, s->block_size);
}

/* Sequences that come and go with this one. */
static uint32_t n_members(const mr_sequence *sequence)
{
    return sequence->group->beams != NULL ? sequence->group->n_sequences : 1;
}

static void release_one(mr_scheduler *s, mr_sequence *sequence)
{
    /* The pool is last in, first out: this way the blocks come back in the same order. */
    while (sequence->n_blocks > sequence->first_block) {
        if (sequence->n_blocks > sequence->first_block + AHEAD) {
            mr_block_pool_expect_unref(s->pool, sequence->blocks[sequence->n_blocks - 1 - AHEAD]);
        }
        mr_block_pool_unref(s->pool, sequence->blocks[--sequence->n_blocks]);
    }
    s->free_slots[s->n_free_slots++] = sequence->slot;
    sequence->blocks = NULL;
    sequence->first_block = 0;
    sequence->n_blocks = 0;
    sequence->n_sent = 0;
    sequence->history_sent = 0;
    sequence->n_computed = 0;
}

void mr_scheduler_release(mr_scheduler *s, mr_sequence *sequence)
{
    mr_group *group = sequence->group;
    if (sequence->state != MR_SEQUENCE_RUNNING) {
        return;
    }
    for (uint32_t i = n_members(sequence); i-- > 0;) {
        release_one(s, &sequence[i]);
    }
    group->n_running--;
    s->n_groups_running -= group->n_running == 0;
}

void mr_scheduler_enter(mr_scheduler *s, mr_sequence *sequence)
{
    mr_group *group = sequence->group;
    mr_fair_queue_leave(&s->fair, sequence);
    sequence->state = MR_SEQUENCE_RUNNING;
    sequence->keeps = mr_scheduler_protects(s, sequence);
    s->n_groups_running += group->n_running == 0;
    group->n_running++;
    mr_sequence_list_insert(&s->running, sequence);
}

void mr_scheduler_queue(mr_scheduler *s, mr_sequence *sequence)
{
    sequence->state = MR_SEQUENCE_WAITING;
    mr_fair_queue_return(&s->fair, sequence);
    mr_sequence_list_insert(&s->waiting, sequence);
}

/* Blocks that a sequence comes in with, and those of each further beam: the prompt's full blocks
 * are shared, and the others find theirs when the first has computed them. */
typedef struct demand {
    uint64_t first;
    uint64_t further;
    uint64_t all;
    uint64_t free; /* must be there: more than is taken, or the next decodes would preempt */
} demand;

static demand demand_of(const mr_scheduler *s, const mr_sequence *sequence, bool life)
{
    const mr_request *request = sequence->request;
    const uint32_t members = n_members(sequence);
    demand d = {.first = mr_blocks_for(sequence->n_tokens, s->block_size)};
    if (life) {
        d.first = mr_scheduler_life_blocks(s, request);
    }
    if (members > 1) {
        const uint32_t next = request->n_prompt + 1;
        const uint32_t least = mr_blocks_for(next, s->block_size);
        d.further = (d.first > least ? d.first : least) - request->n_prompt / s->block_size;
    }
    d.all = d.first + d.further * (members - 1);
    const bool unborn = members == 1 && sequence->group->n_generated == 0;
    d.free = d.all + (life ? 0 : unborn ? sequence->group->n_sequences : members);
    return d;
}

void mr_scheduler_take(mr_scheduler *s, mr_sequence *sequence, uint32_t first_block, uint32_t count)
{
    const uint32_t slot = s->free_slots[--s->n_free_slots];
    sequence->slot = slot;
    sequence->blocks = s->tables + (size_t)slot * s->max_blocks;
    sequence->first_block = first_block;
    sequence->n_blocks = first_block + count;
    MR_CHECK(sequence->n_blocks <= s->max_blocks);
    MR_CHECK(mr_block_pool_alloc(s->pool, count, sequence->blocks + first_block) == MR_OK);
}

mr_admission mr_scheduler_admit(mr_scheduler *s, mr_sequence *sequence, uint64_t now_ns)
{
    const uint32_t members = n_members(sequence);
    demand d = demand_of(s, sequence, mr_scheduler_protects(s, sequence));
    const bool alone = d.all > s->total_blocks;
    if (alone) {
        /* It will have the pool to itself, and end when it outgrows that. */
        d = demand_of(s, sequence, false);
        d.free = s->total_blocks;
    }
    if (d.all > s->total_blocks) {
        return MR_ADMIT_NEVER;
    }
    d.free = d.free > s->total_blocks ? s->total_blocks : d.free;
    const uint64_t least = d.free - mr_scheduler_prefix_limit(s, sequence);
    const uint32_t available = mr_block_pool_available(s->pool);
    if (s->n_free_slots < members || available < least || (alone && available < s->total_blocks)) {
        /* Without looking anything up: it is asked again every step. Who wants all waits also for
         * blocks that it would find and share, which are another's. */
        return MR_ADMIT_LATER;
    }
    /* Into the table of the slot that it would get. */
    uint32_t *blocks = s->tables + (size_t)s->free_slots[s->n_free_slots - 1] * s->max_blocks;
    const mr_prefix_hits hits = mr_scheduler_prefix_find(s, sequence, blocks);
    if (mr_block_pool_available(s->pool) - hits.idle < d.free - hits.count) {
        return MR_ADMIT_LATER;
    }
    mr_scheduler_prefix_take(s, sequence, &hits, blocks);
    mr_scheduler_take(s, sequence, hits.count, (uint32_t)d.first - hits.count);
    sequence->first_block = 0;
    for (uint32_t i = 1; i < members; i++) {
        mr_scheduler_take(s, &sequence[i], sequence->request->n_prompt / s->block_size,
                          (uint32_t)d.further);
    }
    if (sequence->group->beams != NULL) {
        sequence->group->beams->attached = false;
    }
    mr_scheduler_prefix_promote(s, sequence);
    mr_scheduler_enter(s, sequence);
    mr_swap_in(s, sequence);
    if (sequence->request->usage.scheduled_ns == 0) {
        sequence->request->usage.scheduled_ns = now_ns;
    }
    return MR_ADMITTED;
}

static void preempt(mr_scheduler *s, mr_sequence *victim)
{
    const bool kept = mr_swap_out(s, victim);
    const uint32_t lost = kept ? 0 : victim->n_computed;
    const uint32_t before = s->total_blocks - mr_block_pool_available(s->pool);
    mr_scheduler_release(s, victim);
    mr_scheduler_queue(s, victim);
    victim->preemptions++;
    victim->request->usage.preemptions++;
    s->stats.preemptions++;
    s->stats.preempted_tokens += lost;

    /* Not folded: each names another request, and max_preemptions bounds them. */
    char id[2 * MR_REQUEST_ID_MAX + 3];
    mr_log(MR_LOG_INFO, "scheduler", "preempted",
           "request_id=%s choice=%u priority=%d tokens_lost=%u tokens_swapped=%u preemptions=%u "
           "kv_blocks_before=%u kv_blocks_after=%u kv_blocks_total=%u",
           mr_log_quote(victim->request->id, id, sizeof(id)), victim->choice,
           victim->request->params.priority, lost, victim->n_kept, victim->preemptions, before,
           s->total_blocks - mr_block_pool_available(s->pool), s->total_blocks);
}

/* A paused one, which could not use its blocks now, else of those with a worse claim than
 * running[index] the one with the worst: the lowest priority, then the newest. NULL when there is
 * none. */
static mr_sequence *choose_victim(const mr_scheduler *s, uint32_t index)
{
    mr_sequence *worst = NULL;
    /* A protected one lacks blocks only if its whole life is more than the pool. It came in when
     * nobody else was there; who came after it, whatever the claim, gives way. */
    const bool from_all = mr_scheduler_protects(s, s->running.items[index]);
    for (uint32_t i = s->running.count; i-- > 0;) {
        mr_sequence *sequence = s->running.items[i];
        if (i == index || sequence->state != MR_SEQUENCE_RUNNING || sequence->moving ||
            mr_scheduler_protects(s, sequence)) {
            continue;
        }
        if (mr_group_paused(sequence->group)) {
            return sequence;
        }
        if (worst == NULL && (i > index || from_all)) {
            worst = sequence;
        }
    }
    return worst;
}

/* Live members: those that have tokens to compute. */
static uint32_t n_growing(const mr_sequence *sequence)
{
    return sequence->group->beams != NULL ? sequence->group->beams->n_live : 1;
}

static bool lacks_block(const mr_scheduler *s, const mr_sequence *sequence)
{
    return (uint64_t)sequence->n_blocks * s->block_size < sequence->n_tokens;
}

bool mr_scheduler_lacks_next(const mr_scheduler *s, const mr_sequence *sequence)
{
    return (uint64_t)sequence->n_blocks * s->block_size < (uint64_t)sequence->n_tokens + 1;
}

static void add_block(mr_scheduler *s, mr_sequence *sequence)
{
    MR_CHECK(sequence->n_blocks < s->max_blocks);
    MR_CHECK(mr_block_pool_alloc(s->pool, 1, &sequence->blocks[sequence->n_blocks]) == MR_OK);
    sequence->n_blocks++;
}

void mr_scheduler_grow_next(mr_scheduler *s, mr_sequence *sequence)
{
    if (mr_scheduler_lacks_next(s, sequence)) {
        add_block(s, sequence);
    }
}

bool mr_scheduler_has_room(const mr_scheduler *s, const mr_sequence *sequence)
{
    bool room = true;
    for (uint32_t i = 0; i < n_growing(sequence); i++) {
        room = room && !lacks_block(s, &sequence[i]);
    }
    return room;
}

bool mr_scheduler_grow(mr_scheduler *s, uint32_t index)
{
    mr_sequence *sequence = s->running.items[index];
    const uint32_t members = n_growing(sequence);
    uint32_t lacking = 0;
    for (uint32_t i = 0; i < members; i++) {
        lacking += lacks_block(s, &sequence[i]);
    }
    while (mr_block_pool_available(s->pool) + mr_swap_freeing(s) < lacking) {
        mr_sequence *victim = choose_victim(s, index);
        if (victim == NULL) {
            return false;
        }
        preempt(s, victim);
    }
    if (mr_block_pool_available(s->pool) < lacking) {
        return false; /* the blocks come when a victim has been copied out */
    }
    for (uint32_t i = 0; i < members; i++) {
        if (lacks_block(s, &sequence[i])) {
            add_block(s, &sequence[i]);
        }
    }
    return true;
}
