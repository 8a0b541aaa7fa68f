/* SPDX-License-Identifier: Apache-2.0 */
#include "service/generation.h"

#include "base/clock.h"
#include "base/random.h"
#include "base/utf8.h"
#include "service/prefix_identity.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MAX_TOKENS 256u
#define SEED_LIMIT         (UINT64_C(1) << 53) /* so that a JSON number holds every seed */
#define MAX_BIAS           100.0f
#define MAX_LENGTH_PENALTY 10.0f

typedef enum field_id {
    FIELD_TEMPERATURE,
    FIELD_TOP_P,
    FIELD_TOP_K,
    FIELD_MIN_P,
    FIELD_SEED,
    FIELD_REPETITION_PENALTY,
    FIELD_PRESENCE_PENALTY,
    FIELD_FREQUENCY_PENALTY,
    FIELD_MAX_TOKENS,
    FIELD_MIN_TOKENS,
    FIELD_TOP_LOGPROBS,
    FIELD_LOGPROBS_MODE,
    FIELD_N,
    FIELD_BEAM_WIDTH,
    FIELD_LENGTH_PENALTY,
    FIELD_LOGIT_BIAS,
    FIELD_STOP,
    FIELD_STOP_TOKENS,
    FIELD_TIME_LIMIT,
    FIELD_PRIORITY,
    FIELD_CACHE_SALT,
} field_id;

/* A field's name on the surfaces: path in the proto, name in JSON lines, option. */
static const struct {
    const char *proto;
    const char *jsonl;
    const char *cli;
} field_names[] = {
    [FIELD_TEMPERATURE] = {"sampling.temperature", "temperature", "--temperature"},
    [FIELD_TOP_P] = {"sampling.top_p", "top_p", "--top-p"},
    [FIELD_TOP_K] = {"sampling.top_k", "top_k", "--top-k"},
    [FIELD_MIN_P] = {"sampling.min_p", "min_p", "--min-p"},
    [FIELD_SEED] = {"sampling.seed", "seed", "--seed"},
    [FIELD_REPETITION_PENALTY] = {"sampling.repetition_penalty", "repetition_penalty",
                                  "--repetition-penalty"},
    [FIELD_PRESENCE_PENALTY] = {"sampling.presence_penalty", "presence_penalty",
                                "--presence-penalty"},
    [FIELD_FREQUENCY_PENALTY] = {"sampling.frequency_penalty", "frequency_penalty",
                                 "--frequency-penalty"},
    [FIELD_MAX_TOKENS] = {"stopping.max_tokens", "max_tokens", "--max-tokens"},
    [FIELD_MIN_TOKENS] = {"stopping.min_tokens", "min_tokens", "--min-tokens"},
    [FIELD_LOGPROBS_MODE] = {"output.logprobs_mode", "logprobs_mode", "--logprobs-mode"},
    [FIELD_TOP_LOGPROBS] = {"output.top_logprobs", "logprobs", "--logprobs"},
    [FIELD_N] = {"sampling.n", "n", "--n"},
    [FIELD_BEAM_WIDTH] = {"sampling.beam_width", "beam_width", "--beam-width"},
    [FIELD_LENGTH_PENALTY] = {"sampling.length_penalty", "length_penalty", "--length-penalty"},
    [FIELD_LOGIT_BIAS] = {"sampling.logit_bias", "logit_bias", "--logit-bias"},
    [FIELD_STOP] = {"stopping.strings", "stop", "--stop"},
    [FIELD_STOP_TOKENS] = {"stopping.token_ids", "stop_token_ids", "--stop-token-ids"},
    [FIELD_PRIORITY] = {"priority", "priority", "--priority"},
    [FIELD_TIME_LIMIT] = {"stopping.time_limit_ms", "time_limit_ms", "--time-limit-ms"},
    [FIELD_CACHE_SALT] = {"cache_salt", "cache_salt", "--cache-salt"},
};

static const char *field_name(field_id id, mr_surface surface)
{
    switch (surface) {
    case MR_SURFACE_PROTO:
        return field_names[id].proto;
    case MR_SURFACE_CLI:
        return field_names[id].cli;
    case MR_SURFACE_JSONL:
    case MR_SURFACE_CONFIG:
        break;
    }
    return field_names[id].jsonl;
}

