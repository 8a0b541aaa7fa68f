/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON from files that are not trusted, as a stream of events (yajl does the parsing): nothing is
 * built in memory but the path from the root to the value at hand. Depth and size are bounded.
 */
#ifndef MILLRACE_MODEL_JSON_SAX_H
#define MILLRACE_MODEL_JSON_SAX_H

#include "base/bytes.h"
#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_JSON_MAX_DEPTH 64u

typedef enum mr_json_kind {
    MR_JSON_NULL,
    MR_JSON_BOOL,
    MR_JSON_NUMBER,
    MR_JSON_STRING,
    MR_JSON_OBJECT_BEGIN,
    MR_JSON_OBJECT_END,
    MR_JSON_ARRAY_BEGIN,
    MR_JSON_ARRAY_END,
} mr_json_kind;

typedef struct mr_json_path mr_json_path;

/* A value, or the begin or end of one. Keys are no events of their own: a value has its key. All
 * of it is borrowed until the handler returns. */
typedef struct mr_json_event {
    mr_json_kind kind;
    bool boolean;  /* BOOL */
    mr_bytes text; /* STRING: decoded, valid UTF-8, may hold NULs; NUMBER: as it is written */
    mr_bytes key;  /* of a value in an object; data NULL, size 0 in an array and at the root */
    const mr_json_path *path;
} mr_json_event;

/* Anything but MR_OK ends the parse with that status; the handler fills err. */
typedef mr_status (*mr_json_event_fn)(void *ctx, const mr_json_event *event, mr_error *err);

/* Reads one JSON text of at most max_bytes; duplicate keys are the handler's to find. DATA_LOSS
 * (no JSON, invalid UTF-8, too large, more than MR_JSON_MAX_DEPTH levels: names the byte offset),
 * RESOURCE_EXHAUSTED, or what the handler gives. */
MR_MUST_USE mr_status mr_json_sax_parse(const void *data, size_t size, size_t max_bytes,
                                        mr_json_event_fn handler, void *ctx, mr_error *err);

/* Containers around the event's value; 0 for the root. */
uint32_t mr_json_depth(const mr_json_event *event);

/* Whether the event's value is at `pattern`: keys from the root, each after a '/', where '*' is any
 * key and any element: "" is the root, and "/added_tokens/<star>/content" a field of the elements
 * of an array, with * for <star>. */
bool mr_json_at(const mr_json_event *event, const char *pattern);

/* The key on the path to the event's value, `level` containers below the root: 0 is the first. Of
 * size 0 and NULL for an element of an array. level < mr_json_depth(event). */
mr_bytes mr_json_path_key(const mr_json_event *event, uint32_t level);
/* The element's index likewise; 0 for a key. */
uint64_t mr_json_path_index(const mr_json_event *event, uint32_t level);

/* A NUMBER as a whole number from 0 to max; false if it is none (a sign, fraction or exponent
 * counts as none). */
bool mr_json_u64(const mr_json_event *event, uint64_t max, uint64_t *out);
/* A NUMBER as a finite double; false if it is none. */
bool mr_json_double(const mr_json_event *event, double *out);

#endif
