/* SPDX-License-Identifier: Apache-2.0 */
/* Reads any text as a config.json. What is accepted has a shape whose plan can be built, unless it
 * is too large to try. */
#include "base/status.h"
#include "model/arch.h"
#include "model/decoder_plan.h"
#include "model/hf_json.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#define MAX_LAYERS_TRIED 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Sizes that groups of codes do not fit are said to be so. */
static void build(const mr_arch *arch, const mr_model_config *config, const mr_quant_config *quant)
{
    const mr_decoder_source source = {.config = config,
                                      .names = arch->hf_names,
                                      .quant = quant,
                                      .random_dtype = MR_DTYPE_BF16,
                                      .random_seed = 1};
    mr_plan *plan = NULL;
    mr_error err = {0};
    const mr_status status = mr_decoder_plan(&source, &plan, &err);
    if (status == MR_OK) {
        MR_CHECK(mr_plan_check(plan, &err) == MR_OK);
        mr_plan_destroy(plan);
        return;
    }
    MR_CHECK(quant->method != MR_QUANT_NONE && status == MR_DATA_LOSS && err.message[0] != '\0');
}

static mr_status read_config(const json_t *root, const mr_arch **arch, mr_model_config *config,
                             mr_quant_config *quant, mr_error *err)
{
    const char *type = "";
    MR_TRY(mr_hf_json_string(root, "model_type", &type, err));
    MR_TRY(mr_arch_find_hf(type, arch, err));
    MR_TRY(mr_quant_config_read(json_object_get(root, "quantization_config"), quant, err));
    MR_TRY((*arch)->hf->read(root, (*arch)->hf, config, err));
    return mr_hf_add_eos(root, config, err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *root = NULL;
    mr_error err = {0};
    const mr_arch *arch = NULL;
    mr_model_config config = {0};
    mr_quant_config quant = {0};
    mr_status status = mr_hf_json_parse(data, size, "config.json", &root, &err);
    if (status == MR_OK) {
        status = read_config(root, &arch, &config, &quant, &err);
    }
    if (status != MR_OK) {
        MR_CHECK(err.status == status && err.message[0] != '\0');
    } else if (config.layers <= MAX_LAYERS_TRIED) {
        build(arch, &config, &quant);
    }
    free((void *)(uintptr_t)config.rope.inv_freq);
    free((void *)(uintptr_t)config.rope.long_inv_freq);
    mr_quant_config_deinit(&quant);
    json_decref(root);
    return 0;
}
