/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include "base/log.h"
#include "service/config_internal.h"
#include "service/config_list.h"
#include "service/config_value.h"
#include "service/nearest.h"
#include "service/unsupported.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ENV_PREFIX "MILLRACE_"
#define NAME_BYTES 128

extern char **environ;

static const mr_config_key keys[] = {
#define MR_CONFIG_TEXT(name, field, value, choices, meaning)                                       \
    MR_CONFIG_TEXT_ROW(name, MR_KEY_TEXT, mr_config, field, value, choices, meaning)
#define MR_CONFIG_FLAG(name, field, value, meaning)                                                \
    MR_CONFIG_TEXT_ROW(name, MR_KEY_FLAG, mr_config, field, #value, "true|false", meaning)
#define MR_CONFIG_SECRET(name, field, meaning)                                                     \
    MR_CONFIG_TEXT_ROW(name, MR_KEY_SECRET, mr_config, field, "", "", meaning)
#define MR_CONFIG_URL(name, field, meaning)                                                        \
    MR_CONFIG_TEXT_ROW(name, MR_KEY_URL, mr_config, field, "", "", meaning)
#define MR_CONFIG_NUMBER(name, field, value, low, high, meaning)                                   \
    MR_CONFIG_NUMBER_ROW(name, MR_KEY_NUMBER, mr_config, field, value, low, high, meaning)
#define MR_CONFIG_BYTES(name, field, value, low, high, meaning)                                    \
    MR_CONFIG_NUMBER_ROW(name, MR_KEY_BYTES, mr_config, field, value, low, high, meaning)
#define MR_CONFIG_DECIMAL(name, field, value, low, high, meaning)                                  \
    MR_CONFIG_DECIMAL_ROW(name, mr_config, field, value, low, high, meaning)
#define MR_CONFIG_FIXED(key, allowed, about)                                                       \
    {.name = (key), .kind = MR_KEY_FIXED, .choices = (allowed), .meaning = (about)},
#define MR_CONFIG_LIST(name, field, meaning)                                                       \
    MR_CONFIG_ROW(name, MR_KEY_LIST, mr_config, field, meaning, .count_offset = 0)
#include "service/config_keys.def"
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

_Static_assert(KEY_COUNT <= MR_CONFIG_MAX_KEYS, "a set of keys is a 64-bit mask");

/* The first key of the group `name`: of name.something. */
static const char *first_below(const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strncmp(keys[i].name, name, length) == 0 && keys[i].name[length] == '.') {
            return keys[i].name;
        }
    }
    return NULL;
}

static mr_status fail_unknown(const char *name, mr_error *err)
{
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        mr_nearest_offer(&nearest, keys[i].name);
    }
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_CONFIG) {
            mr_nearest_offer(&nearest, rows[i].name);
        }
    }
    const char *first = first_below(name);
    if (first != NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                             "%s is a group of settings: give one of them, such as %s", name,
                             first);
    }
    if (nearest.best == NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                             "unknown configuration key %s; millrace serve --help lists them all",
                             name);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                         "unknown configuration key %s; did you mean %s?", name, nearest.best);
}

static const mr_config_key *find_key(const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (strcmp(keys[i].name, name) == 0) {
            return &keys[i];
        }
    }
    return NULL;
}

int mr_config_key_index(const char *name)
{
    const mr_config_key *key = find_key(name);
    return key == NULL ? -1 : (int)(key - keys);
}

static bool lies_below(const char *name, const char *section)
{
    const size_t length = strlen(section);
    return strncmp(name, section, length) == 0 && name[length] == '.';
}

bool mr_config_has_below(const char *name)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (lies_below(keys[i].name, name)) {
            return true;
        }
    }
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_CONFIG && lies_below(rows[i].name, name)) {
            return true;
        }
    }
    return mr_unsupported_find(MR_SURFACE_CONFIG, name) != NULL; /* also of rows "x.*" */
}

