/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"
#include "service/config_value.h"
#include "service/unsupported.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"

/* Fails unless `text` is part of the message. */
static void assert_says(const mr_error *err, const char *text)
{
    if (strstr(err->message, text) == NULL) {
        fail_msg("message \"%s\" lacks \"%s\"", err->message, text);
    }
}

static mr_config fresh(void)
{
    mr_config config;
    mr_error err = {0};
    assert_int_equal(mr_config_init(&config, &err), MR_OK);
    return config;
}

static void set_ok(mr_config *config, const char *assignment)
{
    mr_error err = {0};
    if (mr_config_set(config, assignment, &err) != MR_OK) {
        fail_msg("%s: %s", assignment, err.message);
    }
}

static void set_refused(const char *assignment, mr_status status, const char *text)
{
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, assignment, &err), status);
    assert_says(&err, text);
}

static mr_status load_text(mr_config *config, const char *text, mr_error *err)
{
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    temp_dir_write(&dir, "c.yaml", text);
    const mr_status status = mr_config_load_file(config, temp_dir_join(&dir, "c.yaml", path), err);
    temp_dir_remove(&dir);
    return status;
}

static void load_refused(const char *text, mr_status status, const char *line, const char *what)
{
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&config, text, &err), status);
    assert_says(&err, "c.yaml");
    assert_says(&err, line);
    assert_says(&err, what);
}

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

static void test_config_gpu_share(void **state)
{
    (void)state;
    mr_config config = fresh();
    assert_true(config.gpu_memory_utilization == 0.9);
    set_ok(&config, "gpu_memory_utilization=0.05");
    assert_true(config.gpu_memory_utilization == 0.05);
    set_ok(&config, "gpu_memory_utilization=1");
    assert_true(config.gpu_memory_utilization == 1.0);
    set_ok(&config, "gpu_memory_utilization=0.7");
    mr_buffer text = {0};
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data, " gpu_memory_utilization=0.7 "));
    mr_buffer_deinit(&text);
    static const char *const bad[] = {"0.049", "1.001", "0x1p-1", "9e-1", " 0.9", "nan", ""};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char assignment[64];
        (void)snprintf(assignment, sizeof(assignment), "gpu_memory_utilization=%s", bad[i]);
        set_refused(assignment, MR_INVALID_ARGUMENT, "from 0.05 to 1");
    }
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

/* SHA-256 of "abc" (FIPS 180-2, appendix B.1), and two that differ from it. */
#define DIGEST_A "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define DIGEST_B "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ae"
#define DIGEST_C "00000000000000000000000000000000000000000000000000000000000000aa"

static void test_config_tenants(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(config.tenants.count, 0);
    const char *text = "tenants:\n"
                       "- name: a\n"
                       "  keys:\n"
                       "  - " DIGEST_A "\n"
                       "  - \"" DIGEST_C "\"\n"
                       "  weight: 3\n"
                       "- {name: B, keys: [" DIGEST_B "], priority_max: 1000}\n";
    assert_int_equal(load_text(&config, text, &err), MR_OK);
    assert_int_equal(config.tenants.count, 2);
    const mr_tenant *a = &config.tenants.items[0];
    assert_string_equal(a->name, "a");
    assert_int_equal(a->credentials.n_keys, 2);
    assert_int_equal(a->credentials.keys[0][0], 0xba);
    assert_int_equal(a->credentials.keys[0][31], 0xad);
    assert_int_equal(a->credentials.keys[1][31], 0xaa);
    assert_int_equal(a->weight, 3);
    assert_int_equal(a->priority_max, 0);
    assert_int_equal(config.tenants.items[1].weight, 1);
    assert_int_equal(config.tenants.items[1].priority_max, 1000);

    /* A later source replaces the list; JSON is a form of it. */
    set_ok(&config, "tenants=[{\"name\": \"c\", \"keys\": [\"" DIGEST_B "\"]}]");
    assert_int_equal(config.tenants.count, 1);
    assert_string_equal(config.tenants.items[0].name, "c");
    assert_int_equal(config.tenants.items[0].credentials.n_keys, 1);
    setenv("MILLRACE_TENANTS", "[{name: d, keys: [" DIGEST_C "]}]", 1);
    config = fresh();
    unsetenv("MILLRACE_TENANTS");
    assert_string_equal(config.tenants.items[0].name, "d");
    set_ok(&config, "tenants=[]");
    assert_int_equal(config.tenants.count, 0);
}

