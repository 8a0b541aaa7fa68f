/* SPDX-License-Identifier: Apache-2.0 */
#include "service/jsonl.h"

#include "model/model_internal.h"
#include "service/generation.h"
#include "service/lines.h"
#include "service/unsupported.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny_llama.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SEQ 64

static gguf_writer writer;
static mr_model *model; /* without a tokenizer: ids in, ids out */

static int open_model(void **state)
{
    (void)state;
    gguf_writer_init(&writer);
    tiny_llama_write(&writer, &(tiny_llama){0});
    size_t size;
    const uint8_t *file = gguf_finish(&writer, &size);
    mr_error err = {0};
    if (mr_model_open_memory(file, size, "tiny", &model, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    mr_model_close(model);
    gguf_writer_deinit(&writer);
    return 0;
}

static mr_status read_line(const char *line, mr_jsonl_request *request, mr_error *err)
{
    *err = (mr_error){0};
    return mr_jsonl_read_request(model, MAX_SEQ, line, strlen(line), request, err);
}

static void refused(const char *line, mr_status status, const char *field)
{
    mr_jsonl_request request;
    mr_error err;
    if (read_line(line, &request, &err) != status || strcmp(err.field, field) != 0) {
        fail_msg("%s: %s, field \"%s\": %s", line, mr_status_name(err.status), err.field,
                 err.message);
    }
    mr_jsonl_request_deinit(&request);
}

static void accepted(const char *line)
{
    mr_jsonl_request request;
    mr_error err;
    if (read_line(line, &request, &err) != MR_OK) {
        fail_msg("%s: %s", line, err.message);
    }
    mr_jsonl_request_deinit(&request);
}

static void test_jsonl_reads_every_field(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    const char *line =
        "{\"id\": \"x\", \"prompt_ids\": [1, 2, 3], \"max_tokens\": 9, \"temperature\": 0.1,"
        " \"top_p\": 0.5, \"top_k\": 7, \"min_p\": 0.25, \"seed\": 9007199254740991,"
        " \"min_tokens\": 2, \"ignore_eos\": true, \"repetition_penalty\": 1.5,"
        " \"presence_penalty\": -1, \"frequency_penalty\": 2, \"logprobs\": 3,"
        " \"logprobs_mode\": \"processed\"}";
    assert_int_equal(read_line(line, &r, &err), MR_OK);
    assert_string_equal(json_string_value(r.id), "x");
    assert_int_equal(r.prompt.count, 3);
    assert_int_equal(r.prompt.data[2], 3);
    assert_int_equal(r.params.max_tokens, 9);
    assert_true(r.params.temperature == 0.1f);
    assert_true(r.params.top_p == 0.5f);
    assert_int_equal(r.params.top_k, 7);
    assert_true(r.params.min_p == 0.25f);
    assert_true(r.params.seed == UINT64_C(9007199254740991));
    assert_int_equal(r.params.min_tokens, 2);
    assert_true(r.params.ignore_eos);
    assert_true(r.params.repetition_penalty == 1.5f);
    assert_true(r.params.presence_penalty == -1.0f);
    assert_true(r.params.frequency_penalty == 2.0f);
    assert_true(r.params.logprobs);
    assert_int_equal(r.params.top_logprobs, 3);
    assert_true(r.params.logprobs_processed);
    mr_jsonl_request_deinit(&r);
}

static void test_jsonl_cache_salt_X2(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    char line[512];
    /* U+0000 is a byte like any other: "a" and "a\0b" are two salts. */
    assert_int_equal(read_line("{\"prompt_ids\": [1], \"cache_salt\": \"a\\u0000b\"}", &r, &err),
                     MR_OK);
    assert_int_equal(r.lists.cache_salt.size, 3);
    assert_memory_equal(r.lists.cache_salt.data, "a\0b", 3);
    mr_jsonl_request_deinit(&r);
    assert_int_equal(read_line("{\"prompt_ids\": [1], \"cache_salt\": null}", &r, &err), MR_OK);
    assert_int_equal(r.lists.cache_salt.size, 0);
    mr_jsonl_request_deinit(&r);
    refused("{\"prompt_ids\": [1], \"cache_salt\": 5}", MR_INVALID_ARGUMENT, "cache_salt");
    snprintf(line, sizeof(line), "{\"prompt_ids\": [1], \"cache_salt\": \"%0256d\"}", 7);
    accepted(line);
    snprintf(line, sizeof(line), "{\"prompt_ids\": [1], \"cache_salt\": \"%0257d\"}", 7);
    refused(line, MR_INVALID_ARGUMENT, "cache_salt");
}

static void test_jsonl_defaults_and_null(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    const char *line = "{\"prompt_ids\": [1], \"temperature\": null, \"stop\": null,"
                       " \"prompt\": null, \"logprobs\": null}";
    assert_int_equal(read_line(line, &r, &err), MR_OK);
    assert_null(r.id);
    assert_true(r.params.temperature == 1.0f);
    assert_int_equal(r.params.max_tokens, MAX_SEQ - 1); /* 256, cut to what fits */
    assert_false(r.params.logprobs);
    mr_jsonl_request_deinit(&r);
}

static void test_jsonl_keeps_the_id_of_a_bad_line(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    assert_int_equal(read_line("{\"id\": 7, \"prompt_ids\": []}", &r, &err), MR_INVALID_ARGUMENT);
    assert_int_equal(json_integer_value(r.id), 7);
    mr_jsonl_request_deinit(&r);
}

static void test_jsonl_refuses_bad_values(void **state)
{
    (void)state;
    refused("{", MR_INVALID_ARGUMENT, "");
    refused("[1]", MR_INVALID_ARGUMENT, "");
    refused("{\"prompt_ids\": [1]} x", MR_INVALID_ARGUMENT, "");
    refused("{\"seed\": 1, \"seed\": 2, \"prompt_ids\": [1]}", MR_INVALID_ARGUMENT, "");
    refused("{}", MR_INVALID_ARGUMENT, "prompt");
    refused("{\"prompt_ids\": [1], \"messages\": []}", MR_INVALID_ARGUMENT, "prompt");
    refused("{\"prompt_ids\": [1], \"priority\": 1.5}", MR_INVALID_ARGUMENT, "priority");
    refused("{\"prompt_ids\": [1], \"priority\": -1001}", MR_INVALID_ARGUMENT, "priority");
    refused("{\"prompt_ids\": [1], \"priority\": 1001}", MR_INVALID_ARGUMENT, "priority");
    refused("{\"prompt_ids\": []}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt_ids\": [48]}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt_ids\": [-1]}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt_ids\": [1.0]}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt_ids\": [4294967296]}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt_ids\": 1}", MR_INVALID_ARGUMENT, "prompt_ids");
    refused("{\"prompt\": 1}", MR_INVALID_ARGUMENT, "prompt");
    refused("{\"prompt_ids\": [1], \"max_tokens\": 1.5}", MR_INVALID_ARGUMENT, "max_tokens");
    refused("{\"prompt_ids\": [1], \"max_tokens\": -1}", MR_INVALID_ARGUMENT, "max_tokens");
    refused("{\"prompt_ids\": [1], \"max_tokens\": \"5\"}", MR_INVALID_ARGUMENT, "max_tokens");
    refused("{\"prompt_ids\": [1], \"max_tokens\": 0}", MR_INVALID_ARGUMENT, "max_tokens");
    refused("{\"prompt_ids\": [1], \"temperature\": \"hot\"}", MR_INVALID_ARGUMENT, "temperature");
    refused("{\"prompt_ids\": [1], \"temperature\": 1e39}", MR_INVALID_ARGUMENT, "temperature");
    refused("{\"prompt_ids\": [1], \"ignore_eos\": 1}", MR_INVALID_ARGUMENT, "ignore_eos");
    refused("{\"prompt_ids\": [1], \"logprobs\": 21}", MR_INVALID_ARGUMENT, "logprobs");
    refused("{\"prompt_ids\": [1], \"logprobs\": true}", MR_INVALID_ARGUMENT, "logprobs");
    refused("{\"prompt_ids\": [1], \"logprobs_mode\": \"x\"}", MR_INVALID_ARGUMENT,
            "logprobs_mode");
    refused("{\"messages\": []}", MR_INVALID_ARGUMENT, "messages");
    refused("{\"messages\": [{\"role\": \"user\"}]}", MR_INVALID_ARGUMENT, "messages");
    refused("{\"messages\": [{\"role\": \"user\", \"content\": \"a\", \"name\": \"b\"}]}",
            MR_INVALID_ARGUMENT, "messages");
    refused("{\"prompt\": \"text\"}", MR_FAILED_PRECONDITION, "prompt"); /* no tokenizer */
}

static void test_jsonl_unknown_field_names_the_nearest(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    assert_int_equal(read_line("{\"prompt_ids\": [1], \"temprature\": 1}", &r, &err),
                     MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "temprature");
    assert_non_null(strstr(err.message, "did you mean temperature?"));
    mr_jsonl_request_deinit(&r);
}

/* Every row of the table is refused by name. */
static void test_jsonl_refuses_what_is_not_built(void **state)
{
    (void)state;
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    size_t seen = 0;
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_JSONL) {
            char line[256];
            snprintf(line, sizeof(line), "{\"prompt_ids\": [1], \"%s\": %s}", rows[i].name,
                     rows[i].sample);
            refused(line, MR_UNIMPLEMENTED, rows[i].name);
            seen++;
        }
    }
    assert_true(seen > 0);
}

