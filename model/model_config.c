/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model_config.h"

mr_status mr_model_config_add_eos(mr_model_config *config, uint32_t id, mr_error *err)
{
    for (uint32_t i = 0; i < config->n_eos; i++) {
        if (config->eos[i] == id) {
            return MR_OK;
        }
    }
    if (config->n_eos == MR_MAX_EOS) {
        return mr_fail(err, MR_DATA_LOSS, "more than %d ends of sequence are named", MR_MAX_EOS);
    }
    config->eos[config->n_eos++] = id;
    return MR_OK;
}
