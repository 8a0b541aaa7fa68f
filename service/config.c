/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config.h"

#include "base/log.h"
#include "service/config_internal.h"
#include "service/generation.h"
#include "service/nearest.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENV_PREFIX "MILLRACE_"
#define NAME_BYTES 128

extern char **environ;

typedef enum key_kind {
    KEY_TEXT,
    KEY_NUMBER,
    KEY_BYTES,
    KEY_FIXED,
} key_kind;

typedef struct config_key {
    const char *name;
    key_kind kind;
    size_t offset;
    size_t size; /* of the field, bytes */
    const char *text_default;
    const char *choices;
    uint64_t number_default;
    uint64_t low;
    uint64_t high;
    const char *meaning;
} config_key;

#define FIELD_PLACE(field) offsetof(mr_config, field), sizeof(((mr_config *)0)->field)

static const config_key keys[] = {
#define MR_CONFIG_TEXT(name, field, value, choices, meaning)                                       \
    {name, KEY_TEXT, FIELD_PLACE(field), value, choices, 0, 0, 0, meaning},
#define MR_CONFIG_NUMBER(name, field, value, low, high, meaning)                                   \
    {name, KEY_NUMBER, FIELD_PLACE(field), NULL, NULL, value, low, high, meaning},
#define MR_CONFIG_BYTES(name, field, value, low, high, meaning)                                    \
    {name, KEY_BYTES, FIELD_PLACE(field), NULL, NULL, value, low, high, meaning},
#define MR_CONFIG_FIXED(name, choices, meaning)                                                    \
    {name, KEY_FIXED, 0, 0, NULL, choices, 0, 0, 0, meaning},
#include "service/config_keys.def"
#undef MR_CONFIG_TEXT
#undef MR_CONFIG_NUMBER
#undef MR_CONFIG_BYTES
#undef MR_CONFIG_FIXED
};

#define KEY_COUNT (sizeof(keys) / sizeof(keys[0]))

_Static_assert(KEY_COUNT <= MR_CONFIG_MAX_KEYS, "a set of keys is a 64-bit mask");

static bool key_is_automatic(const config_key *key)
{
    return key->kind != KEY_TEXT && key->kind != KEY_FIXED &&
           (key->number_default < key->low || key->number_default > key->high);
}

static void store_number(mr_config *config, const config_key *key, uint64_t value)
{
    uint8_t *place = (uint8_t *)config + key->offset;
    if (key->size == sizeof(uint32_t)) {
        const uint32_t narrow = (uint32_t)value;
        memcpy(place, &narrow, sizeof(narrow));
    } else {
        memcpy(place, &value, sizeof(value));
    }
}

static uint64_t load_number(const mr_config *config, const config_key *key)
{
    const uint8_t *place = (const uint8_t *)config + key->offset;
    uint64_t value = 0;
    if (key->size == sizeof(uint32_t)) {
        uint32_t narrow;
        memcpy(&narrow, place, sizeof(narrow));
        value = narrow;
    } else {
        memcpy(&value, place, sizeof(value));
    }
    return value;
}

/* Bytes that a unit after a number stands for; 0: no unit of ours. */
static uint64_t unit_bytes(const char *unit)
{
    static const struct {
        const char *name;
        unsigned shift;
    } units[] = {{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (strcmp(unit, units[i].name) == 0) {
            return UINT64_C(1) << units[i].shift;
        }
    }
    return 0;
}

/* Decimal digits, and a unit where the key has bytes. */
static bool parse_number(key_kind kind, const char *text, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; isdigit((unsigned char)*at); at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, digit, &value)) {
            return false;
        }
    }
    if (at == text || (kind == KEY_NUMBER && *at != '\0')) {
        return false;
    }
    const uint64_t unit = unit_bytes(at);
    return unit != 0 && !__builtin_mul_overflow(value, unit, out);
}

static mr_status set_number(mr_config *config, const config_key *key, const char *value,
                            mr_error *err)
{
    const bool automatic = key_is_automatic(key);
    if (automatic && strcmp(value, "auto") == 0) {
        store_number(config, key, key->number_default);
        return MR_OK;
    }
    uint64_t number = 0;
    if (parse_number(key->kind, value, &number) && number >= key->low && number <= key->high) {
        store_number(config, key, number);
        return MR_OK;
    }
    const char *also = automatic ? ", or auto" : "";
    if (key->kind == KEY_BYTES) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                             "%s is \"%s\": it must be a size such as 512MiB or 40GiB%s", key->name,
                             value, also);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                         "%s is \"%s\": it must be a whole number from %" PRIu64 " to %" PRIu64
                         "%s",
                         key->name, value, key->low, key->high, also);
}

