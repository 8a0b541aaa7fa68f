/* SPDX-License-Identifier: Apache-2.0 */
#include "service/reload.h"

#include "base/buffer.h"
#include "base/checked.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* What both print alike is the same, but for what is reloaded. */
bool mr_reload_suffices(const mr_config *now, const mr_config *before)
{
    mr_config *old = mr_calloc(2, sizeof(*old));
    if (old == NULL) {
        return true;
    }
    mr_buffer texts[2] = {{0}, {0}};
    old[0] = *before;
    old[1] = *now;
    bool same = true;
    for (int i = 0; i < 2; i++) {
        old[i].tenants.count = 0;
        old[i].admins.count = 0;
        memcpy(old[i].log_level, before->log_level, sizeof(old[i].log_level));
        memcpy(old[i].log_format, before->log_format, sizeof(old[i].log_format));
        same = same && mr_config_format(&old[i], &texts[i]) == MR_OK;
    }
    same = !same || (texts[0].size == texts[1].size &&
                     memcmp(texts[0].data, texts[1].data, texts[0].size) == 0);
    mr_buffer_deinit(&texts[0]);
    mr_buffer_deinit(&texts[1]);
    free(old);
    return same;
}

/* `config` is filled in. */
static mr_status load_callers(mr_server *server, const mr_cli_model *model, const mr_config *before,
                              mr_config *config, mr_error *err)
{
    MR_TRY(mr_cli_load_config(model, config, err));
    const bool all = mr_reload_suffices(config, before);
    MR_TRY(mr_config_finish(config, err));
    MR_TRY(mr_server_set_callers(server, &config->tenants, &config->admins, err));
    if (!all) {
        mr_log(MR_LOG_WARN, "serve",
               "other settings were changed too: they take effect with the next start", NULL);
    }
    return MR_OK;
}

void mr_reload(mr_server *server, const mr_cli_model *model, const mr_config *before)
{
    mr_server_reload_tls(server);
    mr_error err = {0};
    mr_config *config = mr_calloc(1, sizeof(*config));
    if (config == NULL) {
        (void)mr_fail(&err, MR_RESOURCE_EXHAUSTED, "out of memory");
    } else if (load_callers(server, model, before, config, &err) == MR_OK) {
        mr_log(MR_LOG_INFO, "serve", "settings are reloaded", "tenants=%" PRIu32,
               config->tenants.count);
    }
    if (err.status != MR_OK) {
        char text[2 * MR_ERROR_MESSAGE_MAX];
        mr_log(MR_LOG_ERROR, "serve", "settings are not reloaded: those before stay", "cause=%s",
               mr_log_quote(err.message, text, sizeof(text)));
    }
    free(config);
}
