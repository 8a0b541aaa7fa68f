/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_limits.h"

#include "base/sha256.h"

#include <hiredis.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define KEY_BYTES 64
/* Nobody can say when a running request ends. */
#define CONCURRENCY_RETRY_MS 1000u

typedef struct limit_key {
    char text[KEY_BYTES];
} limit_key;

void mr_redis_tenant_key(const char *name, char out[MR_TENANT_KEY_BYTES])
{
    uint8_t digest[MR_SHA256_BYTES];
    char hex[2 * MR_SHA256_BYTES + 1];
    mr_sha256(name, strlen(name), digest);
    mr_sha256_hex(digest, hex);
    memcpy(out, hex, MR_TENANT_KEY_BYTES - 1);
    out[MR_TENANT_KEY_BYTES - 1] = '\0';
}

static limit_key bucket_key(const char *tenant_key, const char *which)
{
    limit_key key;
    snprintf(key.text, sizeof(key.text), "millrace:1:rl:%s:%s", tenant_key, which);
    return key;
}

static limit_key lease_key(const char *tenant_key)
{
    limit_key key;
    snprintf(key.text, sizeof(key.text), "millrace:1:cc:%s", tenant_key);
    return key;
}

/* Numbers as Lua's tonumber() takes them, exact. */
typedef struct number_text {
    char text[40];
} number_text;

static number_text real(double value)
{
    number_text out;
    snprintf(out.text, sizeof(out.text), "%.17g", value);
    return out;
}

static number_text whole(uint64_t value)
{
    number_text out;
    snprintf(out.text, sizeof(out.text), "%" PRIu64, value);
    return out;
}

mr_status mr_redis_limits_take(mr_redis_command *command, const char *tenant_key,
                               const mr_rate_limits *limits, uint64_t tokens, const char *lease)
{
    const limit_key requests = bucket_key(tenant_key, "req");
    const limit_key bucket = bucket_key(tenant_key, "tok");
    const limit_key leases = lease_key(tenant_key);
    const number_text requests_rate = real(limits->requests_per_s);
    const number_text requests_burst = whole(limits->burst_requests);
    const number_text tokens_rate = real(mr_rate_tokens_per_s(limits));
    const number_text tokens_burst = whole(limits->burst_tokens);
    const number_text cost = whole(tokens);
    const number_text most = whole(limits->max_concurrent);
    const number_text life = whole(MR_LEASE_MS);
    const mr_redis_arg args[] = {
        mr_redis_text(requests.text),
        mr_redis_text(bucket.text),
        mr_redis_text(leases.text),
        mr_redis_text(requests_rate.text),
        mr_redis_text(requests_burst.text),
        mr_redis_text(tokens_rate.text),
        mr_redis_text(tokens_burst.text),
        mr_redis_text(cost.text),
        mr_redis_text(most.text),
        mr_redis_text(life.text),
        mr_redis_text(lease),
    };
    return mr_redis_command_eval(command, &mr_redis_take, 3, args, sizeof(args) / sizeof(args[0]));
}

mr_status mr_redis_limits_refund(mr_redis_command *command, const char *tenant_key,
                                 const mr_rate_limits *limits, uint64_t tokens)
{
    const limit_key bucket = bucket_key(tenant_key, "tok");
    const number_text rate = real(mr_rate_tokens_per_s(limits));
    const number_text burst = whole(limits->burst_tokens);
    const number_text amount = whole(tokens);
    const mr_redis_arg args[] = {mr_redis_text(bucket.text), mr_redis_text(rate.text),
                                 mr_redis_text(burst.text), mr_redis_text(amount.text)};
    return mr_redis_command_eval(command, &mr_redis_refund, 1, args, 4);
}

mr_status mr_redis_limits_renew(mr_redis_command *command, const char *tenant_key,
                                const char *lease)
{
    const limit_key leases = lease_key(tenant_key);
    const number_text life = whole(MR_LEASE_MS);
    const mr_redis_arg args[] = {mr_redis_text(leases.text), mr_redis_text(life.text),
                                 mr_redis_text(lease)};
    return mr_redis_command_eval(command, &mr_redis_renew, 1, args, 3);
}

mr_status mr_redis_limits_release(mr_redis_command *command, const char *tenant_key,
                                  const char *lease)
{
    const limit_key leases = lease_key(tenant_key);
    const mr_redis_arg args[] = {mr_redis_text("ZREM"), mr_redis_text(leases.text),
                                 mr_redis_text(lease)};
    return mr_redis_command_add(command, args, 3);
}

bool mr_redis_limits_read(const redisReply *reply, mr_rate_decision *out)
{
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) {
        return false;
    }
    long long values[3];
    for (size_t i = 0; i < 3; i++) {
        if (reply->element[i] == NULL || reply->element[i]->type != REDIS_REPLY_INTEGER) {
            return false;
        }
        values[i] = reply->element[i]->integer;
    }
    *out = (mr_rate_decision){.mode = MR_RATE_BY_REDIS};
    if (values[0] == 1) {
        out->granted = true;
        return true;
    }
    if (values[0] != 0 || values[1] < 1 || values[1] > 3 || values[2] < 0) {
        return false;
    }
    static const mr_rate_limit kinds[] = {MR_RATE_REQUESTS, MR_RATE_TOKENS, MR_RATE_CONCURRENT};
    out->short_of = kinds[values[1] - 1];
    out->retry_after_ms = values[2] > UINT32_MAX ? UINT32_MAX : (uint32_t)values[2];
    if (out->short_of == MR_RATE_CONCURRENT) {
        out->retry_after_ms = CONCURRENCY_RETRY_MS;
    }
    return true;
}