static void test_jsonl_accepts_what_asks_for_nothing(void **state)
{
    (void)state;
    accepted("{\"prompt_ids\": [1], \"n\": 1, \"stop\": [], \"stop_token_ids\": [],"
             " \"logit_bias\": {}, \"beam_width\": 1, \"length_penalty\": 1.0, \"adapter\": \"\","
             " \"priority\": 0, \"response_format\": {\"type\": \"text\"}, \"time_limit_ms\": 0,"
             " \"include_stop_in_text\": false, \"cache_salt\": \"\"}");
}

/* The tiny model has 48 tokens and no tokenizer. */
static void test_jsonl_reads_lists(void **state)
{
    (void)state;
    mr_jsonl_request r;
    mr_error err;
    const char *line = "{\"prompt_ids\": [1], \"n\": 3, \"beam_width\": 4,"
                       " \"length_penalty\": 0.5, \"time_limit_ms\": 20,"
                       " \"include_stop_in_text\": true, \"priority\": -7,"
                       " \"stop_token_ids\": [2, 47],"
                       " \"logit_bias\": {\"5\": 1.5, \"47\": -100}}";
    assert_int_equal(read_line(line, &r, &err), MR_OK);
    assert_int_equal(r.params.n, 3);
    assert_int_equal(r.params.beam_width, 4);
    assert_true(r.params.length_penalty == 0.5f);
    assert_int_equal(r.params.priority, -7);
    assert_true(r.params.time_limit_ns == 20000000);
    assert_true(r.params.include_stop_in_text);
    mr_request_spec spec = {0};
    mr_generation_lists_fill(&r.lists, &spec);
    assert_int_equal(spec.n_stop_tokens, 2);
    assert_int_equal(spec.stop_tokens[1], 47);
    assert_int_equal(spec.n_bias, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const bool first = spec.bias_tokens[i] == 5;
        assert_true(first || spec.bias_tokens[i] == 47);
        assert_true(spec.bias_values[i] == (first ? 1.5f : -100.0f));
    }
    assert_null(spec.stop);
    mr_jsonl_request_deinit(&r);
}

