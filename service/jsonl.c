/* SPDX-License-Identifier: Apache-2.0 */
#include "service/jsonl.h"

#include "base/checked.h"
#include "service/nearest.h"
#include "service/prompt.h"
#include "service/unsupported.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

mr_status mr_jsonl_parse(const char *line, size_t bytes, json_t **out, mr_error *err)
{
    json_error_t problem;
    json_t *value = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &problem);
    if (value == NULL) {
        return mr_fail(err, MR_INVALID_ARGUMENT, "not JSON: %s, at byte %d", problem.text,
                       problem.position);
    }
    if (!json_is_object(value)) {
        json_decref(value);
        return mr_fail(err, MR_INVALID_ARGUMENT, "a line must hold a JSON object");
    }
    *out = value;
    return MR_OK;
}

static mr_status fail_type(const char *field, const char *wanted, mr_error *err)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, field, "%s must be %s", field, wanted);
}

mr_status mr_jsonl_ids(const json_t *value, const char *field, mr_ids *out, mr_error *err)
{
    if (!json_is_array(value)) {
        return fail_type(field, "a list of token ids", err);
    }
    const size_t count = json_array_size(value);
    if (mr_ids_reserve(out, count) != MR_OK) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %zu ids", count);
    }
    for (size_t i = 0; i < count; i++) {
        const json_t *item = json_array_get(value, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > UINT32_MAX) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                                 "%s: entry %zu is no token id, a whole number from 0", field, i);
        }
        MR_TRY(mr_ids_push(out, (uint32_t)id));
    }
    return MR_OK;
}

json_t *mr_jsonl_ids_array(const uint32_t *ids, size_t count)
{
    json_t *array = json_array();
    for (size_t i = 0; i < count && array != NULL; i++) {
        if (json_array_append_new(array, json_integer(ids[i])) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

static mr_bytes string_bytes(const json_t *value)
{
    return (mr_bytes){(const uint8_t *)json_string_value(value), json_string_length(value)};
}

static mr_status read_message(const json_t *value, size_t index, mr_chat_message *out,
                              mr_error *err)
{
    static const char *const names[] = {"role", "content"};
    mr_bytes *const places[] = {&out->role, &out->content};
    if (!json_is_object(value)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "messages",
                             "messages[%zu] must be an object with role and content", index);
    }
    for (size_t i = 0; i < 2; i++) {
        const json_t *text = json_object_get(value, names[i]);
        if (!json_is_string(text)) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "messages",
                                 "messages[%zu].%s must be a string", index, names[i]);
        }
        *places[i] = string_bytes(text);
    }
    if (json_object_size(value) == 2) {
        return MR_OK;
    }
    const char *key;
    json_t *unused;
    json_object_foreach((json_t *)value, key, unused)
    {
        if (strcmp(key, names[0]) != 0 && strcmp(key, names[1]) != 0) {
            break;
        }
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, "messages",
                         "messages[%zu].%s is not known: a message has role and content", index,
                         key);
}

mr_status mr_jsonl_messages(const mr_model *model, const json_t *messages, mr_ids *out,
                            mr_buffer *rendered, mr_error *err)
{
    const size_t count = json_array_size(messages);
    if (!json_is_array(messages) || count == 0) {
        return fail_type("messages", "a list of at least one message", err);
    }
    mr_chat_message *chat = mr_calloc(count, sizeof(*chat));
    if (chat == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %zu messages", count);
    }
    mr_status status = MR_OK;
    for (size_t i = 0; i < count; i++) {
        MR_TRY_CLEANUP(status, read_message(json_array_get(messages, i), i, &chat[i], err));
    }
    status = mr_prompt_from_chat(model, chat, count, out, rendered, err);

cleanup:
    free(chat);
    return status;
}

typedef enum value_kind {
    VALUE_FLOAT,
    VALUE_COUNT,
    VALUE_SIGNED,
    VALUE_FLAG,
    VALUE_MODE,
    VALUE_HANDLED, /* id, the prompt and lists: read apart from the rest */
} value_kind;

typedef struct ask_field {
    const char *name;
    value_kind kind;
    size_t value; /* offsets in mr_generation_ask */
    size_t has;   /* of the flag that says it was given */
} ask_field;

