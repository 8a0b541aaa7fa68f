/* SPDX-License-Identifier: Apache-2.0 */
/* What Redis sends: whatever hiredis makes of it, our readers take or leave it. */
#include "cache/redis_limits.h"
#include "cache/redis_store.h"

#include <hiredis.h>
#include <stdint.h>
#include <string.h>

/* hiredis makes room for what a header announces. */
#define MAX_LENGTH 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* No number of more than four digits. */
static int announces_little(const uint8_t *data, size_t size)
{
    size_t digits = 0;
    for (size_t i = 0; i < size; i++) {
        digits = data[i] >= '0' && data[i] <= '9' ? digits + 1 : 0;
        if (digits > 4 && i >= digits && (data[i - digits] == '*' || data[i - digits] == '$')) {
            return 0;
        }
    }
    return size <= MAX_LENGTH;
}

static void read_all(const redisReply *reply)
{
    mr_rate_decision decision;
    if (mr_redis_limits_read(reply, &decision)) {
        MR_CHECK(decision.granted == (decision.short_of == MR_RATE_NONE));
    }
    for (size_t pair = 0; pair <= reply->elements; pair++) {
        mr_replica claimed = {0};
        if (mr_redis_store_read_claim(reply, pair, &claimed)) {
            MR_CHECK(claimed.id[0] != '\0' && strlen(claimed.id) < sizeof(claimed.id));
        }
    }
    mr_replica record = {0};
    if (mr_redis_store_read_record(reply, &record)) {
        MR_CHECK(strlen(record.addr) < sizeof(record.addr));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!announces_little(data, size)) {
        return 0;
    }
    redisReader *reader = redisReaderCreate();
    MR_CHECK(reader != NULL);
    void *reply = NULL;
    if (redisReaderFeed(reader, (const char *)data, size) == REDIS_OK) {
        while (redisReaderGetReply(reader, &reply) == REDIS_OK && reply != NULL) {
            read_all(reply);
            freeReplyObject(reply);
            reply = NULL;
        }
    }
    redisReaderFree(reader);
    return 0;
}