static void test_config_tenants_refused(void **state)
{
    (void)state;
    static const struct {
        const char *list;
        const char *says;
    } cases[] = {
        {"", "empty"},
        {"a", "must be a list"},
        {"{name: a}", "must be a list"},
        {"[a]", "tenants[0]"},
        {"[{name: a", "no list in YAML"},
        {"[{nmae: a}]", "did you mean name?"},
        {"[{colour: a}]", "no field colour"},
        {"[{name: a, name: b}]", "given twice"},
        {"[{name: [a]}]", "one value"},
        {"[{name: a}]", "has no keys"},
        {"[{keys: [" DIGEST_A "]}]", "name must have"},
        {"[{name: a b, keys: [" DIGEST_A "]}]", "name must have"},
        {"[{name: other, keys: [" DIGEST_A "]}]", "another name"},
        {"[{name: a, keys: " DIGEST_A "}]", "must be a list"},
        {"[{name: a, keys: [[" DIGEST_A "]]}]", "list of digests"},
        {"[{name: a, keys: [secret]}]", "64 hex digits"},
        {"[{name: a, keys: [g" DIGEST_A "]}]", "64 hex digits"},
        {"[{name: a, keys: [" DIGEST_A ", " DIGEST_A "]}]", "listed twice"},
        {"[{name: a, keys: [" DIGEST_A "]}, {name: b, keys: [" DIGEST_A "]}]", "in common"},
        {"[{name: a, keys: [" DIGEST_A "]}, {name: a, keys: [" DIGEST_B "]}]", "two tenants"},
        {"[{name: a, keys: [" DIGEST_A "], weight: 0}]", "tenants[0]: tenants[].weight"},
        {"[{name: a, keys: [" DIGEST_A "], weight: 1001}]", "1 to 1000"},
        {"[{name: a, keys: [" DIGEST_A "], priority_max: -1}]", "0 to 1000"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        snprintf(text, sizeof(text), "tenants=%s", cases[i].list);
        set_refused(text, MR_INVALID_ARGUMENT, cases[i].says);
    }
    /* What stands where a digest should may be the key: it is not repeated. */
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, "tenants=[{name: a, keys: [hunter2]}]", &err),
                     MR_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "hunter2"));
    load_refused("threads: 1\ntenants:\n- name: a\n  wieght: 3\n", MR_INVALID_ARGUMENT, "line 3",
                 "did you mean weight?");
    load_refused("tenants: []\ntenants: []\n", MR_INVALID_ARGUMENT, "line 2", "given twice");
}

static void decimal_refused(const mr_config_key *key, const char *text)
{
    double value = 7.0;
    mr_error err = {0};
    assert_int_equal(mr_config_value_set(&value, key, text, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "0 to 1000");
    assert_true(value == 7.0);
}

static void test_config_decimals(void **state)
{
    (void)state;
    const mr_config_key key = {.name = "rate",
                               .kind = MR_KEY_DECIMAL,
                               .size = sizeof(double),
                               .high = MR_CONFIG_MILLI(1000)};
    static const struct {
        const char *text;
        double value;
    } good[] = {{"0", 0}, {"0.5", 0.5}, {"12", 12}, {"000.25", 0.25}, {"1000", 1000}};
    double value = 7.0;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(mr_config_value_set(&value, &key, good[i].text, NULL), MR_OK);
        assert_true(value == good[i].value);
    }
    mr_buffer text = {0};
    value = 0.5;
    assert_int_equal(mr_config_value_format(&value, &key, &text), MR_OK);
    assert_memory_equal(text.data, "0.5", 3);
    mr_buffer_deinit(&text);
    static const char *const bad[] = {"",    "-1",  "+1",  ".5", "5.", "1e2",   "0x10",
                                      "inf", "nan", "1,5", " 1", "1 ", "1.2.3", "1000.1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        decimal_refused(&key, bad[i]);
    }
}

