/* SPDX-License-Identifier: Apache-2.0 */
#include "base/ring.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#define STRESS_ENTRIES 200000u

typedef struct entry {
    uint64_t number;
    uint64_t inverse;
} entry;

static void put(mr_ring *ring, uint64_t number)
{
    entry *slot = mr_ring_reserve(ring);
    assert_non_null(slot);
    *slot = (entry){number, ~number};
    mr_ring_commit(ring);
}

static void test_init_checks_its_limits(void **state)
{
    (void)state;
    mr_ring ring;
    assert_int_equal(mr_ring_init(&ring, 0, 8), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_ring_init(&ring, (1u << 20) + 1, 8), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_ring_init(&ring, 4, 12), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_ring_init(&ring, 4, 0), MR_INVALID_ARGUMENT);
    assert_int_equal(mr_ring_init(&ring, 5, 8), MR_OK);
    assert_int_equal(ring.capacity, 8);
    mr_ring_deinit(&ring);
}

static void test_full_peek_and_pop(void **state)
{
    (void)state;
    mr_ring ring;
    assert_int_equal(mr_ring_init(&ring, 4, sizeof(entry)), MR_OK);
    assert_null(mr_ring_peek(&ring, 0));
    assert_int_equal(mr_ring_space(&ring), 4);
    for (uint64_t i = 0; i < 4; i++) {
        put(&ring, i);
    }
    assert_null(mr_ring_reserve(&ring));
    assert_int_equal(mr_ring_space(&ring), 0);
    assert_int_equal(mr_ring_count(&ring), 4);
    mr_ring_pop(&ring, 3);
    assert_int_equal(((const entry *)mr_ring_peek(&ring, 0))->number, 3);
    assert_null(mr_ring_peek(&ring, 1));
    put(&ring, 4);
    assert_int_equal(((const entry *)mr_ring_peek(&ring, 1))->number, 4);
    assert_int_equal(mr_ring_count(&ring), 2);
    mr_ring_deinit(&ring);
}

static void test_uncommitted_entry_is_not_seen(void **state)
{
    (void)state;
    mr_ring ring;
    assert_int_equal(mr_ring_init(&ring, 2, sizeof(entry)), MR_OK);
    void *first = mr_ring_reserve(&ring);
    assert_ptr_equal(mr_ring_reserve(&ring), first);
    assert_int_equal(mr_ring_count(&ring), 0);
    mr_ring_commit(&ring);
    assert_ptr_equal(mr_ring_peek(&ring, 0), first);
    mr_ring_deinit(&ring);
}

static void test_counters_run_over(void **state)
{
    (void)state;
    mr_ring ring;
    assert_int_equal(mr_ring_init(&ring, 4, sizeof(entry)), MR_OK);
    atomic_store(&ring.written, UINT32_MAX - 1);
    atomic_store(&ring.taken, UINT32_MAX - 1);
    for (uint64_t i = 0; i < 4; i++) {
        put(&ring, i);
    }
    assert_null(mr_ring_reserve(&ring));
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(((const entry *)mr_ring_peek(&ring, i))->number, i);
    }
    mr_ring_pop(&ring, 4);
    assert_int_equal(mr_ring_space(&ring), 4);
    mr_ring_deinit(&ring);
}

static void *produce(void *arg)
{
    mr_ring *ring = arg;
    for (uint64_t i = 0; i < STRESS_ENTRIES;) {
        entry *slot = mr_ring_reserve(ring);
        if (slot == NULL) {
            sched_yield();
            continue;
        }
        *slot = (entry){i, ~i};
        mr_ring_commit(ring);
        i++;
    }
    return NULL;
}

static void test_stress_two_threads(void **state)
{
    (void)state;
    mr_ring ring;
    assert_int_equal(mr_ring_init(&ring, 64, sizeof(entry)), MR_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &ring), 0);
    for (uint64_t expected = 0; expected < STRESS_ENTRIES;) {
        uint32_t ready = 0;
        const entry *got = mr_ring_peek(&ring, 0);
        while (got != NULL) {
            assert_true(got->number == expected && got->inverse == ~expected);
            expected++;
            ready++;
            got = mr_ring_peek(&ring, ready);
        }
        assert_in_range(mr_ring_count(&ring), ready, 64);
        mr_ring_pop(&ring, ready);
        if (ready == 0) {
            sched_yield();
        }
    }
    pthread_join(thread, NULL);
    assert_int_equal(mr_ring_count(&ring), 0);
    mr_ring_deinit(&ring);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_init_checks_its_limits),
        cmocka_unit_test(test_full_peek_and_pop),
        cmocka_unit_test(test_uncommitted_entry_is_not_seen),
        cmocka_unit_test(test_counters_run_over),
        cmocka_unit_test(test_stress_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
