/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stop strings: an Aho–Corasick automaton over bytes, so that a match does not depend on where
 * tokens begin and end.
 *
 *   text so far   … "\nUse" | "r:"          stop string "\nUser:"
 *   state             4 held   match at the ':' wherever the tokens were cut
 *
 * The first match to end wins; of those that end at the same byte the longest, which is the one
 * that began first. Made on the caller's thread, read-only afterwards: any thread may use it.
 */
#ifndef MILLRACE_SCHEDULER_STOP_H
#define MILLRACE_SCHEDULER_STOP_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MR_MAX_STOP_STRINGS 16u
#define MR_MAX_STOP_BYTES   4096u /* of all stop strings together */
#define MR_NO_STOP          UINT16_MAX

typedef struct mr_stop mr_stop;

typedef struct mr_stop_string {
    const void *data; /* any bytes, U+0000 too; copied */
    size_t bytes;     /* at least 1 */
} mr_stop_string;

/* Gives the automaton of 1 to MR_MAX_STOP_STRINGS strings. INVALID_ARGUMENT (none or too many
 * strings, an empty one, too many bytes; field "stop"), RESOURCE_EXHAUSTED. */
MR_MUST_USE mr_status mr_stop_create(const mr_stop_string *strings, size_t count, mr_stop **out,
                                     mr_error *err);
void mr_stop_destroy(mr_stop *stop); /* NULL is fine */

/* The `index`-th string as given, borrowed until destroy. */
mr_stop_string mr_stop_string_get(const mr_stop *stop, size_t index);

/* Where a text stands. Zero-initialised: at its beginning. */
typedef struct mr_stop_state {
    uint16_t node;
} mr_stop_state;

typedef struct mr_stop_match {
    uint16_t index;  /* of the string that matched, MR_NO_STOP: none */
    size_t consumed; /* bytes up to and with the last of the match; all of them without one */
} mr_stop_match;

/* Feeds `bytes` of text up to the first match that ends in them. After a match the state is that
 * behind it, and the rest can be fed in another call. Allocates nothing. */
mr_stop_match mr_stop_feed(const mr_stop *stop, mr_stop_state *state, const void *data,
                           size_t bytes);
/* Length of the longest end of the text so far that is a proper beginning of a stop string: the
 * bytes that must not be shown yet. */
uint32_t mr_stop_held(const mr_stop *stop, mr_stop_state state);

#endif
