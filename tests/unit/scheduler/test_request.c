/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/request.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static const uint32_t prompt[] = {1, 2, 3};

static mr_request_spec spec_of(uint64_t seed)
{
    return (mr_request_spec){
        .id = "r",
        .prompt = prompt,
        .n_prompt = 3,
        .params = {.top_p = 1, .repetition_penalty = 1, .seed = seed, .max_tokens = 4},
        .deadline_ns = MR_NEVER,
        .arrived_ns = 77,
    };
}

static void test_request_copies_its_spec(void **state)
{
    (void)state;
    uint32_t ids[] = {1, 2, 3};
    mr_request_spec spec = spec_of(5);
    mr_request *request = NULL;
    spec.prompt = ids;
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    ids[0] = 99;
    assert_int_equal(request->prompt[0], 1);
    assert_int_equal(request->n_prompt, 3);
    assert_string_equal(request->id, "r");
    assert_int_equal(request->params.max_tokens, 4);
    assert_int_equal(request->usage.prompt_tokens, 3);
    assert_int_equal(request->usage.arrived_ns, 77);
    assert_false(mr_flag_get(&request->cancelled));
    assert_int_equal(request->events.capacity, 256);
    mr_request_ref(request);
    mr_request_unref(request);
    assert_int_equal(request->prompt[2], 3);
    mr_request_unref(request);
}

/* Expected: seed ^ int.from_bytes(hashlib.sha256(struct.pack("<3I", 1, 2, 3)).digest()[-8:], "big")
 * in Python. */
static void test_request_key_is_seed_and_prompt_D2(void **state)
{
    (void)state;
    const struct {
        uint64_t seed, key;
    } cases[] = {{0x0, 0xeabc3845c5897a4d}, {0x123456789abcdef, 0xeb9f7d224c22b7a2}};
    for (size_t i = 0; i < 2; i++) {
        mr_request_spec spec = spec_of(cases[i].seed);
        mr_request *request = NULL;
        assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
        assert_true(request->key == cases[i].key);
        mr_request_unref(request);
    }
}

static void test_request_ring_has_room_for_alternatives(void **state)
{
    (void)state;
    mr_request_spec spec = spec_of(0);
    mr_request *request = NULL;
    spec.ring_capacity = 1; /* raised to 2: a token and the last event */
    spec.params.logprobs = true;
    spec.params.top_logprobs = 20;
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    assert_int_equal(request->events.capacity, 2);
    assert_true(request->events.stride >=
                offsetof(mr_token_event, top) + 20 * sizeof(mr_alternative));
    mr_request_unref(request);
}

static void test_request_refuses_by_field(void **state)
{
    (void)state;
    char long_id[MR_REQUEST_ID_MAX + 2];
    memset(long_id, 'x', sizeof(long_id) - 1);
    long_id[sizeof(long_id) - 1] = '\0';
    mr_request_spec bad[6];
    const char *fields[] = {"request_id", "prompt",       "max_tokens",
                            "max_tokens", "top_logprobs", "ring_capacity"};
    for (size_t i = 0; i < 6; i++) {
        bad[i] = spec_of(0);
    }
    bad[0].id = long_id;
    bad[1].n_prompt = 0;
    bad[2].params.max_tokens = 0;
    bad[3].params.max_tokens = UINT32_MAX;
    bad[4].params.top_logprobs = MR_MAX_TOP_LOGPROBS + 1;
    bad[5].ring_capacity = MR_RING_MAX_CAPACITY + 1;
    for (size_t i = 0; i < 6; i++) {
        mr_request *request = NULL;
        mr_error err = {0};
        assert_int_equal(mr_request_create(&bad[i], &request, &err), MR_INVALID_ARGUMENT);
        assert_string_equal(err.field, fields[i]);
        assert_null(request);
    }
}

static void test_request_owns_its_lists_and_stops(void **state)
{
    (void)state;
    uint32_t bias_tokens[] = {4, 5};
    float bias_values[] = {0.5f, -INFINITY};
    uint32_t stops[] = {9};
    const mr_stop_string string = {.data = "END", .bytes = 3};
    mr_request_spec spec = spec_of(0);
    mr_request *request = NULL;
    spec.bias_tokens = bias_tokens;
    spec.bias_values = bias_values;
    spec.n_bias = 2;
    spec.stop_tokens = stops;
    spec.n_stop_tokens = 1;
    spec.params.n = 3;
    spec.params.prompt_logprobs = true;
    spec.ring_capacity = 1;
    assert_int_equal(mr_stop_create(&string, 1, &spec.stop, NULL), MR_OK);
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    memset(bias_tokens, 0, sizeof(bias_tokens));
    memset(bias_values, 0, sizeof(bias_values));
    stops[0] = 0;
    assert_int_equal(request->bias_tokens[1], 5);
    assert_true(request->bias_values[1] == -INFINITY);
    assert_int_equal(request->stop_tokens[0], 9);
    assert_ptr_equal(request->stop, spec.stop);
    assert_true(request->events.capacity >= 6);
    assert_non_null(request->prompt_logprobs);
    assert_int_equal(request->n_prompt_scored, 1);
    assert_int_equal(request->params.beam_width, 1);
    mr_request_unref(request); /* and the automaton with it */
}

static void test_request_refuses_combinations_by_field(void **state)
{
    (void)state;
    static const uint32_t ids[MR_MAX_LOGIT_BIAS + 1] = {0};
    static float values[MR_MAX_LOGIT_BIAS + 1] = {0};
    const float bad_value = NAN;
    mr_request_spec bad[10];
    const char *fields[] = {
        "n",          "beam_width", "n",          "length_penalty", "top_logprobs",
        "logit_bias", "logit_bias", "logit_bias", "stop_token_ids", "length_penalty"};
    const float infinite = INFINITY;
    for (size_t i = 0; i < 10; i++) {
        bad[i] = spec_of(0);
        bad[i].bias_tokens = ids;
        bad[i].bias_values = values;
        bad[i].stop_tokens = ids;
    }
    bad[0].params.n = MR_MAX_CHOICES + 1;
    bad[1].params.beam_width = MR_MAX_BEAMS + 1;
    bad[2].params.beam_width = 2;
    bad[2].params.n = 3;
    bad[3].params.beam_width = 2;
    bad[3].params.length_penalty = NAN;
    bad[4].params.beam_width = 2;
    bad[4].params.logprobs = true;
    bad[4].params.top_logprobs = 1;
    bad[5].n_bias = MR_MAX_LOGIT_BIAS + 1;
    bad[6].n_bias = 1;
    bad[6].bias_values = &bad_value;
    bad[7].n_bias = 1;
    bad[7].bias_values = &infinite;
    bad[8].n_stop_tokens = MR_MAX_STOP_TOKENS + 1;
    bad[9].params.beam_width = 2;
    bad[9].params.length_penalty = INFINITY;
    for (size_t i = 0; i < 10; i++) {
        mr_request *request = NULL;
        mr_error err = {0};
        assert_int_equal(mr_request_create(&bad[i], &request, &err), MR_INVALID_ARGUMENT);
        assert_string_equal(err.field, fields[i]);
        assert_null(request);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_request_copies_its_spec),
        cmocka_unit_test(test_request_key_is_seed_and_prompt_D2),
        cmocka_unit_test(test_request_ring_has_room_for_alternatives),
        cmocka_unit_test(test_request_refuses_by_field),
        cmocka_unit_test(test_request_owns_its_lists_and_stops),
        cmocka_unit_test(test_request_refuses_combinations_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