static void test_config_tenants_are_bounded(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    mr_buffer text = {0};
    assert_int_equal(mr_buffer_printf(&text, "tenants=["), MR_OK);
    for (int i = 0; i < 257; i++) {
        assert_int_equal(
            mr_buffer_printf(&text, "{name: t%d, keys: [%064d]}%s", i, i, i < 255 ? "," : ""),
            MR_OK);
        if (i == 255) {
            const size_t kept = text.size;
            assert_int_equal(mr_buffer_append(&text, "]", 2), MR_OK);
            set_ok(&config, (char *)text.data);
            assert_int_equal(config.tenants.count, 256);
            text.size = kept;
            assert_int_equal(mr_buffer_append(&text, ",", 1), MR_OK);
        }
    }
    assert_int_equal(mr_buffer_append(&text, "]", 2), MR_OK);
    assert_int_equal(mr_config_set(&config, (char *)text.data, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "more than 256");
    mr_buffer_deinit(&text);
}

static void test_config_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"kv_cache_memory=4096", 4096},
        {"kv_cache_memory=17B", 17},
        {"kv_cache_memory=3KiB", 3072},
        {"kv_cache_memory=512MiB", UINT64_C(536870912)},
        {"kv_cache_memory=40GiB", UINT64_C(42949672960)},
        {"kv_cache_memory=1TiB", UINT64_C(1099511627776)},
    };
    mr_config config = fresh();
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        set_ok(&config, sizes[i].text);
        assert_true(config.kv_cache_memory == sizes[i].bytes);
    }
    set_ok(&config, "kv_host_memory=2GiB");
    assert_true(config.kv_host_memory == UINT64_C(2147483648));
    set_ok(&config, "kv_host_memory=0");
    assert_int_equal(config.kv_host_memory, 0);
    set_refused("kv_cache_memory=", MR_INVALID_ARGUMENT, "such as 512MiB");
    set_refused("kv_cache_memory=4GB", MR_INVALID_ARGUMENT, "such as 512MiB");
    set_refused("kv_cache_memory=-1", MR_INVALID_ARGUMENT, "such as 512MiB");
    set_refused("kv_cache_memory=18446744073709551616", MR_INVALID_ARGUMENT, "512MiB");
    set_refused("kv_cache_memory=16777216TiB", MR_INVALID_ARGUMENT, "512MiB");
}

