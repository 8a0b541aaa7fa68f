/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who has a slot and blocks. Why everybody ends: a sequence that was preempted max_preemptions
 * times comes back only with the blocks of its whole remaining life, needs nothing more and is
 * preempted no more; of the others the oldest takes from the newer ones; and one that runs alone
 * and has the whole pool is ended if that is not enough.
 */
#include "base/log.h"
#include "scheduler/internal.h"

static bool is_protected(const mr_scheduler *s, const mr_sequence *sequence)
{
    return sequence->request->usage.preemptions >= s->options.max_preemptions;
}

/* Blocks for everything that the sequence may come to compute: all but its very last token. */
static uint32_t blocks_for_life(const mr_scheduler *s, const mr_sequence *sequence)
{
    const mr_request *request = sequence->request;
    uint64_t tokens = (uint64_t)request->n_prompt + request->params.max_tokens;
    if (tokens > s->options.max_seq_length) {
        tokens = s->options.max_seq_length;
    }
    return mr_blocks_for((uint32_t)tokens - 1, s->block_size);
}

void mr_scheduler_release(mr_scheduler *s, mr_sequence *sequence)
{
    if (sequence->state != MR_SEQUENCE_RUNNING) {
        return;
    }
    /* The pool is last in, first out: this way the blocks come back in the same order. */
    while (sequence->n_blocks > 0) {
        mr_block_pool_unref(s->pool, sequence->blocks[--sequence->n_blocks]);
    }
    s->free_slots[s->n_free_slots++] = sequence->slot;
    sequence->blocks = NULL;
    sequence->n_sent = 0;
    sequence->n_computed = 0;
}

bool mr_scheduler_admit(mr_scheduler *s, mr_sequence *sequence, uint64_t now_ns)
{
    /* A block more than the tokens need must be free, or the first decodes would preempt. */
    uint32_t take = mr_blocks_for(sequence->n_tokens, s->block_size);
    uint32_t wanted = take + 1;
    if (is_protected(s, sequence)) {
        const uint32_t life = blocks_for_life(s, sequence);
        take = life < s->total_blocks ? life : s->total_blocks;
        wanted = take;
    }
    if (wanted > s->total_blocks) {
        wanted = s->total_blocks;
    }
    if (s->n_free_slots == 0 || mr_block_pool_available(s->pool) < wanted) {
        return false;
    }
    const uint32_t slot = s->free_slots[s->n_free_slots - 1];
    uint32_t *blocks = s->tables + (size_t)slot * s->max_blocks;
    if (mr_block_pool_alloc(s->pool, take, blocks) != MR_OK) {
        return false;
    }
    s->n_free_slots--;
    sequence->slot = slot;
    sequence->blocks = blocks;
    sequence->n_blocks = take;
    sequence->state = MR_SEQUENCE_RUNNING;
    mr_sequence_list_insert(&s->running, sequence);
    if (sequence->request->usage.scheduled_ns == 0) {
        sequence->request->usage.scheduled_ns = now_ns;
    }
    return true;
}

/* Ids come from clients: what could break a log line is shown as '_'. */
static void printable_id(const char *id, char out[MR_REQUEST_ID_MAX + 1])
{
    size_t n = 0;
    for (; id[n] != '\0'; n++) {
        const bool plain = id[n] > ' ' && id[n] <= '~' && id[n] != '"' && id[n] != '\\';
        out[n] = plain ? id[n] : '_';
    }
    out[n] = '\0';
}

static void preempt(mr_scheduler *s, mr_sequence *victim)
{
    const uint32_t lost = victim->n_computed;
    const uint32_t before = s->total_blocks - mr_block_pool_available(s->pool);
    mr_scheduler_release(s, victim);
    victim->state = MR_SEQUENCE_WAITING;
    mr_sequence_list_insert(&s->waiting, victim);
    victim->request->usage.preemptions++;
    s->stats.preemptions++;

    char id[MR_REQUEST_ID_MAX + 1];
    printable_id(victim->request->id, id);
    mr_log(MR_LOG_INFO, "scheduler", "preempted",
           "request_id=\"%s\" tokens_lost=%u preemptions=%u kv_blocks_before=%u "
           "kv_blocks_after=%u kv_blocks_total=%u",
           id, lost, victim->request->usage.preemptions, before,
           s->total_blocks - mr_block_pool_available(s->pool), s->total_blocks);
}

/* A paused one, which could not use its blocks now, else the newest that came after running[index].
 * NULL when there is none. */
static mr_sequence *choose_victim(const mr_scheduler *s, uint32_t index)
{
    mr_sequence *newest = NULL;
    for (uint32_t i = s->running.count; i-- > 0;) {
        mr_sequence *sequence = s->running.items[i];
        if (i == index || sequence->state != MR_SEQUENCE_RUNNING || is_protected(s, sequence)) {
            continue;
        }
        if (mr_sequence_paused(sequence)) {
            return sequence;
        }
        if (newest == NULL && i > index) {
            newest = sequence;
        }
    }
    return newest;
}

bool mr_scheduler_grow(mr_scheduler *s, uint32_t index)
{
    mr_sequence *sequence = s->running.items[index];
    while (mr_block_pool_available(s->pool) == 0) {
        mr_sequence *victim = choose_victim(s, index);
        if (victim == NULL) {
            return false;
        }
        preempt(s, victim);
    }
    MR_CHECK(sequence->n_blocks < s->max_blocks);
    if (mr_block_pool_alloc(s->pool, 1, &sequence->blocks[sequence->n_blocks]) != MR_OK) {
        return false;
    }
    sequence->n_blocks++;
    return true;
}
