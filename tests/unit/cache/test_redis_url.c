/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_url.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static mr_redis_url parsed(const char *text)
{
    mr_redis_url url;
    mr_error err = {0};
    if (mr_redis_url_parse(text, &url, &err) != MR_OK) {
        fail_msg("%s: %s", text, err.message);
    }
    return url;
}

static void assert_refused(const char *text, mr_status status, const char *says)
{
    mr_redis_url url;
    mr_error err = {0};
    assert_int_equal(mr_redis_url_parse(text, &url, &err), status);
    if (strstr(err.message, says) == NULL) {
        fail_msg("%s: \"%s\" lacks \"%s\"", text, err.message, says);
    }
}

static void test_redis_url_of_a_host(void **state)
{
    (void)state;
    mr_redis_url url = parsed("redis://cache.internal");
    assert_false(url.is_socket);
    assert_string_equal(url.host, "cache.internal");
    assert_int_equal(url.port, 6379);
    assert_int_equal(url.db, 0);
    assert_string_equal(url.user, "");
    assert_string_equal(url.password, "");
    url = parsed("redis://10.0.0.7:7000/12");
    assert_string_equal(url.host, "10.0.0.7");
    assert_int_equal(url.port, 7000);
    assert_int_equal(url.db, 12);
    assert_int_equal(parsed("redis://a:1/").port, 1);
    url = parsed("redis://[fd00::7]:7001/1");
    assert_string_equal(url.host, "fd00::7");
    assert_int_equal(url.port, 7001);
    assert_int_equal(parsed("redis://[::1]").port, 6379);
}

static void test_redis_url_login_is_decoded(void **state)
{
    (void)state;
    mr_redis_url url = parsed("redis://mill:s3%40%2Fcret%25@h:6380/3");
    assert_string_equal(url.user, "mill");
    assert_string_equal(url.password, "s3@/cret%");
    assert_string_equal(url.host, "h");
    assert_int_equal(url.port, 6380);
    url = parsed("redis://:only@h");
    assert_string_equal(url.user, "");
    assert_string_equal(url.password, "only");
    /* The last @ divides. */
    url = parsed("redis://u:a@b@h");
    assert_string_equal(url.password, "a@b");
    assert_string_equal(url.host, "h");
}

static void test_redis_url_of_a_socket(void **state)
{
    (void)state;
    mr_redis_url url = parsed("unix:///run/redis%20one/redis.sock?db=5");
    assert_true(url.is_socket);
    assert_string_equal(url.host, "/run/redis one/redis.sock");
    assert_int_equal(url.db, 5);
    url = parsed("unix://:secret@/run/redis.sock");
    assert_string_equal(url.host, "/run/redis.sock");
    assert_string_equal(url.password, "secret");
    assert_int_equal(url.db, 0);
}

static void test_redis_url_tls_is_refused_with_the_way_around(void **state)
{
    (void)state;
    assert_refused("rediss://:pw@h:6380/0", MR_FAILED_PRECONDITION, "TLS proxy");
}

static void test_redis_url_mistakes_are_named(void **state)
{
    (void)state;
    assert_refused("", MR_INVALID_ARGUMENT, "redis://[user:password@]host:port/db");
    assert_refused("http://h", MR_INVALID_ARGUMENT, "no URL of Redis");
    assert_refused("redis://", MR_INVALID_ARGUMENT, "no host");
    assert_refused("redis://:6379", MR_INVALID_ARGUMENT, "no host");
    assert_refused("redis://h:0", MR_INVALID_ARGUMENT, "port");
    assert_refused("redis://h:65536", MR_INVALID_ARGUMENT, "port");
    assert_refused("redis://h:", MR_INVALID_ARGUMENT, "port");
    assert_refused("redis://h:12a", MR_INVALID_ARGUMENT, "port");
    assert_refused("redis://fd00::7", MR_INVALID_ARGUMENT, "[ ]");
    assert_refused("redis://[fd00::7", MR_INVALID_ARGUMENT, "]");
    assert_refused("redis://[::1]6379", MR_INVALID_ARGUMENT, "]");
    assert_refused("redis://h/x", MR_INVALID_ARGUMENT, "database");
    assert_refused("redis://h/65536", MR_INVALID_ARGUMENT, "database");
    assert_refused("redis://h/-1", MR_INVALID_ARGUMENT, "database");
    assert_refused("redis://h?db=1", MR_INVALID_ARGUMENT, "/db");
    assert_refused("redis://user@h", MR_INVALID_ARGUMENT, "password");
    assert_refused("redis://user:@h", MR_INVALID_ARGUMENT, "password is empty");
    assert_refused("redis://:a%4@h", MR_INVALID_ARGUMENT, "%25");
    assert_refused("redis://:a%zz@h", MR_INVALID_ARGUMENT, "%25");
    assert_refused("redis://:a%00@h", MR_INVALID_ARGUMENT, "control character");
    assert_refused("redis://h%0a", MR_INVALID_ARGUMENT, "control character");
    assert_refused("unix://run/redis.sock", MR_INVALID_ARGUMENT, "three slashes");
    assert_refused("unix:///run/redis.sock?database=1", MR_INVALID_ARGUMENT, "?db=N");
    assert_refused("unix:///run/redis.sock?db=", MR_INVALID_ARGUMENT, "database");
    char text[700] = "redis://";
    memset(text + 8, 'h', 600);
    assert_refused(text, MR_INVALID_ARGUMENT, "too long");
}

/* Whatever is wrong with a URL, what it says of it is no secret. */
static void test_redis_url_errors_keep_the_password(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "redis://admin:xyzzy@h:port", "redis://admin:xyzzy@h/db",    "redis://admin:xyzzy%@h",
        "redis://admin:xyzzy@",       "rediss://admin:xyzzy@h",      "http://admin:xyzzy@h",
        "unix://admin:xyzzy@run/s",   "redis://admin:xyzzy@h?db=1",  "redis://admin:xyzzy/@h",
        "redis://admin:xyzzy@[::1",   "unix://admin:xyzzy@/s?base=", "admin:xyzzy@h",
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        mr_redis_url url;
        mr_error err = {0};
        assert_int_not_equal(mr_redis_url_parse(wrong[i], &url, &err), MR_OK);
        assert_null(strstr(err.message, "xyzzy"));
        assert_null(strstr(err.message, "admin"));
    }
}

static void test_redis_url_show_has_no_login(void **state)
{
    (void)state;
    char shown[300];
    mr_redis_url url = parsed("redis://admin:xyzzy@h:7000/2");
    mr_redis_url_show(&url, shown, sizeof(shown));
    assert_string_equal(shown, "redis://h:7000/2");
    url = parsed("redis://:xyzzy@[::1]");
    mr_redis_url_show(&url, shown, sizeof(shown));
    assert_string_equal(shown, "redis://[::1]:6379/0");
    url = parsed("unix://:xyzzy@/run/redis.sock?db=1");
    mr_redis_url_show(&url, shown, sizeof(shown));
    assert_string_equal(shown, "unix:///run/redis.sock?db=1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_redis_url_of_a_host),
        cmocka_unit_test(test_redis_url_login_is_decoded),
        cmocka_unit_test(test_redis_url_of_a_socket),
        cmocka_unit_test(test_redis_url_tls_is_refused_with_the_way_around),
        cmocka_unit_test(test_redis_url_mistakes_are_named),
        cmocka_unit_test(test_redis_url_errors_keep_the_password),
        cmocka_unit_test(test_redis_url_show_has_no_login),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
