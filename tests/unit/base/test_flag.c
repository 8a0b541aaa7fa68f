/* SPDX-License-Identifier: Apache-2.0 */
#include "base/flag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#define ROUNDS 50000

typedef struct shared {
    mr_flag ready;
    mr_counter counter;
    mr_refs refs;
    int payload; /* written before the flag, read after it */
} shared;

static void *work(void *arg)
{
    shared *all = arg;
    while (!mr_flag_get(&all->ready)) {
    }
    for (int i = 0; i < ROUNDS; i++) {
        mr_counter_add(&all->counter, 2);
        mr_refs_get(&all->refs);
        mr_refs_put(&all->refs);
    }
    mr_counter_add(&all->counter, (uint64_t)all->payload);
    return mr_refs_put(&all->refs) ? all : NULL;
}

static void test_two_threads(void **state)
{
    (void)state;
    shared all = {.payload = 0};
    mr_refs_init(&all.refs, 3);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, work, &all), 0);
    }
    assert_false(mr_flag_get(&all.ready));
    all.payload = 5;
    mr_flag_set(&all.ready);
    for (int i = 0; i < 2; i++) {
        void *last;
        pthread_join(threads[i], &last);
        assert_null(last);
    }
    assert_int_equal(mr_counter_get(&all.counter), 2 * ROUNDS * 2 + 10);
    assert_true(mr_refs_put(&all.refs));
    mr_counter_set(&all.counter, 9);
    assert_int_equal(mr_counter_get(&all.counter), 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
