/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"
#include "service/config_value.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "config_steps.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config_gpu_share),
        cmocka_unit_test(test_config_decimals),
        cmocka_unit_test(test_config_sizes),
        cmocka_unit_test(test_config_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
