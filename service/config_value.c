/* SPDX-License-Identifier: Apache-2.0 */
#include "service/config_value.h"

#include "base/checked.h"
#include "base/digits.h"
#include "base/log.h"
#include "base/sha256.h"
#include "cache/redis_url.h"
#include "service/credentials.h"
#include "service/unsupported.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 128

static bool is_number(mr_config_kind kind)
{
    return kind == MR_KEY_NUMBER || kind == MR_KEY_BYTES || kind == MR_KEY_DECIMAL;
}

static bool is_text(mr_config_kind kind)
{
    return kind == MR_KEY_TEXT || kind == MR_KEY_SECRET;
}

bool mr_config_key_plural(const mr_config_key *key)
{
    return key->kind == MR_KEY_DIGESTS || key->kind == MR_KEY_IDENTITIES;
}

bool mr_config_key_automatic(const mr_config_key *key)
{
    return is_number(key->kind) &&
           (key->number_default < key->low || key->number_default > key->high);
}

static double decimal_of(uint64_t milli)
{
    return (double)milli / 1000.0;
}

static void store_number(void *base, const mr_config_key *key, uint64_t value)
{
    uint8_t *place = (uint8_t *)base + key->offset;
    if (key->size == sizeof(uint32_t)) {
        const uint32_t narrow = (uint32_t)value;
        memcpy(place, &narrow, sizeof(narrow));
    } else {
        memcpy(place, &value, sizeof(value));
    }
}

uint64_t mr_config_value_number(const void *base, const mr_config_key *key)
{
    const uint8_t *place = (const uint8_t *)base + key->offset;
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
static bool parse_number(mr_config_kind kind, const char *text, uint64_t *out)
{
    const size_t digits = strspn(text, "0123456789");
    const uint64_t unit = unit_bytes(text + digits);
    uint64_t value = 0;
    if (!mr_digits_u64(text, digits, &value) || (kind == MR_KEY_NUMBER && text[digits] != '\0')) {
        return false;
    }
    return unit != 0 && mr_mul_u64(value, unit, out);
}

static mr_status set_number(void *base, const mr_config_key *key, const char *value, mr_error *err)
{
    const bool automatic = mr_config_key_automatic(key);
    if (automatic && strcmp(value, "auto") == 0) {
        store_number(base, key, key->number_default);
        return MR_OK;
    }
    uint64_t number = 0;
    if (parse_number(key->kind, value, &number) && number >= key->low && number <= key->high) {
        store_number(base, key, number);
        return MR_OK;
    }
    const char *also = automatic ? ", or auto" : "";
    if (key->kind == MR_KEY_BYTES) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                             "%s is \"%s\": it must be a size such as 512MiB or 40GiB%s", key->name,
                             value, also);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                         "%s is \"%s\": it must be a whole number from %" PRIu64 " to %" PRIu64
                         "%s",
                         key->name, value, key->low, key->high, also);
}

static bool is_choice(const char *choices, const char *value)
{
    const size_t length = strlen(value);
    const char *at = choices;
    while (*at != '\0') {
        const size_t size = strcspn(at, "|");
        if (size == length && memcmp(at, value, size) == 0) {
            return true;
        }
        at += size + (at[size] == '|' ? 1 : 0);
    }
    return false;
}

static void describe_bounds(const mr_config_key *key, char *out, size_t bytes)
{
    if (key->kind == MR_KEY_NUMBER) {
        snprintf(out, bytes, "%" PRIu64 " to %" PRIu64, key->low, key->high);
    } else if (key->kind == MR_KEY_BYTES) {
        snprintf(out, bytes, "a size such as 40GiB");
    } else if (key->kind == MR_KEY_DECIMAL) {
        snprintf(out, bytes, "%.15g to %.15g, decimals too", decimal_of(key->low),
                 decimal_of(key->high));
    } else if (key->kind == MR_KEY_LIST) {
        snprintf(out, bytes, "a list of mappings");
    } else if (key->kind == MR_KEY_DIGESTS) {
        snprintf(out, bytes, "SHA-256, 64 hex digits each");
    } else if (key->kind == MR_KEY_IDENTITIES) {
        snprintf(out, bytes, "a URI, a DNS name or CN=NAME each");
    } else if (key->choices[0] == '\0') {
        snprintf(out, bytes, "text");
    } else {
        const char *later = strstr(key->choices, "|!");
        const size_t length = later == NULL ? strlen(key->choices) : (size_t)(later - key->choices);
        snprintf(out, bytes, "%.*s", (int)length, key->choices);
    }
}