static void test_config_bounds(void **state)
{
    (void)state;
    set_refused("max_batch_size=0", MR_INVALID_ARGUMENT, "from 1 to 4096");
    set_refused("max_batch_size=4097", MR_INVALID_ARGUMENT, "from 1 to 4096");
    set_refused("max_batch_size=4294967297", MR_INVALID_ARGUMENT, "from 1 to 4096");
    set_refused("max_batch_size=8x", MR_INVALID_ARGUMENT, "whole number");
    set_refused("max_batch_size=8MiB", MR_INVALID_ARGUMENT, "whole number");
    set_refused("max_batch_size=", MR_INVALID_ARGUMENT, "whole number");
    set_refused("max_batch_size=auto", MR_INVALID_ARGUMENT, "whole number");
    set_refused("threads=0", MR_INVALID_ARGUMENT, "or auto");
    set_refused("compute=f64", MR_INVALID_ARGUMENT, "auto|f32");
    set_refused("max_batch_size", MR_INVALID_ARGUMENT, "KEY=VALUE");
    set_refused("=8", MR_INVALID_ARGUMENT, "KEY=VALUE");

    char name[200] = "served_model_name=";
    memset(name + strlen(name), 'a', 128);
    set_refused(name, MR_INVALID_ARGUMENT, "at most 127");

    mr_config config = fresh();
    mr_error err = {0};
    set_ok(&config, "block_size=24");
    assert_int_equal(mr_config_finish(&config, &err), MR_INVALID_ARGUMENT);
    assert_says(&err, "power of two");
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

static void test_config_file_nested_and_dotted(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_error err = {0};
    const char *text = "# a comment\n"
                       "max_batch_size: 8\n"
                       "kv_cache_memory: 64MiB\n"
                       "served_model_name: \"a b\"\n"
                       "speculative_decoding:\n"
                       "  enable: false\n"
                       "admin.enable: false\n";
    assert_int_equal(load_text(&config, text, &err), MR_OK);
    assert_int_equal(config.max_batch_size, 8);
    assert_int_equal(config.kv_cache_memory, 64 << 20);
    assert_string_equal(config.served_model_name, "a b");
    assert_int_equal(load_text(&config, "", &err), MR_OK);
    assert_int_equal(load_text(&config, "# nothing\n", &err), MR_OK);
}

static void test_config_file_errors_name_line_and_key(void **state)
{
    (void)state;
    load_refused("threads: 1\nmax_batch_sise: 8\n", MR_INVALID_ARGUMENT, "line 2",
                 "did you mean max_batch_size?");
    load_refused("threads: 1\nattention:\n  sparse: true\n", MR_FAILED_PRECONDITION, "line 3",
                 "attention.sparse");
    load_refused("threads: 1\nthreads: 2\n", MR_INVALID_ARGUMENT, "line 2",
                 "threads is given twice");
    load_refused("threads: [1, 2]\n", MR_INVALID_ARGUMENT, "line 1", "takes one value");
    load_refused("threads: {a: 1}\n", MR_INVALID_ARGUMENT, "line 1", "takes one value");
    load_refused("threads:\n", MR_INVALID_ARGUMENT, "line 1", "whole number");
    load_refused("adapters:\n  - a\n", MR_FAILED_PRECONDITION, "line 2", "LoRA");
    load_refused("colours: [red]\n", MR_INVALID_ARGUMENT, "line 1", "colours");
    load_refused("- threads\n", MR_INVALID_ARGUMENT, "line 1", "mapping");
    load_refused("{[a]: 1}\n", MR_INVALID_ARGUMENT, "line 1", "no name of a setting");
    load_refused("threads: 1\n\tcompute: f32\n", MR_INVALID_ARGUMENT, "line 2", "not YAML");
    load_refused("threads: 1\n---\nthreads: 2\n", MR_INVALID_ARGUMENT, "c.yaml", "more than one");
    load_refused("kv_transfer: {b: {c: {d: {e: {f: {g: {h: {i: {j: 1}}}}}}}}}\n",
                 MR_INVALID_ARGUMENT, "line 1", "nested too deeply");
    load_refused("kv_transfer: &a {b: *a}\n", MR_INVALID_ARGUMENT, "line 1", "nested too deeply");
    load_refused("threads: 1\nkv_cach: {}\n", MR_INVALID_ARGUMENT, "line 2",
                 "unknown configuration key kv_cach");
    load_refused("log: {formats: {}}\n", MR_INVALID_ARGUMENT, "line 1", "did you mean log.format?");
    load_refused("a: &a {b: *a}\n", MR_INVALID_ARGUMENT, "line 1", "unknown");

    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_load_file(&config, "no/such/file.yaml", &err), MR_NOT_FOUND);
    assert_says(&err, "no/such/file.yaml");
}

/* Six levels of ten aliases each would be a million mappings. */
static void test_config_file_aliases_are_bounded(void **state)
{
    (void)state;
    char text[2048] = "kv_transfer:\n  a0: &a0 {}\n";
    size_t length = strlen(text);
    for (int level = 1; level <= 6; level++) {
        length +=
            (size_t)snprintf(text + length, sizeof(text) - length, "  a%d: &a%d {", level, level);
        for (int i = 0; i < 10; i++) {
            length += (size_t)snprintf(text + length, sizeof(text) - length, "%sk%d: *a%d",
                                       i == 0 ? "" : ", ", i, level - 1);
        }
        length += (size_t)snprintf(text + length, sizeof(text) - length, "}\n");
    }
    load_refused(text, MR_INVALID_ARGUMENT, "kv_transfer", "too long");

    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&config, "kv_transfer: {}\nlog: {}\nadapters: []\n", &err), MR_OK);
}

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

