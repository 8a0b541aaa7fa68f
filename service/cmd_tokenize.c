/* SPDX-License-Identifier: Apache-2.0 */
#include "base/utf8.h"
#include "service/commands.h"
#include "service/jsonl.h"
#include "service/lines.h"
#include "service/nearest.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

typedef struct tokenize_options {
    mr_cli_model model;
    bool jsonl;
    bool decode;
    bool chat;
} tokenize_options;

static mr_status fail_field_type(const char *name, const char *wanted, mr_error *err)
{
    return mr_fail_field(err, MR_INVALID_ARGUMENT, name, "%s must be %s", name, wanted);
}

/* Only the names in `known` (NULL-terminated) may be there. */
static mr_status check_names(json_t *line, const char *const *known, mr_error *err)
{
    const char *name;
    json_t *value;
    json_object_foreach(line, name, value)
    {
        mr_nearest nearest;
        mr_nearest_init(&nearest, name);
        bool found = false;
        for (size_t i = 0; known[i] != NULL; i++) {
            found = found || strcmp(known[i], name) == 0;
            mr_nearest_offer(&nearest, known[i]);
        }
        if (!found) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, name, "unknown field %s; a line has %s",
                                 name, nearest.best != NULL ? nearest.best : known[0]);
        }
    }
    return MR_OK;
}

static mr_status read_flag(const json_t *line, const char *name, bool *flag, mr_error *err)
{
    const json_t *value = json_object_get(line, name);
    if (value == NULL) {
        return MR_OK;
    }
    if (!json_is_boolean(value)) {
        return fail_field_type(name, "true or false", err);
    }
    *flag = json_is_true(value);
    return MR_OK;
}

static mr_status encode(const mr_model *model, json_t *line, json_t **row, mr_error *err)
{
    static const char *const names[] = {"text", "add_special", "parse_special", "id", NULL};
    MR_TRY(check_names(line, names, err));
    mr_encode_options options = {.parse_special = true};
    MR_TRY(read_flag(line, "add_special", &options.add_special, err));
    MR_TRY(read_flag(line, "parse_special", &options.parse_special, err));
    const json_t *text = json_object_get(line, "text");
    if (!json_is_string(text)) {
        return fail_field_type("text", "a string", err);
    }
    mr_ids ids = {0};
    const mr_status status = mr_tokenizer_encode(mr_model_tokenizer(model), json_string_value(text),
                                                 json_string_length(text), &options, &ids, err);
    if (status == MR_OK) {
        *row = json_pack("{s:o}", "ids", mr_jsonl_ids_array(ids.data, ids.count));
    }
    mr_ids_deinit(&ids);
    return status;
}

static json_t *text_value(const mr_buffer *text)
{
    return json_stringn(text->size == 0 ? "" : (const char *)text->data, text->size);
}

/* The other way round: special tokens become their text, so that encode gives the ids again. */
static mr_status decode(const mr_model *model, json_t *line, json_t **row, mr_error *err)
{
    static const char *const names[] = {"ids", "keep_special_tokens", "id", NULL};
    MR_TRY(check_names(line, names, err));
    bool keep = true;
    MR_TRY(read_flag(line, "keep_special_tokens", &keep, err));
    mr_ids ids = {0};
    mr_buffer bytes = {0};
    mr_buffer text = {0};
    mr_status status = mr_jsonl_ids(json_object_get(line, "ids"), "ids", &ids, err);
    if (status == MR_OK) {
        status =
            mr_tokenizer_decode(mr_model_tokenizer(model), ids.data, ids.count, keep, &bytes, err);
    }
    if (status == MR_OK) {
        status = mr_utf8_append_lossy(&text, bytes.data, bytes.size);
        *row = status == MR_OK ? json_pack("{s:o}", "text", text_value(&text)) : NULL;
    }
    mr_ids_deinit(&ids);
    mr_buffer_deinit(&bytes);
    mr_buffer_deinit(&text);
    return status;
}

static mr_status render(const mr_model *model, json_t *line, json_t **row, mr_error *err)
{
    static const char *const names[] = {"messages", "id", NULL};
    MR_TRY(check_names(line, names, err));
    mr_ids ids = {0};
    mr_buffer text = {0};
    const mr_status status =
        mr_jsonl_messages(model, json_object_get(line, "messages"), &ids, &text, err);
    if (status == MR_OK) {
        *row = json_pack("{s:o, s:o}", "text", text_value(&text), "ids",
                         mr_jsonl_ids_array(ids.data, ids.count));
    }
    mr_ids_deinit(&ids);
    mr_buffer_deinit(&text);
    return status;
}

static mr_status convert(const tokenize_options *options, const mr_model *model, json_t *line,
                         json_t **row, mr_error *err)
{
    if (options->decode) {
        return decode(model, line, row, err);
    }
    return options->chat ? render(model, line, row, err) : encode(model, line, row, err);
}