/* What a check needs to name the field it refuses. */
typedef struct check {
    mr_surface surface;
    mr_error *err;
} check;

static mr_status refuse_float(const check *c, field_id id, float value, const char *bounds)
{
    const char *name = field_name(id, c->surface);
    return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name, "%s is %g: it must be %s", name,
                         (double)value, bounds);
}

static mr_status check_count(const check *c, field_id id, uint64_t value, uint64_t low,
                             uint64_t high)
{
    if (value >= low && value <= high) {
        return MR_OK;
    }
    const char *name = field_name(id, c->surface);
    return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                         "%s is %" PRIu64 ": it must be from %" PRIu64 " to %" PRIu64, name, value,
                         low, high);
}

/* Every comparison is positive, so that a NaN fails. */
static mr_status check_sampling(const check *c, const mr_generation_ask *ask,
                                mr_request_params *out)
{
    out->temperature = ask->has_temperature ? ask->temperature : 1.0f;
    if (!(out->temperature >= 0.0f && out->temperature <= FLT_MAX)) {
        return refuse_float(c, FIELD_TEMPERATURE, out->temperature, "finite and at least 0");
    }
    out->top_p = ask->has_top_p ? ask->top_p : 1.0f;
    if (!(out->top_p > 0.0f && out->top_p <= 1.0f)) {
        return refuse_float(c, FIELD_TOP_P, out->top_p, "above 0 and at most 1");
    }
    out->min_p = ask->has_min_p ? ask->min_p : 0.0f;
    if (!(out->min_p >= 0.0f && out->min_p <= 1.0f)) {
        return refuse_float(c, FIELD_MIN_P, out->min_p, "from 0 to 1");
    }
    const uint64_t top_k = ask->has_top_k ? ask->top_k : 0;
    MR_TRY(check_count(c, FIELD_TOP_K, top_k, 0, UINT32_MAX));
    out->top_k = (uint32_t)top_k;
    return MR_OK;
}

static mr_status check_penalties(const check *c, const mr_generation_ask *ask,
                                 mr_request_params *out)
{
    out->repetition_penalty = ask->has_repetition_penalty ? ask->repetition_penalty : 1.0f;
    if (!(out->repetition_penalty > 0.0f && out->repetition_penalty <= FLT_MAX)) {
        return refuse_float(c, FIELD_REPETITION_PENALTY, out->repetition_penalty,
                            "finite and above 0");
    }
    out->presence_penalty = ask->presence_penalty;
    if (!(out->presence_penalty >= -2.0f && out->presence_penalty <= 2.0f)) {
        return refuse_float(c, FIELD_PRESENCE_PENALTY, out->presence_penalty, "from -2 to 2");
    }
    out->frequency_penalty = ask->frequency_penalty;
    if (!(out->frequency_penalty >= -2.0f && out->frequency_penalty <= 2.0f)) {
        return refuse_float(c, FIELD_FREQUENCY_PENALTY, out->frequency_penalty, "from -2 to 2");
    }
    return MR_OK;
}

static mr_status check_lengths(const check *c, const mr_generation_ask *ask, mr_request_params *out)
{
    const uint64_t max_tokens = ask->has_max_tokens ? ask->max_tokens : DEFAULT_MAX_TOKENS;
    MR_TRY(check_count(c, FIELD_MAX_TOKENS, max_tokens, 1, UINT32_MAX));
    MR_TRY(check_count(c, FIELD_MIN_TOKENS, ask->min_tokens, 0, max_tokens));
    out->max_tokens = (uint32_t)max_tokens;
    out->min_tokens = (uint32_t)ask->min_tokens;
    out->ignore_eos = ask->ignore_eos;
    MR_TRY(check_count(c, FIELD_TIME_LIMIT, ask->time_limit_ms, 0, UINT32_MAX));
    out->time_limit_ns = ask->time_limit_ms * MR_NS_PER_MS;
    return MR_OK;
}

