/* SPDX-License-Identifier: Apache-2.0 */
#include "service/tenants.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* SHA-256 of "abc" and of the empty message: FIPS 180-2, appendix B.1, and a well-known value. */
static const uint8_t abc[MR_SHA256_BYTES] = {
    0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
    0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};

static mr_tenants *three_tenants(void)
{
    mr_tenants *tenants = calloc(1, sizeof(*tenants));
    assert_non_null(tenants);
    for (uint32_t i = 0; i < 3; i++) {
        mr_tenant *tenant = &tenants->items[i];
        tenant->name[0] = (char)('a' + i);
        tenant->weight = 1;
        tenant->credentials.n_keys = 1;
        tenant->credentials.keys[0][0] = (uint8_t)i;
    }
    tenants->count = 3;
    tenants->items[1].credentials.n_keys = 2;
    memcpy(tenants->items[1].credentials.keys[1], abc, sizeof(abc));
    return tenants;
}

static uint32_t find(const mr_tenants *tenants, const char *key)
{
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256(key, strlen(key), digest);
    return mr_tenants_find(tenants, digest);
}

static void test_tenants_find_by_key(void **state)
{
    (void)state;
    mr_tenants *tenants = three_tenants();
    assert_int_equal(mr_tenants_check(tenants, NULL), MR_OK);
    assert_int_equal(find(tenants, "abc"), 1);
    assert_int_equal(find(tenants, "ab"), 3);
    assert_int_equal(find(tenants, "abcd"), 3);
    assert_int_equal(find(tenants, ""), 3);
    /* A digest that is there, beyond n_keys, opens nothing. */
    tenants->items[1].credentials.n_keys = 1;
    assert_int_equal(find(tenants, "abc"), 3);
    /* Whichever bit is wrong. */
    tenants->items[1].credentials.n_keys = 2;
    for (size_t bit = 0; bit < 256; bit++) {
        tenants->items[1].credentials.keys[1][bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(find(tenants, "abc"), 3);
        tenants->items[1].credentials.keys[1][bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(tenants);
}

static void test_tenants_open_server_has_one_for_everybody(void **state)
{
    (void)state;
    mr_tenants *tenants = calloc(1, sizeof(*tenants));
    assert_non_null(tenants);
    assert_string_equal(mr_tenants_get(tenants, 0)->name, "default");
    assert_int_equal(mr_tenants_get(tenants, 0)->weight, 1);
    assert_int_equal(mr_tenants_get(tenants, 0)->priority_max, MR_MAX_PRIORITY);
    free(tenants);
}

static void assert_check(mr_tenants *tenants, const char *says)
{
    mr_error err = {0};
    assert_int_equal(mr_tenants_check(tenants, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "tenants");
    assert_non_null(strstr(err.message, says));
}

static void test_tenants_bursts_need_their_rates(void **state)
{
    (void)state;
    mr_tenants *tenants = three_tenants();
    tenants->items[2].burst_requests = 4;
    assert_check(tenants, "burst_requests cannot act");
    tenants->items[2].requests_per_s = 0.5;
    assert_int_equal(mr_tenants_check(tenants, NULL), MR_OK);
    tenants->items[0].burst_tokens = 1;
    assert_check(tenants, "burst_tokens cannot act");
    tenants->items[0].tokens_per_min = 1;
    assert_int_equal(mr_tenants_check(tenants, NULL), MR_OK);
    free(tenants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tenants_find_by_key),
        cmocka_unit_test(test_tenants_open_server_has_one_for_everybody),
        cmocka_unit_test(test_tenants_bursts_need_their_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
