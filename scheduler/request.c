/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/request.h"

#include "base/checked.h"
#include "base/sha256.h"
#include "scheduler/sequence.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RING_CAPACITY 256u
#define RING_PER_CHOICE       2u /* a token and the last event */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the Philox key hashes prompt ids as they lie in memory, which must be little-endian"
#endif

static mr_status check_choices(const mr_request_params *params, mr_error *err)
{
    if (params->n > MR_MAX_CHOICES) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "n", "n is %u, at most %u choices are given",
                             params->n, MR_MAX_CHOICES);
    }
    if (params->beam_width <= 1) {
        return MR_OK;
    }
    if (params->beam_width > MR_MAX_BEAMS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "beam_width",
                             "beam_width is %u, at most %u beams are possible", params->beam_width,
                             MR_MAX_BEAMS);
    }
    if (params->n > params->beam_width) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "n",
                             "n is %u and beam_width %u: a search gives at most as many choices as "
                             "it has beams",
                             params->n, params->beam_width);
    }
    if (!isfinite(params->length_penalty)) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "length_penalty",
                             "length_penalty is not finite");
    }
    if (params->logprobs && params->top_logprobs > 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "top_logprobs",
                             "beam search gives no alternatives: set top_logprobs to 0, or "
                             "beam_width to 1");
    }
    return MR_OK;
}

static mr_status check_lists(const mr_request_spec *spec, mr_error *err)
{
    if (spec->n_bias > MR_MAX_LOGIT_BIAS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "logit_bias",
                             "logit_bias has %u entries, at most %u are possible", spec->n_bias,
                             MR_MAX_LOGIT_BIAS);
    }
    for (uint32_t i = 0; i < spec->n_bias; i++) {
        if (!(spec->bias_values[i] <= FLT_MAX)) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "logit_bias",
                                 "logit_bias of token %u is %g: it must be finite, or -inf",
                                 spec->bias_tokens[i], (double)spec->bias_values[i]);
        }
    }
    if (spec->n_stop_tokens > MR_MAX_STOP_TOKENS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "stop_token_ids",
                             "there are %u stop_token_ids, at most %u are possible",
                             spec->n_stop_tokens, MR_MAX_STOP_TOKENS);
    }
    return MR_OK;
}

static mr_status check_share(const mr_request_spec *spec, mr_error *err)
{
    if (spec->tenant >= MR_MAX_TENANTS || spec->weight > MR_MAX_WEIGHT) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "weight",
                             "tenant %u has weight %u: tenants are numbers below %u, weights at "
                             "most %u",
                             spec->tenant, spec->weight, MR_MAX_TENANTS, MR_MAX_WEIGHT);
    }
    const int32_t priority = spec->params.priority;
    if (priority < -MR_MAX_PRIORITY || priority > MR_MAX_PRIORITY) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "priority",
                             "priority is %d: it must be from %d to %d", priority, -MR_MAX_PRIORITY,
                             MR_MAX_PRIORITY);
    }
    return MR_OK;
}

static mr_status check_spec(const mr_request_spec *spec, mr_error *err)
{
    if (strlen(spec->id) > MR_REQUEST_ID_MAX) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "request_id",
                             "the request id has %zu bytes, at most %d are allowed",
                             strlen(spec->id), MR_REQUEST_ID_MAX);
    }
    if (spec->n_prompt == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "prompt",
                             "the prompt has no tokens; send at least one");
    }
    if (spec->params.max_tokens == 0) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "max_tokens",
                             "max_tokens is 0; ask for at least 1");
    }
    if ((uint64_t)spec->n_prompt + spec->params.max_tokens > INT32_MAX) {
        return mr_fail_field(
            err, MR_INVALID_ARGUMENT, "max_tokens",
            "%u prompt tokens and max_tokens %u pass %d together; lower max_tokens", spec->n_prompt,
            spec->params.max_tokens, INT32_MAX);
    }
    if (spec->params.top_logprobs > MR_MAX_TOP_LOGPROBS) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "top_logprobs",
                             "top_logprobs is %u, at most %u alternatives are given",
                             spec->params.top_logprobs, MR_MAX_TOP_LOGPROBS);
    }
    if (spec->ring_capacity > MR_RING_MAX_CAPACITY) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "ring_capacity",
                             "a ring of %u events was asked for, at most %u are possible",
                             spec->ring_capacity, MR_RING_MAX_CAPACITY);
    }
    MR_TRY(check_share(spec, err));
    MR_TRY(check_choices(&spec->params, err));
    return check_lists(spec, err);
}

