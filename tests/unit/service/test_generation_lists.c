/* SPDX-License-Identifier: Apache-2.0 */
#include "service/generation_lists.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void test_generation_lists_empty_ones_ask_for_nothing(void **state)
{
    (void)state;
    mr_generation_lists lists = {0};
    mr_generation_ask ask = {0};
    mr_request_spec spec = {0};
    mr_generation_lists_view(&lists, &ask);
    assert_int_equal(ask.n_bias + ask.n_stop_tokens + ask.n_stops + ask.cache_salt.size, 0);
    assert_int_equal(mr_generation_lists_make_stop(&lists, NULL), MR_OK);
    mr_generation_lists_fill(&lists, &spec);
    assert_null(spec.stop);
    assert_int_equal(spec.n_bias + spec.n_stop_tokens, 0);
    mr_generation_lists_deinit(&lists);
}

/* What is checked and what the engine gets are the same. */
static void test_generation_lists_on_their_way_to_the_engine(void **state)
{
    (void)state;
    mr_generation_lists lists = {0};
    for (uint32_t i = 0; i < 1000; i++) {
        assert_int_equal(mr_generation_lists_bias(&lists, 7 + i, 0.5f * (float)i), MR_OK);
    }
    assert_int_equal(mr_generation_lists_stop(&lists, (mr_stop_string){"ab", 2}), MR_OK);
    assert_int_equal(mr_generation_lists_stop(&lists, (mr_stop_string){"c", 1}), MR_OK);
    assert_int_equal(mr_generation_lists_salt(&lists, "s\0t", 3), MR_OK);
    assert_int_equal(mr_ids_push(&lists.stop_tokens, 42), MR_OK);

    mr_generation_ask ask = {0};
    mr_generation_lists_view(&lists, &ask);
    assert_int_equal(ask.n_bias, 1000);
    assert_int_equal(ask.bias_tokens[999], 1006);
    assert_true(ask.bias_values[999] == 499.5f);
    assert_int_equal(ask.n_stops, 2);
    assert_memory_equal(ask.stops[1].data, "c", 1);
    assert_int_equal(ask.n_stop_tokens, 1);
    assert_int_equal(ask.stop_tokens[0], 42);
    assert_int_equal(ask.cache_salt.size, 3);
    assert_memory_equal(ask.cache_salt.data, "s\0t", 3);

    assert_int_equal(mr_generation_lists_make_stop(&lists, NULL), MR_OK);
    mr_request_spec spec = {0};
    mr_generation_lists_fill(&lists, &spec);
    assert_int_equal(spec.n_bias, 1000);
    assert_ptr_equal(spec.bias_tokens, ask.bias_tokens);
    assert_ptr_equal(spec.bias_values, ask.bias_values);
    assert_int_equal(spec.n_stop_tokens, 1);
    const mr_stop_string first = mr_stop_string_get(spec.stop, 0);
    assert_int_equal(first.bytes, 2);
    assert_memory_equal(first.data, "ab", 2);
    mr_generation_lists_deinit(&lists);
    assert_null(lists.stop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generation_lists_empty_ones_ask_for_nothing),
        cmocka_unit_test(test_generation_lists_on_their_way_to_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
