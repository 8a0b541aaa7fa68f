/* SPDX-License-Identifier: Apache-2.0 */
#include "service/prefix_identity.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static mr_config config;
static mr_plan plan;
static mr_backend_info backend = {.numerics = "cpu/portable/auto/1"};

static mr_prefix_identity *create(const char *scope, const char *secret)
{
    const mr_prefix_identity_options options = {
        .config = &config, .plan = &plan, .backend = &backend};
    mr_prefix_identity *identity = NULL;
    char setting[64];
    assert_int_equal(mr_config_init(&config, NULL), MR_OK);
    snprintf(setting, sizeof(setting), "cache_scope=%s", scope);
    assert_int_equal(mr_config_set(&config, setting, NULL), MR_OK);
    snprintf(setting, sizeof(setting), "cache_salt_secret=%s", secret);
    assert_int_equal(mr_config_set(&config, setting, NULL), MR_OK);
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_int_equal(mr_prefix_identity_create(&options, &identity, NULL), MR_OK);
    return identity;
}

static bool same(mr_prefix_identity *identity, const char *tenant_a, const char *salt_a,
                 const char *tenant_b, const char *salt_b)
{
    mr_prefix_root a;
    mr_prefix_root b;
    mr_prefix_identity_root(identity, tenant_a, salt_a, strlen(salt_a), &a);
    mr_prefix_identity_root(identity, tenant_b, salt_b, strlen(salt_b), &b);
    return memcmp(&a.hash, &b.hash, sizeof(a.hash)) == 0;
}

static void test_roots_of_tenants_and_salts_are_apart_X1_X2(void **state)
{
    (void)state;
    static const char *const secrets[] = {"", "open sesame"};
    for (size_t i = 0; i < 2; i++) {
        mr_prefix_identity *p = create("tenant", secrets[i]);
        assert_true(same(p, "a", "", "a", ""));
        assert_true(same(p, "a", "x", "a", "x"));
        assert_false(same(p, "a", "", "b", ""));
        assert_false(same(p, "a", "x", "b", "x"));
        assert_false(same(p, "a", "", "a", "x"));
        /* No salt of one tenant's choice gives the root of another, or of all its own tenant. */
        assert_false(same(p, "a", "b", "b", ""));
        assert_false(same(p, "a", "b", "ab", ""));
        assert_false(same(p, "a", "bc", "ab", "c"));
        mr_prefix_identity_destroy(p);
    }
}

static void test_shared_scope_is_one_circle_that_salts_narrow_X1(void **state)
{
    (void)state;
    mr_prefix_identity *p = create("shared", "s");
    assert_true(same(p, "a", "", "b", ""));
    assert_true(same(p, "a", "x", "b", "x"));
    assert_false(same(p, "a", "", "b", "x"));
    mr_prefix_identity_destroy(p);
}

/* Two processes of one model and one secret still differ, until the model is identified. */
static void test_generation_0_is_this_process_only_X4(void **state)
{
    (void)state;
    mr_prefix_root a;
    mr_prefix_root b;
    mr_prefix_identity *p = create("tenant", "s");
    mr_prefix_identity *q = create("tenant", "s");
    assert_true(mr_prefix_identity_shareable(p));
    assert_int_equal(mr_prefix_identity_generation(p), 0);
    mr_prefix_identity_root(p, "a", NULL, 0, &a);
    mr_prefix_identity_root(q, "a", NULL, 0, &b);
    assert_int_equal(a.generation, 0);
    assert_int_equal(a.block_size, config.block_size);
    assert_memory_not_equal(&a.hash, &b.hash, sizeof(a.hash));
    mr_prefix_identity_destroy(p);
    mr_prefix_identity_destroy(q);
    p = create("tenant", "");
    assert_false(mr_prefix_identity_shareable(p));
    mr_prefix_identity_destroy(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roots_of_tenants_and_salts_are_apart_X1_X2),
        cmocka_unit_test(test_shared_scope_is_one_circle_that_salts_narrow_X1),
        cmocka_unit_test(test_generation_0_is_this_process_only_X4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