#define NO_FLAG     SIZE_MAX
#define PLACE(name) offsetof(mr_generation_ask, name)

static const ask_field ask_fields[] = {
    {"id", VALUE_HANDLED, 0, NO_FLAG},
    {"prompt", VALUE_HANDLED, 0, NO_FLAG},
    {"prompt_ids", VALUE_HANDLED, 0, NO_FLAG},
    {"messages", VALUE_HANDLED, 0, NO_FLAG},
    {"stop", VALUE_HANDLED, 0, NO_FLAG},
    {"stop_token_ids", VALUE_HANDLED, 0, NO_FLAG},
    {"logit_bias", VALUE_HANDLED, 0, NO_FLAG},
    {"cache_salt", VALUE_HANDLED, 0, NO_FLAG},
    {"max_tokens", VALUE_COUNT, PLACE(max_tokens), PLACE(has_max_tokens)},
    {"min_tokens", VALUE_COUNT, PLACE(min_tokens), NO_FLAG},
    {"temperature", VALUE_FLOAT, PLACE(temperature), PLACE(has_temperature)},
    {"top_p", VALUE_FLOAT, PLACE(top_p), PLACE(has_top_p)},
    {"top_k", VALUE_COUNT, PLACE(top_k), PLACE(has_top_k)},
    {"min_p", VALUE_FLOAT, PLACE(min_p), PLACE(has_min_p)},
    {"seed", VALUE_COUNT, PLACE(seed), PLACE(has_seed)},
    {"ignore_eos", VALUE_FLAG, PLACE(ignore_eos), NO_FLAG},
    {"repetition_penalty", VALUE_FLOAT, PLACE(repetition_penalty), PLACE(has_repetition_penalty)},
    {"presence_penalty", VALUE_FLOAT, PLACE(presence_penalty), NO_FLAG},
    {"frequency_penalty", VALUE_FLOAT, PLACE(frequency_penalty), NO_FLAG},
    {"n", VALUE_COUNT, PLACE(n), PLACE(has_n)},
    {"beam_width", VALUE_COUNT, PLACE(beam_width), PLACE(has_beam_width)},
    {"length_penalty", VALUE_FLOAT, PLACE(length_penalty), PLACE(has_length_penalty)},
    {"time_limit_ms", VALUE_COUNT, PLACE(time_limit_ms), NO_FLAG},
    {"priority", VALUE_SIGNED, PLACE(priority), NO_FLAG},
    {"include_stop_in_text", VALUE_FLAG, PLACE(include_stop_in_text), NO_FLAG},
    {"logprobs", VALUE_COUNT, PLACE(top_logprobs), PLACE(logprobs)},
    {"logprobs_mode", VALUE_MODE, PLACE(logprobs_processed), NO_FLAG},
};

#define ASK_FIELD_COUNT (sizeof(ask_fields) / sizeof(ask_fields[0]))

static mr_status store_field(const ask_field *field, const json_t *value, mr_generation_ask *ask,
                             mr_error *err)
{
    uint8_t *place = (uint8_t *)ask + field->value;
    if (field->kind == VALUE_FLOAT) {
        if (!json_is_number(value)) {
            return fail_type(field->name, "a number", err);
        }
        const double wide = json_number_value(value);
        const float number = fabs(wide) <= (double)FLT_MAX ? (float)wide : (float)INFINITY;
        memcpy(place, &number, sizeof(number));
    } else if (field->kind == VALUE_COUNT) {
        if (!json_is_integer(value) || json_integer_value(value) < 0) {
            return fail_type(field->name, "a whole number from 0", err);
        }
        const uint64_t number = (uint64_t)json_integer_value(value);
        memcpy(place, &number, sizeof(number));
    } else if (field->kind == VALUE_SIGNED) {
        if (!json_is_integer(value)) {
            return fail_type(field->name, "a whole number", err);
        }
        const int64_t number = json_integer_value(value);
        memcpy(place, &number, sizeof(number));
    } else if (field->kind == VALUE_FLAG) {
        if (!json_is_boolean(value)) {
            return fail_type(field->name, "true or false", err);
        }
        const bool flag = json_is_true(value);
        memcpy(place, &flag, sizeof(flag));
    } else {
        const char *mode = json_is_string(value) ? json_string_value(value) : "";
        const bool processed = strcasecmp(mode, "processed") == 0;
        if (!processed && strcasecmp(mode, "raw") != 0) {
            return fail_type(field->name, "\"raw\" or \"processed\"", err);
        }
        memcpy(place, &processed, sizeof(processed));
    }
    if (field->has != NO_FLAG) {
        const bool given = true;
        memcpy((uint8_t *)ask + field->has, &given, sizeof(given));
    }
    return MR_OK;
}

