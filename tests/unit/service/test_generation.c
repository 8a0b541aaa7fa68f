/* SPDX-License-Identifier: Apache-2.0 */
#include "service/generation.h"
#include "service/unsupported.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <float.h>
#include <math.h>
#include <string.h>

#define SEED_LIMIT (UINT64_C(1) << 53)

static void refused(mr_generation_ask ask, const char *field)
{
    static const mr_surface surfaces[] = {MR_SURFACE_PROTO, MR_SURFACE_JSONL, MR_SURFACE_CLI};
    for (size_t i = 0; i < sizeof(surfaces) / sizeof(surfaces[0]); i++) {
        mr_request_params params;
        mr_error err = {0};
        assert_int_equal(mr_generation_check(&ask, surfaces[i], &params, &err),
                         MR_INVALID_ARGUMENT);
        if (surfaces[i] == MR_SURFACE_PROTO) {
            assert_string_equal(err.field, field);
            assert_non_null(strstr(err.message, field));
        }
    }
}

static mr_request_params accepted(mr_generation_ask ask)
{
    mr_request_params params;
    mr_error err = {0};
    if (mr_generation_check(&ask, MR_SURFACE_PROTO, &params, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return params;
}

static void test_generation_defaults(void **state)
{
    (void)state;
    const mr_request_params params = accepted((mr_generation_ask){0});
    assert_true(params.temperature == 1.0f);
    assert_true(params.top_p == 1.0f);
    assert_true(params.min_p == 0.0f);
    assert_int_equal(params.top_k, 0);
    assert_true(params.repetition_penalty == 1.0f);
    assert_true(params.presence_penalty == 0.0f);
    assert_true(params.frequency_penalty == 0.0f);
    assert_int_equal(params.max_tokens, 256);
    assert_int_equal(params.min_tokens, 0);
    assert_false(params.logprobs);
    assert_false(params.ignore_eos);
}

static void test_generation_D3_absent_seeds_differ(void **state)
{
    (void)state;
    const mr_request_params a = accepted((mr_generation_ask){0});
    const mr_request_params b = accepted((mr_generation_ask){0});
    assert_true(a.seed < SEED_LIMIT && b.seed < SEED_LIMIT);
    assert_true(a.seed != b.seed); /* equal once in 2^53 runs */
    assert_true(accepted((mr_generation_ask){.has_seed = true, .seed = 0}).seed == 0);
}

static void test_generation_D5_no_poisonous_floats(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const float x = bad[i];
        refused((mr_generation_ask){.has_temperature = true, .temperature = x},
                "sampling.temperature");
        refused((mr_generation_ask){.has_top_p = true, .top_p = x}, "sampling.top_p");
        refused((mr_generation_ask){.has_min_p = true, .min_p = x}, "sampling.min_p");
        refused((mr_generation_ask){.has_repetition_penalty = true, .repetition_penalty = x},
                "sampling.repetition_penalty");
        refused((mr_generation_ask){.presence_penalty = x}, "sampling.presence_penalty");
        refused((mr_generation_ask){.frequency_penalty = x}, "sampling.frequency_penalty");
    }
}

static void test_generation_bounds(void **state)
{
    (void)state;
    refused((mr_generation_ask){.has_temperature = true, .temperature = -0.01f},
            "sampling.temperature");
    refused((mr_generation_ask){.has_top_p = true, .top_p = 0.0f}, "sampling.top_p");
    refused((mr_generation_ask){.has_top_p = true, .top_p = 1.0001f}, "sampling.top_p");
    refused((mr_generation_ask){.has_min_p = true, .min_p = -0.1f}, "sampling.min_p");
    refused((mr_generation_ask){.has_min_p = true, .min_p = 1.1f}, "sampling.min_p");
    refused((mr_generation_ask){.has_top_k = true, .top_k = UINT64_C(1) << 32}, "sampling.top_k");
    refused((mr_generation_ask){.has_seed = true, .seed = SEED_LIMIT}, "sampling.seed");
    refused((mr_generation_ask){.has_repetition_penalty = true, .repetition_penalty = 0.0f},
            "sampling.repetition_penalty");
    refused((mr_generation_ask){.presence_penalty = 2.1f}, "sampling.presence_penalty");
    refused((mr_generation_ask){.frequency_penalty = -2.1f}, "sampling.frequency_penalty");
    refused((mr_generation_ask){.has_max_tokens = true, .max_tokens = 0}, "stopping.max_tokens");
    refused((mr_generation_ask){.has_max_tokens = true, .max_tokens = UINT64_C(1) << 32},
            "stopping.max_tokens");
    refused((mr_generation_ask){.has_max_tokens = true, .max_tokens = 4, .min_tokens = 5},
            "stopping.min_tokens");
    refused((mr_generation_ask){.logprobs = true, .top_logprobs = 21}, "output.top_logprobs");
    refused((mr_generation_ask){.top_logprobs = 1}, "output.top_logprobs");

    const mr_request_params edge = accepted((mr_generation_ask){
        .has_temperature = true,
        .temperature = FLT_MAX,
        .has_top_p = true,
        .top_p = FLT_MIN,
        .has_min_p = true,
        .min_p = 1.0f,
        .has_top_k = true,
        .top_k = UINT32_MAX,
        .has_seed = true,
        .seed = SEED_LIMIT - 1,
        .has_repetition_penalty = true,
        .repetition_penalty = FLT_MIN,
        .presence_penalty = -2.0f,
        .frequency_penalty = 2.0f,
        .has_max_tokens = true,
        .max_tokens = 1,
        .min_tokens = 1,
        .logprobs = true,
        .top_logprobs = 20,
    });
    assert_int_equal(edge.top_logprobs, 20);
    assert_true(edge.seed == SEED_LIMIT - 1);
}

static void test_generation_choices_and_beams(void **state)
{
    (void)state;
    refused((mr_generation_ask){.has_n = true, .n = 0}, "sampling.n");
    refused((mr_generation_ask){.has_n = true, .n = 129}, "sampling.n");
    refused((mr_generation_ask){.has_n = true, .n = UINT64_C(1) << 32}, "sampling.n");
    refused((mr_generation_ask){.has_beam_width = true, .beam_width = 0}, "sampling.beam_width");
    refused((mr_generation_ask){.has_beam_width = true, .beam_width = 17}, "sampling.beam_width");
    refused((mr_generation_ask){.has_beam_width = true, .beam_width = 2, .has_n = true, .n = 3},
            "sampling.n");
    refused(
        (mr_generation_ask){
            .has_beam_width = true, .beam_width = 2, .logprobs = true, .top_logprobs = 1},
        "output.top_logprobs");
    /* L1: a search knows no logprobs but those it ran on. */
    mr_generation_ask search = {
        .has_beam_width = true, .beam_width = 2, .logprobs = true, .presence_penalty = 1.0f};
    refused(search, "output.logprobs_mode");
    search.logprobs_processed = true;
    assert_true(accepted(search).logprobs_processed);
    search.logprobs_processed = false;
    search.presence_penalty = 0.0f;
    assert_int_equal(accepted(search).beam_width, 2);
    static const float bad[] = {NAN, INFINITY, -INFINITY, 10.01f, -10.01f};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refused((mr_generation_ask){.has_length_penalty = true, .length_penalty = bad[i]},
                "sampling.length_penalty");
    }
    const mr_request_params one = accepted((mr_generation_ask){0});
    assert_int_equal(one.n, 1);
    assert_int_equal(one.beam_width, 1);
    assert_true(one.length_penalty == 1.0f);
    assert_int_equal(accepted((mr_generation_ask){.has_n = true, .n = 128}).n, 128);
    const mr_request_params beams = accepted((mr_generation_ask){
        .has_beam_width = true, .beam_width = 16, .has_n = true, .n = 16, .logprobs = true});
    assert_int_equal(beams.beam_width, 16);
    assert_int_equal(beams.n, 16);
}

