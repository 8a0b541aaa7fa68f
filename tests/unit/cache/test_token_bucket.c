/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/philox.h"
#include "cache/token_bucket.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static void test_token_bucket_begins_full(void **state)
{
    (void)state;
    const mr_bucket_size size = {.rate = 2, .burst = 3};
    mr_token_bucket bucket = {0};
    mr_token_bucket_fill(&bucket, size, 5000 * MS);
    assert_int_equal(mr_token_bucket_wait_ms(&bucket, size, 3), 0);
    mr_token_bucket_take(&bucket, 3);
    /* One more at two a second: half a second. */
    assert_int_equal(mr_token_bucket_wait_ms(&bucket, size, 1), 500);
    mr_token_bucket_fill(&bucket, size, 5499 * MS);
    assert_int_equal(mr_token_bucket_wait_ms(&bucket, size, 1), 1);
    mr_token_bucket_fill(&bucket, size, 5500 * MS);
    assert_int_equal(mr_token_bucket_wait_ms(&bucket, size, 1), 0);
    mr_token_bucket_fill(&bucket, size, 60000 * MS);
    assert_true(bucket.level == 3);
}

static void test_token_bucket_never_goes_back_in_time_E2(void **state)
{
    (void)state;
    const mr_bucket_size size = {.rate = 10, .burst = 10};
    mr_token_bucket bucket = {0};
    mr_token_bucket_fill(&bucket, size, 1000 * MS);
    mr_token_bucket_take(&bucket, 10);
    /* A late caller, twice: neither it nor the one after it gets what had been given already. */
    mr_token_bucket_fill(&bucket, size, 200 * MS);
    assert_true(bucket.level == 0);
    assert_true(bucket.filled_ns == 1000 * MS);
    mr_token_bucket_fill(&bucket, size, 1100 * MS);
    assert_true(fabs(bucket.level - 1) < 1e-9);
}

static void test_token_bucket_refund_stops_at_the_burst(void **state)
{
    (void)state;
    const mr_bucket_size size = {.rate = 1, .burst = 100};
    mr_token_bucket bucket = {0};
    mr_token_bucket_fill(&bucket, size, 0);
    mr_token_bucket_take(&bucket, 60);
    mr_token_bucket_refund(&bucket, size, 30);
    assert_true(bucket.level == 70);
    mr_token_bucket_refund(&bucket, size, 1000);
    assert_true(bucket.level == 100);
    mr_token_bucket_refund(&bucket, size, -50);
    assert_true(bucket.level == 100);
}

static void test_token_bucket_negative_cost_mints_nothing_E4(void **state)
{
    (void)state;
    const mr_bucket_size size = {.rate = 1, .burst = 10};
    mr_token_bucket bucket = {0};
    mr_token_bucket_fill(&bucket, size, 0);
    mr_token_bucket_take(&bucket, 4);
    mr_token_bucket_take(&bucket, -100);
    assert_true(bucket.level == 6);
    mr_token_bucket_take(&bucket, 100);
    assert_true(bucket.level == 0);
}

/* In any stretch of time no more is granted than the burst and what flows in; and a caller that
 * always wants more gets nearly all of it. */
static void test_token_bucket_grants_rate_and_burst(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 50; run++) {
        const uint32_t key[2] = {run, 7};
        uint32_t bits[4];
        mr_philox4x32((uint32_t[4]){0}, key, bits);
        const mr_bucket_size size = {.rate = 0.5 + bits[0] % 2000 / 10.0,
                                     .burst = 1 + bits[1] % 500};
        mr_token_bucket bucket = {0};
        uint64_t now = 1;
        double granted = 0;
        for (uint32_t step = 0; step < 4000; step++) {
            mr_philox4x32((uint32_t[4]){step, 1}, key, bits);
            now += bits[0] % (20 * MS);
            const double cost = fmin(size.burst, 1 + bits[1] % 3);
            /* One in eight comes from somebody whose clock is slow. */
            const uint64_t seen = bits[2] % 8 == 0 && now > MS ? now - bits[3] % MS : now;
            mr_token_bucket_fill(&bucket, size, seen);
            assert_true(bucket.level >= 0 && bucket.level <= size.burst);
            if (mr_token_bucket_wait_ms(&bucket, size, cost) == 0) {
                mr_token_bucket_take(&bucket, cost);
                granted += cost;
            }
            const double most = size.burst + size.rate * (double)now / (double)MR_NS_PER_S;
            assert_true(granted <= most + 0.01);
        }
    }
}

/* Who waits as long as told is served, and not much earlier. */
static void test_token_bucket_wait_is_exact(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 2000; run++) {
        uint32_t bits[4];
        mr_philox4x32((uint32_t[4]){run}, (uint32_t[2]){3, 4}, bits);
        const mr_bucket_size size = {.rate = 0.01 + bits[0] % 100000 / 100.0,
                                     .burst = 1 + bits[1] % 1000};
        const double cost = 1 + bits[2] % (uint32_t)size.burst;
        mr_token_bucket bucket = {0};
        mr_token_bucket_fill(&bucket, size, 0);
        mr_token_bucket_take(&bucket, size.burst - bits[3] % 1000 / 1000.0 * cost);
        const uint64_t wait = mr_token_bucket_wait_ms(&bucket, size, cost);
        assert_true(wait > 0);
        mr_token_bucket early = bucket;
        mr_token_bucket_fill(&bucket, size, wait * MS);
        assert_int_equal(mr_token_bucket_wait_ms(&bucket, size, cost), 0);
        if (wait > 1) {
            mr_token_bucket_fill(&early, size, (wait - 2) * MS);
            assert_true(mr_token_bucket_wait_ms(&early, size, cost) > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_bucket_begins_full),
        cmocka_unit_test(test_token_bucket_never_goes_back_in_time_E2),
        cmocka_unit_test(test_token_bucket_refund_stops_at_the_burst),
        cmocka_unit_test(test_token_bucket_negative_cost_mints_nothing_E4),
        cmocka_unit_test(test_token_bucket_grants_rate_and_burst),
        cmocka_unit_test(test_token_bucket_wait_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