static void refused_field(const char *field, const char *value, mr_status status)
{
    char line[256];
    snprintf(line, sizeof(line), "{\"prompt_ids\": [1], \"%s\": %s}", field, value);
    refused(line, status, field);
}

static void test_jsonl_D5_refuses_bad_lists(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"n", "0"},
        {"n", "129"},
        {"n", "-1"},
        {"n", "1.5"},
        {"beam_width", "0"},
        {"beam_width", "17"},
        {"length_penalty", "1e39"},
        {"length_penalty", "11"},
        {"length_penalty", "\"1\""},
        {"time_limit_ms", "-1"},
        {"time_limit_ms", "4294967296"},
        {"include_stop_in_text", "1"},
        {"stop", "\"\""},
        {"stop", "[\"a\", \"\"]"},
        {"stop", "[1]"},
        {"stop", "{}"},
        {"stop_token_ids", "[48]"},
        {"stop_token_ids", "[-1]"},
        {"stop_token_ids", "2"},
        {"logit_bias", "{\"48\": 1}"},
        {"logit_bias", "{\"5\": 101}"},
        {"logit_bias", "{\"5\": 1e300}"},
        {"logit_bias", "{\"5\": \"1\"}"},
        {"logit_bias", "{\"\": 1}"},
        {"logit_bias", "{\"-5\": 1}"},
        {"logit_bias", "{\"5x\": 1}"},
        {"logit_bias", "{\"4294967296\": 1}"},
        {"logit_bias", "{\"5\": 1, \"05\": 2}"},
        {"logit_bias", "[5]"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        refused_field(bad[i][0], bad[i][1], MR_INVALID_ARGUMENT);
    }
    refused("{\"prompt_ids\": [1], \"n\": 3, \"beam_width\": 2}", MR_INVALID_ARGUMENT, "n");
    refused_field("stop", "\"END\"", MR_FAILED_PRECONDITION); /* no tokenizer */
}