typedef enum choice {
    CHOICE_NONE,
    CHOICE_YES,
    CHOICE_LATER, /* known, not built yet */
} choice;

static choice find_choice(const char *choices, const char *value)
{
    const size_t length = strlen(value);
    const char *at = choices;
    while (*at != '\0') {
        const bool later = *at == '!';
        at += later ? 1 : 0;
        const size_t size = strcspn(at, "|");
        if (size == length && memcmp(at, value, size) == 0) {
            return later ? CHOICE_LATER : CHOICE_YES;
        }
        at += size + (at[size] == '|' ? 1 : 0);
    }
    return CHOICE_NONE;
}

static void describe_bounds(const config_key *key, char *out, size_t bytes)
{
    if (key->kind == KEY_NUMBER) {
        snprintf(out, bytes, "%" PRIu64 " to %" PRIu64, key->low, key->high);
    } else if (key->kind == KEY_BYTES) {
        snprintf(out, bytes, "a size such as 40GiB");
    } else if (key->choices[0] == '\0') {
        snprintf(out, bytes, "text");
    } else {
        const char *later = strstr(key->choices, "|!");
        const size_t length = later == NULL ? strlen(key->choices) : (size_t)(later - key->choices);
        snprintf(out, bytes, "%.*s", (int)length, key->choices);
    }
}

static mr_status set_text(mr_config *config, const config_key *key, const char *value,
                          mr_error *err)
{
    const choice found = key->choices[0] == '\0' ? CHOICE_YES : find_choice(key->choices, value);
    if (found == CHOICE_LATER) {
        return mr_unsupported_fail(MR_SURFACE_CONFIG, key->name, err);
    }
    if (found == CHOICE_NONE) {
        char bounds[NAME_BYTES];
        describe_bounds(key, bounds, sizeof(bounds));
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s is \"%s\": it must be %s",
                             key->name, value, bounds);
    }
    const size_t length = strlen(value);
    if (length >= key->size) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                             "%s has %zu bytes: at most %zu fit", key->name, length, key->size - 1);
    }
    memcpy((uint8_t *)config + key->offset, value, length + 1);
    return MR_OK;
}

static mr_status set_fixed(const config_key *key, const char *value, mr_error *err)
{
    if (find_choice(key->choices, value) == CHOICE_YES) {
        return MR_OK;
    }
    if (mr_unsupported_find(MR_SURFACE_CONFIG, key->name) != NULL) {
        return mr_unsupported_fail(MR_SURFACE_CONFIG, key->name, err);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s is \"%s\": it must be %s",
                         key->name, value, key->choices);
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
    if (nearest.best == NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                             "unknown configuration key %s; millrace serve --help lists them all",
                             name);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                         "unknown configuration key %s; did you mean %s?", name, nearest.best);
}

static const config_key *find_key(const char *name)
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
    const config_key *key = find_key(name);
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
    const config_key *key = find_key(name);
    if (key == NULL) {
        return mr_unsupported_find(MR_SURFACE_CONFIG, name) != NULL
                   ? mr_unsupported_fail(MR_SURFACE_CONFIG, name, err)
                   : fail_unknown(name, err);
    }
    mr_status status = MR_OK;
    if (key->kind == KEY_TEXT) {
        status = set_text(config, key, value, err);
    } else if (key->kind == KEY_FIXED) {
        status = set_fixed(key, value, err);
    } else {
        status = set_number(config, key, value, err);
    }
    const uint64_t bit = UINT64_C(1) << (key - keys);
    const bool automatic = key_is_automatic(key) && strcmp(value, "auto") == 0;
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

void mr_config_variable(const char *key, char *out, size_t bytes)
{
    const int length = snprintf(out, bytes, ENV_PREFIX "%s", key);
    for (int i = 0; i < length && out[i] != '\0'; i++) {
        out[i] = out[i] == '.' ? '_' : (char)toupper((unsigned char)out[i]);
    }
}

/* True iff `key` is spelled `variable` in the environment (prefix cut off). */
static bool matches_variable(const char *key, const char *variable, size_t length)
{
    size_t i = 0;
    for (; key[i] != '\0' && key[i] != '*'; i++) {
        const char wanted = key[i] == '.' ? '_' : (char)toupper((unsigned char)key[i]);
        if (i >= length || variable[i] != wanted) {
            return false;
        }
    }
    return key[i] == '*' ? length > i : length == i;
}