static mr_status check_priority(const check *c, const mr_generation_ask *ask,
                                mr_request_params *out)
{
    if (ask->priority < -MR_MAX_PRIORITY || ask->priority > MR_MAX_PRIORITY) {
        const char *name = field_name(FIELD_PRIORITY, c->surface);
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s is %" PRId64 ": it must be from %d to %d", name, ask->priority,
                             -MR_MAX_PRIORITY, MR_MAX_PRIORITY);
    }
    out->priority = (int32_t)ask->priority;
    return MR_OK;
}

static mr_status check_choices(const check *c, const mr_generation_ask *ask, mr_request_params *out)
{
    const uint64_t n = ask->has_n ? ask->n : 1;
    MR_TRY(check_count(c, FIELD_N, n, 1, MR_MAX_CHOICES));
    const uint64_t width = ask->has_beam_width ? ask->beam_width : 1;
    MR_TRY(check_count(c, FIELD_BEAM_WIDTH, width, 1, MR_MAX_BEAMS));
    out->length_penalty = ask->has_length_penalty ? ask->length_penalty : 1.0f;
    if (!(out->length_penalty >= -MAX_LENGTH_PENALTY &&
          out->length_penalty <= MAX_LENGTH_PENALTY)) {
        return refuse_float(c, FIELD_LENGTH_PENALTY, out->length_penalty, "from -10 to 10");
    }
    if (width > 1 && n > width) {
        const char *name = field_name(FIELD_N, c->surface);
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s is %" PRIu64 " and %s %" PRIu64
                             ": a search gives at most as many choices as it has beams",
                             name, n, field_name(FIELD_BEAM_WIDTH, c->surface), width);
    }
    if (width > 1 && ask->top_logprobs > 0) {
        const char *name = field_name(FIELD_TOP_LOGPROBS, c->surface);
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s is %" PRIu64 ": beam search gives no alternatives; set it to 0",
                             name, ask->top_logprobs);
    }
    out->n = (uint32_t)n;
    out->beam_width = (uint32_t)width;
    return MR_OK;
}

/* A search knows the distribution that it ran on, and no other. */
static mr_status refuse_raw_beams(const check *c, const mr_generation_ask *ask)
{
    if (!ask->logprobs || ask->logprobs_processed) {
        return MR_OK;
    }
    const char *name = field_name(FIELD_LOGPROBS_MODE, c->surface);
    return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                         "%s is RAW: beam search with a bias, penalties or minimum gives "
                         "log-probabilities after those; ask for PROCESSED",
                         name);
}

static mr_status check_beam_logprobs(const check *c, const mr_generation_ask *ask,
                                     const mr_request_params *params)
{
    const bool changed = ask->n_bias > 0 || params->min_tokens > 0 ||
                         params->repetition_penalty != 1.0f || params->presence_penalty != 0.0f ||
                         params->frequency_penalty != 0.0f;
    return params->beam_width > 1 && changed ? refuse_raw_beams(c, ask) : MR_OK;
}

static mr_status check_list(const check *c, field_id id, size_t count, size_t limit)
{
    if (count <= limit) {
        return MR_OK;
    }
    const char *name = field_name(id, c->surface);
    return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                         "%s has %zu entries: at most %zu are possible", name, count, limit);
}

static int compare_ids(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static mr_status check_bias(const check *c, const mr_generation_ask *ask)
{
    MR_TRY(check_list(c, FIELD_LOGIT_BIAS, ask->n_bias, MR_MAX_LOGIT_BIAS));
    const char *name = field_name(FIELD_LOGIT_BIAS, c->surface);
    for (size_t i = 0; i < ask->n_bias; i++) {
        const float value = ask->bias_values[i];
        if (!(value >= -MAX_BIAS && value <= MAX_BIAS)) {
            return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                                 "%s of token %" PRIu32 " is %g: it must be from -100 to 100", name,
                                 ask->bias_tokens[i], (double)value);
        }
    }
    uint32_t sorted[MR_MAX_LOGIT_BIAS];
    if (ask->n_bias > 0) {
        memcpy(sorted, ask->bias_tokens, ask->n_bias * sizeof(sorted[0]));
        qsort(sorted, ask->n_bias, sizeof(sorted[0]), compare_ids);
    }
    for (size_t i = 1; i < ask->n_bias; i++) {
        if (sorted[i] == sorted[i - 1]) {
            return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                                 "%s names token %" PRIu32 " twice: give each token once", name,
                                 sorted[i]);
        }
    }
    return MR_OK;
}

