/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenant_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const mr_admins nobody;

/* Tenants of these names, one a letter; each has its letter as key. */
static mr_tenants *make(const char *letters)
{
    mr_tenants *tenants = calloc(1, sizeof(*tenants));
    assert_non_null(tenants);
    for (; *letters != '\0'; letters++) {
        mr_tenant *tenant = &tenants->items[tenants->count++];
        tenant->name[0] = *letters;
        tenant->credentials.n_keys = 1;
        tenant->weight = 1;
        mr_sha256(letters, 1, tenant->credentials.keys[0]);
    }
    return tenants;
}

static void place_init(mr_tenant_place *place, const char *letters)
{
    mr_tenants *tenants = make(letters);
    assert_int_equal(mr_tenant_place_init(place, tenants, &nobody, NULL), MR_OK);
    free(tenants);
}

static mr_status replace(mr_tenant_place *place, const char *letters)
{
    mr_tenants *tenants = make(letters);
    mr_error err = {0};
    const mr_status status = mr_tenant_place_replace(place, tenants, &nobody, &err);
    assert_int_equal(err.status, status);
    free(tenants);
    return status;
}

/* Who comes with this key, by index; −1: nobody. */
static int index_of(mr_tenant_place *place, char letter)
{
    mr_tenant_table *table = mr_tenant_place_get(place);
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256(&letter, 1, digest);
    const uint32_t index = mr_tenants_find(&table->tenants, digest);
    const int found = index == table->tenants.count ? -1 : (int)index;
    mr_tenant_table_unref(table);
    return found;
}

static void test_tenant_table_indexes_stay(void **state)
{
    (void)state;
    mr_tenant_place place;
    place_init(&place, "abc");
    assert_int_equal(index_of(&place, 'b'), 1);
    /* b goes, d comes, and the order is another. */
    assert_int_equal(replace(&place, "dca"), MR_OK);
    assert_int_equal(index_of(&place, 'a'), 0);
    assert_int_equal(index_of(&place, 'b'), -1);
    assert_int_equal(index_of(&place, 'c'), 2);
    assert_int_equal(index_of(&place, 'd'), 3);
    /* b comes back to its place. */
    assert_int_equal(replace(&place, "b"), MR_OK);
    assert_int_equal(index_of(&place, 'b'), 1);
    assert_int_equal(index_of(&place, 'a'), -1);
    mr_tenant_place_deinit(&place);
}

/* A call goes on with the table that it began with. */
static void test_tenant_table_is_kept_by_who_uses_it(void **state)
{
    (void)state;
    mr_tenant_place place;
    place_init(&place, "ab");
    mr_tenant_table *before = mr_tenant_place_get(&place);
    assert_int_equal(replace(&place, "c"), MR_OK);
    assert_int_equal(before->tenants.count, 2);
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256("a", 1, digest);
    assert_int_equal(mr_tenants_find(&before->tenants, digest), 0);
    assert_string_equal(mr_tenants_get(&before->tenants, 1)->name, "b");
    mr_tenant_table_unref(before);
    mr_tenant_place_deinit(&place);
}

static void test_tenant_table_does_not_open_a_server(void **state)
{
    (void)state;
    mr_tenant_place place;
    place_init(&place, "a");
    assert_int_equal(replace(&place, ""), MR_FAILED_PRECONDITION);
    assert_int_equal(index_of(&place, 'a'), 0);
    mr_tenant_place_deinit(&place);
    /* One that is open may get tenants. */
    place_init(&place, "");
    assert_int_equal(replace(&place, ""), MR_OK);
    assert_int_equal(replace(&place, "a"), MR_OK);
    assert_int_equal(index_of(&place, 'a'), 0);
    mr_tenant_place_deinit(&place);
}