static uint32_t ring_stride(const mr_request_params *params)
{
    const uint32_t n_top = params->logprobs ? params->top_logprobs : 0;
    const size_t bytes = offsetof(mr_token_event, top) + n_top * sizeof(mr_alternative);
    const size_t whole = bytes > sizeof(mr_token_event) ? bytes : sizeof(mr_token_event);
    return (uint32_t)((whole + 7) / 8 * 8);
}

static uint64_t philox_key(const mr_request *request)
{
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256(request->prompt, request->n_prompt * sizeof(*request->prompt), digest);
    return request->params.seed ^ mr_sha256_low64(digest);
}

/* Gives a copy of `count` entries in *out; NULL for none. */
static mr_status copy_list(const void *from, size_t count, size_t size, void **out)
{
    if (count == 0) {
        return MR_OK;
    }
    *out = mr_calloc(count, size);
    if (*out == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    memcpy(*out, from, count * size);
    return MR_OK;
}

static mr_status fill_lists(mr_request *request, const mr_request_spec *spec)
{
    void *lists[3] = {NULL, NULL, NULL};
    mr_status status = MR_OK;
    MR_TRY_CLEANUP(status, copy_list(spec->bias_tokens, spec->n_bias, sizeof(uint32_t), &lists[0]));
    MR_TRY_CLEANUP(status, copy_list(spec->bias_values, spec->n_bias, sizeof(float), &lists[1]));
    MR_TRY_CLEANUP(status,
                   copy_list(spec->stop_tokens, spec->n_stop_tokens, sizeof(uint32_t), &lists[2]));

cleanup:
    request->bias_tokens = lists[0];
    request->bias_values = lists[1];
    request->stop_tokens = lists[2];
    request->n_bias = spec->n_bias;
    request->n_stop_tokens = spec->n_stop_tokens;
    return status;
}

const char *mr_finish_name(mr_finish finish)
{
    static const char *const names[] = {
        [MR_FINISH_NONE] = "none",
        [MR_FINISH_STOP] = "stop",
        [MR_FINISH_LENGTH] = "length",
        [MR_FINISH_CANCELLED] = "cancelled",
        [MR_FINISH_TIME_LIMIT] = "time_limit",
        [MR_FINISH_ERROR] = "error",
    };
    return names[finish];
}

static mr_status fill_prompt(mr_request *request, const mr_request_spec *spec)
{
    const size_t room = (size_t)spec->n_prompt + spec->params.max_tokens;
    request->n_prompt = spec->n_prompt;
    request->prompt = mr_reallocarray(NULL, room, sizeof(*request->prompt));
    if (request->prompt == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    memcpy(request->prompt, spec->prompt, spec->n_prompt * sizeof(*spec->prompt));
    request->key = philox_key(request);
    if (!spec->params.prompt_logprobs) {
        return MR_OK;
    }
    request->prompt_logprobs = mr_calloc(spec->n_prompt, sizeof(*request->prompt_logprobs));
    request->prompt_top = mr_calloc((size_t)spec->n_prompt * spec->params.top_logprobs + 1,
                                    sizeof(*request->prompt_top));
    request->n_prompt_scored = 1;
    return request->prompt_logprobs == NULL || request->prompt_top == NULL ? MR_RESOURCE_EXHAUSTED
                                                                           : MR_OK;
}

/* On the caller's thread, so that the engine hashes no prompt. */
static mr_status fill_hashes(mr_request *request, const mr_prefix_root *root)
{
    if (root == NULL) {
        return MR_OK;
    }
    const uint32_t size = root->block_size;
    const uint32_t count = request->n_prompt / size;
    mr_hasher *hasher = NULL;
    request->prefix = *root;
    request->hashes = mr_calloc((size_t)count + 1, sizeof(*request->hashes));
    if (request->hashes == NULL || mr_hasher_create(&hasher) != MR_OK) {
        return MR_RESOURCE_EXHAUSTED;
    }
    const mr_block_hash *parent = &request->prefix.hash;
    for (uint32_t i = 0; i < count; i++) {
        mr_prefix_block_hash(hasher, parent, request->prompt + (size_t)i * size, size,
                             &request->hashes[i]);
        parent = &request->hashes[i];
    }
    mr_hasher_destroy(hasher);
    return MR_OK;
}

/* `request` is zeroed, its cancel flag therefore clear. */
static mr_status fill(mr_request *request, const mr_request_spec *spec)
{
    memcpy(request->id, spec->id, strlen(spec->id) + 1);
    request->tenant = spec->tenant;
    request->weight = spec->weight == 0 ? 1 : spec->weight;
    request->params = spec->params;
    request->params.n = spec->params.n == 0 ? 1 : spec->params.n;
    request->params.beam_width = spec->params.beam_width == 0 ? 1 : spec->params.beam_width;
    request->arrived_ns = spec->arrived_ns;
    request->deadline_ns = spec->deadline_ns;
    request->sink = spec->sink;
    request->owner = spec->owner;
    request->usage.prompt_tokens = spec->n_prompt;
    request->usage.arrived_ns = spec->arrived_ns;
    mr_refs_init(&request->refs, 1);
    mr_inbox_node_init(&request->to_engine);
    MR_TRY(fill_prompt(request, spec));
    MR_TRY(fill_lists(request, spec));
    MR_TRY(fill_hashes(request, spec->prefix));

    const uint32_t least = RING_PER_CHOICE * request->params.n;
    const uint32_t asked = spec->ring_capacity == 0 ? DEFAULT_RING_CAPACITY : spec->ring_capacity;
    MR_TRY(mr_ring_init(&request->events, asked < least ? least : asked,
                        ring_stride(&request->params)));
    return mr_group_create(request, &request->group);
}

static void destroy(mr_request *request)
{
    mr_group_destroy(request->group);
    mr_ring_deinit(&request->events);
    mr_stop_destroy(request->stop);
    free(request->hashes);
    free(request->prompt_logprobs);
    free(request->prompt_top);
    free(request->bias_tokens);
    free(request->bias_values);
    free(request->stop_tokens);
    free(request->prompt);
    free(request);
}

mr_status mr_request_create(const mr_request_spec *spec, mr_request **out, mr_error *err)
{
    MR_TRY(check_spec(spec, err));
    mr_request *request = mr_calloc(1, sizeof(*request));
    mr_status status = MR_RESOURCE_EXHAUSTED;
    if (request != NULL) {
        status = fill(request, spec);
    }
    if (status != MR_OK) {
        if (request != NULL) {
            destroy(request);
        }
        return mr_fail(err, status,
                       "no memory for a request of %u prompt tokens and max_tokens %u; ask for "
                       "fewer tokens or try again later",
                       spec->n_prompt, spec->params.max_tokens);
    }
    request->stop = spec->stop;
    *out = request;
    return MR_OK;
}

void mr_request_ref(mr_request *request)
{
    mr_refs_get(&request->refs);
}

void mr_request_unref(mr_request *request)
{
    if (mr_refs_put(&request->refs)) {
        destroy(request);
    }
}
