/* SPDX-License-Identifier: Apache-2.0 */
/* Opens any bytes as a GGUF model: container, configuration, tokenizer and plan. What opens must
 * give a plan that passes its check and whose weights can be read. */
#include "base/log.h"
#include "model/model_internal.h"

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    mr_log_set_level(MR_LOG_ERROR); /* unused tensors are no news here */
    return 0;
}

static void read_weights(const mr_plan *plan)
{
    volatile uint8_t sink = 0;
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        const uint8_t *bytes = plan->weights[i].data;
        for (uint64_t b = 0; b < plan->weights[i].bytes; b++) {
            sink = (uint8_t)(sink ^ bytes[b]);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    mr_model *model = NULL;
    mr_error err = {0};
    const mr_status status = mr_model_open_memory(data, size, "fuzz", &model, &err);
    if (status != MR_OK) {
        MR_CHECK(model == NULL && err.status == status && err.message[0] != '\0');
        return 0;
    }
    mr_plan *plan = NULL;
    MR_CHECK(mr_model_plan(model, &plan, &err) == MR_OK);
    MR_CHECK(mr_plan_check(plan, &err) == MR_OK);
    read_weights(plan);
    mr_plan_destroy(plan);
    mr_model_close(model);
    return 0;
}