/* `value` is one of the choices. */
static void store_flag(void *base, const mr_config_key *key, const char *value)
{
    const bool flag = strcmp(value, "true") == 0;
    memcpy((uint8_t *)base + key->offset, &flag, sizeof(flag));
}

static mr_status set_text(void *base, const mr_config_key *key, const char *value, mr_error *err)
{
    if (key->choices[0] != '\0' && !is_choice(key->choices, value)) {
        char bounds[NAME_BYTES];
        describe_bounds(key, bounds, sizeof(bounds));
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s is \"%s\": it must be %s",
                             key->name, value, bounds);
    }
    if (key->kind == MR_KEY_FLAG) {
        store_flag(base, key, value);
        return MR_OK;
    }
    const size_t length = strlen(value);
    if (length >= key->size) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                             "%s has %zu bytes: at most %zu fit", key->name, length, key->size - 1);
    }
    memcpy((uint8_t *)base + key->offset, value, length + 1);
    return MR_OK;
}

static mr_status set_fixed(const mr_config_key *key, const char *value, mr_error *err)
{
    if (is_choice(key->choices, value)) {
        return MR_OK;
    }
    if (mr_unsupported_find(MR_SURFACE_CONFIG, key->name) != NULL) {
        return mr_unsupported_fail(MR_SURFACE_CONFIG, key->name, err);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s is \"%s\": it must be %s",
                         key->name, value, key->choices);
}

/* Digits, and digits behind a point. */
static mr_status set_decimal(void *base, const mr_config_key *key, const char *value, mr_error *err)
{
    const size_t whole = strspn(value, "0123456789");
    const size_t part = value[whole] == '.' ? strspn(value + whole + 1, "0123456789") : 0;
    const size_t length = part > 0 ? whole + 1 + part : whole;
    const double number = strtod(value, NULL); /* the locale is "C" in this program */
    if (whole > 0 && value[length] == '\0' && number >= decimal_of(key->low) &&
        number <= decimal_of(key->high)) {
        memcpy((uint8_t *)base + key->offset, &number, sizeof(number));
        return MR_OK;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                         "%s is \"%s\": it must be a number from %.15g to %.15g, such as %s",
                         key->name, value, decimal_of(key->low), decimal_of(key->high),
                         key->high > 1000 ? "2 or 0.5" : "0.5");
}

static uint32_t *count_of(void *base, const mr_config_key *key)
{
    return (uint32_t *)(void *)((uint8_t *)base + key->count_offset);
}

/* Adds one. A value that is no digest may be a key itself, so it is not quoted. */
static mr_status add_digest(void *base, const mr_config_key *key, const char *value, mr_error *err)
{
    uint32_t *count = count_of(base, key);
    const size_t most = key->size / MR_SHA256_BYTES;
    if (*count >= most) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s has more than %zu entries",
                             key->name, most);
    }
    uint8_t *digest = (uint8_t *)base + key->offset + (size_t)*count * MR_SHA256_BYTES;
    bool good = strlen(value) == (size_t)2 * MR_SHA256_BYTES;
    for (size_t i = 0; good && i < MR_SHA256_BYTES; i++) {
        const int high = mr_digits_hex_value(value[2 * i]);
        const int low = mr_digits_hex_value(value[2 * i + 1]);
        good = high >= 0 && low >= 0;
        digest[i] = good ? (uint8_t)(high * 16 + low) : 0;
    }
    if (!good) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name,
                             "%s holds an entry that is no SHA-256 in 64 hex digits; the digest of "
                             "a key is what printf %%s KEY | sha256sum prints",
                             key->name);
    }
    ++*count;
    return MR_OK;
}

