/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A token bucket: holds up to `burst`, fills by `rate` a second, and what is taken must be there.
 * Pure functions of the time that is passed in. cache/redis/take.lua does the same with Redis's
 * clock.
 */
#ifndef MILLRACE_CACHE_TOKEN_BUCKET_H
#define MILLRACE_CACHE_TOKEN_BUCKET_H

#include <stdbool.h>
#include <stdint.h>

/* Zero-initialised is valid: never used, and so full. */
typedef struct mr_token_bucket {
    double level;
    uint64_t filled_ns; /* when `level` was true; never moves back */
    bool used;
} mr_token_bucket;

typedef struct mr_bucket_size {
    double rate;  /* a second, above 0 */
    double burst; /* above 0 */
} mr_bucket_size;

/* Brings the level up to date. A time before the last one adds nothing. */
void mr_token_bucket_fill(mr_token_bucket *bucket, mr_bucket_size size, uint64_t now_ns);
/* Milliseconds until a filled bucket has `cost`, rounded up; 0: it has. 0 < cost ≤ burst. */
uint32_t mr_token_bucket_wait_ms(const mr_token_bucket *bucket, mr_bucket_size size, double cost);
/* Takes `cost` ≥ 0 of a filled bucket, whatever is there; never below 0. */
void mr_token_bucket_take(mr_token_bucket *bucket, double cost);
/* Puts `amount` ≥ 0 back, up to the burst. */
void mr_token_bucket_refund(mr_token_bucket *bucket, mr_bucket_size size, double amount);

#endif