static void test_generation_logit_bias(void **state)
{
    (void)state;
    static uint32_t ids[MR_MAX_LOGIT_BIAS + 1];
    static float values[MR_MAX_LOGIT_BIAS + 1];
    for (uint32_t i = 0; i <= MR_MAX_LOGIT_BIAS; i++) {
        ids[i] = i;
    }
    mr_generation_ask ask = {.bias_tokens = ids, .bias_values = values};
    ask.n_bias = MR_MAX_LOGIT_BIAS;
    (void)accepted(ask);
    ask.n_bias++;
    refused(ask, "sampling.logit_bias");
    static const float bad[] = {NAN, INFINITY, -INFINITY, 100.1f, -100.1f};
    ask.n_bias = 3;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        values[2] = bad[i];
        refused(ask, "sampling.logit_bias");
    }
    values[2] = -100.0f;
    (void)accepted(ask);
    ids[2] = ids[0];
    refused(ask, "sampling.logit_bias");
}

static void test_generation_stops(void **state)
{
    (void)state;
    static char long_text[MR_MAX_STOP_BYTES + 1];
    memset(long_text, 'x', sizeof(long_text));
    mr_stop_string strings[MR_MAX_STOP_STRINGS + 1];
    for (size_t i = 0; i <= MR_MAX_STOP_STRINGS; i++) {
        strings[i] = (mr_stop_string){"END", 3};
    }
    mr_generation_ask ask = {.stops = strings, .n_stops = MR_MAX_STOP_STRINGS};
    (void)accepted(ask);
    ask.n_stops++;
    refused(ask, "stopping.strings");
    ask.n_stops = 2;
    strings[1] = (mr_stop_string){"", 0};
    refused(ask, "stopping.strings");
    strings[1] = (mr_stop_string){"\xff", 1};
    refused(ask, "stopping.strings");
    strings[1] = (mr_stop_string){"\0", 1}; /* U+0000 is text like any other */
    (void)accepted(ask);
    strings[1] = (mr_stop_string){long_text, MR_MAX_STOP_BYTES - 2};
    refused(ask, "stopping.strings");
    strings[1].bytes--;
    (void)accepted(ask);
    ask.skip_text = true; /* T4: refused, not ignored */
    refused(ask, "stopping.strings");

    static const uint32_t ids[MR_MAX_STOP_TOKENS + 1];
    mr_generation_ask tokens = {.stop_tokens = ids, .n_stop_tokens = MR_MAX_STOP_TOKENS};
    (void)accepted(tokens);
    tokens.n_stop_tokens++;
    refused(tokens, "stopping.token_ids");
}

