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
#include "service/surface.h"

#include <stdbool.h>
#include <stdint.h>

/* has_… false: the caller left it out. Numbers are as sent: not checked yet. */
typedef struct mr_generation_ask {
    bool has_temperature, has_top_p, has_top_k, has_min_p, has_seed, has_max_tokens;
    bool has_repetition_penalty, has_n, has_beam_width, has_length_penalty;
    float temperature, top_p, min_p, repetition_penalty;
    float presence_penalty, frequency_penalty, length_penalty;
    uint64_t top_k; /* wider than the field, so that nothing is cut before it is checked */
    uint64_t seed;
    uint64_t max_tokens;
    uint64_t min_tokens;
    uint64_t top_logprobs;
    uint64_t n;
    uint64_t beam_width;
    uint64_t time_limit_ms; /* 0: none */
    int64_t priority;
    bool logprobs;
    bool logprobs_processed;
    bool prompt_logprobs;
    bool ignore_eos;
    bool include_stop_in_text;
    bool keep_special_tokens;
    bool skip_text; /* ids alone: stop strings cannot be honoured then */
    /* Borrowed. */
    const uint32_t *bias_tokens; /* [n_bias] */
    const float *bias_values;
    size_t n_bias;
    const uint32_t *stop_tokens; /* [n_stop_tokens] */
    size_t n_stop_tokens;
    const mr_stop_string *stops; /* [n_stops], UTF-8 */
    size_t n_stops;
    mr_bytes cache_salt; /* any bytes; none: empty */
} mr_generation_ask;

/* Checks every value by positive comparison (a NaN fails), fills defaults, draws a seed below 2^53
 * where none was given. INVALID_ARGUMENT with the field, the value and the bounds. */
MR_MUST_USE mr_status mr_generation_check(const mr_generation_ask *ask, mr_surface surface,
                                          mr_request_params *out, mr_error *err);

/* What only the model tells: INVALID_ARGUMENT for an id of a list that is not in its vocabulary,
 * FAILED_PRECONDITION for stop strings where there is no tokenizer. Of beams, raw log-probabilities
 * where the model has a penalty of its own are refused as with one of the caller's. */
MR_MUST_USE mr_status mr_generation_check_model(const mr_generation_ask *ask, mr_surface surface,
                                                const mr_model *model, mr_error *err);

/* Gives what the caller left out and the model has values of its own for (generation_config.json);
 * of a checked request. */
void mr_generation_fill_defaults(const mr_generation_ask *ask, const mr_model *model,
                                 mr_request_params *params);

/* Checks prompt ids against the vocabulary and the length limit (prompt_tokens < max_seq_length),
 * and lowers max_tokens to what the limit leaves. `field` is the prompt's name on the surface. */
MR_MUST_USE mr_status mr_generation_check_prompt(const mr_ids *ids, uint32_t vocab_size,
                                                 uint32_t max_seq_length, const char *field,
                                                 mr_request_params *params, mr_error *err);

#endif
