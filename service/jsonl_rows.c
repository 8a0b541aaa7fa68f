/* SPDX-License-Identifier: Apache-2.0 */
/* What goes out: rows of results and errors. */
#include "service/jsonl.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* A logprob that is not finite has no JSON number: it is null, explicitly. */
static json_t *logprob_value(float logprob)
{
    return isfinite(logprob) ? json_real((double)logprob) : json_null();
}

/* All of these set functions take the value's reference, and refuse NULL (memory is short). */
static bool set(json_t *object, const char *name, json_t *value)
{
    return json_object_set_new(object, name, value) == 0;
}

static json_t *logprob_entry(uint32_t id, float logprob)
{
    json_t *entry = json_object();
    if (!set(entry, "id", json_integer(id)) || !set(entry, "logprob", logprob_value(logprob))) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}

static json_t *token_entry(const mr_result_token *token)
{
    json_t *top = json_array();
    bool whole = true;
    for (uint32_t i = 0; i < token->n_top; i++) {
        whole = whole && json_array_append_new(
                             top, logprob_entry(token->top[i].token, token->top[i].logprob)) == 0;
    }
    json_t *entry = logprob_entry(token->id, token->logprob);
    if (!set(entry, "top", top) || !whole) {
        json_decref(entry);
        return NULL;
    }
    return entry;
}

static json_t *logprobs_array(const mr_result *result)
{
    json_t *array = json_array();
    const size_t count = result->tokens.size / sizeof(mr_result_token);
    for (size_t i = 0; i < count && array != NULL; i++) {
        mr_result_token token;
        memcpy(&token, result->tokens.data + i * sizeof(token), sizeof(token));
        if (json_array_append_new(array, token_entry(&token)) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

json_t *mr_jsonl_error_object(const mr_error *error)
{
    return json_pack("{s:s, s:s, s:s}", "code", mr_status_name(error->status), "field",
                     error->field, "message", error->message);
}

static bool set_id(json_t *row, json_t *id)
{
    return id == NULL || json_object_set(row, "id", id) == 0;
}

json_t *mr_jsonl_error_row(json_t *id, const mr_error *error)
{
    json_t *row = json_object();
    if (!set_id(row, id) || !set(row, "index", json_integer(0)) ||
        !set(row, "finish_reason", json_string(mr_finish_name(MR_FINISH_ERROR))) ||
        !set(row, "error", mr_jsonl_error_object(error))) {
        json_decref(row);
        return NULL;
    }
    return row;
}

/* The string or the token that ended it. */
static bool set_matched_stop(json_t *row, const mr_result *result)
{
    const mr_buffer *stop = &result->matched_stop;
    if (stop->size > 0) {
        return set(row, "matched_stop", json_stringn((const char *)stop->data, stop->size));
    }
    return result->matched_token == MR_NO_TOKEN ||
           set(row, "matched_stop", json_integer(result->matched_token));
}

json_t *mr_jsonl_result_row(json_t *id, const mr_result *result)
{
    json_t *row = json_object();
    const mr_ids *ids = &result->token_ids;
    const char *text = result->text.size == 0 ? "" : (const char *)result->text.data;
    bool whole = set_id(row, id) && set(row, "index", json_integer(result->index)) &&
                 set(row, "text", json_stringn(text, result->text.size)) &&
                 set(row, "token_ids", mr_jsonl_ids_array(ids->data, ids->count)) &&
                 set(row, "finish_reason", json_string(mr_finish_name(result->finish))) &&
                 set(row, "seed", json_integer((json_int_t)result->seed)) &&
                 set(row, "prompt_tokens", json_integer(result->prompt_tokens)) &&
                 set(row, "completion_tokens", json_integer((json_int_t)ids->count)) &&
                 set(row, "cached_tokens", json_integer(result->cached_tokens)) &&
                 set_matched_stop(row, result);
    if (whole && result->scored) {
        whole = set(row, "cumulative_logprob",
                    isfinite(result->cumulative_logprob) ? json_real(result->cumulative_logprob)
                                                         : json_null());
    }
    if (whole && result->logprobs) {
        whole = set(row, "logprobs", logprobs_array(result));
    }
    if (whole && result->error.status != MR_OK) {
        whole = set(row, "error", mr_jsonl_error_object(&result->error));
    }
    if (!whole) {
        json_decref(row);
        return NULL;
    }
    return row;
}

mr_status mr_jsonl_write(FILE *file, json_t *row, mr_error *err)
{
    if (row == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a result");
    }
    const int failed =
        json_dumpf(row, file, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    json_decref(row);
    if (failed != 0 || fputc('\n', file) == EOF) {
        return mr_fail(err, MR_INTERNAL, "writing a result: %s", strerror(errno));
    }
    return MR_OK;
}