/* Values of fields this build does not have that state what happens without them. */
static bool asks_nothing(const char *name, const json_t *value)
{
    static const struct {
        const char *name;
        const char *value;
    } silent[] = {
        {"adapter", "\"\""},
        {"response_format", "{\"type\": \"text\"}"},
    };
    bool found = false;
    for (size_t i = 0; i < sizeof(silent) / sizeof(silent[0]) && !found; i++) {
        if (strcmp(silent[i].name, name) == 0) {
            json_t *off = json_loads(silent[i].value, JSON_DECODE_ANY, NULL);
            found = off != NULL && json_equal(value, off) == 1;
            json_decref(off);
        }
    }
    return found;
}

static mr_status refuse_field(const char *name, const json_t *value, mr_error *err)
{
    if (mr_unsupported_find(MR_SURFACE_JSONL, name) != NULL) {
        return json_is_null(value) || asks_nothing(name, value)
                   ? MR_OK
                   : mr_unsupported_fail(MR_SURFACE_JSONL, name, err);
    }
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < ASK_FIELD_COUNT; i++) {
        mr_nearest_offer(&nearest, ask_fields[i].name);
    }
    if (nearest.best == NULL) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, name, "unknown field %s", name);
    }
    return mr_fail_field(err, MR_INVALID_ARGUMENT, name, "unknown field %s; did you mean %s?", name,
                         nearest.best);
}

static mr_status read_fields(json_t *object, mr_generation_ask *ask, mr_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        const ask_field *field = NULL;
        for (size_t i = 0; i < ASK_FIELD_COUNT && field == NULL; i++) {
            field = strcmp(ask_fields[i].name, name) == 0 ? &ask_fields[i] : NULL;
        }
        if (field == NULL) {
            MR_TRY(refuse_field(name, value, err));
        } else if (field->kind != VALUE_HANDLED && !json_is_null(value)) {
            MR_TRY(store_field(field, value, ask, err));
        }
    }
    return MR_OK;
}

/* The value of `name`, NULL if it is absent or null. */
static const json_t *get_given(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static mr_status read_prompt(const mr_model *model, const json_t *object, mr_ids *out,
                             const char **field, mr_error *err)
{
    const json_t *text = get_given(object, "prompt");
    const json_t *ids = get_given(object, "prompt_ids");
    const json_t *messages = get_given(object, "messages");
    if ((text != NULL) + (ids != NULL) + (messages != NULL) != 1) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "prompt",
                             "give one of prompt, prompt_ids and messages");
    }
    if (ids != NULL) {
        *field = "prompt_ids";
        return mr_jsonl_ids(ids, *field, out, err);
    }
    if (messages != NULL) {
        *field = "messages";
        return mr_jsonl_messages(model, messages, out, NULL, err);
    }
    *field = "prompt";
    if (!json_is_string(text)) {
        return fail_type(*field, "a string", err);
    }
    return mr_prompt_from_text(model, string_bytes(text), *field, out, err);
}

static mr_status out_of_lists(mr_error *err)
{
    return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the lists of a request");
}

static mr_status add_stop(const json_t *value, mr_generation_lists *out, mr_error *err)
{
    if (!json_is_string(value)) {
        return fail_type("stop", "a string or a list of strings", err);
    }
    const mr_stop_string string = {json_string_value(value), json_string_length(value)};
    return mr_generation_lists_stop(out, string) == MR_OK ? MR_OK : out_of_lists(err);
}

