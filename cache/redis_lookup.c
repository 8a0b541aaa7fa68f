/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lookup: the claims of the chain's blocks, a pipeline at a time, as long as somebody may have
 * the next one; then the records of those who claim something, for their epochs.
 */
#include "base/checked.h"
#include "cache/redis_store_internal.h"

#include <hiredis.h>
#include <stdlib.h>
#include <string.h>

#define BATCH     32u
#define LOOKUP_NS (100 * MR_NS_PER_MS)
#define N_RECORD  4u

typedef struct lookup_run {
    mr_redis_command command; /* first */
    mr_redis_link *link;
    mr_store_lookup *asked;
    uint32_t done;                              /* blocks of the chain that were asked for */
    mr_store_claim claims[MR_STORE_MAX_CLAIMS]; /* [n_claims] */
    bool alive[MR_STORE_MAX_CLAIMS];
    uint32_t n_claims;
} lookup_run;

/* Replies. */

static bool copy_text(const redisReply *reply, char out[MR_STORE_TEXT_MAX])
{
    if (reply == NULL || reply->type != REDIS_REPLY_STRING || reply->len >= MR_STORE_TEXT_MAX) {
        return false;
    }
    for (size_t i = 0; i < reply->len; i++) {
        const unsigned char c = (unsigned char)reply->str[i];
        if (c < 0x20 || c >= 0x7f) {
            return false;
        }
    }
    memcpy(out, reply->str, reply->len);
    out[reply->len] = '\0';
    return true;
}

static bool read_epoch(const redisReply *reply, uint64_t *out)
{
    if (reply == NULL || reply->type != REDIS_REPLY_STRING || reply->len != 16 ||
        strspn(reply->str, "0123456789abcdef") != 16) {
        return false;
    }
    *out = strtoull(reply->str, NULL, 16);
    return true;
}

bool mr_redis_store_read_claim(const redisReply *reply, size_t pair, mr_replica *out)
{
    if (reply->type != REDIS_REPLY_ARRAY || pair >= reply->elements / 2) {
        return false;
    }
    return copy_text(reply->element[2 * pair], out->id) && out->id[0] != '\0' &&
           read_epoch(reply->element[2 * pair + 1], &out->epoch);
}

bool mr_redis_store_read_record(const redisReply *reply, mr_replica *out)
{
    return reply->type == REDIS_REPLY_ARRAY && reply->elements == N_RECORD &&
           read_epoch(reply->element[0], &out->epoch) && copy_text(reply->element[1], out->addr) &&
           copy_text(reply->element[2], out->numerics) && copy_text(reply->element[3], out->state);
}

/* The run. */

static void add_claim(lookup_run *run, const mr_replica *claimed)
{
    if (run->n_claims < MR_STORE_MAX_CLAIMS) {
        run->claims[run->n_claims++] = (mr_store_claim){.replica = *claimed, .blocks = 1};
    }
}

/* Whoever has all blocks before this one has this one too. */
static void extend_claims(lookup_run *run, const mr_replica *claimed, uint32_t block)
{
    for (uint32_t i = 0; i < run->n_claims; i++) {
        mr_store_claim *claim = &run->claims[i];
        if (claim->blocks == block && claim->replica.epoch == claimed->epoch &&
            strcmp(claim->replica.id, claimed->id) == 0) {
            claim->blocks = block + 1;
        }
    }
}

static void on_claims(mr_redis_command *command, uint32_t index, const redisReply *reply)
{
    lookup_run *run = (lookup_run *)command;
    const uint32_t block = run->done + index;
    const size_t pairs = reply->type == REDIS_REPLY_ARRAY ? reply->elements / 2 : 0;
    for (size_t pair = 0; pair < pairs; pair++) {
        mr_replica claimed = {0};
        if (!mr_redis_store_read_claim(reply, pair, &claimed)) {
            continue;
        }
        if (block == 0) {
            add_claim(run, &claimed);
        } else {
            extend_claims(run, &claimed, block);
        }
    }
}

