/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings and stop tokens through the scheduler; what the model says is dictated. */
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* Tokens of rig_tokenizer(). */
enum { A = 0, B = 1, C = 2, SPECIAL = 3, AB = 4, BA = 5, AC = 8, CA = 9, ABC = 21, CAB = 25 };

typedef struct stop_case {
    const char *strings[3];
    uint32_t tokens[6];
    uint32_t n_tokens; /* until it ends, by the last of them unless by_length */
    bool by_length;
    bool include;
    bool keep_special;
    uint32_t min_tokens;
    uint32_t matched;
    uint64_t shown[6]; /* after each token */
} stop_case;

static void run_case(const stop_case *c)
{
    rig r;
    mr_scheduler_options options = rig_options();
    mr_tokenizer *tokenizer = rig_tokenizer();
    uint32_t n_strings = 0;
    while (n_strings < 3 && c->strings[n_strings] != NULL) {
        n_strings++;
    }
    options.tokenizer = tokenizer;
    options.vocab_size = 40;
    rig_open(&r, &options, 4, 65);
    mr_request_spec spec = {.params = rig_params(6), .stop = rig_stop(c->strings, n_strings)};
    spec.params.include_stop_in_text = c->include;
    spec.params.keep_special_tokens = c->keep_special;
    spec.params.min_tokens = c->min_tokens;
    spec.params.max_tokens = c->by_length ? c->n_tokens : 6;
    mr_request *request = rig_request_of(&r, 3, &spec);
    rig_submit(&r, request);
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        const bool ends = i + 1 == c->n_tokens;
        assert_true(rig_step(&r, &c->tokens[i]));
        const rig_event event = rig_read(request);
        assert_int_equal(event.token, c->tokens[i]);
        assert_int_equal(event.text_bytes, c->shown[i]);
        assert_int_equal(event.finish, !ends          ? MR_FINISH_NONE
                                       : c->by_length ? MR_FINISH_LENGTH
                                                      : MR_FINISH_STOP);
        assert_int_equal(event.matched_stop, ends && !c->by_length ? c->matched : MR_NO_STOP);
        assert_int_equal(event.matched_token, MR_NO_TOKEN);
    }
    assert_true(mr_scheduler_idle(r.scheduler));
    mr_request_unref(request);
    rig_close(&r);
    mr_tokenizer_destroy(tokenizer);
}

static void test_stops_hold_back_and_release_T1_T2_near_miss(void **state)
{
    (void)state;
    /* "a" is held, "ab" too, then "abb" cannot become "abc" but its end may: nothing of it does. */
    run_case(&(stop_case){.strings = {"abc"},
                          .tokens = {C, A, B, B, AB, C},
                          .n_tokens = 6,
                          .matched = 0,
                          .shown = {1, 1, 1, 4, 4, 4}});
}

static void test_stops_match_inside_and_across_tokens_T3(void **state)
{
    (void)state;
    /* "ba" + "ca" + "cab": "aca" ends inside "cab"; the longest string that ends there wins. */
    run_case(&(stop_case){.strings = {"aca", "cac", "acac"},
                          .tokens = {BA, CAB},
                          .n_tokens = 2,
                          .matched = 0,
                          .shown = {1, 1}});
    run_case(&(stop_case){.strings = {"ac", "bac"},
                          .tokens = {BA, CAB},
                          .n_tokens = 2,
                          .matched = 1,
                          .shown = {0, 0}});
}

static void test_stops_may_stay_in_the_text(void **state)
{
    (void)state;
    run_case(&(stop_case){.strings = {"bc"},
                          .tokens = {A, ABC},
                          .n_tokens = 2,
                          .include = true,
                          .matched = 0,
                          .shown = {1, 4}});
}

static void test_stops_see_special_tokens_only_if_kept_T3(void **state)
{
    (void)state;
    run_case(&(stop_case){.strings = {"ab"},
                          .tokens = {A, SPECIAL, B},
                          .n_tokens = 3,
                          .matched = 0,
                          .shown = {0, 0, 0}});
    run_case(&(stop_case){.strings = {"<b", "ab"},
                          .tokens = {A, SPECIAL},
                          .n_tokens = 2,
                          .keep_special = true,
                          .matched = 0,
                          .shown = {0, 1}});
}

