/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void tiny_tokens(const tiny_plan *tiny, uint64_t seed, int32_t *tokens, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        tokens[i] = (int32_t)(tiny_random(&seed) % tiny->dims.vocab);
    }
}

float *tiny_logits(mr_backend *backend, const tiny_plan *tiny, const mr_exec_options *options,
                   uint32_t length, tiny_schedule how)
{
    const size_t vocab = tiny->dims.vocab;
    const uint32_t chunked = how.prefill > 0 ? how.prefill : length;
    int32_t *tokens = malloc(2 * (size_t)length * sizeof(*tokens));
    float *logits = malloc(length * vocab * sizeof(*logits));
    assert_true(tokens != NULL && logits != NULL);
    int32_t *others = tokens + length;
    tiny_tokens(tiny, 7, tokens, length);
    tiny_tokens(tiny, 8, others, length);
    tiny_session session;
    tiny_session_create(tiny, backend, options, &session);
    for (uint32_t start = 0, count; start < length; start += count) {
        const uint32_t left = (start < chunked ? chunked : length) - start;
        count = start >= chunked ? 1 : left < how.chunk ? left : how.chunk;
        mr_batch_reset(session.storage);
        for (uint32_t slot = 0; slot < how.neighbours; slot++) {
            tiny_feed(&session, slot, others + start, start, count, false);
        }
        tiny_feed(&session, how.neighbours, tokens + start, start, count, true);
        mr_step_output out;
        tiny_run(&session, &out);
        assert_int_equal(out.n_rows, how.neighbours + count);
        memcpy(logits + start * vocab, out.logits + how.neighbours * vocab,
               count * vocab * sizeof(*logits));
    }
    tiny_session_destroy(&session);
    free(tokens);
    return logits;
}

double tiny_distance(const float *a, const float *b, uint32_t rows, uint32_t width)
{
    double worst = 0;
    for (size_t row = 0; row < rows; row++) {
        double error = 0;
        double length = 0;
        for (size_t i = 0; i < width; i++) {
            const double x = (double)a[row * width + i];
            const double y = (double)b[row * width + i];
            error += (x - y) * (x - y);
            length += y * y;
        }
        const double relative = sqrt(error / length);
        worst = relative > worst || isnan(relative) ? relative : worst;
    }
    return worst;
}