/* What `millrace config` prints sets the same again. */
static void test_config_identities_survive_printing(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "admin.callers=[{name: o, identities: [spiffe://x/o, 'CN=a \"b\" \\']}]");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    mr_config again = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&again, (const char *)text.data, &err), MR_OK);
    const mr_credentials *credentials = &again.admins.items[0].credentials;
    assert_int_equal(credentials->n_identities, 2);
    assert_string_equal(credentials->identities[0], "spiffe://x/o");
    assert_string_equal(credentials->identities[1], "CN=a \"b\" \\");
    mr_buffer_deinit(&text);
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

/* Neither what is logged nor what is printed as a file, and no error. */
static void test_config_shows_no_password(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_buffer text = {0};
    set_ok(&config, "redis.url=redis://ada:xyzzy@h:7000/1");
    assert_string_equal(config.redis_url, "redis://ada:xyzzy@h:7000/1");
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_null(strstr((const char *)text.data, "xyzzy"));
    assert_null(strstr((const char *)text.data, "ada"));
    assert_non_null(strstr((const char *)text.data, "redis.url=redis://***@h:7000/1 "));
    assert_non_null(strstr((const char *)text.data, "\n# not shown: redis.url: "));
    mr_buffer_deinit(&text);
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, "redis.url=redis://ada:xyzzy@h:port", &err),
                     MR_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "xyzzy"));
    assert_string_equal(err.field, "redis.url");
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

static void test_config_format_Q6_effective_configuration(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=m");
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    mr_buffer text = {0};
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data, "served_model_name=\"m\""));
    assert_non_null(strstr((char *)text.data, "max_batch_size=32"));
    assert_non_null(strstr((char *)text.data, "enable_prefix_caching=true "));
    mr_buffer_deinit(&text);
}

static void append_line(void *ctx, const char *text)
{
    assert_non_null(strchr(text, '='));
    assert_int_equal(mr_buffer_append(ctx, "\n", 1), MR_OK);
    assert_int_equal(mr_buffer_append(ctx, text, strlen(text)), MR_OK);
}

static void test_config_describe_lists_every_key(void **state)
{
    (void)state;
    static const char *const names[] = {
#define MR_CONFIG_TEXT(name, ...)    name,
#define MR_CONFIG_FLAG(name, ...)    name,
#define MR_CONFIG_SECRET(name, ...)  name,
#define MR_CONFIG_URL(name, ...)     name,
#define MR_CONFIG_NUMBER(name, ...)  name,
#define MR_CONFIG_BYTES(name, ...)   name,
#define MR_CONFIG_DECIMAL(name, ...) name,
#define MR_CONFIG_FIXED(name, ...)   name,
#define MR_CONFIG_LIST(name, ...)    name,
#include "service/config_keys.def"
    };
    mr_buffer lines = {0};
    mr_config_describe(append_line, &lines);
    assert_int_equal(mr_buffer_append(&lines, "", 1), MR_OK);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char begin[80];
        (void)snprintf(begin, sizeof(begin), "\n%s=", names[i]);
        assert_non_null(strstr((char *)lines.data, begin));
    }
    mr_buffer_deinit(&lines);
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

static void test_config_shows_no_secret(void **state)
{
    (void)state;
    mr_config config = fresh();
    mr_buffer text = {0};
    set_ok(&config, "cache_salt_secret=swordfish");
    assert_string_equal(config.cache_salt_secret, "swordfish");
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_config_finish(&config, NULL), MR_OK);
    assert_int_equal(mr_config_format(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_null(strstr((char *)text.data, "swordfish"));
    assert_non_null(strstr((char *)text.data, "# not shown: cache_salt_secret: \"***\"\n"));
    assert_non_null(strstr((char *)text.data, "cache_salt_secret=***"));
    mr_buffer_deinit(&text);
}

static void test_config_yaml_sets_the_same_again(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=a \"b\" \\c");
    set_ok(&config, "kv_cache_memory=3MiB");
    set_ok(&config, "batch_timeout_ms=5");
    set_ok(&config, "prefill_interval=2");
    set_ok(&config, "log.level=debug");
    set_ok(&config, "batch_invariant=true");
    set_ok(&config, "tenants=[{name: a, keys: [" DIGEST_A ", " DIGEST_B "], weight: 7}, "
                    "{name: \"b.c-d_9\", keys: [" DIGEST_C "], priority_max: 4}]");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data, "kv_cache_memory: 3145728\n"));
    assert_non_null(strstr((char *)text.data, "# max_batch_size: 32\n"));
    mr_config again = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&again, (char *)text.data, &err), MR_OK);
    assert_memory_equal(&again, &config, sizeof(config));
    mr_buffer_deinit(&text);
}