static mr_status write_row(json_t *row, json_t *id, mr_error *err)
{
    if (row != NULL && id != NULL && json_object_set(row, "id", id) != 0) {
        json_decref(row);
        row = NULL;
    }
    return mr_jsonl_write(stdout, row, err);
}

static json_t *error_row(const mr_error *problem)
{
    return json_pack("{s:o}", "error", mr_jsonl_error_object(problem));
}

/* Writes the row of one line. *failed tells an error row. */
static mr_status convert_line(const tokenize_options *options, const mr_model *model, mr_bytes text,
                              uint64_t number, bool *failed, mr_error *err)
{
    mr_error problem = {0};
    json_t *line = NULL;
    json_t *row = NULL;
    mr_status status = mr_jsonl_parse((const char *)text.data, text.size, &line, &problem);
    if (status == MR_OK) {
        status = convert(options, model, line, &row, &problem);
    }
    *failed = status != MR_OK;
    if (*failed) {
        (void)mr_fail_context(&problem, "line %" PRIu64, number);
        row = error_row(&problem);
    }
    status = write_row(row, json_object_get(line, "id"), err);
    json_decref(line);
    return status;
}

static mr_status convert_lines(const tokenize_options *options, const mr_model *model,
                               mr_lines *lines, bool *any_failed, mr_error *err)
{
    for (;;) {
        const char *text;
        size_t bytes;
        bool failed = true;
        switch (mr_lines_next(lines, &text, &bytes)) {
        case MR_LINE_END:
            return MR_OK;
        case MR_LINE_WANTING:
            /* Whoever waits for answers before the next line gets them. */
            fflush(stdout);
            MR_TRY(mr_lines_read(lines, err));
            continue;
        case MR_LINE_WHOLE:
            MR_TRY(convert_line(options, model, (mr_bytes){(const uint8_t *)text, bytes},
                                lines->number, &failed, err));
            break;
        case MR_LINE_TOO_LONG: {
            mr_error problem;
            (void)mr_fail(&problem, MR_INVALID_ARGUMENT,
                          "line %" PRIu64 " is longer than %zu bytes", lines->number,
                          MR_LINE_MAX_BYTES);
            MR_TRY(write_row(error_row(&problem), NULL, err));
            break;
        }
        }
        *any_failed = *any_failed || failed;
    }
}

static int run(const tokenize_options *options)
{
    mr_model *model;
    const int opened = mr_command_open_text(&options->model, &model);
    if (opened != MR_EXIT_OK) {
        return opened;
    }
    mr_error err = {0};
    mr_status status = MR_OK;
    bool any_failed = false;
    if (mr_model_tokenizer(model) == NULL) {
        status = mr_fail(&err, MR_FAILED_PRECONDITION, "%s: the model has no tokenizer",
                         options->model.path);
    } else {
        mr_lines lines;
        mr_lines_init(&lines, STDIN_FILENO);
        status = convert_lines(options, model, &lines, &any_failed, &err);
        mr_lines_deinit(&lines);
    }
    mr_model_close(model);
    if (status != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return any_failed ? MR_EXIT_FAILED : MR_EXIT_OK;
}

int mr_cmd_tokenize(int argc, char **argv)
{
    tokenize_options o = {0};
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&o.model),
        {"jsonl", MR_CLI_FLAG, &o.jsonl, NULL, NULL, "read and write JSON lines (the only form)"},
        {"decode", MR_CLI_FLAG, &o.decode, NULL, NULL, "ids to text"},
        {"chat", MR_CLI_FLAG, &o.chat, NULL, NULL, "messages to text and ids"},
    };
    const mr_cli_command command = {
        .name = "tokenize",
        .usage = "--model PATH --jsonl [--decode | --chat] < LINES",
        .about = "{\"text\": …} to {\"ids\": […]}; with --decode {\"ids\": […]} to {\"text\": …};\n"
                 "with --chat {\"messages\": [{\"role\", \"content\"}]} to {\"text\", \"ids\"}. A "
                 "line may also hold\nadd_special (false), parse_special (true) or, to decode, "
                 "keep_special_tokens (true).",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples =
            "echo '{\"text\": \"Hello world\"}' | millrace tokenize --model model.gguf --jsonl\n"
            "echo '{\"ids\": [19556, 905]}' | millrace tokenize --model model.gguf --jsonl "
            "--decode\n"
            "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | millrace "
            "tokenize --model model.gguf --jsonl --chat\n",
        .mistakes = "Plain text on standard input is no JSON: a line is {\"text\": \"…\"}.\n"
                    "The beginning-of-text token is missing: \"add_special\": true adds what the "
                    "model was made with.\n",
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    if (o.model.path == NULL) {
        return mr_cli_fail_usage("tokenize: --model PATH is missing");
    }
    if (!o.jsonl || (o.decode && o.chat)) {
        return mr_cli_fail_usage("tokenize: give --jsonl, and at most one of --decode and --chat");
    }
    return run(&o);
}
