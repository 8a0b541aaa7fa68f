/* SPDX-License-Identifier: Apache-2.0 */
/* A model made ready to run: file → plan → backend → executor → engine. Every command that runs a
 * model goes through here. */
#ifndef MILLRACE_SERVICE_RUNTIME_H
#define MILLRACE_SERVICE_RUNTIME_H

#include "base/status.h"
#include "kernels/backend.h"
#include "model/model.h"
#include "scheduler/engine.h"
#include "service/config.h"
#include "service/prefix_identity.h"

typedef struct mr_runtime mr_runtime;

typedef struct mr_runtime_options {
    const char *model_path;
    const mr_config *config; /* finished; copied */
    bool with_engine;        /* false: the caller drives the executor itself */
    bool keep_logits;        /* step outputs carry logits */
    bool score_rows;         /* every token of a step may ask for a logit row (score) */
    mr_progress_fn progress; /* of loading; NULL: none */
    void *progress_ctx;
    mr_event *failed; /* as mr_engine_options has it */
} mr_runtime_options;

/* Opens a model as load_format says, and no more. */
MR_MUST_USE mr_status mr_runtime_open_model(const mr_config *config, const char *path,
                                            mr_model **out, mr_error *err);

/* Errors as the layers below give them, with the model's path in front. Gives the runtime. */
MR_MUST_USE mr_status mr_runtime_open(const mr_runtime_options *options, mr_runtime **out,
                                      mr_error *err);
/* Cancels what still runs. */
void mr_runtime_close(mr_runtime *runtime);

const mr_config *
mr_runtime_config(const mr_runtime *runtime); /* with every automatic value filled in */
const mr_model *mr_runtime_model(const mr_runtime *runtime);
const char *mr_runtime_model_name(const mr_runtime *runtime); /* as served */
mr_engine *mr_runtime_engine(mr_runtime *runtime);            /* NULL without one */
mr_exec *mr_runtime_exec(mr_runtime *runtime);
const mr_plan *mr_runtime_plan(const mr_runtime *runtime); /* the weights' data is gone */
const mr_exec_options *mr_runtime_exec_options(const mr_runtime *runtime);
/* The root of a request's prefix (service/prefix_identity.h). False: nothing is cached here. Any
 * thread. */
bool mr_runtime_prefix_root(mr_runtime *runtime, const mr_prefix_asker *asker, mr_prefix_root *out);
/* NULL: nothing is cached here. */
mr_prefix_identity *mr_runtime_prefix_identity(mr_runtime *runtime);
const mr_backend_info *mr_runtime_backend(const mr_runtime *runtime);
/* As mr_backend_vtable.ceilings; of a runtime without an engine. */
MR_MUST_USE mr_status mr_runtime_ceilings(mr_runtime *runtime, uint64_t bytes, mr_ceilings *out,
                                          mr_error *err);

#endif