mr_status mr_config_set_key(mr_config *config, const char *name, const char *value, mr_error *err)
{
    const mr_config_key *key = find_key(name);
    if (key == NULL) {
        return mr_unsupported_find(MR_SURFACE_CONFIG, name) != NULL
                   ? mr_unsupported_fail(MR_SURFACE_CONFIG, name, err)
                   : fail_unknown(name, err);
    }
    const mr_status status = key->kind == MR_KEY_LIST
                                 ? mr_config_list_parse(config, name, value, err)
                                 : mr_config_value_set(config, key, value, err);
    const uint64_t bit = UINT64_C(1) << (key - keys);
    const bool automatic = mr_config_key_automatic(key) && strcmp(value, "auto") == 0;
    config->given = automatic ? config->given & ~bit : config->given | bit;
    return status;
}

bool mr_config_given(const mr_config *config, const char *name)
{
    const int index = mr_config_key_index(name);
    MR_CHECK(index >= 0);
    return (config->given >> index & 1) != 0;
}

mr_status mr_config_set(mr_config *config, const char *assignment, mr_error *err)
{
    const char *equals = strchr(assignment, '=');
    const size_t length = equals == NULL ? 0 : (size_t)(equals - assignment);
    if (length == 0 || length >= NAME_BYTES) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "--set",
                             "--set %s: write it as KEY=VALUE, such as --set max_batch_size=8",
                             assignment);
    }
    char name[NAME_BYTES];
    memcpy(name, assignment, length);
    name[length] = '\0';
    const mr_status status = mr_config_set_key(config, name, equals + 1, err);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "--set");
    }
    return status;
}

/* How a letter of a key is spelled in the environment. */
static char variable_letter(char letter)
{
    const int spelled = letter == '.' ? '_' : toupper((unsigned char)letter);
    return (char)spelled;
}

static void spell_variable(const char *key, char *out, size_t bytes)
{
    const int length = snprintf(out, bytes, ENV_PREFIX "%s", key);
    for (int i = 0; i < length && out[i] != '\0'; i++) {
        out[i] = variable_letter(out[i]);
    }
}

/* True iff `key` is spelled `variable` in the environment (prefix cut off). */
static bool matches_variable(const char *key, const char *variable, size_t length)
{
    size_t i = 0;
    for (; key[i] != '\0' && key[i] != '*'; i++) {
        if (i >= length || variable[i] != variable_letter(key[i])) {
            return false;
        }
    }
    return key[i] == '*' ? length > i : length == i;
}

/* Of the group tls, unless Kubernetes set it for a service of that name. */
static bool is_tls(const char *variable)
{
    return strncmp(variable, "TLS_", 4) == 0 && strncmp(variable, "TLS_SERVICE_", 12) != 0 &&
           strncmp(variable, "TLS_PORT", 8) != 0;
}

/* A variable that only a slip tells from a key is refused; any other is somebody else's. Where one
 * that is passed over would mean plaintext, none is. */
static mr_status check_slip(const char *variable, size_t length, mr_error *err)
{
    if (is_tls(variable)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "tls.certificate",
                             "unknown configuration variable " ENV_PREFIX "%.*s; TLS is set by "
                             "MILLRACE_TLS_CERTIFICATE and MILLRACE_TLS_PRIVATE_KEY",
                             (int)length, variable);
    }
    char name[NAME_BYTES];
    if (length >= sizeof(name)) {
        return MR_OK;
    }
    for (size_t i = 0; i < length; i++) {
        name[i] = (char)tolower((unsigned char)variable[i]);
    }
    name[length] = '\0';
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        mr_nearest_offer(&nearest, keys[i].name);
    }
    if (nearest.best == NULL || nearest.distance > 2) {
        return MR_OK;
    }
    char known[NAME_BYTES];
    spell_variable(nearest.best, known, sizeof(known));
    return mr_fail_field(err, MR_INVALID_ARGUMENT, nearest.best,
                         "unknown configuration variable " ENV_PREFIX "%.*s; did you mean %s?",
                         (int)length, variable, known);
}

