/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Option parsing of all commands. A command lists its options with the places their values go to;
 * an option is "--name VALUE" or "--name=VALUE", never abbreviated, and "--" ends them.
 */
#ifndef MILLRACE_SERVICE_CLI_H
#define MILLRACE_SERVICE_CLI_H

#include "base/status.h"
#include "service/api_key.h"
#include "service/config.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit statuses of the program. */
enum {
    MR_EXIT_OK = 0,
    MR_EXIT_FAILED = 1,
    MR_EXIT_USAGE = 2,
    MR_EXIT_DEVICE = 3, /* serving ended because the device failed */
};

#define MR_CLI_MAX_LIST 64

typedef struct mr_cli_texts {
    const char *items[MR_CLI_MAX_LIST]; /* borrowed from argv */
    size_t count;
} mr_cli_texts;

typedef struct mr_cli_counts {
    uint32_t items[MR_CLI_MAX_LIST];
    size_t count;
} mr_cli_counts;

typedef enum mr_cli_kind {
    MR_CLI_FLAG,   /* bool */
    MR_CLI_TEXT,   /* const char *, borrowed from argv */
    MR_CLI_TEXTS,  /* mr_cli_texts: may be given again and again */
    MR_CLI_COUNT,  /* uint64_t */
    MR_CLI_FLOAT,  /* float */
    MR_CLI_COUNTS, /* mr_cli_counts: whole numbers from 1, separated by commas */
} mr_cli_kind;

typedef struct mr_cli_option {
    const char *name; /* without the dashes */
    mr_cli_kind kind;
    void *value;          /* where the value goes; left alone when the option is absent */
    bool *given;          /* may be NULL */
    const char *argument; /* "N" in the help; NULL for flags */
    const char *help;
} mr_cli_option;

typedef struct mr_cli_command {
    const char *name;
    const char *usage; /* what follows "millrace NAME" */
    const char *about; /* a sentence or two */
    const mr_cli_option *options;
    size_t n_options;
    size_t max_operands;
    bool shows_config;    /* help lists the configuration keys */
    const char *examples; /* lines of help, each with its newline; NULL: none */
    const char *mistakes; /* the same: what often goes wrong, and what to do instead */
} mr_cli_command;

typedef enum mr_cli_outcome {
    MR_CLI_RUN,
    MR_CLI_HELPED, /* help was asked for and printed: exit 0 */
    MR_CLI_BAD,    /* the error is printed: exit 2 */
} mr_cli_outcome;

/* Reads argv[1 … argc). Main thread. */
mr_cli_outcome mr_cli_parse(const mr_cli_command *command, int argc, char **argv,
                            mr_cli_texts *operands);

/* Gets every command that would be parsed while it is set; nothing is parsed then. NULL ends it.
 * Main thread. */
typedef void (*mr_cli_visit_fn)(void *ctx, const mr_cli_command *command);
void mr_cli_set_visitor(mr_cli_visit_fn visit, void *ctx);

/* The options that every command with a model takes: initialisers for its option list. */
typedef struct mr_cli_model {
    const char *path;
    const char *config_path;
    mr_cli_texts sets;
} mr_cli_model;

#define MR_CLI_MODEL_OPTIONS(model)                                                                \
    {"model", MR_CLI_TEXT, &(model)->path,                                                         \
     NULL,    "PATH",      "the model: a GGUF file or a Hugging Face directory"},                  \
        MR_CLI_CONFIG_OPTIONS(model)

#define MR_CLI_CONFIG_OPTIONS(model)                                                               \
    {"config", MR_CLI_TEXT, &(model)->config_path, NULL, "FILE", "configuration, YAML"},           \
    {                                                                                              \
        "set", MR_CLI_TEXTS, &(model)->sets, NULL, "KEY=VALUE",                                    \
            "one setting; may be given again and again"                                            \
    }

/* The option of commands that call a server. */
#define MR_CLI_KEY_OPTION(path)                                                                    \
    {                                                                                              \
        "api-key-file", MR_CLI_TEXT, path, NULL, "FILE",                                           \
            "the key to call the server with (default: what " MR_API_KEY_VARIABLE " holds)"        \
    }

/* Of what is drawn from, into an mr_generation_ask. */
#define MR_CLI_SAMPLING_OPTIONS(ask)                                                               \
    {"temperature",           MR_CLI_FLOAT, &(ask)->temperature,                                   \
     &(ask)->has_temperature, "T",          "0 takes the likeliest token (default 1)"},            \
        {"top-p",       MR_CLI_FLOAT,                                                              \
         &(ask)->top_p, &(ask)->has_top_p,                                                         \
         "P",           "of the likeliest tokens, the fewest that reach P (default 1)"},           \
        {"top-k",           MR_CLI_COUNT, &(ask)->top_k,                                           \
         &(ask)->has_top_k, "K",          "the K likeliest (default: all)"},                       \
    {                                                                                              \
        "min-p", MR_CLI_FLOAT, &(ask)->min_p, &(ask)->has_min_p, "P",                              \
            "tokens at least P times as likely as the likeliest (default 0)"                       \
    }

/* TLS of commands that call a server. */
#define MR_CLI_TLS_OPTIONS(tls)                                                                    \
    {"tls-ca",   MR_CLI_TEXT,                                                                      \
     &(tls)->ca, NULL,                                                                             \
     "FILE",     "call the server with TLS; it must have a certificate of a CA in this PEM file"}, \
        {"tls-cert", MR_CLI_TEXT, &(tls)->certificate,                                             \
         NULL,       "FILE",      "the certificate to show the server, PEM; with --tls-key"},      \
        {"tls-key", MR_CLI_TEXT, &(tls)->private_key, NULL, "FILE", "its key, PEM"},               \
    {                                                                                              \
        "tls-server-name", MR_CLI_TEXT, &(tls)->server_name, NULL, "NAME",                         \
            "the name in the server's certificate (default: the host of --server)"                 \
    }

/* Defaults, file, environment and --set, in this order; not finished yet. */
MR_MUST_USE mr_status mr_cli_load_config(const mr_cli_model *model, mr_config *config,
                                         mr_error *err);

/* Prints "millrace: message" on standard error; gives `exit_status` back. */
int mr_cli_fail(int exit_status, const mr_error *err);
int mr_cli_fail_usage(const char *fmt, ...) MR_PRINTF(1, 2);
/* Of a --server that is no HOST:PORT. */
int mr_cli_fail_server(const char *server);

/* Flushes standard output; a failed write (disk full, reader gone) is an error like any other. */
int mr_cli_finish_output(int exit_status);

#endif
