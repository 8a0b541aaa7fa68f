/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

/* Settings of a set, as --set has them; the error of the check across keys. */
static void callers_refused(const char *const *settings, const char *field, const char *says)
{
    mr_config config = fresh();
    mr_error err = {0};
    for (; *settings != NULL; settings++) {
        set_ok(&config, *settings);
    }
    assert_int_equal(mr_config_check_callers(&config, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, field);
    assert_says(&err, says);
    assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
}

#define SET(...)     ((const char *const[]){__VA_ARGS__, NULL})
#define CERTIFICATE  "tls.certificate=a.crt", "tls.private_key=a.key"
#define TENANT       "tenants=[{name: a, keys: [" DIGEST_A "]}]"
#define NAMED_TENANT "tenants=[{name: a, identities: [spiffe://x/a]}]"

static void test_config_half_of_tls_is_refused_G6(void **state)
{
    (void)state;
    callers_refused(SET("tls.certificate=a.crt"), "tls.private_key", "TLS takes both");
    callers_refused(SET("tls.private_key=a.key"), "tls.certificate", "TLS takes both");
    callers_refused(SET("tls.client_ca=ca"), "tls.client_ca", "cannot act without TLS");
    callers_refused(SET("tls.client_auth=require"), "tls.client_auth", "cannot act without TLS");
    callers_refused(SET("tls.reload_interval_ms=500"), "tls.reload_interval_ms",
                    "cannot act without TLS");
    callers_refused(SET(CERTIFICATE, "tls.client_auth=optional"), "tls.client_ca", "is missing");
    callers_refused(SET(CERTIFICATE, "tls.client_ca=ca"), "tls.client_ca", "cannot act while");
    set_refused("tls.client_auth=maybe", MR_INVALID_ARGUMENT, "none|optional|require");
    set_refused("tls.cert=a", MR_INVALID_ARGUMENT, "unknown configuration key tls.cert");

    mr_config config = fresh();
    set_ok(&config, "tls.certificate=a.crt");
    set_ok(&config, "tls.private_key=a.key");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    set_ok(&config, "tls.client_ca=ca");
    set_ok(&config, "tls.client_auth=require");
    set_ok(&config, NAMED_TENANT);
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
}

static void test_config_credentials_that_nobody_asks_for_are_refused_G5(void **state)
{
    (void)state;
    callers_refused(SET(NAMED_TENANT), "tenants", "set tls.client_auth");
    callers_refused(SET(CERTIFICATE, NAMED_TENANT), "tenants", "set tls.client_auth");
    callers_refused(SET("admin.enable=true", "admin.callers=[{name: o, identities: [a.example]}]"),
                    "admin.callers", "set tls.client_auth");
    callers_refused(SET("admin.callers=[{name: o, keys: [" DIGEST_A "]}]"), "admin.callers",
                    "set admin.enable");
    callers_refused(SET(TENANT, "admin.enable=true"), "admin.callers", "needs admin.callers");
    callers_refused(
        SET(CERTIFICATE, "tls.client_ca=ca", "tls.client_auth=optional", "admin.enable=true"),
        "admin.callers", "needs admin.callers");
    callers_refused(
        SET(TENANT, "admin.enable=true", "admin.callers=[{name: o, keys: [" DIGEST_A "]}]"),
        "admin.callers", "have the same key");

    mr_config config = fresh();
    set_ok(&config, "admin.enable=true"); /* open, as all else of this server */
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    set_ok(&config, TENANT);
    set_ok(&config, "admin.callers=[{name: o, keys: [" DIGEST_B "]}]");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.admins.items[0].name, "o");
    set_refused("admin.callers=[{name: o}]", MR_INVALID_ARGUMENT, "no keys and no identities");
    set_refused("admin.callers=[{name: o, identities: ['*.a']}]", MR_INVALID_ARGUMENT,
                "admin.callers[0]: admin.callers[].identities: \"*.a\" is no identity");
    set_refused("admin.callers=[{name: o, identities: a}]", MR_INVALID_ARGUMENT,
                "admin.callers[].identities must be a list");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_half_of_tls_is_refused_G6),
        cmocka_unit_test(test_config_credentials_that_nobody_asks_for_are_refused_G5),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