static mr_status read_stop(const json_t *value, mr_generation_lists *out, mr_error *err)
{
    if (!json_is_array(value)) {
        return add_stop(value, out, err);
    }
    for (size_t i = 0; i < json_array_size(value); i++) {
        MR_TRY(add_stop(json_array_get(value, i), out, err));
    }
    return MR_OK;
}

/* Decimal digits alone, below 2^32. */
static bool read_id(const char *text, uint32_t *id)
{
    uint64_t value = 0;
    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || value > UINT32_MAX) {
            return false;
        }
        value = value * 10 + (uint64_t)(*at - '0');
    }
    *id = (uint32_t)value;
    return text[0] != '\0' && value <= UINT32_MAX;
}

static mr_status read_bias(json_t *value, mr_generation_lists *out, mr_error *err)
{
    static const char name[] = "logit_bias";
    if (!json_is_object(value)) {
        return fail_type(name, "an object of token ids and numbers, as in {\"5\": 1.5}", err);
    }
    const char *key;
    json_t *bias;
    json_object_foreach(value, key, bias)
    {
        uint32_t id;
        if (!read_id(key, &id) || !json_is_number(bias)) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, name,
                                 "%s: entry \"%.64s\" must be a token id and a number", name, key);
        }
        /* What float32 does not hold is out of bounds as well. */
        const double wide = json_number_value(bias);
        const float number = fabs(wide) <= (double)FLT_MAX ? (float)wide : (float)INFINITY;
        if (mr_generation_lists_bias(out, id, number) != MR_OK) {
            return out_of_lists(err);
        }
    }
    return MR_OK;
}

static mr_status read_lists(json_t *object, mr_generation_lists *out, mr_error *err)
{
    const json_t *stop = get_given(object, "stop");
    if (stop != NULL) {
        MR_TRY(read_stop(stop, out, err));
    }
    const json_t *ids = get_given(object, "stop_token_ids");
    if (ids != NULL) {
        MR_TRY(mr_jsonl_ids(ids, "stop_token_ids", &out->stop_tokens, err));
    }
    const json_t *salt = get_given(object, "cache_salt");
    if (salt != NULL && !json_is_string(salt)) {
        return fail_type("cache_salt", "a string", err);
    }
    if (salt != NULL &&
        mr_generation_lists_salt(out, json_string_value(salt), json_string_length(salt)) != MR_OK) {
        return out_of_lists(err);
    }
    json_t *bias = json_object_get(object, "logit_bias");
    return bias == NULL || json_is_null(bias) ? MR_OK : read_bias(bias, out, err);
}

static mr_status read_object(const mr_model *model, uint32_t max_seq_length, json_t *object,
                             mr_jsonl_request *out, mr_error *err)
{
    mr_generation_ask ask = {0};
    MR_TRY(read_fields(object, &ask, err));
    MR_TRY(read_lists(object, &out->lists, err));
    mr_generation_lists_view(&out->lists, &ask);
    MR_TRY(mr_generation_check(&ask, MR_SURFACE_JSONL, &out->params, err));
    MR_TRY(mr_generation_check_model(&ask, MR_SURFACE_JSONL, model, err));
    mr_generation_fill_defaults(&ask, model, &out->params);
    MR_TRY(mr_generation_lists_make_stop(&out->lists, err));
    const char *field = NULL;
    MR_TRY(read_prompt(model, object, &out->prompt, &field, err));
    return mr_generation_check_prompt(&out->prompt, mr_model_config_get(model)->vocab_size,
                                      max_seq_length, field, &out->params, err);
}

mr_status mr_jsonl_read_request(const mr_model *model, uint32_t max_seq_length, const char *line,
                                size_t bytes, mr_jsonl_request *out, mr_error *err)
{
    *out = (mr_jsonl_request){0};
    json_t *object = NULL;
    MR_TRY(mr_jsonl_parse(line, bytes, &object, err));
    out->id = json_incref(json_object_get(object, "id"));
    const mr_status status = read_object(model, max_seq_length, object, out, err);
    json_decref(object);
    return status;
}

void mr_jsonl_request_deinit(mr_jsonl_request *request)
{
    json_decref(request->id);
    mr_ids_deinit(&request->prompt);
    mr_generation_lists_deinit(&request->lists);
}
