/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"
#include "service/unsupported.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

static void test_config_defaults(void **state)
{
    (void)state;
    mr_config config = fresh();
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.profile, "latency");
    assert_string_equal(config.compute, "auto");
    assert_string_equal(config.kv_cache_dtype, "bf16");
    assert_int_equal(config.max_batch_size, 32);
    assert_int_equal(config.max_batch_tokens, 512);
    assert_int_equal(config.batch_timeout_ms, 0);
    assert_int_equal(config.prefill_interval, 1);
    assert_int_equal(config.max_queue_requests, 1024);
    assert_int_equal(config.max_preemptions, 3);
    assert_int_equal(config.priority_ageing_ms, 10000);
    assert_int_equal(config.max_overtakes, 8);
    assert_int_equal(config.overtake_timeout_ms, 1000);
    assert_int_equal(config.slow_reader_timeout_ms, 30000);
    assert_int_equal(config.stall_timeout_ms, 60000);
    assert_int_equal(config.drain_pre_stop_ms, 2000);
    assert_int_equal(config.drain_timeout_ms, 30000);
    assert_int_equal(config.block_size, 16);
    assert_int_equal(config.max_seq_length, 0);
    assert_int_equal(config.kv_cache_memory, 0);
    assert_int_equal(config.kv_host_memory, 0);
}

static void test_config_keepalive_G1(void **state)
{
    (void)state;
    mr_config config = fresh();
    assert_true(config.keepalive_min_ping_interval_ms < 10000);
    assert_true(config.keepalive_permit_without_calls);
    set_ok(&config, "keepalive.time_ms=100");
    set_ok(&config, "keepalive.timeout_ms=86400000");
    set_ok(&config, "keepalive.min_ping_interval_ms=0");
    set_ok(&config, "keepalive.permit_without_calls=false");
    assert_int_equal(config.keepalive_time_ms, 100);
    assert_int_equal(config.keepalive_timeout_ms, 86400000);
    assert_int_equal(config.keepalive_min_ping_interval_ms, 0);
    assert_false(config.keepalive_permit_without_calls);
    /* gRPC takes an int. */
    set_refused("keepalive.time_ms=4294967295", MR_INVALID_ARGUMENT, "to 86400000");
    set_refused("keepalive.timeout_ms=99", MR_INVALID_ARGUMENT, "from 100");
    set_refused("keepalive.permit_without_call=true", MR_INVALID_ARGUMENT,
                "did you mean keepalive.permit_without_calls?");
}

static void test_config_profile_fills_what_is_not_given(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "profile=throughput");
    set_ok(&config, "prefill_interval=3");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_int_equal(config.batch_timeout_ms, 50);
    assert_int_equal(config.prefill_interval, 3);

    config = fresh();
    set_ok(&config, "profile=throughput");
    set_ok(&config, "batch_timeout_ms=7");
    set_ok(&config, "batch_timeout_ms=auto");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_int_equal(config.batch_timeout_ms, 50);
    assert_int_equal(config.prefill_interval, 8);
}

static void test_config_f32_keeps_kv_in_f32(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "compute=f32");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.kv_cache_dtype, "f32");

    config = fresh();
    set_ok(&config, "compute=f32");
    set_ok(&config, "kv_cache_dtype=f16");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.kv_cache_dtype, "f16");

    config = fresh();
    set_ok(&config, "kv_cache_dtype=int8");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.kv_cache_dtype, "int8");

    config = fresh();
    set_ok(&config, "kv_cache_dtype=fp8");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.kv_cache_dtype, "fp8");
}

static void test_config_cpu_path_must_be_able_to_act(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "cpu_path=portable");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_string_equal(config.cpu_path, "portable");
    set_refused("cpu_path=sse2", MR_INVALID_ARGUMENT, "auto|portable|avx2");

    static const char *const against[] = {"compute=f32", "backend=cuda"};
    for (size_t i = 0; i < 2; i++) {
        mr_error err = {0};
        config = fresh();
        set_ok(&config, "cpu_path=avx2");
        set_ok(&config, against[i]);
        assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
        assert_string_equal(err.field, "cpu_path");
        assert_non_null(strstr(err.message, against[i]));
    }
}

