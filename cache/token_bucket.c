/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/token_bucket.h"

#include "base/clock.h"

#include <math.h>

/* Sums of doubles: a bucket that lacks less than this has enough. */
#define SLACK 1e-6

void mr_token_bucket_fill(mr_token_bucket *bucket, mr_bucket_size size, uint64_t now_ns)
{
    if (!bucket->used) {
        *bucket = (mr_token_bucket){.level = size.burst, .filled_ns = now_ns, .used = true};
        return;
    }
    if (now_ns > bucket->filled_ns) {
        const double seconds = (double)(now_ns - bucket->filled_ns) / (double)MR_NS_PER_S;
        bucket->level += seconds * size.rate;
        bucket->filled_ns = now_ns;
    }
    /* Also after the limits were changed. */
    bucket->level = fmin(bucket->level, size.burst);
}

uint32_t mr_token_bucket_wait_ms(const mr_token_bucket *bucket, mr_bucket_size size, double cost)
{
    const double missing = cost - bucket->level;
    if (missing <= SLACK) {
        return 0;
    }
    const double wait_ms = ceil((missing - SLACK / 2) * 1000.0 / size.rate);
    return wait_ms < (double)UINT32_MAX ? (uint32_t)fmax(wait_ms, 1.0) : UINT32_MAX;
}

void mr_token_bucket_take(mr_token_bucket *bucket, double cost)
{
    bucket->level = fmax(bucket->level - fmax(cost, 0.0), 0.0);
}

void mr_token_bucket_refund(mr_token_bucket *bucket, mr_bucket_size size, double amount)
{
    bucket->level = fmin(bucket->level + fmax(amount, 0.0), size.burst);
}