/* Adds one. */
static mr_status add_identity(void *base, const mr_config_key *key, const char *value,
                              mr_error *err)
{
    uint32_t *count = count_of(base, key);
    const size_t most = key->size / (MR_IDENTITY_MAX + 1);
    mr_status status = MR_OK;
    if (*count >= most) {
        status = mr_fail(err, MR_INVALID_ARGUMENT, "more than %zu entries", most);
    } else {
        status = mr_identity_check(value, err);
    }
    if (status != MR_OK) {
        (void)mr_fail_context(err, "%s", key->name);
        if (err != NULL) {
            snprintf(err->field, sizeof(err->field), "%s", key->name);
        }
        return status;
    }
    char *place = (char *)base + key->offset + (size_t)*count * (MR_IDENTITY_MAX + 1);
    memcpy(place, value, strlen(value) + 1);
    ++*count;
    return MR_OK;
}

static mr_status set_url(void *base, const mr_config_key *key, const char *value, mr_error *err)
{
    mr_redis_url url;
    if (value[0] != '\0' && mr_redis_url_parse(value, &url, err) != MR_OK) {
        const mr_status status = mr_fail_context(err, "%s", key->name);
        if (err != NULL) {
            snprintf(err->field, sizeof(err->field), "%s", key->name);
        }
        return status;
    }
    return set_text(base, key, value, err);
}

mr_status mr_config_value_set(void *base, const mr_config_key *key, const char *value,
                              mr_error *err)
{
    switch (key->kind) {
    case MR_KEY_TEXT:
    case MR_KEY_FLAG:
    case MR_KEY_SECRET:
        return set_text(base, key, value, err);
    case MR_KEY_URL:
        return set_url(base, key, value, err);
    case MR_KEY_NUMBER:
    case MR_KEY_BYTES:
        return set_number(base, key, value, err);
    case MR_KEY_FIXED:
        return set_fixed(key, value, err);
    case MR_KEY_DECIMAL:
        return set_decimal(base, key, value, err);
    case MR_KEY_DIGESTS:
        return add_digest(base, key, value, err);
    case MR_KEY_IDENTITIES:
        return add_identity(base, key, value, err);
    case MR_KEY_LIST:
        break;
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, key->name, "%s takes a list", key->name);
}

void mr_config_value_init(void *base, const mr_config_key *key)
{
    if (is_text(key->kind)) {
        MR_CHECK(strlen(key->text_default) < key->size);
        memcpy((uint8_t *)base + key->offset, key->text_default, strlen(key->text_default) + 1);
    } else if (key->kind == MR_KEY_FLAG) {
        store_flag(base, key, key->text_default);
    } else if (key->kind == MR_KEY_DECIMAL) {
        const double number = decimal_of(key->number_default);
        memcpy((uint8_t *)base + key->offset, &number, sizeof(number));
    } else if (is_number(key->kind)) {
        store_number(base, key, key->number_default);
    }
}

static mr_status format_digests(const void *base, const mr_config_key *key, mr_buffer *out)
{
    uint32_t count;
    memcpy(&count, (const uint8_t *)base + key->count_offset, sizeof(count));
    MR_TRY(mr_buffer_append(out, "[", 1));
    for (uint32_t i = 0; i < count; i++) {
        char hex[2 * MR_SHA256_BYTES + 1];
        mr_sha256_hex((const uint8_t *)base + key->offset + (size_t)i * MR_SHA256_BYTES, hex);
        MR_TRY(mr_buffer_printf(out, "%s\"%s\"", i == 0 ? "" : ", ", hex));
    }
    return mr_buffer_append(out, "]", 1);
}

static mr_status format_identities(const void *base, const mr_config_key *key, mr_buffer *out)
{
    uint32_t count;
    memcpy(&count, (const uint8_t *)base + key->count_offset, sizeof(count));
    MR_TRY(mr_buffer_append(out, "[", 1));
    for (uint32_t i = 0; i < count; i++) {
        char quoted[2 * MR_IDENTITY_MAX + 3];
        const char *text = (const char *)base + key->offset + (size_t)i * (MR_IDENTITY_MAX + 1);
        MR_TRY(mr_buffer_printf(out, "%s%s", i == 0 ? "" : ", ",
                                mr_log_quote(text, quoted, sizeof(quoted))));
    }
    return mr_buffer_append(out, "]", 1);
}

/* True when it has a password. */
static bool parse_secret_url(const char *text, mr_redis_url *out)
{
    return mr_redis_url_parse(text, out, NULL) == MR_OK && out->password[0] != '\0';
}