static mr_status check_stop_strings(const check *c, const mr_generation_ask *ask)
{
    MR_TRY(check_list(c, FIELD_STOP, ask->n_stops, MR_MAX_STOP_STRINGS));
    const char *name = field_name(FIELD_STOP, c->surface);
    size_t total = 0;
    for (size_t i = 0; i < ask->n_stops; i++) {
        const mr_stop_string *stop = &ask->stops[i];
        size_t bad;
        if (stop->bytes == 0) {
            return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                                 "%s: entry %zu is empty; it would end everything at once", name,
                                 i);
        }
        if (!mr_utf8_valid(stop->data, stop->bytes, &bad)) {
            return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                                 "%s: entry %zu is not UTF-8 at byte %zu", name, i, bad);
        }
        /* Their number is small and each fits into a message, so the sum cannot wrap. */
        total += stop->bytes;
    }
    if (total > MR_MAX_STOP_BYTES) {
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s: the strings have %zu bytes together, at most %u are possible",
                             name, total, MR_MAX_STOP_BYTES);
    }
    if (ask->n_stops > 0 && ask->skip_text) {
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s cannot be found without text: leave out output.skip_text, or use "
                             "%s",
                             name, field_name(FIELD_STOP_TOKENS, c->surface));
    }
    return MR_OK;
}

static mr_status check_stops(const check *c, const mr_generation_ask *ask, mr_request_params *out)
{
    MR_TRY(check_stop_strings(c, ask));
    MR_TRY(check_list(c, FIELD_STOP_TOKENS, ask->n_stop_tokens, MR_MAX_STOP_TOKENS));
    out->include_stop_in_text = ask->include_stop_in_text;
    out->keep_special_tokens = ask->keep_special_tokens;
    return MR_OK;
}

static mr_status check_logprobs(const check *c, const mr_generation_ask *ask,
                                mr_request_params *out)
{
    MR_TRY(check_count(c, FIELD_TOP_LOGPROBS, ask->top_logprobs, 0, MR_MAX_TOP_LOGPROBS));
    if (ask->top_logprobs > 0 && !ask->logprobs && !ask->prompt_logprobs) {
        const char *name = field_name(FIELD_TOP_LOGPROBS, c->surface);
        return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                             "%s needs output.logprobs: set it, or leave %s out", name, name);
    }
    out->logprobs = ask->logprobs;
    out->top_logprobs = (uint8_t)ask->top_logprobs;
    out->logprobs_processed = ask->logprobs_processed;
    out->prompt_logprobs = ask->prompt_logprobs;
    return MR_OK;
}

static mr_status check_cache_salt(const check *c, const mr_generation_ask *ask)
{
    if (ask->cache_salt.size <= MR_MAX_CACHE_SALT) {
        return MR_OK;
    }
    const char *name = field_name(FIELD_CACHE_SALT, c->surface);
    return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                         "%s has %zu bytes: at most %u are possible", name, ask->cache_salt.size,
                         MR_MAX_CACHE_SALT);
}

static mr_status draw_seed(uint64_t *seed, mr_error *err)
{
    MR_TRY(mr_random_fill(seed, sizeof(*seed), "a seed", err));
    *seed %= SEED_LIMIT;
    return MR_OK;
}

mr_status mr_generation_check(const mr_generation_ask *ask, mr_surface surface,
                              mr_request_params *out, mr_error *err)
{
    const check c = {.surface = surface, .err = err};
    *out = (mr_request_params){0};
    MR_TRY(check_sampling(&c, ask, out));
    MR_TRY(check_penalties(&c, ask, out));
    MR_TRY(check_lengths(&c, ask, out));
    MR_TRY(check_priority(&c, ask, out));
    MR_TRY(check_logprobs(&c, ask, out));
    MR_TRY(check_choices(&c, ask, out));
    MR_TRY(check_bias(&c, ask));
    MR_TRY(check_beam_logprobs(&c, ask, out));
    MR_TRY(check_stops(&c, ask, out));
    MR_TRY(check_cache_salt(&c, ask));
    if (!ask->has_seed) {
        return draw_seed(&out->seed, err);
    }
    MR_TRY(check_count(&c, FIELD_SEED, ask->seed, 0, SEED_LIMIT - 1));
    out->seed = ask->seed;
    return MR_OK;
}

