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

static mr_prefix_root root_of(mr_prefix_identity *identity, const char *tenant, const char *salt,
                              uint32_t n_prompt)
{
    const mr_buffer bytes = {.data = (uint8_t *)(uintptr_t)salt, .size = strlen(salt)};
    const mr_prefix_asker asker = {.tenant = tenant, .salt = &bytes, .n_prompt = n_prompt};
    mr_prefix_root root;
    mr_prefix_identity_root(identity, &asker, &root);
    return root;
}

static bool same(mr_prefix_identity *identity, const char *tenant_a, const char *salt_a,
                 const char *tenant_b, const char *salt_b)
{
    const mr_prefix_root a = root_of(identity, tenant_a, salt_a, 5);
    const mr_prefix_root b = root_of(identity, tenant_b, salt_b, 6);
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
    mr_prefix_identity *p = create("tenant", "s");
    mr_prefix_identity *q = create("tenant", "s");
    assert_true(mr_prefix_identity_shareable(p));
    assert_int_equal(mr_prefix_identity_generation(p), 0);
    const mr_prefix_root a = root_of(p, "a", "", 5);
    const mr_prefix_root b = root_of(q, "a", "", 5);
    assert_int_equal(a.generation, 0);
    assert_int_equal(a.block_size, config.block_size);
    assert_memory_not_equal(&a.hash, &b.hash, sizeof(a.hash));
    mr_prefix_identity_destroy(p);
    mr_prefix_identity_destroy(q);
    p = create("tenant", "");
    assert_false(mr_prefix_identity_shareable(p));
    mr_prefix_identity_destroy(p);
}

static bool same_of_lengths(mr_prefix_identity *identity, uint32_t a, uint32_t b)
{
    const mr_prefix_root one = root_of(identity, "a", "", a);
    const mr_prefix_root other = root_of(identity, "a", "", b);
    return memcmp(&one.hash, &other.hash, sizeof(one.hash)) == 0;
}

/* Keys that were turned by other frequencies are other keys. */
static void test_roots_name_the_rope_table_in_effect(void **state)
{
    (void)state;
    static const float inv_freq[2] = {1.0f, 0.5f};
    mr_plan_rope rope = {.dims = 4,
                         .inv_freq = inv_freq,
                         .long_inv_freq = inv_freq,
                         .theta = 10000.0,
                         .factor = 2.0};
    rope.original = 100;
    plan.ropes = &rope;
    plan.n_ropes = 1;

    mr_prefix_identity *p = create("tenant", "s");
    assert_true(same_of_lengths(p, 100, 200));
    mr_prefix_identity_destroy(p);

    rope.rule = MR_ROPE_TWO;
    p = create("tenant", "s");
    assert_true(same_of_lengths(p, 1, 100));
    assert_false(same_of_lengths(p, 100, 101));
    assert_true(same_of_lengths(p, 101, 200));
    mr_prefix_identity_destroy(p);

    rope.rule = MR_ROPE_DYNAMIC;
    p = create("tenant", "s");
    assert_true(same_of_lengths(p, 1, 100));
    assert_false(same_of_lengths(p, 100, 101));
    assert_false(same_of_lengths(p, 101, 102));
    assert_true(same_of_lengths(p, 102, 102));
    mr_prefix_identity_destroy(p);
    plan = (mr_plan){0};
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roots_of_tenants_and_salts_are_apart_X1_X2),
        cmocka_unit_test(test_shared_scope_is_one_circle_that_salts_narrow_X1),
        cmocka_unit_test(test_generation_0_is_this_process_only_X4),
        cmocka_unit_test(test_roots_name_the_rope_table_in_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
