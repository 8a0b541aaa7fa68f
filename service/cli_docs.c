/* SPDX-License-Identifier: Apache-2.0 */
#include "service/cli_docs.h"

#include <string.h>

void mr_cli_catalogue_visit(const mr_cli_catalogue *catalogue, mr_cli_visit_fn visit, void *ctx)
{
    mr_cli_set_visitor(visit, ctx);
    for (size_t i = 0; i < catalogue->count; i++) {
        const mr_cli_entry *entry = &catalogue->entries[i];
        char *words[] = {(char *)entry->name, NULL, NULL};
        if (entry->parts[0] == NULL) {
            (void)entry->run(1, words);
        }
        for (size_t p = 0; p < MR_CLI_MAX_PARTS && entry->parts[p] != NULL; p++) {
            words[1] = (char *)entry->parts[p];
            (void)entry->run(2, words);
        }
    }
    mr_cli_set_visitor(NULL, NULL);
}

static void print_man_text(const char *text)
{
    bool line_begins = true;
    for (; *text != '\0'; text++) {
        if (line_begins && (*text == '.' || *text == '\'')) {
            fputs("\\&", stdout);
        }
        if (*text == '\\') {
            fputs("\\e", stdout);
        } else if (*text == '-') {
            fputs("\\-", stdout);
        } else {
            putchar(*text);
        }
        line_begins = *text == '\n';
    }
}

static void print_man_setting(void *ctx, const char *text)
{
    (void)ctx;
    const char *colon = strstr(text, "): ");
    char head[512];
    snprintf(head, sizeof(head), "%.*s", (int)(colon == NULL ? 0 : colon + 1 - text), text);
    fputs(".TP\n", stdout);
    print_man_text(head);
    putchar('\n');
    print_man_text(colon == NULL ? text : colon + 3);
    putchar('\n');
}

static void print_man_block(const char *title, const char *text)
{
    if (text != NULL) {
        printf(".PP\n%s\n.PP\n.nf\n", title);
        print_man_text(text);
        fputs(".fi\n", stdout);
    }
}

static void print_man_command(void *ctx, const mr_cli_command *command)
{
    (void)ctx;
    printf(".SS \"millrace %s\"\n.B millrace %s\n", command->name, command->name);
    print_man_text(command->usage);
    fputs("\n.PP\n", stdout);
    print_man_text(command->about);
    putchar('\n');
    for (size_t i = 0; i < command->n_options; i++) {
        const mr_cli_option *option = &command->options[i];
        fputs(".TP\n.B ", stdout);
        print_man_text("--");
        print_man_text(option->name);
        if (option->argument != NULL) {
            putchar(' ');
            print_man_text(option->argument);
        }
        putchar('\n');
        print_man_text(option->help);
        putchar('\n');
    }
    print_man_block("Examples:", command->examples);
    print_man_block("Common mistakes:", command->mistakes);
}

void mr_cli_print_man(const mr_cli_catalogue *catalogue)
{
    fputs(".\\\" SPDX-License-Identifier: Apache-2.0\n"
          ".\\\" Written by \"millrace man\" from the option tables; change those.\n"
          ".TH MILLRACE 1 \"\" \"\" \"millrace\"\n"
          ".SH NAME\nmillrace \\- serve large language models over gRPC\n"
          ".SH SYNOPSIS\n.B millrace\nCOMMAND [OPTION]...\n"
          ".SH DESCRIPTION\n"
          "One program serves a model, runs it here, and measures both. Every command answers\n"
          ".B \\-\\-help\nwith its options, examples and common mistakes.\n.SH COMMANDS\n",
          stdout);
    mr_cli_catalogue_visit(catalogue, print_man_command, NULL);
    fputs(
        ".SH SETTINGS\n"
        "For\n.B \\-\\-set KEY=VALUE,\na line \"KEY: VALUE\" of\n.B \\-\\-config FILE,\n"
        "or the environment: the key in capitals after MILLRACE_, dots as underscores. The order\n"
        "is defaults, file, environment, \\-\\-set; the later one wins.\n",
        stdout);
    mr_config_describe(print_man_setting, NULL);
    fputs(".SH EXIT STATUS\n"
          ".TP\n0\nall well\n"
          ".TP\n1\nit ran and failed; one line on standard error says what, where and the way out\n"
          ".TP\n2\nit could not have worked as it was asked for: usage, settings\n"
          ".TP\n3\nit served and the device failed: start it again\n"
          ".SH SIGNALS\n"
          "SIGTERM and SIGINT end a server in order: running streams have 30 seconds. A second\n"
          "signal ends it at once.\n",
          stdout);
}