/* A variable that only a slip tells from a key is refused; any other is somebody else's. */
static mr_status check_slip(const char *variable, size_t length, mr_error *err)
{
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
    mr_config_variable(nearest.best, known, sizeof(known));
    return mr_fail_field(err, MR_INVALID_ARGUMENT, nearest.best,
                         "unknown configuration variable " ENV_PREFIX "%.*s; did you mean %s?",
                         (int)length, variable, known);
}

static mr_status apply_variable(mr_config *config, const char *variable, mr_error *err)
{
    static const char *const reserved[] = {"BIN", "MODEL", "REFERENCE", "CACHE"};
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
        if (keys[i].kind == KEY_TEXT) {
            MR_TRY(set_text(config, &keys[i], keys[i].text_default, err));
        } else if (keys[i].kind != KEY_FIXED) {
            store_number(config, &keys[i], keys[i].number_default);
        }
    }
    return mr_config_apply_environment(config, err);
}

double mr_config_gpu_share(const mr_config *config)
{
    return strtod(config->gpu_memory_utilization, NULL);
}

/* What concerns GPUs, and what they alone can do. */
static mr_status check_gpu(const mr_config *config, mr_error *err)
{
    char *end = NULL;
    const double share = strtod(config->gpu_memory_utilization, &end);
    if (end == config->gpu_memory_utilization || *end != '\0' || !(share >= 0.05 && share <= 1.0)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "gpu_memory_utilization",
                             "gpu_memory_utilization is \"%s\": it must be a number from 0.05 to 1",
                             config->gpu_memory_utilization);
    }
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

mr_status mr_config_finish(mr_config *config, mr_error *err)
{
    MR_TRY(check_gpu(config, err));
    if ((config->block_size & (config->block_size - 1)) != 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "block_size",
                             "block_size is %" PRIu32 ": it must be a power of two",
                             config->block_size);
    }
    if (mr_config_given(config, "profile") && mr_config_given(config, "batch_timeout_ms") &&
        mr_config_given(config, "prefill_interval")) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "profile",
                             "profile is \"%s\" and cannot act: batch_timeout_ms and "
                             "prefill_interval, which are all it sets, are given too; leave one "
                             "of the three out",
                             config->profile);
    }
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
        const config_key *key = &keys[i];
        const char *gap = i == 0 ? "" : " ";
        if (key->kind == KEY_TEXT) {
            const char *text = (const char *)config + key->offset;
            char quoted[2 * sizeof(config->served_model_name) + 3];
            MR_TRY(mr_buffer_printf(out, "%s%s=%s", gap, key->name,
                                    mr_log_quote(text, quoted, sizeof(quoted))));
        } else if (key->kind == KEY_FIXED) {
            const int first = (int)strcspn(key->choices, "|");
            MR_TRY(mr_buffer_printf(out, "%s%s=%.*s", gap, key->name, first, key->choices));
        } else {
            MR_TRY(
                mr_buffer_printf(out, "%s%s=%" PRIu64, gap, key->name, load_number(config, key)));
        }
    }
    return MR_OK;
}

bool mr_config_key_about(size_t index, mr_config_about *out)
{
    static const char *const types[] = {"text", "number", "size", "fixed"};
    if (index >= KEY_COUNT) {
        return false;
    }
    const config_key *key = &keys[index];
    *out = (mr_config_about){.name = key->name, .meaning = key->meaning, .type = types[key->kind]};
    if (key->kind == KEY_TEXT && key->choices[0] != '\0') {
        out->type = "choice";
    }
    if (key_is_automatic(key)) {
        snprintf(out->initial, sizeof(out->initial), "auto");
    } else if (key->kind == KEY_TEXT) {
        snprintf(out->initial, sizeof(out->initial), "%s", key->text_default);
    } else if (key->kind == KEY_FIXED) {
        snprintf(out->initial, sizeof(out->initial), "%.*s", (int)strcspn(key->choices, "|"),
                 key->choices);
    } else {
        snprintf(out->initial, sizeof(out->initial), "%" PRIu64, key->number_default);
    }
    describe_bounds(key, out->bounds, sizeof(out->bounds));
    mr_config_variable(key->name, out->variable, sizeof(out->variable));
    return true;
}

void mr_config_value(const mr_config *config, size_t index, char *out, size_t bytes)
{
    const config_key *key = &keys[index];
    if (key->kind == KEY_TEXT) {
        snprintf(out, bytes, "%s", (const char *)config + key->offset);
    } else if (key->kind == KEY_FIXED) {
        snprintf(out, bytes, "%.*s", (int)strcspn(key->choices, "|"), key->choices);
    } else if (key_is_automatic(key) && load_number(config, key) == key->number_default) {
        snprintf(out, bytes, "auto");
    } else {
        snprintf(out, bytes, "%" PRIu64, load_number(config, key));
    }
}