static void test_stops_before_min_tokens_are_passed_over(void **state)
{
    (void)state;
    /* "ab" is complete in the second token, which may not end it, and in the fourth, which may. */
    run_case(&(stop_case){.strings = {"ab"},
                          .tokens = {A, B, A, BA},
                          .n_tokens = 4,
                          .min_tokens = 2,
                          .matched = 0,
                          .shown = {0, 2, 2, 2}});
}

static void test_stops_held_text_is_released_at_the_length(void **state)
{
    (void)state;
    run_case(&(stop_case){.strings = {"abc"},
                          .tokens = {C, AB},
                          .n_tokens = 2,
                          .by_length = true,
                          .shown = {1, UINT64_MAX}});
}

static void test_stops_by_token_release_what_was_held_T6(void **state)
{
    (void)state;
    rig r;
    static const uint32_t stops[] = {CA, C};
    static const char *const strings[] = {"abc"};
    mr_scheduler_options options = rig_options();
    mr_tokenizer *tokenizer = rig_tokenizer();
    options.tokenizer = tokenizer;
    options.vocab_size = 40;
    rig_open(&r, &options, 4, 65);
    mr_request_spec spec = {.params = rig_params(9),
                            .stop = rig_stop(strings, 1),
                            .stop_tokens = stops,
                            .n_stop_tokens = 2};
    mr_request *request = rig_request_of(&r, 3, &spec); /* ignores the model's end tokens */
    rig_submit(&r, request);
    assert_true(rig_step(&r, (const uint32_t[]){RIG_EOS_B})); /* "bb" */
    assert_true(rig_step(&r, (const uint32_t[]){AB}));
    assert_true(rig_step(&r, (const uint32_t[]){C}));
    assert_int_equal(rig_read(request).text_bytes, 2);
    assert_int_equal(rig_read(request).text_bytes, 2);
    const rig_event event = rig_read(request);
    assert_int_equal(event.finish, MR_FINISH_STOP);
    assert_int_equal(event.matched_token, C);
    assert_int_equal(event.matched_stop, MR_NO_STOP);
    assert_true(event.text_bytes == UINT64_MAX);
    assert_true(event.last);
    mr_request_unref(request);
    rig_close(&r);
    mr_tokenizer_destroy(tokenizer);
}

static void test_stops_of_each_choice_are_its_own(void **state)
{
    (void)state;
    rig r;
    static const char *const strings[] = {"ab", "cca", "bcb"};
    mr_scheduler_options options = rig_options();
    mr_tokenizer *tokenizer = rig_tokenizer();
    options.tokenizer = tokenizer;
    options.vocab_size = 40;
    options.max_batch_size = 8;
    options.max_batch_tokens = 16;
    rig_open(&r, &options, 4, 40); /* short: some are preempted */
    for (uint32_t i = 0; i < 20; i++) {
        mr_request_spec spec = {.params = rig_params(40), .stop = rig_stop(strings, 3)};
        spec.params.n = 6;
        mr_request *request = rig_request_of(&r, 3 + i, &spec);
        rig_submit(&r, request);
        rig_run(&r);
        rig_expect_whole(&r, request);
        mr_request_unref(request);
    }
    rig_close(&r);
    mr_tokenizer_destroy(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stops_hold_back_and_release_T1_T2_near_miss),
        cmocka_unit_test(test_stops_match_inside_and_across_tokens_T3),
        cmocka_unit_test(test_stops_may_stay_in_the_text),
        cmocka_unit_test(test_stops_see_special_tokens_only_if_kept_T3),
        cmocka_unit_test(test_stops_before_min_tokens_are_passed_over),
        cmocka_unit_test(test_stops_held_text_is_released_at_the_length),
        cmocka_unit_test(test_stops_by_token_release_what_was_held_T6),
        cmocka_unit_test(test_stops_of_each_choice_are_its_own),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
