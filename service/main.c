/* SPDX-License-Identifier: Apache-2.0 */
#include "service/build_info.h"
#include "service/cli_docs.h"
#include "service/commands.h"
#include "service/nearest.h"
#include "service/unsupported.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int run_completion(int argc, char **argv);
static int run_man(int argc, char **argv);

static const mr_cli_entry commands[] = {
    {"serve", mr_cmd_serve, "serve a model over gRPC", {NULL}},
    {"generate",
     mr_cmd_generate,
     "generate text, here or on a server; batches of JSON lines",
     {NULL}},
    {"tokenize", mr_cmd_tokenize, "text to token ids, and back", {NULL}},
    {"score", mr_cmd_score, "perplexity of a text", {NULL}},
    {"inspect", mr_cmd_inspect, "what a model file holds", {NULL}},
    {"config", mr_cmd_config, "check settings, and list them", {NULL}},
    {"bench",
     mr_cmd_bench,
     "measure a model on this machine, or a running server",
     {"offline", "serve"}},
    {"completion", run_completion, "print the completion of a shell, bash or zsh", {NULL}},
    {"man", run_man, "print the manual page", {NULL}},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static const mr_cli_catalogue catalogue = {commands, COMMAND_COUNT};

static int run_completion(int argc, char **argv)
{
    const mr_cli_command command = {
        .name = "completion",
        .usage = "bash|zsh",
        .about = "Prints the completion of a shell, made from the option tables of this build.",
        .max_operands = 1,
        .examples = "source <(millrace completion bash)\n"
                    "millrace completion zsh > ~/.zsh/completions/_millrace\n",
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    if (operands.count == 0) {
        return mr_cli_fail_usage("completion: say for which shell, bash or zsh");
    }
    mr_error err;
    return mr_cli_print_completion(&catalogue, operands.items[0], &err) == MR_OK
               ? MR_EXIT_OK
               : mr_cli_fail(MR_EXIT_USAGE, &err);
}

static int run_man(int argc, char **argv)
{
    const mr_cli_command command = {
        .name = "man",
        .usage = "",
        .about = "Prints the manual page, made from the option tables of this build.",
        .examples = "millrace man | man -l -\n",
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    mr_cli_print_man(&catalogue);
    return MR_EXIT_OK;
}

static void print_help(void)
{
    puts("usage: millrace COMMAND [OPTION]...\n\ncommands:");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("  %-10s %s\n", commands[i].name, commands[i].about);
    }
    puts(
        "\nmillrace COMMAND --help says more, with examples; millrace --version names this build.\n"
        "\nTo begin with:\n"
        "  millrace generate --model MODEL.gguf --chat \"Why is the sky blue?\"\n"
        "  millrace serve --model MODEL.gguf\n"
        "  millrace generate --server 127.0.0.1:8001 --chat \"Why is the sky blue?\"");
}

static int fail_unknown(const char *name)
{
    if (name[0] == '-') {
        return mr_cli_fail_usage("unknown option %s; the command comes first, such as millrace "
                                 "serve, and millrace --help lists them",
                                 name);
    }
    if (mr_unsupported_find(MR_SURFACE_CLI, name) != NULL) {
        mr_error err;
        (void)mr_unsupported_fail(MR_SURFACE_CLI, name, &err);
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_nearest nearest;
    mr_nearest_init(&nearest, name);
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        mr_nearest_offer(&nearest, commands[i].name);
    }
    if (nearest.best == NULL) {
        return mr_cli_fail_usage("unknown command %s; millrace --help lists them", name);
    }
    return mr_cli_fail_usage("unknown command %s; did you mean %s?", name, nearest.best);
}

static const mr_cli_entry *find_command(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, commands[i].name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

/* "millrace help COMMAND…" is "millrace COMMAND… --help". */
static int run_help(int argc, char **argv)
{
    if (argc < 3) {
        print_help();
        return MR_EXIT_OK;
    }
    const mr_cli_entry *found = find_command(argv[2]);
    if (found == NULL) {
        return fail_unknown(argv[2]);
    }
    char help[] = "--help";
    char *words[] = {argv[2], argc > 3 ? argv[3] : help, help, NULL};
    return found->run(3, words);
}

/* A standard descriptor that is closed would be taken by the next file or socket that is opened,
 * and then read or written as if it were the terminal. */
static bool open_standard_descriptors(void)
{
    int fd;
    do {
        fd = open("/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    return fd >= 0 && close(fd) == 0;
}

int main(int argc, char **argv)
{
    if (!open_standard_descriptors()) {
        return MR_EXIT_FAILED;
    }
    if (argc < 2) {
        return mr_cli_fail_usage("give a command; millrace --help lists them");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return mr_cli_finish_output(MR_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        mr_build_info_print();
        return mr_cli_finish_output(MR_EXIT_OK);
    }
    if (strcmp(argv[1], "help") == 0) {
        return mr_cli_finish_output(run_help(argc, argv));
    }
    const mr_cli_entry *found = find_command(argv[1]);
    return found != NULL ? mr_cli_finish_output(found->run(argc - 1, argv + 1))
                         : fail_unknown(argv[1]);
}