/* The row as it is written, parsed again. */
static json_t *written(json_t *row)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    mr_error err = {0};
    assert_int_equal(mr_jsonl_write(file, row, &err), MR_OK);
    fclose(file);
    assert_int_equal(text[size - 1], '\n');
    assert_ptr_equal(memchr(text, '\n', size), text + size - 1);
    json_t *parsed = json_loadb(text, size, JSON_ALLOW_NUL, NULL);
    assert_non_null(parsed);
    free(text);
    return parsed;
}

static void test_jsonl_result_row(void **state)
{
    (void)state;
    static const float logprob = -1.00000012f; /* the float32 before -1 */
    mr_result result;
    mr_result_init(&result);
    result.index = 4;
    result.logprobs = true;
    result.scored = true;
    result.cumulative_logprob = -1.5;
    result.finish = MR_FINISH_STOP;
    result.matched_token = 2;
    result.seed = UINT64_C(9007199254740991);
    result.prompt_tokens = 5;
    assert_int_equal(mr_buffer_append(&result.text, "a\0\xE2\x80\xA8", 5), MR_OK); /* U+2028 */
    const mr_result_token token = {
        .id = 2, .logprob = logprob, .n_top = 2, .top = {{2, logprob}, {7, -INFINITY}}};
    assert_int_equal(mr_result_add_token(&result, 2, &token), MR_OK);

    json_t *id = json_string("r");
    json_t *row = written(mr_jsonl_result_row(id, &result));
    json_decref(id);
    assert_string_equal(json_string_value(json_object_get(row, "id")), "r");
    assert_int_equal(json_integer_value(json_object_get(row, "index")), 4);
    assert_true(json_real_value(json_object_get(row, "cumulative_logprob")) == -1.5);
    assert_int_equal(json_string_length(json_object_get(row, "text")), 5);
    assert_string_equal(json_string_value(json_object_get(row, "finish_reason")), "stop");
    assert_int_equal(json_integer_value(json_object_get(row, "matched_stop")), 2);
    assert_true(json_integer_value(json_object_get(row, "seed")) == 9007199254740991);
    assert_int_equal(json_integer_value(json_object_get(row, "prompt_tokens")), 5);
    assert_int_equal(json_integer_value(json_object_get(row, "completion_tokens")), 1);
    assert_int_equal(json_integer_value(json_object_get(row, "cached_tokens")), 0);
    assert_null(json_object_get(row, "error"));
    const json_t *first = json_array_get(json_object_get(row, "logprobs"), 0);
    assert_true((float)json_real_value(json_object_get(first, "logprob")) == logprob);
    /* L2: what is not finite is absent, explicitly. */
    const json_t *second = json_array_get(json_object_get(first, "top"), 1);
    assert_int_equal(json_integer_value(json_object_get(second, "id")), 7);
    assert_true(json_is_null(json_object_get(second, "logprob")));
    json_decref(row);
    mr_result_deinit(&result);
}

