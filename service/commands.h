/* SPDX-License-Identifier: Apache-2.0 */
/* The commands of the program, and what they have in common. */
#ifndef MILLRACE_SERVICE_COMMANDS_H
#define MILLRACE_SERVICE_COMMANDS_H

#include "base/buffer.h"
#include "base/status.h"
#include "service/cli.h"
#include "service/runtime.h"

/* Each gets its own arguments (argv[0] is the command's name) and gives an exit status. */
int mr_cmd_serve(int argc, char **argv);
int mr_cmd_generate(int argc, char **argv);
int mr_cmd_tokenize(int argc, char **argv);
int mr_cmd_score(int argc, char **argv);
int mr_cmd_inspect(int argc, char **argv);
int mr_cmd_config(int argc, char **argv);
int mr_cmd_bench(int argc, char **argv);
int mr_cmd_bench_serve(int argc, char **argv);

/* Finishes options->config, opens the model with progress on standard error. MR_EXIT_OK gives the
 * runtime; otherwise the error is printed. */
int mr_command_open_runtime(mr_config *config, mr_runtime_options *options, mr_runtime **out);

/* Opens the file alone, for commands that run nothing. Settings are checked all the same. */
int mr_command_open_model(const mr_cli_model *cli, mr_model **out);
/* The same for commands that only handle text: a directory needs no weights then. */
int mr_command_open_text(const mr_cli_model *cli, mr_model **out);

/* Appends all that `fd` has until it ends. INVALID_ARGUMENT for more than `limit` bytes. */
MR_MUST_USE mr_status mr_command_read_all(int fd, size_t limit, mr_buffer *out, mr_error *err);

#endif
