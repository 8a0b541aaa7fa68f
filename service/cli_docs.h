/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The option tables of all commands as shell completion and manual page. A command's table lives in
 * the command, beside the places that its values go to; here each is asked for it.
 */
#ifndef MILLRACE_SERVICE_CLI_DOCS_H
#define MILLRACE_SERVICE_CLI_DOCS_H

#include "base/status.h"
#include "service/cli.h"

#include <stddef.h>

#define MR_CLI_MAX_PARTS 4

typedef struct mr_cli_entry {
    const char *name;
    int (*run)(int argc, char **argv); /* parses its arguments with mr_cli_parse, once */
    const char *about;
    const char *parts[MR_CLI_MAX_PARTS]; /* "bench" has "offline" and "serve"; NULL ends them */
} mr_cli_entry;

typedef struct mr_cli_catalogue {
    const mr_cli_entry *entries;
    size_t count;
} mr_cli_catalogue;

/* Calls `visit` with every command and part of one. Main thread. */
void mr_cli_catalogue_visit(const mr_cli_catalogue *catalogue, mr_cli_visit_fn visit, void *ctx);

/* Prints the completion of a shell. INVALID_ARGUMENT for any but bash and zsh. */
MR_MUST_USE mr_status mr_cli_print_completion(const mr_cli_catalogue *catalogue, const char *shell,
                                              mr_error *err);
/* Prints docs/millrace.1. */
void mr_cli_print_man(const mr_cli_catalogue *catalogue);

#endif
