/* SPDX-License-Identifier: Apache-2.0 */
#include "service/id_registry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static mr_request *make_request(const char *id)
{
    static const uint32_t prompt[] = {1};
    const mr_request_spec spec = {
        .id = id, .prompt = prompt, .n_prompt = 1, .params.max_tokens = 1, .deadline_ns = MR_NEVER};
    mr_request *request = NULL;
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    return request;
}

static void test_registry_finds_what_is_claimed(void **state)
{
    (void)state;
    mr_id_registry registry;
    mr_event emptied;
    mr_event_init(&emptied);
    mr_id_registry_init(&registry, &emptied);
    mr_request *a = make_request("a");
    mr_request *b = make_request("b");
    mr_request *other = make_request("a");
    mr_id_claim claims[3] = {{0}};
    mr_error err = {0};
    assert_null(mr_id_registry_find(&registry, "ada", "a"));
    assert_int_equal(mr_id_registry_claim(&registry, &claims[0], "ada", a, &err), MR_OK);
    assert_int_equal(mr_id_registry_claim(&registry, &claims[1], "ada", b, &err), MR_OK);
    assert_int_equal(mr_id_registry_claim(&registry, &claims[2], "ada", other, &err),
                     MR_ALREADY_EXISTS);
    assert_string_equal(err.field, "request_id");

    mr_request *found = mr_id_registry_find(&registry, "ada", "a");
    assert_ptr_equal(found, a);
    mr_id_registry_drop(&registry, &claims[0]);
    mr_id_registry_drop(&registry, &claims[0]);
    mr_request_unref(a);
    assert_string_equal(found->id, "a"); /* the reference that was given outlives both */
    mr_request_unref(found);
    assert_null(mr_id_registry_find(&registry, "ada", "a"));
    assert_int_equal(mr_id_registry_claim(&registry, &claims[2], "ada", other, &err), MR_OK);

    mr_id_registry_drop(&registry, &claims[1]);
    assert_false(mr_id_registry_is_empty(&registry));
    assert_false(mr_event_wait(&emptied, 0));
    mr_id_registry_drop(&registry, &claims[2]);
    assert_true(mr_id_registry_is_empty(&registry));
    assert_true(mr_event_wait(&emptied, 0));
    mr_request_unref(b);
    mr_request_unref(other);
    mr_id_registry_deinit(&registry);
    mr_event_deinit(&emptied);
}

/* The same id of two tenants is two requests, also where one has the index that the other had. */
static void test_registry_keeps_tenants_apart(void **state)
{
    (void)state;
    mr_id_registry registry;
    mr_event emptied;
    mr_event_init(&emptied);
    mr_id_registry_init(&registry, &emptied);
    mr_request *one = make_request("a");
    mr_request *two = make_request("a");
    mr_id_claim claims[2] = {{0}};
    assert_int_equal(mr_id_registry_claim(&registry, &claims[0], "ada", one, NULL), MR_OK);
    assert_null(mr_id_registry_find(&registry, "bob", "a"));
    assert_int_equal(mr_id_registry_claim(&registry, &claims[1], "bob", two, NULL), MR_OK);
    mr_request *found = mr_id_registry_find(&registry, "bob", "a");
    assert_ptr_equal(found, two);
    mr_request_unref(found);
    mr_id_registry_drop(&registry, &claims[1]);
    assert_null(mr_id_registry_find(&registry, "bob", "a"));
    found = mr_id_registry_find(&registry, "ada", "a");
    assert_ptr_equal(found, one);
    mr_request_unref(found);
    mr_id_registry_drop(&registry, &claims[0]);
    mr_request_unref(one);
    mr_request_unref(two);
    mr_id_registry_deinit(&registry);
    mr_event_deinit(&emptied);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_registry_finds_what_is_claimed),
        cmocka_unit_test(test_registry_keeps_tenants_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