static void test_config_unknown_key_names_the_nearest(void **state)
{
    (void)state;
    set_refused("max_batch_sise=8", MR_INVALID_ARGUMENT, "did you mean max_batch_size?");
    set_refused("max_bacth_size=8", MR_INVALID_ARGUMENT, "did you mean max_batch_size?");
    set_refused("redis.urk=x", MR_INVALID_ARGUMENT, "did you mean redis.url?");
    set_refused("colour=red", MR_INVALID_ARGUMENT, "--help");
}

/* Every row of the table is refused by name, from --set and from a file. */
static void test_config_refuses_what_is_not_built(void **state)
{
    (void)state;
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    size_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface != MR_SURFACE_CONFIG) {
            continue;
        }
        char value[64];
        snprintf(value, sizeof(value), "%s", rows[i].sample);
        if (value[0] == '"') {
            memmove(value, value + 1, strlen(value));
            value[strlen(value) - 1] = '\0';
        }
        char text[256];
        snprintf(text, sizeof(text), "%s=%s", rows[i].name, value);
        set_refused(text, MR_FAILED_PRECONDITION, rows[i].name);
        set_refused(text, MR_FAILED_PRECONDITION, rows[i].what);
        snprintf(text, sizeof(text), "%s: %s\n", rows[i].name, rows[i].sample);
        load_refused(text, MR_FAILED_PRECONDITION, "line 1", rows[i].what);
        seen++;
    }
    assert_true(seen > 9);
}

static void test_config_accepts_what_happens_anyway(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "enable_prefix_caching=false");
    set_ok(&config, "tensor_parallel_size=1");
    set_ok(&config, "speculative_decoding.enable=false");
    set_ok(&config, "admin.enable=false");
    set_ok(&config, "batch_invariant=true");
    set_ok(&config, "batch_invariant=false");
    set_ok(&config, "load_format=auto");
    set_refused("batch_invariant=maybe", MR_INVALID_ARGUMENT, "true|false");
    mr_error err = {0};
    assert_int_equal(load_text(&config, "tenants: []\nadapters: []\n", &err), MR_OK);
}

static void test_config_redis(void **state)
{
    (void)state;
    set_refused("redis.url=http://h", MR_INVALID_ARGUMENT, "redis.url: it is no URL of Redis");
    set_refused("redis.url=rediss://h", MR_FAILED_PRECONDITION, "TLS proxy");
    set_refused("redis.on_failure=maybe", MR_INVALID_ARGUMENT, "local|open|closed");
    set_refused("redis.timeout_ms=51", MR_INVALID_ARGUMENT, "from 1 to 50");
    mr_config config = fresh();
    mr_error err = {0};
    assert_string_equal(config.redis_url, "");
    set_ok(&config, "redis.on_failure=open");
    assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "redis.on_failure cannot act without Redis");
    set_ok(&config, "redis.url=redis://h:7000/1");
    assert_int_equal(mr_config_finish(&config, &err), MR_OK);
    set_ok(&config, "redis.replica_id=two words");
    assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "redis.replica_id");
}

static void test_config_later_sources_win(void **state)
{
    (void)state;
    setenv("MILLRACE_MAX_BATCH_SIZE", "5", 1);
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(config.max_batch_size, 5);
    assert_int_equal(load_text(&config, "max_batch_size: 6\nthreads: 3\n", &err), MR_OK);
    assert_int_equal(config.max_batch_size, 5);
    assert_int_equal(config.threads, 3);
    set_ok(&config, "max_batch_size=7");
    assert_int_equal(config.max_batch_size, 7);
    unsetenv("MILLRACE_MAX_BATCH_SIZE");
}

static void environment_refused(const char *name, const char *value, mr_status status,
                                const char *text)
{
    setenv(name, value, 1);
    mr_config config;
    mr_error err = {0};
    assert_int_equal(mr_config_init(&config, &err), status);
    assert_says(&err, text);
    unsetenv(name);
}

