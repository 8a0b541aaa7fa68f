/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a caller asks of a generation, whatever the surface (proto, JSONL, command line): one
 * struct, one check, one place for bounds and defaults. Errors name the field as the surface
 * spells it.
 */
#ifndef MILLRACE_SERVICE_GENERATION_H
#define MILLRACE_SERVICE_GENERATION_H

#include "base/status.h"
#include "model/model.h"
#include "scheduler/request.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mr_surface {
    MR_SURFACE_PROTO, /* "sampling.top_p" */
    MR_SURFACE_JSONL, /* "top_p" */
    MR_SURFACE_CONFIG,
    MR_SURFACE_CLI, /* "--top-p" */
} mr_surface;

/* has_… false: the caller left it out. Numbers are as sent: not checked yet. */
typedef struct mr_generation_ask {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_seed, has_max_tokens;
    bool has_repetition_penalty;
    float temperature, top_p, min_p, repetition_penalty;
    float presence_penalty, frequency_penalty;
    uint64_t top_k; /* wider than the field, so that nothing is cut before it is checked */
    uint64_t seed;
    uint64_t max_tokens;
    uint64_t min_tokens;
    uint64_t top_logprobs;
    bool logprobs;
    bool logprobs_processed;
    bool ignore_eos;
} mr_generation_ask;

/* Checks every value by positive comparison (a NaN fails), fills defaults, draws a seed below 2^53
 * where none was given. INVALID_ARGUMENT with the field, the value and the bounds. */
MR_MUST_USE mr_status mr_generation_check(const mr_generation_ask *ask, mr_surface surface,
                                          mr_request_params *out, mr_error *err);

/* Checks prompt ids against the vocabulary and the length limit (prompt_tokens < max_seq_length),
 * and lowers max_tokens to what the limit leaves. `field` is the prompt's name on the surface. */
MR_MUST_USE mr_status mr_generation_check_prompt(const uint32_t *ids, size_t count,
                                                 uint32_t vocab_size, uint32_t max_seq_length,
                                                 const char *field, mr_request_params *params,
                                                 mr_error *err);

/* Things the contracts name and this build does not do yet; service/unsupported.def lists them,
 * one row each. */
typedef struct mr_unsupported {
    mr_surface surface;
    const char *name;   /* as the surface spells it */
    const char *sample; /* a value that asks for it, as JSON; tests use it */
    const char *what;   /* the feature, for the message */
} mr_unsupported;

const mr_unsupported *mr_unsupported_table(size_t *count);
/* The row that covers `name` (rows "x.*" cover all names below x), NULL if there is none. */
const mr_unsupported *mr_unsupported_find(mr_surface surface, const char *name);
/* Fails with UNIMPLEMENTED (MR_SURFACE_CONFIG and CLI: FAILED_PRECONDITION), naming field and
 * feature. `name` must be in the table. */
mr_status mr_unsupported_fail(mr_surface surface, const char *name, mr_error *err);

#endif