static mr_status apply_variable(mr_config *config, const char *variable, mr_error *err)
{
    static const char *const reserved[] = {"BIN", "MODEL", "REFERENCE", "CACHE", "API_KEY"};
    const size_t length = strcspn(variable, "=");
    if (variable[length] != '=') {
        return MR_OK;
    }
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        if (matches_variable(reserved[i], variable, length)) {
            return MR_OK;
        }
    }
    const char *name = NULL;
    for (size_t i = 0; i < KEY_COUNT && name == NULL; i++) {
        name = matches_variable(keys[i].name, variable, length) ? keys[i].name : NULL;
    }
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count && name == NULL; i++) {
        const bool match = rows[i].surface == MR_SURFACE_CONFIG &&
                           matches_variable(rows[i].name, variable, length);
        name = match ? rows[i].name : NULL;
    }
    if (name == NULL) {
        return check_slip(variable, length, err);
    }
    const mr_status status = mr_config_set_key(config, name, variable + length + 1, err);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "environment variable " ENV_PREFIX "%.*s", (int)length,
                              variable);
    }
    return status;
}

mr_status mr_config_apply_environment(mr_config *config, mr_error *err)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, ENV_PREFIX, sizeof(ENV_PREFIX) - 1) == 0) {
            MR_TRY(apply_variable(config, *entry + sizeof(ENV_PREFIX) - 1, err));
        }
    }
    return MR_OK;
}

mr_status mr_config_init(mr_config *config, mr_error *err)
{
    *config = (mr_config){0};
    for (size_t i = 0; i < KEY_COUNT; i++) {
        mr_config_value_init(config, &keys[i]);
    }
    return mr_config_apply_environment(config, err);
}

/* What concerns GPUs, and what they alone can do. */
static mr_status check_gpu(const mr_config *config, mr_error *err)
{
    if (strcmp(config->backend, "cpu") != 0) {
        return MR_OK;
    }
    if (mr_config_given(config, "gpu_memory_utilization")) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "gpu_memory_utilization",
                             "gpu_memory_utilization cannot act with backend=cpu: leave one out");
    }
    if (strcmp(config->compute, "bf16") == 0 || strcmp(config->compute, "f16") == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "compute",
                             "compute=%s is for GPUs, and backend=cpu: take auto or f32",
                             config->compute);
    }
    return MR_OK;
}

static mr_status check_cpu_path(const mr_config *config, mr_error *err)
{
    if (strcmp(config->cpu_path, "auto") == 0) {
        return MR_OK;
    }
    const bool gpu = strcmp(config->backend, "cuda") == 0;
    if (gpu || strcmp(config->compute, "f32") == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "cpu_path",
                             "cpu_path cannot act with %s: leave one out",
                             gpu ? "backend=cuda" : "compute=f32, which is plain C");
    }
    return MR_OK;
}

/* Settings that nobody would act on. */
static mr_status check_prefix_caching(const mr_config *config, mr_error *err)
{
    static const char *const users[] = {"cache_scope", "cache_salt_secret"};
    for (size_t i = 0; i < sizeof(users) / sizeof(users[0]); i++) {
        if (!config->enable_prefix_caching && mr_config_given(config, users[i])) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, users[i],
                                 "%s is given and cannot act: enable_prefix_caching is false; "
                                 "leave out the one or the other",
                                 users[i]);
        }
    }
    return MR_OK;
}