static void test_config_environment(void **state)
{
    (void)state;
    environment_refused("MILLRACE_MAX_BATCH_SIZE", "many", MR_INVALID_ARGUMENT,
                        "MILLRACE_MAX_BATCH_SIZE");
    environment_refused("MILLRACE_REDIS_URL", "http://x", MR_INVALID_ARGUMENT, "redis.url");
    environment_refused("MILLRACE_KV_TRANSFER_PEER", "a", MR_FAILED_PRECONDITION, "KV transfer");
    /* Passed over, these would mean plaintext. */
    environment_refused("MILLRACE_TLS_CERT", "a.pem", MR_INVALID_ARGUMENT,
                        "MILLRACE_TLS_CERTIFICATE");
    environment_refused("MILLRACE_TLS_KEY_FILE", "a.pem", MR_INVALID_ARGUMENT,
                        "MILLRACE_TLS_PRIVATE_KEY");
    setenv("MILLRACE_TLS_SERVICE_HOST", "10.0.0.1", 1);
    setenv("MILLRACE_TLS_PORT_8001_TCP", "tcp://10.0.0.1:8001", 1);
    (void)fresh();
    unsetenv("MILLRACE_TLS_SERVICE_HOST");
    unsetenv("MILLRACE_TLS_PORT_8001_TCP");
    environment_refused("MILLRACE_MAX_BATCH_SISE", "8", MR_INVALID_ARGUMENT,
                        "MILLRACE_MAX_BATCH_SIZE");

    /* What tools, and a Kubernetes service called millrace, put there. */
    static const char *const others[] = {"MILLRACE_BIN",          "MILLRACE_MODEL",
                                         "MILLRACE_REFERENCE",    "MILLRACE_CACHE",
                                         "MILLRACE_SERVICE_HOST", "MILLRACE_PORT_8001_TCP_ADDR",
                                         "MILLRACE_REDIS_PORT"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        setenv(others[i], "x", 1);
    }
    (void)fresh();
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        unsetenv(others[i]);
    }
}

/* Q6: a setting that cannot act is refused. */
static void test_config_Q6_profile_that_cannot_act(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    set_ok(&config, "batch_timeout_ms=5");
    set_ok(&config, "prefill_interval=2");
    assert_int_equal(mr_config_finish(&config, &err), MR_OK);
    set_ok(&config, "profile=latency");
    assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "profile");
    assert_says(&err, "cannot act");
    set_ok(&config, "prefill_interval=auto");
    assert_int_equal(mr_config_finish(&config, &err), MR_OK);
    assert_int_equal(config.prefill_interval, 1);
}

static void test_config_Q6_prefix_settings_that_cannot_act(void **state)
{
    (void)state;
    static const char *const settings[] = {"cache_scope=shared", "cache_salt_secret=abc"};
    for (size_t i = 0; i < 2; i++) {
        mr_config config = fresh();
        mr_error err = {0};
        set_ok(&config, settings[i]);
        assert_int_equal(mr_config_finish(&config, &err), MR_OK);
        set_ok(&config, "enable_prefix_caching=false");
        assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
        assert_says(&err, "cannot act");
        assert_memory_equal(err.field, settings[i], strlen(err.field));
    }
    set_refused("cache_scope=everybody", MR_INVALID_ARGUMENT, "tenant|shared");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_defaults),
        cmocka_unit_test(test_config_keepalive_G1),
        cmocka_unit_test(test_config_profile_fills_what_is_not_given),
        cmocka_unit_test(test_config_f32_keeps_kv_in_f32),
        cmocka_unit_test(test_config_cpu_path_must_be_able_to_act),
        cmocka_unit_test(test_config_unknown_key_names_the_nearest),
        cmocka_unit_test(test_config_refuses_what_is_not_built),
        cmocka_unit_test(test_config_accepts_what_happens_anyway),
        cmocka_unit_test(test_config_redis),
        cmocka_unit_test(test_config_later_sources_win),
        cmocka_unit_test(test_config_environment),
        cmocka_unit_test(test_config_Q6_profile_that_cannot_act),
        cmocka_unit_test(test_config_Q6_prefix_settings_that_cannot_act),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
