/* SPDX-License-Identifier: Apache-2.0 */
#include "service/cli.h"

#include "base/digits.h"
#include "base/log.h"
#include "service/nearest.h"
#include "service/unsupported.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 64

int mr_cli_fail(int exit_status, const mr_error *err)
{
    fprintf(stderr, "millrace: %s\n", err->message);
    return exit_status;
}

int mr_cli_fail_usage(const char *fmt, ...)
{
    mr_error err;
    va_list args;
    va_start(args, fmt);
    char text[MR_ERROR_MESSAGE_MAX];
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)mr_fail(&err, MR_INVALID_ARGUMENT, "%s", text);
    return mr_cli_fail(MR_EXIT_USAGE, &err);
}

int mr_cli_fail_server(const char *server)
{
    return mr_cli_fail_usage("--server %s: write HOST:PORT, like 127.0.0.1:8001, without http://",
                             server);
}

int mr_cli_finish_output(int exit_status)
{
    if ((fflush(stdout) == 0 && ferror(stdout) == 0) || exit_status != MR_EXIT_OK) {
        return exit_status; /* whatever failed has said so */
    }
    fprintf(stderr, "millrace: standard output: %s; free space there, or write elsewhere\n",
            strerror(errno));
    return MR_EXIT_FAILED;
}

static void print_config_line(void *ctx, const char *text)
{
    fprintf(ctx, "  %s\n", text);
}

static void print_lines(const char *title, const char *lines)
{
    if (lines == NULL) {
        return;
    }
    printf("\n%s:\n", title);
    for (const char *at = lines; *at != '\0';) {
        const size_t length = strcspn(at, "\n");
        printf("  %.*s\n", (int)length, at);
        at += length + (at[length] == '\n' ? 1 : 0);
    }
}

static void print_help(const mr_cli_command *command)
{
    printf("usage: millrace %s %s\n\n%s\n\noptions:\n", command->name, command->usage,
           command->about);
    for (size_t i = 0; i < command->n_options; i++) {
        const mr_cli_option *option = &command->options[i];
        char left[NAME_BYTES];
        snprintf(left, sizeof(left), "--%s%s%s", option->name, option->argument == NULL ? "" : " ",
                 option->argument == NULL ? "" : option->argument);
        printf("  %-24s %s\n", left, option->help);
    }
    printf("  %-24s %s\n", "--help", "this text");
    print_lines("examples", command->examples);
    print_lines("common mistakes", command->mistakes);
    if (command->shows_config) {
        printf("\nsettings (--set KEY=VALUE, a line of --config, or MILLRACE_KEY in the "
               "environment):\n");
        mr_config_describe(print_config_line, stdout);
    }
}

static const mr_cli_option *find_option(const mr_cli_command *command, const char *name)
{
    for (size_t i = 0; i < command->n_options; i++) {
        if (strcmp(command->options[i].name, name) == 0) {
            return &command->options[i];
        }
    }
    return NULL;
}

static int fail_unknown(const mr_cli_command *command, const char *name)
{
    char dashed[NAME_BYTES + 2];
    snprintf(dashed, sizeof(dashed), "--%s", name);
    mr_error err;
    if (mr_unsupported_find(MR_SURFACE_CLI, dashed) != NULL) {
        (void)mr_unsupported_fail(MR_SURFACE_CLI, dashed, &err);
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < command->n_options; i++) {
        mr_nearest_offer(&nearest, command->options[i].name);
    }
    if (nearest.best == NULL) {
        return mr_cli_fail_usage("unknown option %s; millrace %s --help lists them", dashed,
                                 command->name);
    }
    return mr_cli_fail_usage("unknown option %s; did you mean --%s?", dashed, nearest.best);
}

static bool parse_counts(const char *text, mr_cli_counts *out)
{
    out->count = 0;
    for (const char *at = text;; at++) {
        const size_t digits = strcspn(at, ",");
        uint64_t value;
        if (out->count == MR_CLI_MAX_LIST || !mr_digits_u64(at, digits, &value) || value == 0 ||
            value > UINT32_MAX) {
            return false;
        }
        out->items[out->count++] = (uint32_t)value;
        at += digits;
        if (*at == '\0') {
            return true;
        }
    }
}

/* Infinities and NaNs are for the check of the value's bounds to refuse. */
static bool parse_float(const char *text, float *out)
{
    char *end;
    *out = strtof(text, &end);
    return end != text && *end == '\0';
}