static mr_status format_url(const char *text, mr_buffer *out)
{
    mr_redis_url url;
    if (!parse_secret_url(text, &url)) {
        return mr_buffer_printf(out, "%s", text);
    }
    char shown[MR_REDIS_URL_MAX];
    mr_redis_url_show(&url, shown, sizeof(shown));
    const int scheme = (int)strcspn(shown, "/") + 2;
    return mr_buffer_printf(out, "%.*s***@%s", scheme, shown, shown + scheme);
}

bool mr_config_value_hides(const void *base, const mr_config_key *key)
{
    mr_redis_url url;
    const char *text = (const char *)base + key->offset;
    return (key->kind == MR_KEY_URL && parse_secret_url(text, &url)) ||
           (key->kind == MR_KEY_SECRET && text[0] != '\0');
}

/* As short as sets the same. */
static mr_status format_decimal(double number, mr_buffer *out)
{
    char text[40];
    snprintf(text, sizeof(text), "%.15g", number);
    if (strtod(text, NULL) != number) {
        snprintf(text, sizeof(text), "%.17g", number);
    }
    return mr_buffer_printf(out, "%s", text);
}

mr_status mr_config_value_format(const void *base, const mr_config_key *key, mr_buffer *out)
{
    const uint8_t *place = (const uint8_t *)base + key->offset;
    if (key->kind == MR_KEY_URL) {
        return format_url((const char *)place, out);
    }
    if (is_text(key->kind)) {
        const char *text = mr_config_value_hides(base, key) ? "***" : (const char *)place;
        return mr_buffer_printf(out, "%s", text);
    }
    if (key->kind == MR_KEY_FLAG) {
        return mr_buffer_printf(out, "%s", *(const bool *)place ? "true" : "false");
    }
    if (key->kind == MR_KEY_FIXED) {
        return mr_buffer_printf(out, "%.*s", (int)strcspn(key->choices, "|"), key->choices);
    }
    if (key->kind == MR_KEY_DIGESTS) {
        return format_digests(base, key, out);
    }
    if (key->kind == MR_KEY_IDENTITIES) {
        return format_identities(base, key, out);
    }
    if (key->kind == MR_KEY_DECIMAL) {
        double number;
        memcpy(&number, place, sizeof(number));
        return format_decimal(number, out);
    }
    if (mr_config_value_automatic(base, key)) {
        return mr_buffer_printf(out, "auto");
    }
    return mr_buffer_printf(out, "%" PRIu64, mr_config_value_number(base, key));
}

bool mr_config_value_automatic(const void *base, const mr_config_key *key)
{
    return mr_config_key_automatic(key) && mr_config_value_number(base, key) == key->number_default;
}

void mr_config_key_describe(const mr_config_key *key, mr_config_about *out)
{
    static const char *const types[] = {
        [MR_KEY_TEXT] = "text",    [MR_KEY_FLAG] = "choice",     [MR_KEY_SECRET] = "text",
        [MR_KEY_URL] = "text",     [MR_KEY_NUMBER] = "number",   [MR_KEY_BYTES] = "size",
        [MR_KEY_FIXED] = "fixed",  [MR_KEY_LIST] = "list",       [MR_KEY_DECIMAL] = "decimal",
        [MR_KEY_DIGESTS] = "list", [MR_KEY_IDENTITIES] = "list",
    };
    *out = (mr_config_about){.name = key->name, .meaning = key->meaning, .type = types[key->kind]};
    if (key->kind == MR_KEY_TEXT && key->choices[0] != '\0') {
        out->type = "choice";
    }
    if (mr_config_key_automatic(key)) {
        snprintf(out->initial, sizeof(out->initial), "auto");
    } else if (key->kind == MR_KEY_TEXT || key->kind == MR_KEY_FLAG) {
        snprintf(out->initial, sizeof(out->initial), "%s", key->text_default);
    } else if (key->kind == MR_KEY_FIXED) {
        snprintf(out->initial, sizeof(out->initial), "%.*s", (int)strcspn(key->choices, "|"),
                 key->choices);
    } else if (key->kind == MR_KEY_DECIMAL) {
        snprintf(out->initial, sizeof(out->initial), "%.15g", decimal_of(key->number_default));
    } else if (is_number(key->kind)) {
        snprintf(out->initial, sizeof(out->initial), "%" PRIu64, key->number_default);
    }
    describe_bounds(key, out->bounds, sizeof(out->bounds));
}