static void test_jsonl_matched_stop_is_the_string(void **state)
{
    (void)state;
    mr_result result;
    mr_result_init(&result);
    result.finish = MR_FINISH_STOP;
    assert_int_equal(mr_buffer_append(&result.matched_stop, "a\0b", 3), MR_OK);
    json_t *row = written(mr_jsonl_result_row(NULL, &result));
    const json_t *stop = json_object_get(row, "matched_stop");
    assert_int_equal(json_string_length(stop), 3);
    assert_memory_equal(json_string_value(stop), "a\0b", 3);
    assert_null(json_object_get(row, "cumulative_logprob"));
    json_decref(row);
    mr_result_deinit(&result);
}

static void test_jsonl_error_row(void **state)
{
    (void)state;
    mr_error err;
    (void)mr_fail_field(&err, MR_INVALID_ARGUMENT, "top_p", "top_p is 2");
    json_t *row = written(mr_jsonl_error_row(NULL, &err));
    assert_null(json_object_get(row, "id"));
    assert_string_equal(json_string_value(json_object_get(row, "finish_reason")), "error");
    const json_t *error = json_object_get(row, "error");
    assert_string_equal(json_string_value(json_object_get(error, "code")), "INVALID_ARGUMENT");
    assert_string_equal(json_string_value(json_object_get(error, "field")), "top_p");
    assert_string_equal(json_string_value(json_object_get(error, "message")), "top_p is 2");
    json_decref(row);
}

/* Reads until the next line or the end. */
static mr_line_kind next_line(mr_lines *lines, const char **text, size_t *bytes)
{
    for (;;) {
        const mr_line_kind kind = mr_lines_next(lines, text, bytes);
        if (kind != MR_LINE_WANTING) {
            return kind;
        }
        assert_int_equal(mr_lines_read(lines, NULL), MR_OK);
    }
}

static void test_lines_of_any_length(void **state)
{
    (void)state;
    FILE *file = tmpfile();
    fputs("one\n\n \r\ntwo\n", file);
    char *block = malloc(MR_LINE_MAX_BYTES);
    memset(block, 'x', MR_LINE_MAX_BYTES);
    fwrite(block, 1, MR_LINE_MAX_BYTES, file); /* as long as may be */
    fputs("\n", file);
    fwrite(block, 1, MR_LINE_MAX_BYTES, file);
    fputs("y\nlast", file);
    free(block);
    fflush(file);
    assert_int_equal(lseek(fileno(file), 0, SEEK_SET), 0);

    mr_lines lines;
    mr_lines_init(&lines, fileno(file));
    const char *text;
    size_t bytes;
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(bytes, 3);
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_memory_equal(text, "two", 3);
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(bytes, MR_LINE_MAX_BYTES);
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_TOO_LONG);
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_WHOLE);
    assert_int_equal(bytes, 4);
    assert_memory_equal(text, "last", 4);
    assert_int_equal(next_line(&lines, &text, &bytes), MR_LINE_END);
    mr_lines_deinit(&lines);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jsonl_reads_every_field),
        cmocka_unit_test(test_jsonl_cache_salt_X2),
        cmocka_unit_test(test_jsonl_defaults_and_null),
        cmocka_unit_test(test_jsonl_keeps_the_id_of_a_bad_line),
        cmocka_unit_test(test_jsonl_refuses_bad_values),
        cmocka_unit_test(test_jsonl_unknown_field_names_the_nearest),
        cmocka_unit_test(test_jsonl_refuses_what_is_not_built),
        cmocka_unit_test(test_jsonl_accepts_what_asks_for_nothing),
        cmocka_unit_test(test_jsonl_reads_lists),
        cmocka_unit_test(test_jsonl_D5_refuses_bad_lists),
        cmocka_unit_test(test_jsonl_result_row),
        cmocka_unit_test(test_jsonl_matched_stop_is_the_string),
        cmocka_unit_test(test_jsonl_error_row),
        cmocka_unit_test(test_lines_of_any_length),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
