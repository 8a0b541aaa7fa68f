/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/request.h"

#include "base/checked.h"
#include "base/sha256.h"
#include "scheduler/sequence.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_RING_CAPACITY 256u
#define MIN_RING_CAPACITY     2u /* a token and the last event */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the Philox key hashes prompt ids as they lie in memory, which must be little-endian"
#endif

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
    if (spec->params.top_logprobs > MR_MAX_TOP) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "top_logprobs",
                             "top_logprobs is %u, at most %d alternatives are given",
                             spec->params.top_logprobs, MR_MAX_TOP);
    }
    return MR_OK;
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

/* `request` is zeroed, its cancel flag therefore clear. */
static mr_status fill(mr_request *request, const mr_request_spec *spec)
{
    memcpy(request->id, spec->id, strlen(spec->id) + 1);
    request->n_prompt = spec->n_prompt;
    request->params = spec->params;
    request->arrived_ns = spec->arrived_ns;
    request->deadline_ns = spec->deadline_ns;
    request->sink = spec->sink;
    request->owner = spec->owner;
    request->usage.prompt_tokens = spec->n_prompt;
    request->usage.arrived_ns = spec->arrived_ns;
    mr_refs_init(&request->refs, 1);
    mr_inbox_node_init(&request->to_engine);
    mr_inbox_node_init(&request->to_owner);

    const size_t room = (size_t)spec->n_prompt + spec->params.max_tokens;
    request->prompt = mr_reallocarray(NULL, room, sizeof(*request->prompt));
    if (request->prompt == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    memcpy(request->prompt, spec->prompt, spec->n_prompt * sizeof(*spec->prompt));
    request->key = philox_key(request);

    uint32_t capacity = spec->ring_capacity == 0 ? DEFAULT_RING_CAPACITY : spec->ring_capacity;
    capacity = capacity < MIN_RING_CAPACITY ? MIN_RING_CAPACITY : capacity;
    MR_TRY(mr_ring_init(&request->events, capacity, ring_stride(&request->params)));
    return mr_sequence_create(request, &request->sequence);
}

static void destroy(mr_request *request)
{
    mr_sequence_destroy(request->sequence);
    mr_ring_deinit(&request->events);
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
