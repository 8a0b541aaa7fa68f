/* SPDX-License-Identifier: Apache-2.0 */
#include "service/commands.h"

#include "service/progress.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define READ_BYTES ((size_t)64 << 10)

int mr_command_open_runtime(mr_config *config, mr_runtime_options *options, mr_runtime **out)
{
    mr_error err = {0};
    if (mr_config_finish(config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_progress progress;
    mr_progress_init(&progress, "loading the model");
    options->config = config;
    options->progress = mr_progress_update;
    options->progress_ctx = &progress;
    const mr_status status = mr_runtime_open(options, out, &err);
    mr_progress_deinit(&progress);
    return status == MR_OK ? MR_EXIT_OK : mr_cli_fail(MR_EXIT_FAILED, &err);
}

static int open_with(const mr_cli_model *cli, bool text_only, mr_model **out)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(cli, &config, &err) != MR_OK ||
        mr_config_finish(&config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    const mr_status status = text_only ? mr_model_open_text(cli->path, out, &err)
                                       : mr_runtime_open_model(&config, cli->path, out, &err);
    if (status != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return MR_EXIT_OK;
}

int mr_command_open_model(const mr_cli_model *cli, mr_model **out)
{
    return open_with(cli, false, out);
}

int mr_command_open_text(const mr_cli_model *cli, mr_model **out)
{
    return open_with(cli, true, out);
}

mr_status mr_command_read_all(int fd, size_t limit, mr_buffer *out, mr_error *err)
{
    for (;;) {
        if (mr_buffer_reserve(out, READ_BYTES) != MR_OK) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the input");
        }
        const ssize_t got = read(fd, out->data + out->size, READ_BYTES);
        if (got == 0) {
            return MR_OK;
        }
        if (got < 0 && errno != EINTR) {
            return mr_fail(err, MR_INTERNAL, "reading the input: %s", strerror(errno));
        }
        out->size += got > 0 ? (size_t)got : 0;
        if (out->size > limit) {
            return mr_fail(err, MR_INVALID_ARGUMENT, "the input is longer than %zu bytes", limit);
        }
    }
}