static mr_status check_vocabulary(const check *c, field_id id, const uint32_t *ids, size_t count,
                                  uint32_t vocab_size)
{
    const char *name = field_name(id, c->surface);
    for (size_t i = 0; i < count; i++) {
        if (ids[i] >= vocab_size) {
            return mr_fail_field(c->err, MR_INVALID_ARGUMENT, name,
                                 "%s: token %" PRIu32 " is none, the vocabulary ends at %" PRIu32,
                                 name, ids[i], vocab_size - 1);
        }
    }
    return MR_OK;
}

mr_status mr_generation_check_model(const mr_generation_ask *ask, mr_surface surface,
                                    const mr_model *model, mr_error *err)
{
    const check c = {.surface = surface, .err = err};
    const uint32_t vocab_size = mr_model_config_get(model)->vocab_size;
    MR_TRY(check_vocabulary(&c, FIELD_LOGIT_BIAS, ask->bias_tokens, ask->n_bias, vocab_size));
    MR_TRY(
        check_vocabulary(&c, FIELD_STOP_TOKENS, ask->stop_tokens, ask->n_stop_tokens, vocab_size));
    if (ask->n_stops > 0 && mr_model_tokenizer(model) == NULL) {
        const char *name = field_name(FIELD_STOP, surface);
        return mr_fail_field(err, MR_FAILED_PRECONDITION, name,
                             "%s: the model has no tokenizer, so it gives no text; use %s", name,
                             field_name(FIELD_STOP_TOKENS, surface));
    }
    /* The penalty that the model brings counts as the caller's own does. */
    const float penalty = mr_model_config_get(model)->sampling.repetition_penalty;
    const bool brings = !ask->has_repetition_penalty && !isnan(penalty) && penalty != 1.0f;
    return ask->beam_width > 1 && brings ? refuse_raw_beams(&c, ask) : MR_OK;
}

void mr_generation_fill_defaults(const mr_generation_ask *ask, const mr_model *model,
                                 mr_request_params *params)
{
    const mr_sampling_defaults *own = &mr_model_config_get(model)->sampling;
    if (!ask->has_repetition_penalty && !isnan(own->repetition_penalty)) {
        params->repetition_penalty = own->repetition_penalty;
    }
    if (params->beam_width > 1) {
        return; /* beams do not draw */
    }
    if (!ask->has_temperature && !isnan(own->temperature)) {
        params->temperature = own->temperature;
    }
    if (!ask->has_top_p && !isnan(own->top_p)) {
        params->top_p = own->top_p;
    }
    if (!ask->has_top_k && !isnan(own->top_k)) {
        params->top_k = (uint32_t)own->top_k;
    }
    if (!ask->has_min_p && !isnan(own->min_p)) {
        params->min_p = own->min_p;
    }
}

mr_status mr_generation_check_prompt(const mr_ids *ids, uint32_t vocab_size,
                                     uint32_t max_seq_length, const char *field,
                                     mr_request_params *params, mr_error *err)
{
    const size_t count = ids->count;
    if (count == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                             "%s is empty: give at least one token", field);
    }
    if (count >= max_seq_length) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                             "%s has %zu tokens, and prompt and output together may have %" PRIu32
                             ": shorten it to %" PRIu32 " or fewer",
                             field, count, max_seq_length, max_seq_length - 1);
    }
    for (size_t i = 0; i < count; i++) {
        if (ids->data[i] >= vocab_size) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, field,
                                 "%s: token %zu is %" PRIu32 ", the vocabulary ends at %" PRIu32,
                                 field, i, ids->data[i], vocab_size - 1);
        }
    }
    const uint32_t room = max_seq_length - (uint32_t)count;
    if (params->max_tokens > room) {
        params->max_tokens = room;
    }
    if (params->min_tokens > params->max_tokens) {
        params->min_tokens = params->max_tokens;
    }
    return MR_OK;
}