static void test_generation_time_limit_and_prompt_logprobs(void **state)
{
    (void)state;
    refused((mr_generation_ask){.time_limit_ms = UINT64_C(1) << 32}, "stopping.time_limit_ms");
    assert_true(accepted((mr_generation_ask){.time_limit_ms = 1500}).time_limit_ns ==
                UINT64_C(1500000000));
    assert_true(accepted((mr_generation_ask){0}).time_limit_ns == 0);
    /* Alternatives are of the prompt's tokens then. */
    const mr_request_params params =
        accepted((mr_generation_ask){.prompt_logprobs = true, .top_logprobs = 3});
    assert_true(params.prompt_logprobs && !params.logprobs);
    assert_int_equal(params.top_logprobs, 3);
}

static void test_generation_names_fields_as_the_surface_does(void **state)
{
    (void)state;
    const mr_generation_ask ask = {.has_top_p = true, .top_p = 2.0f};
    mr_request_params params;
    mr_error err = {0};
    assert_int_equal(mr_generation_check(&ask, MR_SURFACE_JSONL, &params, &err),
                     MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "top_p");
    assert_int_equal(mr_generation_check(&ask, MR_SURFACE_CLI, &params, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "--top-p");
}

static mr_status check_prompt(uint32_t *ids, size_t count, mr_request_params *params, mr_error *err)
{
    const mr_ids prompt = {.data = ids, .count = count};
    return mr_generation_check_prompt(&prompt, 100, 16, "prompt_ids", params, err);
}

static void test_generation_M4_prompt_must_fit(void **state)
{
    (void)state;
    uint32_t ids[16] = {1, 2, 3};
    mr_request_params params = {.max_tokens = 256, .min_tokens = 9};
    mr_error err = {0};
    assert_int_equal(check_prompt(ids, 0, &params, &err), MR_INVALID_ARGUMENT);
    assert_int_equal(check_prompt(ids, 16, &params, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "prompt_ids");
    assert_non_null(strstr(err.message, "15 or fewer"));

    assert_int_equal(check_prompt(ids, 15, &params, &err), MR_OK);
    assert_int_equal(params.max_tokens, 1);
    assert_int_equal(params.min_tokens, 1);

    params.max_tokens = 13;
    assert_int_equal(check_prompt(ids, 3, &params, &err), MR_OK);
    assert_int_equal(params.max_tokens, 13);
}

static void test_generation_prompt_ids_are_of_the_vocabulary(void **state)
{
    (void)state;
    uint32_t ids[] = {99, 100};
    mr_request_params params = {.max_tokens = 1};
    mr_error err = {0};
    assert_int_equal(check_prompt(ids, 1, &params, &err), MR_OK);
    assert_int_equal(check_prompt(ids, 2, &params, &err), MR_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "token 1 is 100"));
}

static void test_generation_unsupported_rows(void **state)
{
    (void)state;
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(mr_unsupported_find(rows[i].surface, rows[i].name), &rows[i]);
        mr_error err = {0};
        const mr_status status = mr_unsupported_fail(rows[i].surface, rows[i].name, &err);
        const bool rpc = rows[i].surface == MR_SURFACE_PROTO || rows[i].surface == MR_SURFACE_JSONL;
        assert_int_equal(status, rpc ? MR_UNIMPLEMENTED : MR_FAILED_PRECONDITION);
        assert_non_null(strstr(err.message, rows[i].name));
        assert_non_null(strstr(err.message, rows[i].what));
    }
    assert_non_null(mr_unsupported_find(MR_SURFACE_CONFIG, "kv_transfer.peer"));
    assert_null(mr_unsupported_find(MR_SURFACE_CONFIG, "kv_transfer"));
    assert_null(mr_unsupported_find(MR_SURFACE_CLI, "kv_transfer.peer"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generation_defaults),
        cmocka_unit_test(test_generation_D3_absent_seeds_differ),
        cmocka_unit_test(test_generation_D5_no_poisonous_floats),
        cmocka_unit_test(test_generation_bounds),
        cmocka_unit_test(test_generation_choices_and_beams),
        cmocka_unit_test(test_generation_logit_bias),
        cmocka_unit_test(test_generation_stops),
        cmocka_unit_test(test_generation_time_limit_and_prompt_logprobs),
        cmocka_unit_test(test_generation_names_fields_as_the_surface_does),
        cmocka_unit_test(test_generation_M4_prompt_must_fit),
        cmocka_unit_test(test_generation_prompt_ids_are_of_the_vocabulary),
        cmocka_unit_test(test_generation_unsupported_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
