/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/request.h"

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
    mr_request_spec bad[5];
    const char *fields[] = {"request_id", "prompt", "max_tokens", "max_tokens", "top_logprobs"};
    for (size_t i = 0; i < 5; i++) {
        bad[i] = spec_of(0);
    }
    bad[0].id = long_id;
    bad[1].n_prompt = 0;
    bad[2].params.max_tokens = 0;
    bad[3].params.max_tokens = UINT32_MAX;
    bad[4].params.top_logprobs = MR_MAX_TOP_LOGPROBS + 1;
    for (size_t i = 0; i < 5; i++) {
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
