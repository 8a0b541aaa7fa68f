/* SPDX-License-Identifier: Apache-2.0 */
/* What tests of the configuration do again and again: a setting that is taken, one that is refused,
 * and the same from a file. After <cmocka.h>. */
#ifndef MILLRACE_TESTS_CONFIG_STEPS_H
#define MILLRACE_TESTS_CONFIG_STEPS_H

#include "service/config.h"

#include "../base/temp_dir.h"

/* SHA-256 of "abc" (FIPS 180-2, appendix B.1), and two that differ from it. */
#define DIGEST_A "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
#define DIGEST_B "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ae"
#define DIGEST_C "00000000000000000000000000000000000000000000000000000000000000aa"

/* A configuration is large: inlined, each of many steps would have one of its own in a test's
 * frame, which is more than a sanitized stack has. */
#define CONFIG_STEP static __attribute__((noinline, unused))

/* Fails unless `text` is part of the message. */
static inline void assert_says(const mr_error *err, const char *text)
{
    if (strstr(err->message, text) == NULL) {
        fail_msg("message \"%s\" lacks \"%s\"", err->message, text);
    }
}

static inline mr_config fresh(void)
{
    mr_config config;
    mr_error err = {0};
    assert_int_equal(mr_config_init(&config, &err), MR_OK);
    return config;
}

CONFIG_STEP void set_ok(mr_config *config, const char *assignment)
{
    mr_error err = {0};
    if (mr_config_set(config, assignment, &err) != MR_OK) {
        fail_msg("%s: %s", assignment, err.message);
    }
}

CONFIG_STEP void set_refused(const char *assignment, mr_status status, const char *text)
{
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(mr_config_set(&config, assignment, &err), status);
    assert_says(&err, text);
}

CONFIG_STEP mr_status load_text(mr_config *config, const char *text, mr_error *err)
{
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    temp_dir_write(&dir, "c.yaml", text);
    const mr_status status = mr_config_load_file(config, temp_dir_join(&dir, "c.yaml", path), err);
    temp_dir_remove(&dir);
    return status;
}

CONFIG_STEP void load_refused(const char *text, mr_status status, const char *line,
                              const char *what)
{
    mr_config config = fresh();
    mr_error err = {0};
    assert_int_equal(load_text(&config, text, &err), status);
    assert_says(&err, "c.yaml");
    assert_says(&err, line);
    assert_says(&err, what);
}

#endif
