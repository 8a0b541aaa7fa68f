/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The automaton of Aho and Corasick, "Efficient string matching" (CACM 18, 1975): a trie of all
 * strings, and for each node the longest end of its text that is a node too. Children are a list
 * ordered by nothing: a node has at most one a string, so at most 16, where a table of 256 would
 * make 2 MiB of the longest lists of strings that are allowed.
 */
#include "scheduler/stop.h"

#include "base/checked.h"
#include "scheduler/stop_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROOT 0u /* also "none" in lists: the root is nobody's child */

typedef struct node {
    uint16_t child;   /* the first */
    uint16_t sibling; /* the next child of the parent */
    uint16_t fail;    /* longest proper end of this node's text that is a node */
    uint16_t match;   /* longest string that the text ends in, MR_NO_STOP: none */
    uint16_t depth;   /* bytes of the text */
    uint16_t held;    /* longest end of the text that is a proper beginning of a string, bytes */
    uint8_t byte;
} node;

struct mr_stop {
    uint32_t n_strings;
    uint32_t n_nodes;
    size_t start[MR_MAX_STOP_STRINGS + 1]; /* of each string in `bytes`, and their end */
    uint8_t *bytes;                        /* owns: the strings, one after another */
    node *nodes;                           /* owns, [all bytes + 1] */
};

static uint16_t child_of(const mr_stop *stop, uint16_t parent, uint8_t byte)
{
    uint16_t at = stop->nodes[parent].child;
    while (at != ROOT && stop->nodes[at].byte != byte) {
        at = stop->nodes[at].sibling;
    }
    return at;
}

/* The node of the longest end of (text of `at`, byte). */
static uint16_t next_of(const mr_stop *stop, uint16_t at, uint8_t byte)
{
    for (;;) {
        const uint16_t child = child_of(stop, at, byte);
        if (child != ROOT || at == ROOT) {
            return child;
        }
        at = stop->nodes[at].fail;
    }
}

/* Equal strings share a node; the first of them keeps it. */
static void add_string(mr_stop *stop, uint16_t index)
{
    uint16_t at = ROOT;
    for (size_t i = stop->start[index]; i < stop->start[index + 1]; i++) {
        const uint8_t byte = stop->bytes[i];
        uint16_t child = child_of(stop, at, byte);
        if (child == ROOT) {
            child = (uint16_t)stop->n_nodes++;
            stop->nodes[child] = (node){.sibling = stop->nodes[at].child,
                                        .match = MR_NO_STOP,
                                        .depth = (uint16_t)(stop->nodes[at].depth + 1),
                                        .byte = byte};
            stop->nodes[at].child = child;
        }
        at = child;
    }
    if (stop->nodes[at].match == MR_NO_STOP) {
        stop->nodes[at].match = index;
    }
}

/* A node's failure is shorter than the node, so going by depth finds it complete. `queue` has room
 * for all nodes. */
static void link_failures(mr_stop *stop, uint16_t *queue)
{
    uint32_t head = 0;
    uint32_t tail = 0;
    queue[tail++] = ROOT;
    while (head < tail) {
        const uint16_t at = queue[head++];
        node *n = &stop->nodes[at];
        /* A node with children is itself a proper beginning of a string. */
        n->held = n->child != ROOT ? n->depth : stop->nodes[n->fail].held;
        if (n->match == MR_NO_STOP) {
            n->match = stop->nodes[n->fail].match;
        }
        for (uint16_t child = n->child; child != ROOT; child = stop->nodes[child].sibling) {
            stop->nodes[child].fail =
                at == ROOT ? ROOT : next_of(stop, n->fail, stop->nodes[child].byte);
            queue[tail++] = child;
        }
    }
}

static mr_status check(const mr_stop_string *strings, size_t count, size_t *total, mr_error *err)
{
    if (count == 0 || count > MR_MAX_STOP_STRINGS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "stop",
                             "%zu stop strings: there may be 1 to %u", count, MR_MAX_STOP_STRINGS);
    }
    *total = 0;
    for (size_t i = 0; i < count; i++) {
        if (strings[i].bytes == 0) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "stop",
                                 "stop string %zu is empty: leave it out", i);
        }
        if (strings[i].bytes > MR_MAX_STOP_BYTES - *total) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "stop",
                                 "the stop strings have more than %u bytes together: shorten them",
                                 MR_MAX_STOP_BYTES);
        }
        *total += strings[i].bytes;
    }
    return MR_OK;
}

static bool build(mr_stop *stop, const mr_stop_string *strings, size_t count, size_t total)
{
    uint16_t *queue = mr_calloc(total + 1, sizeof(*queue));
    stop->bytes = mr_calloc(total, 1);
    stop->nodes = mr_calloc(total + 1, sizeof(*stop->nodes));
    if (queue == NULL || stop->bytes == NULL || stop->nodes == NULL) {
        free(queue);
        return false;
    }
    stop->nodes[ROOT].match = MR_NO_STOP;
    stop->n_nodes = 1;
    stop->n_strings = (uint32_t)count;
    for (size_t i = 0; i < count; i++) {
        memcpy(stop->bytes + stop->start[i], strings[i].data, strings[i].bytes);
        stop->start[i + 1] = stop->start[i] + strings[i].bytes;
        add_string(stop, (uint16_t)i);
    }
    link_failures(stop, queue);
    free(queue);
    return true;
}

mr_status mr_stop_create(const mr_stop_string *strings, size_t count, mr_stop **out, mr_error *err)
{
    size_t total = 0;
    MR_TRY(check(strings, count, &total, err));
    mr_stop *stop = mr_calloc(1, sizeof(*stop));
    if (stop == NULL || !build(stop, strings, count, total)) {
        mr_stop_destroy(stop);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for stop strings");
    }
    *out = stop;
    return MR_OK;
}

void mr_stop_destroy(mr_stop *stop)
{
    if (stop == NULL) {
        return;
    }
    free(stop->bytes);
    free(stop->nodes);
    free(stop);
}

size_t mr_stop_count(const mr_stop *stop)
{
    return stop->n_strings;
}

mr_stop_string mr_stop_string_get(const mr_stop *stop, size_t index)
{
    MR_CHECK(index < stop->n_strings);
    return (mr_stop_string){.data = stop->bytes + stop->start[index],
                            .bytes = stop->start[index + 1] - stop->start[index]};
}

mr_stop_match mr_stop_feed(const mr_stop *stop, mr_stop_state *state, const void *data,
                           size_t bytes)
{
    const uint8_t *text = data;
    for (size_t i = 0; i < bytes; i++) {
        state->node = next_of(stop, state->node, text[i]);
        const uint16_t match = stop->nodes[state->node].match;
        if (match != MR_NO_STOP) {
            return (mr_stop_match){.index = match, .consumed = i + 1};
        }
    }
    return (mr_stop_match){.index = MR_NO_STOP, .consumed = bytes};
}

uint32_t mr_stop_held(const mr_stop *stop, mr_stop_state state)
{
    return stop->nodes[state.node].held;
}
