/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines: requests in, results and errors out. */
#ifndef MILLRACE_SERVICE_JSONL_H
#define MILLRACE_SERVICE_JSONL_H

#include "base/status.h"
#include "model/model.h"
#include "service/generation_lists.h"
#include "service/result.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* A line that must be a JSON object; U+0000 is text like any other, a name may be given once.
 * INVALID_ARGUMENT says where. Gives a reference. */
MR_MUST_USE mr_status mr_jsonl_parse(const char *line, size_t bytes, json_t **out, mr_error *err);

/* Token ids from a JSON array, appended. INVALID_ARGUMENT names `field` and the entry. */
MR_MUST_USE mr_status mr_jsonl_ids(const json_t *value, const char *field, mr_ids *out,
                                   mr_error *err);
/* Ids as a JSON array; NULL when memory is short. Gives a reference. */
json_t *mr_jsonl_ids_array(const uint32_t *ids, size_t count);

/* Prompt ids of {"messages": [{"role", "content"}, …]}, appended, and (if not NULL) the rendered
 * text. */
MR_MUST_USE mr_status mr_jsonl_messages(const mr_model *model, const json_t *messages, mr_ids *out,
                                        mr_buffer *rendered, mr_error *err);

typedef struct mr_jsonl_request {
    json_t *id; /* owns; NULL: none given. Set also when the rest of the line is refused */
    mr_request_params params;
    mr_generation_lists lists; /* its stop strings are spent */
    mr_ids prompt;
} mr_jsonl_request;

/* Parses, tokenises and checks a request, up to the limits of `model` and `max_seq_length`. Errors
 * name the field: INVALID_ARGUMENT, UNIMPLEMENTED (service/unsupported.def). `out` is to be
 * deinitialised also after an error. */
MR_MUST_USE mr_status mr_jsonl_read_request(const mr_model *model, uint32_t max_seq_length,
                                            const char *line, size_t bytes, mr_jsonl_request *out,
                                            mr_error *err);
void mr_jsonl_request_deinit(mr_jsonl_request *request);

/* Rows; `id` may be NULL, and is shared. NULL when memory is short. They give a reference. */
json_t *mr_jsonl_result_row(json_t *id, const mr_result *result);
json_t *mr_jsonl_error_row(json_t *id, const mr_error *error);
/* {"code", "field", "message"}, what an error row has under "error". */
json_t *mr_jsonl_error_object(const mr_error *error);

/* Writes one line, in ASCII (some readers take U+2028 for the end of a line), and drops the
 * reference to `row`; a NULL row is an error. Floats are written so that a float32 reads back
 * equal. INTERNAL when the file does not take it. */
MR_MUST_USE mr_status mr_jsonl_write(FILE *file, json_t *row, mr_error *err);

#endif
