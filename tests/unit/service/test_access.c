/* SPDX-License-Identifier: Apache-2.0 */
#include "service/access.h"

#include "service/descriptors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The service that a symbol is a method of, by the length of its name; 0: it is none. */
static size_t service_of(const char *symbol)
{
    for (size_t i = 0; i < mr_descriptor_n_services; i++) {
        const size_t length = strlen(mr_descriptor_services[i]);
        if (strncmp(symbol, mr_descriptor_services[i], length) == 0 && symbol[length] == '.') {
            return length;
        }
    }
    return 0;
}

/* A method that is new in a .proto fails here until somebody says who may call it. */
static void test_access_every_method_has_a_row_G5(void **state)
{
    (void)state;
    uint32_t n_methods = 0;
    for (size_t i = 0; i < mr_descriptor_n_symbols; i++) {
        const char *symbol = mr_descriptor_symbols[i].name;
        const size_t service = service_of(symbol);
        if (service == 0) {
            continue;
        }
        char path[256];
        const int length =
            snprintf(path, sizeof(path), "/%.*s/%s", (int)service, symbol, symbol + service + 1);
        bool listed = false;
        (void)mr_access_of(path, (size_t)length, &listed);
        if (!listed) {
            fail_msg("%s has no row in service/access.def", path);
        }
        n_methods++;
    }
    assert_true(n_methods >= 16); /* six of inference, six of administration, health, reflection */
}

static mr_access access_of(const char *path)
{
    return mr_access_of(path, strlen(path), NULL);
}

static void test_access_of_methods(void **state)
{
    (void)state;
    assert_int_equal(access_of("/millrace.v1.InferenceService/Generate"), MR_ACCESS_TENANT);
    assert_int_equal(access_of("/millrace.v1.AdminService/Drain"), MR_ACCESS_ADMIN);
    assert_int_equal(access_of("/grpc.health.v1.Health/Check"), MR_ACCESS_OPEN);
    assert_int_equal(access_of("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"),
                     MR_ACCESS_KNOWN);
    /* What has no row: the most of ours, and of others what is not open. */
    assert_int_equal(access_of("/millrace.v1.AdminService/Forgotten"), MR_ACCESS_ADMIN);
    assert_int_equal(access_of("/millrace.v2.Other/Method"), MR_ACCESS_ADMIN);
    assert_int_equal(access_of("/no.such.Service/Method"), MR_ACCESS_KNOWN);
    assert_int_equal(access_of("/grpc.health.v1.Health/Check2"), MR_ACCESS_KNOWN);
    assert_int_equal(access_of("/grpc.health.v1.Health/Chec"), MR_ACCESS_KNOWN);
    assert_int_equal(access_of(""), MR_ACCESS_KNOWN);
}

/* Rows: what the method needs; columns: who calls. O is OK, U UNAUTHENTICATED, P
 * PERMISSION_DENIED. */
static void test_access_by_caller_G5(void **state)
{
    (void)state;
    static const struct {
        uint32_t tenants, admins;
        mr_access access;
        const char *unknown_tenant_admin;
    } cases[] = {
        {2, 1, MR_ACCESS_OPEN, "OOO"},   {2, 1, MR_ACCESS_KNOWN, "UOO"},
        {2, 1, MR_ACCESS_TENANT, "UOP"}, {2, 1, MR_ACCESS_ADMIN, "UPO"},
        {2, 0, MR_ACCESS_ADMIN, "UPO"},  {0, 1, MR_ACCESS_KNOWN, "OOO"},
        {0, 1, MR_ACCESS_TENANT, "OOO"}, {0, 1, MR_ACCESS_ADMIN, "UPO"},
        {0, 0, MR_ACCESS_TENANT, "OOO"}, {0, 0, MR_ACCESS_ADMIN, "OOO"},
    };
    mr_tenants *tenants = calloc(1, sizeof(*tenants));
    mr_admins *admins = calloc(1, sizeof(*admins));
    assert_non_null(tenants);
    assert_non_null(admins);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        tenants->count = cases[i].tenants;
        admins->count = cases[i].admins;
        for (uint32_t who = 0; who < 3; who++) {
            const mr_caller caller = {.kind = (mr_caller_kind)who};
            mr_error err = {0};
            const mr_status status =
                mr_access_check(cases[i].access, tenants, admins, &caller, &err);
            const char expected = cases[i].unknown_tenant_admin[who];
            const mr_status wanted = expected == 'O'   ? MR_OK
                                     : expected == 'U' ? MR_UNAUTHENTICATED
                                                       : MR_PERMISSION_DENIED;
            if (status != wanted) {
                fail_msg("case %zu, caller %u: %s", i, who, mr_status_name(status));
            }
        }
    }
    free(admins);
    free(tenants);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_access_every_method_has_a_row_G5),
        cmocka_unit_test(test_access_of_methods),
        cmocka_unit_test(test_access_by_caller_G5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
