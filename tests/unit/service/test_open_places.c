/* SPDX-License-Identifier: Apache-2.0 */
#include "service/open_places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static const uint8_t A[16] = {1}, B[16] = {2}, C[16] = {3}, D[16] = {4};

static mr_open_places *create(uint32_t count)
{
    mr_open_places *places = NULL;
    assert_int_equal(mr_open_places_create(count, &places, NULL), MR_OK);
    return places;
}

static void test_open_places_are_for_whoever_asks_while_there_are_some(void **state)
{
    (void)state;
    mr_open_places *places = create(3);
    uint64_t held[3];
    for (int i = 0; i < 3; i++) {
        held[i] = mr_open_places_take(places, A);
        assert_int_not_equal(held[i], 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(mr_open_places_holds(places, held[i]));
    }
    mr_open_places_give_back(places, held[1]);
    assert_false(mr_open_places_holds(places, held[1]));
    const uint64_t other = mr_open_places_take(places, B);
    assert_int_not_equal(other, held[1]);
    assert_true(mr_open_places_holds(places, held[0]));
    /* Given back twice is given back once. */
    mr_open_places_give_back(places, held[1]);
    assert_true(mr_open_places_holds(places, other));
    mr_open_places_destroy(places);
}

/* A has three, B two, and C comes: A's oldest goes. Then B comes, and would have as many as A. */
static void test_open_places_are_taken_from_who_has_the_most(void **state)
{
    (void)state;
    mr_open_places *places = create(5);
    const uint64_t b1 = mr_open_places_take(places, B);
    const uint64_t a1 = mr_open_places_take(places, A);
    const uint64_t a2 = mr_open_places_take(places, A);
    const uint64_t b2 = mr_open_places_take(places, B);
    const uint64_t a3 = mr_open_places_take(places, A);
    const uint64_t c1 = mr_open_places_take(places, C);
    assert_false(mr_open_places_holds(places, a1));
    assert_true(mr_open_places_holds(places, b1));
    const uint64_t b3 = mr_open_places_take(places, B);
    assert_false(mr_open_places_holds(places, b1)); /* three with the one that is asked for */
    const uint64_t kept[] = {a2, a3, b2, b3, c1};
    for (int i = 0; i < 5; i++) {
        assert_true(mr_open_places_holds(places, kept[i]));
    }
    mr_open_places_destroy(places);
}

/* All have one: the oldest goes, so that a check that is answered at once has its place meanwhile.
 */
static void test_open_places_go_from_the_oldest_among_equals(void **state)
{
    (void)state;
    mr_open_places *places = create(3);
    const uint64_t a = mr_open_places_take(places, A);
    const uint64_t b = mr_open_places_take(places, B);
    const uint64_t c = mr_open_places_take(places, C);
    const uint64_t d = mr_open_places_take(places, D);
    assert_false(mr_open_places_holds(places, a));
    assert_true(mr_open_places_holds(places, b));
    /* Who asks again and has one gives that one up. */
    const uint64_t again = mr_open_places_take(places, C);
    assert_false(mr_open_places_holds(places, c));
    assert_true(mr_open_places_holds(places, b));
    assert_true(mr_open_places_holds(places, d));
    assert_true(mr_open_places_holds(places, again));
    mr_open_places_destroy(places);
}

/* Many come and go: each address that has at most its share keeps it, whatever one of them does. */
static void test_open_places_stay_with_who_has_few(void **state)
{
    (void)state;
    mr_open_places *places = create(10);
    const uint64_t quiet = mr_open_places_take(places, B);
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        last = mr_open_places_take(places, A);
        if (i % 3 == 0) {
            mr_open_places_give_back(places, mr_open_places_take(places, C));
        }
        assert_true(mr_open_places_holds(places, quiet));
        assert_true(mr_open_places_holds(places, last));
    }
    mr_open_places_destroy(places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_places_are_for_whoever_asks_while_there_are_some),
        cmocka_unit_test(test_open_places_are_taken_from_who_has_the_most),
        cmocka_unit_test(test_open_places_go_from_the_oldest_among_equals),
        cmocka_unit_test(test_open_places_stay_with_who_has_few),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