static void on_record(mr_redis_command *command, uint32_t index, const redisReply *reply)
{
    lookup_run *run = (lookup_run *)command;
    mr_replica *claimed = &run->claims[index].replica;
    mr_replica record = *claimed;
    run->alive[index] =
        mr_redis_store_read_record(reply, &record) && record.epoch == claimed->epoch;
    *claimed = record;
}

static int by_blocks(const void *a, const void *b)
{
    const uint32_t left = ((const mr_store_claim *)a)->blocks;
    const uint32_t right = ((const mr_store_claim *)b)->blocks;
    return left < right ? 1 : left > right ? -1 : 0;
}

static void finish(lookup_run *run, mr_status status)
{
    mr_store_lookup *asked = run->asked;
    asked->n_claims = 0;
    for (uint32_t i = 0; status == MR_OK && i < run->n_claims; i++) {
        if (run->alive[i]) {
            asked->claims[asked->n_claims++] = run->claims[i];
        }
    }
    qsort(asked->claims, asked->n_claims, sizeof(asked->claims[0]), by_blocks);
    mr_redis_command_deinit(&run->command);
    free(run);
    asked->on_found(asked, status);
}

static void on_records_done(mr_redis_command *command, mr_status status)
{
    finish((lookup_run *)command, status);
}

static void submit(lookup_run *run, mr_status made)
{
    if (made != MR_OK) {
        finish(run, made);
    } else if (!mr_redis_link_submit(run->link, &run->command)) {
        finish(run, MR_UNAVAILABLE);
    }
}

static void ask_records(lookup_run *run)
{
    mr_status status = MR_OK;
    run->command.on_reply = on_record;
    run->command.on_done = on_records_done;
    for (uint32_t i = 0; i < run->n_claims && status == MR_OK; i++) {
        const mr_store_key key = mr_redis_store_record_key(run->claims[i].replica.id);
        const mr_redis_arg args[] = {mr_redis_text("HMGET"),    mr_redis_text(key.text),
                                     mr_redis_text("epoch"),    mr_redis_text("addr"),
                                     mr_redis_text("numerics"), mr_redis_text("state")};
        status = mr_redis_command_add(&run->command, args, sizeof(args) / sizeof(args[0]));
    }
    submit(run, status);
}

static bool somebody_has(const lookup_run *run, uint32_t blocks)
{
    for (uint32_t i = 0; i < run->n_claims; i++) {
        if (run->claims[i].blocks == blocks) {
            return true;
        }
    }
    return false;
}

static void ask_claims(lookup_run *run);

static void on_claims_done(mr_redis_command *command, mr_status status)
{
    lookup_run *run = (lookup_run *)command;
    run->done += command->n_replies;
    mr_redis_command_deinit(command);
    if (status != MR_OK || run->n_claims == 0) {
        finish(run, status);
    } else if (run->done < run->asked->n && somebody_has(run, run->done)) {
        ask_claims(run);
    } else {
        ask_records(run);
    }
}

static void ask_claims(lookup_run *run)
{
    const uint32_t n = mr_min_u32(run->asked->n - run->done, BATCH);
    mr_status status = MR_OK;
    run->command.on_reply = on_claims;
    run->command.on_done = on_claims_done;
    for (uint32_t i = 0; i < n && status == MR_OK; i++) {
        const size_t block = (size_t)run->done + i;
        const mr_store_key key =
            mr_redis_store_claim_key(run->asked->hashes + block * MR_BLOCK_HASH_BYTES);
        const mr_redis_arg args[] = {mr_redis_text("HGETALL"), mr_redis_text(key.text)};
        status = mr_redis_command_add(&run->command, args, 2);
    }
    submit(run, status);
}

void mr_redis_lookup(mr_redis_link *link, mr_store_lookup *lookup)
{
    lookup->n_claims = 0;
    lookup_run *run = lookup->n > 0 ? mr_calloc(1, sizeof(*run)) : NULL;
    if (run == NULL) {
        lookup->on_found(lookup, lookup->n > 0 ? MR_RESOURCE_EXHAUSTED : MR_OK);
        return;
    }
    run->link = link;
    run->asked = lookup;
    run->command.timeout_ns = LOOKUP_NS;
    ask_claims(run);
}
