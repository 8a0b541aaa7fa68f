/* SPDX-License-Identifier: Apache-2.0 */
#include "base/event.h"

#include "base/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_set_before_wait_is_kept_once(void **state)
{
    (void)state;
    mr_event event;
    mr_event_init(&event);
    assert_false(mr_event_wait(&event, 0));
    mr_event_set(&event);
    mr_event_set(&event);
    assert_true(mr_event_wait(&event, MR_NEVER));
    assert_false(mr_event_wait(&event, 0));
    /* A time that has passed does not hide a set. */
    mr_event_set(&event);
    assert_true(mr_event_wait(&event, 0));
    mr_event_deinit(&event);
}

static void test_wait_ends_at_its_time(void **state)
{
    (void)state;
    mr_event event;
    mr_event_init(&event);
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t until = mr_time_add(mr_clock_now(&clock), 2 * MR_NS_PER_MS);
    assert_false(mr_event_wait(&event, until));
    assert_true(mr_clock_now(&clock) >= until);
    mr_event_deinit(&event);
}

typedef struct ping_pong {
    mr_event ping;
    mr_event pong;
    int value; /* handed back and forth, so no atomics */
} ping_pong;

#define ROUNDS 2000

static void *answer(void *arg)
{
    ping_pong *game = arg;
    for (int i = 0; i < ROUNDS; i++) {
        mr_event_wait(&game->ping, MR_NEVER);
        game->value++;
        mr_event_set(&game->pong);
    }
    return NULL;
}

static void test_wakes_another_thread(void **state)
{
    (void)state;
    ping_pong game = {.value = 0};
    mr_event_init(&game.ping);
    mr_event_init(&game.pong);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, answer, &game), 0);
    for (int i = 0; i < ROUNDS; i++) {
        game.value++;
        mr_event_set(&game.ping);
        assert_true(mr_event_wait(&game.pong, MR_NEVER));
        assert_int_equal(game.value, 2 * i + 2);
    }
    pthread_join(thread, NULL);
    mr_event_deinit(&game.ping);
    mr_event_deinit(&game.pong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_before_wait_is_kept_once),
        cmocka_unit_test(test_wait_ends_at_its_time),
        cmocka_unit_test(test_wakes_another_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
