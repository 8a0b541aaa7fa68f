/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rate limits in Redis: the commands, and what their replies say.
 *
 * Keys: millrace:1:rl:<tenant>:req, …:rl:<tenant>:tok, …:cc:<tenant>, where <tenant> is the first
 * 16 hexadecimal digits of SHA-256(name).
 */
#ifndef MILLRACE_CACHE_REDIS_LIMITS_H
#define MILLRACE_CACHE_REDIS_LIMITS_H

#include "base/status.h"
#include "cache/rate_limits.h"
#include "cache/redis_link.h"

#define MR_TENANT_KEY_BYTES 17 /* 16 digits and the end */
#define MR_LEASE_MS         30000u
#define MR_LEASE_RENEW_MS   10000u

void mr_redis_tenant_key(const char *name, char out[MR_TENANT_KEY_BYTES]);

/* These fill an empty command. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_redis_limits_take(mr_redis_command *command, const char *tenant_key,
                                           const mr_rate_limits *limits, uint64_t tokens,
                                           const char *lease);
MR_MUST_USE mr_status mr_redis_limits_refund(mr_redis_command *command, const char *tenant_key,
                                             const mr_rate_limits *limits, uint64_t tokens);
MR_MUST_USE mr_status mr_redis_limits_renew(mr_redis_command *command, const char *tenant_key,
                                            const char *lease);
MR_MUST_USE mr_status mr_redis_limits_release(mr_redis_command *command, const char *tenant_key,
                                              const char *lease);

/* What the reply to a take decides. False when it decides nothing: an error, or not of the form
 * that the script gives. */
MR_MUST_USE bool mr_redis_limits_read(const struct redisReply *reply, mr_rate_decision *out);

#endif
