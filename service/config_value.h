/* SPDX-License-Identifier: Apache-2.0 */
/* One value of the configuration: read from text into its place in a struct, and back. */
#ifndef MILLRACE_SERVICE_CONFIG_VALUE_H
#define MILLRACE_SERVICE_CONFIG_VALUE_H

#include "service/config_internal.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum mr_config_kind {
    MR_KEY_TEXT,
    MR_KEY_FLAG,   /* bool */
    MR_KEY_SECRET, /* text that is never shown */
    MR_KEY_URL,    /* of Redis */
    MR_KEY_NUMBER,
    MR_KEY_BYTES,
    MR_KEY_FIXED,
    MR_KEY_LIST,
    MR_KEY_DECIMAL, /* double */
    MR_KEY_DIGESTS, /* of entries of lists only, as that below */
    MR_KEY_IDENTITIES,
} mr_config_kind;

/* A row of service/config_keys.def. */
typedef struct mr_config_key {
    const char *name;
    mr_config_kind kind;
    size_t offset;
    size_t size; /* of the field, bytes */
    const char *text_default;
    const char *choices;
    uint64_t number_default; /* these three of DECIMAL: MR_CONFIG_MILLI(value) */
    uint64_t low;
    uint64_t high;
    const char *meaning;
    size_t count_offset; /* DIGESTS, IDENTITIES: of the number of entries, uint32_t */
} mr_config_key;

/* Row `index` of the table; NULL: there is none. Lives as long as the program. */
const mr_config_key *mr_config_key_at(size_t index);

#define MR_CONFIG_MILLI(value) ((uint64_t)((value)*1000.0 + 0.5))
/* Rows of the tables that service/config_keys.def fills: a key, the struct and the field that its
 * value goes to, and what the file says of it. */
#define MR_CONFIG_ROW(key, is, type, field, about, ...)                                            \
    {.name = (key),                                                                                \
     .kind = (is),                                                                                 \
     .offset = offsetof(type, field),                                                              \
     .size = sizeof(((type *)0)->field),                                                           \
     .meaning = (about),                                                                           \
     __VA_ARGS__},
#define MR_CONFIG_TEXT_ROW(key, is, type, field, initial, allowed, about)                          \
    MR_CONFIG_ROW(key, is, type, field, about, .text_default = (initial), .choices = (allowed))
#define MR_CONFIG_NUMBER_ROW(key, is, type, field, initial, least, most, about)                    \
    MR_CONFIG_ROW(key, is, type, field, about, .number_default = (initial), .low = (least),        \
                  .high = (most))
#define MR_CONFIG_DECIMAL_ROW(key, type, field, initial, least, most, about)                       \
    MR_CONFIG_NUMBER_ROW(key, MR_KEY_DECIMAL, type, field, MR_CONFIG_MILLI(initial),               \
                         MR_CONFIG_MILLI(least), MR_CONFIG_MILLI(most), about)

/* Whether the key is a list of values, not one. */
bool mr_config_key_plural(const mr_config_key *key);
/* Whether the key's default is automatic. */
bool mr_config_key_automatic(const mr_config_key *key);
/* Fills in all but the variable. */
void mr_config_key_describe(const mr_config_key *key, mr_config_about *out);

/* In these, `base` is the struct that the key's offset counts from. */

/* Sets the default; `base` is zero. */
void mr_config_value_init(void *base, const mr_config_key *key);
/* INVALID_ARGUMENT names key, value and bounds, FAILED_PRECONDITION a value that is not built yet.
 * DIGESTS, IDENTITIES: adds an entry. */
MR_MUST_USE mr_status mr_config_value_set(void *base, const mr_config_key *key, const char *value,
                                          mr_error *err);
/* Of NUMBER and BYTES. */
uint64_t mr_config_value_number(const void *base, const mr_config_key *key);
bool mr_config_value_automatic(const void *base, const mr_config_key *key);
/* Whether it holds what must not be shown. */
bool mr_config_value_hides(const void *base, const mr_config_key *key);
/* Appends the value as text that sets it; "auto" where it is automatic. What is hidden reads ***.
 */
MR_MUST_USE mr_status mr_config_value_format(const void *base, const mr_config_key *key,
                                             mr_buffer *out);

#endif