/* NULL, or what the value should have been. */
static const char *store_value(const mr_cli_option *option, const char *text)
{
    switch (option->kind) {
    case MR_CLI_FLAG:
        *(bool *)option->value = true;
        return NULL;
    case MR_CLI_TEXT:
        *(const char **)option->value = text;
        return NULL;
    case MR_CLI_TEXTS: {
        mr_cli_texts *texts = option->value;
        if (texts->count == MR_CLI_MAX_LIST) {
            return "given at most 64 times";
        }
        texts->items[texts->count++] = text;
        return NULL;
    }
    case MR_CLI_COUNT:
        return mr_digits_u64(text, strlen(text), option->value) ? NULL : "a whole number";
    case MR_CLI_FLOAT:
        return parse_float(text, option->value) ? NULL : "a number";
    case MR_CLI_COUNTS:
        break;
    }
    return parse_counts(text, option->value) ? NULL
                                             : "whole numbers from 1, such as 512,4096 (up to 64)";
}

/* Reads the option at argv[*at], and leaves *at at the last element it used. */
static bool read_option(const mr_cli_command *command, int argc, char **argv, int *at)
{
    const char *word = argv[*at] + 2;
    const char *equals = strchr(word, '=');
    const size_t length = equals == NULL ? strlen(word) : (size_t)(equals - word);
    char name[NAME_BYTES];
    snprintf(name, sizeof(name), "%.*s", (int)(length < INT32_MAX ? length : INT32_MAX), word);
    const mr_cli_option *option = find_option(command, name);
    if (option == NULL) {
        (void)fail_unknown(command, name);
        return false;
    }
    const char *text = equals == NULL ? NULL : equals + 1;
    if (option->kind == MR_CLI_FLAG) {
        if (text != NULL) {
            (void)mr_cli_fail_usage("--%s takes no value", name);
            return false;
        }
    } else if (text == NULL) {
        if (*at + 1 >= argc) {
            (void)mr_cli_fail_usage("--%s needs a value: --%s %s", name, name, option->argument);
            return false;
        }
        text = argv[++*at];
    }
    const char *wanted = store_value(option, text);
    if (wanted != NULL) {
        (void)mr_cli_fail_usage("--%s %s: it must be %s", name, text, wanted);
        return false;
    }
    if (option->given != NULL) {
        *option->given = true;
    }
    return true;
}

static bool take_operand(const mr_cli_command *command, const char *text, mr_cli_texts *operands)
{
    if (command->max_operands == 0 && find_option(command, "model") != NULL) {
        (void)mr_cli_fail_usage("%s: unexpected argument \"%s\"; is it the model? Write --model %s",
                                command->name, text, text);
        return false;
    }
    if (operands->count == command->max_operands) {
        (void)mr_cli_fail_usage("%s: unexpected argument \"%s\"; usage: millrace %s %s",
                                command->name, text, command->name, command->usage);
        return false;
    }
    operands->items[operands->count++] = text;
    return true;
}

static mr_cli_visit_fn visitor;
static void *visitor_ctx;

void mr_cli_set_visitor(mr_cli_visit_fn visit, void *ctx)
{
    visitor = visit;
    visitor_ctx = ctx;
}

mr_cli_outcome mr_cli_parse(const mr_cli_command *command, int argc, char **argv,
                            mr_cli_texts *operands)
{
    operands->count = 0;
    if (visitor != NULL) {
        visitor(visitor_ctx, command);
        return MR_CLI_HELPED;
    }
    bool options_end = false;
    for (int at = 1; at < argc; at++) {
        const char *word = argv[at];
        if (!options_end && strcmp(word, "--") == 0) {
            options_end = true;
        } else if (!options_end && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            print_help(command);
            return MR_CLI_HELPED;
        } else if (!options_end && strncmp(word, "--", 2) == 0) {
            if (!read_option(command, argc, argv, &at)) {
                return MR_CLI_BAD;
            }
        } else if (!options_end && word[0] == '-' && word[1] != '\0') {
            (void)mr_cli_fail_usage("unknown option %s; options are whole words after two dashes, "
                                    "millrace %s --help lists them",
                                    word, command->name);
            return MR_CLI_BAD;
        } else if (!take_operand(command, word, operands)) {
            return MR_CLI_BAD;
        }
    }
    return MR_CLI_RUN;
}

/* The bounds of the two keys are the names here. */
static void apply_log(const mr_config *config)
{
    static const char *const levels[] = {"debug", "info", "warn", "error"};
    for (int i = 0; i < 4; i++) {
        if (strcmp(config->log_level, levels[i]) == 0) {
            mr_log_set_level((mr_log_level)i);
        }
    }
    const bool json = strcmp(config->log_format, "json") == 0;
    mr_log_set_format(json ? MR_LOG_JSON : MR_LOG_LOGFMT);
}

mr_status mr_cli_load_config(const mr_cli_model *model, mr_config *config, mr_error *err)
{
    MR_TRY(mr_config_init(config, err));
    if (model->config_path != NULL) {
        MR_TRY(mr_config_load_file(config, model->config_path, err));
    }
    for (size_t i = 0; i < model->sets.count; i++) {
        MR_TRY(mr_config_set(config, model->sets.items[i], err));
    }
    apply_log(config);
    return MR_OK;
}
