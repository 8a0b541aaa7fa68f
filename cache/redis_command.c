/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/redis_link.h"

#include <hiredis.h>
#include <stdio.h>
#include <string.h>

mr_redis_arg mr_redis_text(const char *text)
{
    return (mr_redis_arg){.at = text, .bytes = strlen(text)};
}

mr_status mr_redis_command_add(mr_redis_command *command, const mr_redis_arg *args, uint32_t n)
{
    const char *at[MR_REDIS_MAX_ARGS];
    size_t bytes[MR_REDIS_MAX_ARGS];
    if (n == 0 || n > MR_REDIS_MAX_ARGS) {
        return MR_INVALID_ARGUMENT;
    }
    for (uint32_t i = 0; i < n; i++) {
        at[i] = args[i].at;
        bytes[i] = args[i].bytes;
    }
    char *formatted = NULL;
    const int length = redisFormatCommandArgv(&formatted, (int)n, at, bytes);
    if (length < 0) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_status status = mr_buffer_append(&command->text, formatted, (size_t)length);
    redisFreeCommand(formatted);
    command->n_replies += status == MR_OK ? 1 : 0;
    return status;
}

mr_status mr_redis_command_eval(mr_redis_command *command, const mr_redis_script *script,
                                uint32_t n_keys, const mr_redis_arg *args, uint32_t n)
{
    mr_redis_arg all[MR_REDIS_MAX_ARGS];
    char keys[16];
    if (n > MR_REDIS_MAX_ARGS - 3 || n_keys > n || command->n_replies != 0) {
        return MR_INVALID_ARGUMENT;
    }
    snprintf(keys, sizeof(keys), "%u", (unsigned)n_keys);
    all[0] = mr_redis_text("EVALSHA");
    all[1] = mr_redis_text(script->sha1);
    all[2] = mr_redis_text(keys);
    memcpy(all + 3, args, n * sizeof(*args));
    command->script = script;
    return mr_redis_command_add(command, all, n + 3);
}

void mr_redis_command_deinit(mr_redis_command *command)
{
    mr_buffer_deinit(&command->text);
    command->n_replies = 0;
}