/* Tenants known by certificates only are there as well, and administrators are replaced whole. */
static void test_tenant_table_identities_and_administrators(void **state)
{
    (void)state;
    mr_tenants *tenants = make("ab");
    mr_admins admins = {.count = 1};
    snprintf(admins.items[0].name, sizeof(admins.items[0].name), "ops");
    mr_credentials *credentials = &tenants->items[0].credentials;
    *credentials = (mr_credentials){.n_identities = 1};
    snprintf(credentials->identities[0], sizeof(credentials->identities[0]), "a.example");
    mr_tenant_place place;
    assert_int_equal(mr_tenant_place_init(&place, tenants, &admins, NULL), MR_OK);

    mr_error err = {0};
    assert_int_equal(mr_tenant_place_replace(&place, tenants, &nobody, &err),
                     MR_FAILED_PRECONDITION);
    assert_non_null(strstr(err.message, "admin.callers"));
    snprintf(admins.items[0].name, sizeof(admins.items[0].name), "oncall");
    assert_int_equal(mr_tenant_place_replace(&place, tenants, &admins, NULL), MR_OK);
    mr_tenant_table *table = mr_tenant_place_get(&place);
    assert_string_equal(table->admins.items[0].name, "oncall");
    assert_int_equal(table->tenants.items[0].credentials.n_identities, 1);
    mr_tenant_table_unref(table);

    /* a is gone, and with it what it was known by. */
    mr_tenants *others = make("b");
    assert_int_equal(mr_tenant_place_replace(&place, others, &admins, NULL), MR_OK);
    table = mr_tenant_place_get(&place);
    assert_string_equal(table->tenants.items[0].name, "a");
    assert_int_equal(table->tenants.items[0].credentials.n_identities, 0);
    mr_tenant_table_unref(table);
    mr_tenant_place_deinit(&place);
    free(others);
    free(tenants);
}

/* With every place taken, those of tenants that are gone are used again. */
static void test_tenant_table_places_are_used_again(void **state)
{
    (void)state;
    mr_tenants *tenants = make("");
    for (uint32_t i = 0; i < MR_MAX_TENANTS; i++) {
        mr_tenant *tenant = &tenants->items[tenants->count++];
        snprintf(tenant->name, sizeof(tenant->name), "tenant-%u", i);
        tenant->credentials.n_keys = 1;
        tenant->credentials.keys[0][0] = (uint8_t)i;
        tenant->credentials.keys[0][1] = (uint8_t)(i >> 8);
    }
    mr_tenant_place place;
    assert_int_equal(mr_tenant_place_init(&place, tenants, &nobody, NULL), MR_OK);
    snprintf(tenants->items[7].name, sizeof(tenants->items[7].name), "new");
    assert_int_equal(mr_tenant_place_replace(&place, tenants, &nobody, NULL), MR_OK);
    mr_tenant_table *table = mr_tenant_place_get(&place);
    assert_int_equal(table->tenants.count, MR_MAX_TENANTS);
    assert_string_equal(table->tenants.items[7].name, "new");
    assert_string_equal(table->tenants.items[8].name, "tenant-8");
    mr_tenant_table_unref(table);
    mr_tenant_place_deinit(&place);
    free(tenants);
}

static void test_tenant_limits_automatic_bursts(void **state)
{
    (void)state;
    mr_tenant tenant = {.requests_per_s = 2.5, .tokens_per_min = 600};
    mr_rate_limits limits = mr_tenant_limits(&tenant);
    assert_int_equal(limits.burst_requests, 3);
    assert_int_equal(limits.burst_tokens, 600);
    tenant = (mr_tenant){.requests_per_s = 0.01, .burst_tokens = 5, .tokens_per_min = 9};
    limits = mr_tenant_limits(&tenant);
    assert_int_equal(limits.burst_requests, 1);
    assert_int_equal(limits.burst_tokens, 5);
    limits = mr_tenant_limits(&mr_tenant_open);
    assert_false(mr_rate_limits_any(&limits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenant_table_indexes_stay),
        cmocka_unit_test(test_tenant_table_is_kept_by_who_uses_it),
        cmocka_unit_test(test_tenant_table_does_not_open_a_server),
        cmocka_unit_test(test_tenant_table_identities_and_administrators),
        cmocka_unit_test(test_tenant_table_places_are_used_again),
        cmocka_unit_test(test_tenant_limits_automatic_bursts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