/* Neither a terminal nor a line of YAML sees a control character or break of Unicode. */
static void test_config_yaml_escapes_control_characters(void **state)
{
    (void)state;
    mr_config config = fresh();
    set_ok(&config, "served_model_name=a\n\t\x1b[1m\x7f \xc2\x85\xc2\x9b \xe2\x80\xa8"
                    "\xe2\x80\xa9 \xc3\xa9\xe2\x80\xa7");
    mr_buffer text = {0};
    assert_int_equal(mr_config_yaml(&config, &text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    assert_non_null(strstr((char *)text.data,
                           "served_model_name: \"a\\u000A\\u0009\\u001B[1m\\u007F \\u0085\\u009B "
                           "\\u2028\\u2029 \xc3\xa9\xe2\x80\xa7\"\n"));
    mr_config again = fresh();
    mr_error err = {0};
    if (load_text(&again, (char *)text.data, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    assert_string_equal(again.served_model_name, config.served_model_name);
    mr_buffer_deinit(&text);
}

/* Every key, with its name in the environment, and every key that is refused. */
static void test_config_markdown_names_all(void **state)
{
    (void)state;
    mr_buffer text = {0};
    assert_int_equal(mr_config_markdown(&text), MR_OK);
    assert_int_equal(mr_buffer_append(&text, "", 1), MR_OK);
    const char *page = (char *)text.data;
    assert_non_null(strstr(page, "| `max_batch_size` | number | `32` | 1 to 4096 |"));
    assert_non_null(strstr(page, "`MILLRACE_SPECULATIVE_DECODING_ENABLE`"));
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_CONFIG) {
            char row[128];
            snprintf(row, sizeof(row), "| `%s` |", rows[i].name);
            assert_non_null(strstr(page, row));
        }
    }
    mr_buffer_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_defaults),
        cmocka_unit_test(test_config_gpu_share),
        cmocka_unit_test(test_config_keepalive_G1),
        cmocka_unit_test(test_config_profile_fills_what_is_not_given),
        cmocka_unit_test(test_config_f32_keeps_kv_in_f32),
        cmocka_unit_test(test_config_cpu_path_must_be_able_to_act),
        cmocka_unit_test(test_config_tenants),
        cmocka_unit_test(test_config_tenants_refused),
        cmocka_unit_test(test_config_tenants_are_bounded),
        cmocka_unit_test(test_config_decimals),
        cmocka_unit_test(test_config_sizes),
        cmocka_unit_test(test_config_bounds),
        cmocka_unit_test(test_config_unknown_key_names_the_nearest),
        cmocka_unit_test(test_config_refuses_what_is_not_built),
        cmocka_unit_test(test_config_accepts_what_happens_anyway),
        cmocka_unit_test(test_config_file_nested_and_dotted),
        cmocka_unit_test(test_config_file_errors_name_line_and_key),
        cmocka_unit_test(test_config_file_aliases_are_bounded),
        cmocka_unit_test(test_config_half_of_tls_is_refused_G6),
        cmocka_unit_test(test_config_credentials_that_nobody_asks_for_are_refused_G5),
        cmocka_unit_test(test_config_identities_survive_printing),
        cmocka_unit_test(test_config_redis),
        cmocka_unit_test(test_config_shows_no_password),
        cmocka_unit_test(test_config_later_sources_win),
        cmocka_unit_test(test_config_environment),
        cmocka_unit_test(test_config_format_Q6_effective_configuration),
        cmocka_unit_test(test_config_describe_lists_every_key),
        cmocka_unit_test(test_config_Q6_profile_that_cannot_act),
        cmocka_unit_test(test_config_Q6_prefix_settings_that_cannot_act),
        cmocka_unit_test(test_config_shows_no_secret),
        cmocka_unit_test(test_config_yaml_sets_the_same_again),
        cmocka_unit_test(test_config_yaml_escapes_control_characters),
        cmocka_unit_test(test_config_markdown_names_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
