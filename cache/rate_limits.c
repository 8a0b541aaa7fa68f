/* SPDX-License-Identifier: Apache-2.0 */
#include "cache/rate_limits.h"

#include "base/checked.h"

#include <inttypes.h>

bool mr_rate_limits_any(const mr_rate_limits *limits)
{
    return limits->requests_per_s > 0 || limits->tokens_per_min > 0 || limits->max_concurrent > 0;
}

mr_status mr_rate_limits_check(const mr_rate_limits *limits, uint64_t prompt, uint64_t output,
                               mr_error *err)
{
    uint64_t both = 0;
    if (limits->tokens_per_min == 0 ||
        (mr_add_u64(prompt, output, &both) && both <= limits->burst_tokens)) {
        return MR_OK;
    }
    return mr_fail(err, MR_INVALID_ARGUMENT,
                   "the request may take %" PRIu64 " tokens of prompt and %" PRIu64
                   " of output, and the tenant's burst_tokens is %" PRIu32
                   ": lower max_tokens, n, or the prompt's length",
                   prompt, output, limits->burst_tokens);
}

mr_status mr_rate_refusal(const mr_rate_decision *decision, const mr_rate_limits *limits,
                          mr_error *err)
{
    mr_status status = MR_RESOURCE_EXHAUSTED;
    switch (decision->short_of) {
    case MR_RATE_REQUESTS:
        (void)mr_fail(err, status,
                      "the tenant's limit of %g requests a second is used up: try "
                      "again in %" PRIu32 " ms",
                      limits->requests_per_s, decision->retry_after_ms);
        break;
    case MR_RATE_TOKENS:
        (void)mr_fail(err, status,
                      "the tenant's limit of %" PRIu32 " tokens a minute is used up: "
                      "try again in %" PRIu32 " ms, or ask for fewer with max_tokens",
                      limits->tokens_per_min, decision->retry_after_ms);
        break;
    case MR_RATE_UNKNOWN:
        status = mr_fail(err, MR_UNAVAILABLE,
                         "the rate limits cannot be checked, since Redis does "
                         "not answer, and redis.on_failure is closed: try again");
        break;
    default:
        (void)mr_fail(err, status,
                      "the tenant has %" PRIu32 " requests running, as many as it may "
                      "have: try again when one has ended",
                      limits->max_concurrent);
        break;
    }
    if (err != NULL) {
        err->retry_after_ms = decision->retry_after_ms > 0 ? decision->retry_after_ms : 1;
    }
    return status;
}
