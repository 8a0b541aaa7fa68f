/* SPDX-License-Identifier: Apache-2.0 */
#include "service/commands.h"
#include "service/generation.h"
#include "service/nearest.h"

#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *about;
} command;

static const command commands[] = {
    {"serve", mr_cmd_serve, "serve a model over gRPC"},
    {"generate", mr_cmd_generate, "generate text, here or on a server; batches of JSON lines"},
    {"tokenize", mr_cmd_tokenize, "text to token ids, and back"},
    {"score", mr_cmd_score, "perplexity of a text"},
    {"inspect", mr_cmd_inspect, "what a model file holds"},
    {"config", mr_cmd_config, "check settings, and list them"},
    {"bench", mr_cmd_bench, "measure a model on this machine, or a running server"},
};

#define COMMAND_COUNT (sizeof(commands) / sizeof(commands[0]))

static void print_help(void)
{
    puts("usage: millrace COMMAND [OPTION]...\n\ncommands:");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        printf("  %-10s %s\n", commands[i].name, commands[i].about);
    }
    puts("\nmillrace COMMAND --help says more; millrace --version names this build.");
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

static const command *find_command(const char *name)
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
    const command *found = find_command(argv[2]);
    if (found == NULL) {
        return fail_unknown(argv[2]);
    }
    char help[] = "--help";
    char *words[] = {argv[2], argc > 3 ? argv[3] : help, help, NULL};
    return found->run(3, words);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        return mr_cli_fail_usage("give a command; millrace --help lists them");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return mr_cli_finish_output(MR_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("millrace " MR_VERSION);
        return mr_cli_finish_output(MR_EXIT_OK);
    }
    if (strcmp(argv[1], "help") == 0) {
        return mr_cli_finish_output(run_help(argc, argv));
    }
    const command *found = find_command(argv[1]);
    return found != NULL ? mr_cli_finish_output(found->run(argc - 1, argv + 1))
                         : fail_unknown(argv[1]);
}
