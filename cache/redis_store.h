/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata store that replicas share through Redis.
 *
 *   millrace:1:replica:<id>  hash {epoch, addr, numerics, state}, lives 15 s, refreshed every 5 s
 *
 *   millrace:1:px:<hex>      hash {replica id: epoch}, lives 600 s; <hex>: the first 16 bytes of
 *                            the block's hash
 *
 * An epoch is 16 hexadecimal digits. Claims wait in a ring of fixed size, and go out in pipelined
 * batches on the link's thread, behind the record that makes them count.
 */
#ifndef MILLRACE_CACHE_REDIS_STORE_H
#define MILLRACE_CACHE_REDIS_STORE_H

#include "cache/metadata_store.h"
#include "cache/redis_link.h"

#include <stdbool.h>

struct redisReply;

/* Takes a copy of `self`, whose epoch it draws. `link` is borrowed, must not be started yet, and
 * has to be destroyed before the store. */
MR_MUST_USE mr_status mr_redis_store_create(const mr_replica *self, mr_redis_link *link,
                                            mr_metadata_store **out, mr_error *err);

/* What replies say; false when it is nothing of ours. `pair` counts the fields of a claims hash;
 * fills in id and epoch. */
MR_MUST_USE bool mr_redis_store_read_claim(const struct redisReply *reply, size_t pair,
                                           mr_replica *out);
/* Of HMGET epoch addr numerics state; leaves the id alone. */
MR_MUST_USE bool mr_redis_store_read_record(const struct redisReply *reply, mr_replica *out);

#endif
