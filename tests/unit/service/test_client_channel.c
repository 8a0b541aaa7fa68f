/* SPDX-License-Identifier: Apache-2.0 */
#include "service/client_channel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"

#define TARGET "localhost:1"

static void assert_conflict(const mr_client_tls *tls, const char *says)
{
    const char *conflict = mr_client_tls_conflict(tls);
    assert_non_null(conflict);
    assert_non_null(strstr(conflict, says));
}

static void test_client_channel_options_that_contradict_each_other(void **state)
{
    (void)state;
    const mr_client_tls good[] = {
        {0},
        {.ca = "ca"},
        {.ca = "ca", .server_name = "a.example"},
        {.ca = "ca", .certificate = "crt", .private_key = "key"},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_null(mr_client_tls_conflict(&good[i]));
    }
    assert_conflict(&(mr_client_tls){.ca = "ca", .certificate = "crt"}, "belong together");
    assert_conflict(&(mr_client_tls){.ca = "ca", .private_key = "key"}, "belong together");
    assert_conflict(&(mr_client_tls){.certificate = "crt", .private_key = "key"}, "--tls-ca too");
    assert_conflict(&(mr_client_tls){.server_name = "a.example"}, "--tls-ca too");
}

static void test_client_channel_plaintext_needs_no_file(void **state)
{
    (void)state;
    grpc_channel *channel = NULL;
    assert_int_equal(mr_client_channel_open(TARGET, &(mr_client_tls){0}, &channel, NULL), MR_OK);
    assert_non_null(channel);
    grpc_channel_destroy(channel);
}

/* As the options are called, so that who gave one knows which. */
static void test_client_channel_files_that_cannot_be_used(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    temp_dir_write(&dir, "ca.crt", "no certificate\n");
    temp_dir_join(&dir, "ca.crt", path);
    static const struct {
        const char *ca; /* NULL: the file above */
        mr_status status;
    } cases[] = {{"no/such/file", MR_NOT_FOUND}, {NULL, MR_FAILED_PRECONDITION}};
    for (size_t i = 0; i < 2; i++) {
        const char *ca = cases[i].ca != NULL ? cases[i].ca : path;
        grpc_channel *channel = NULL;
        mr_error err = {0};
        assert_int_equal(mr_client_channel_open(TARGET, &(mr_client_tls){.ca = ca}, &channel, &err),
                         cases[i].status);
        assert_null(channel);
        assert_non_null(strstr(err.message, "--tls-ca"));
        assert_non_null(strstr(err.message, ca));
    }
    temp_dir_remove(&dir);
}

static int set_up(void **state)
{
    (void)state;
    grpc_init();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    grpc_shutdown_blocking();
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_client_channel_options_that_contradict_each_other),
        cmocka_unit_test(test_client_channel_plaintext_needs_no_file),
        cmocka_unit_test(test_client_channel_files_that_cannot_be_used),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