static mr_status check_redis(const mr_config *config, mr_error *err)
{
    static const char *const others[] = {"redis.on_failure", "redis.timeout_ms",
                                         "redis.replica_id"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (config->redis_url[0] == '\0' && mr_config_given(config, others[i])) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, others[i],
                                 "%s cannot act without Redis: set redis.url too", others[i]);
        }
    }
    for (const char *c = config->redis_replica_id; *c != '\0'; c++) {
        if (*c <= ' ' || *c > '~') {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "redis.replica_id",
                                 "redis.replica_id has a space or a character beyond ASCII: use "
                                 "letters, digits and punctuation");
        }
    }
    return MR_OK;
}

mr_status mr_config_finish(mr_config *config, mr_error *err)
{
    MR_TRY(mr_config_check_callers(config, err));
    MR_TRY(check_gpu(config, err));
    MR_TRY(check_cpu_path(config, err));
    MR_TRY(check_redis(config, err));
    if ((config->block_size & (config->block_size - 1)) != 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "block_size",
                             "block_size is %" PRIu32 ": it must be a power of two",
                             config->block_size);
    }
    if (mr_config_given(config, "random_seed") && strcmp(config->load_format, "random") != 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "random_seed",
                             "random_seed cannot act: weights are the model's own; set load_format "
                             "to random, or leave it out");
    }
    if (mr_config_given(config, "profile") && mr_config_given(config, "batch_timeout_ms") &&
        mr_config_given(config, "prefill_interval")) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "profile",
                             "profile is \"%s\" and cannot act: batch_timeout_ms and "
                             "prefill_interval, which are all it sets, are given too; leave one "
                             "of the three out",
                             config->profile);
    }
    MR_TRY(check_prefix_caching(config, err));
    const bool throughput = strcmp(config->profile, "throughput") == 0;
    if (config->batch_timeout_ms == UINT32_MAX) {
        config->batch_timeout_ms = throughput ? 50 : 0;
    }
    if (config->prefill_interval == UINT32_MAX) {
        config->prefill_interval = throughput ? 8 : 1;
    }
    if (strcmp(config->kv_cache_dtype, "auto") == 0) {
        const char *dtype = strcmp(config->compute, "auto") == 0 ? "bf16" : config->compute;
        memcpy(config->kv_cache_dtype, dtype, strlen(dtype) + 1);
    }
    return MR_OK;
}

mr_status mr_config_format(const mr_config *config, mr_buffer *out)
{
    for (size_t i = 0; i < KEY_COUNT; i++) {
        const mr_config_key *key = &keys[i];
        char quoted[2 * sizeof(config->tls_certificate) + 3];
        MR_TRY(mr_buffer_printf(out, "%s%s=", i == 0 ? "" : " ", key->name));
        switch (key->kind) {
        case MR_KEY_TEXT:
            MR_TRY(mr_buffer_printf(
                out, "%s",
                mr_log_quote((const char *)config + key->offset, quoted, sizeof(quoted))));
            break;
        case MR_KEY_NUMBER:
        case MR_KEY_BYTES: /* what "auto" came to, too */
            MR_TRY(mr_buffer_printf(out, "%" PRIu64, mr_config_value_number(config, key)));
            break;
        case MR_KEY_LIST:
            MR_TRY(mr_buffer_printf(out, "%" PRIu32, mr_config_list_count(config, key->name)));
            break;
        default:
            MR_TRY(mr_config_value_format(config, key, out));
            break;
        }
    }
    return MR_OK;
}

const mr_config_key *mr_config_key_at(size_t index)
{
    return index < KEY_COUNT ? &keys[index] : NULL;
}

bool mr_config_key_about(size_t index, mr_config_about *out)
{
    if (index >= KEY_COUNT) {
        return false;
    }
    mr_config_key_describe(&keys[index], out);
    spell_variable(keys[index].name, out->variable, sizeof(out->variable));
    return true;
}

bool mr_config_hides(const mr_config *config, size_t index)
{
    return mr_config_value_hides(config, &keys[index]);
}

mr_status mr_config_value(const mr_config *config, size_t index, mr_buffer *out)
{
    return mr_config_value_format(config, &keys[index], out);
}
