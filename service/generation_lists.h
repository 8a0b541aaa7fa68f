/* SPDX-License-Identifier: Apache-2.0 */
/* The lists of a generation, of any length: kept while a request is read, and checked, on their way
 * to the engine. One thread. */
#ifndef MILLRACE_SERVICE_GENERATION_LISTS_H
#define MILLRACE_SERVICE_GENERATION_LISTS_H

#include "base/buffer.h"
#include "base/status.h"
#include "scheduler/request.h"
#include "service/generation.h"

#include <stddef.h>
#include <stdint.h>

/* Zero-initialised is valid and empty. */
typedef struct mr_generation_lists {
    mr_ids bias_tokens;
    mr_buffer bias_values; /* float, one a token */
    mr_ids stop_tokens;
    mr_buffer stop_strings; /* mr_stop_string; the bytes are borrowed until _make_stop */
    mr_buffer cache_salt;   /* for mr_runtime_prefix_root() */
    mr_stop *stop;          /* owns; NULL: no stop strings */
} mr_generation_lists;

void mr_generation_lists_deinit(mr_generation_lists *lists);
/* Each appends one; RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_generation_lists_bias(mr_generation_lists *lists, uint32_t token,
                                               float value);
MR_MUST_USE mr_status mr_generation_lists_stop(mr_generation_lists *lists, mr_stop_string string);
MR_MUST_USE mr_status mr_generation_lists_salt(mr_generation_lists *lists, const void *salt,
                                               size_t bytes);
/* Lets `ask` borrow the lists, until they change. */
void mr_generation_lists_view(const mr_generation_lists *lists, mr_generation_ask *ask);
/* Makes `stop` of the strings, which were checked. */
MR_MUST_USE mr_status mr_generation_lists_make_stop(mr_generation_lists *lists, mr_error *err);
/* Puts the lists into a spec. When mr_request_create gave a request, `lists->stop` is its own: set
 * it to NULL. */
void mr_generation_lists_fill(const mr_generation_lists *lists, mr_request_spec *spec);

#endif
