/* SPDX-License-Identifier: Apache-2.0 */
#include "service/bench_requests.h"

#include "base/checked.h"
#include "base/clock.h"
#include "service/bench.h"
#include "service/load.h"
#include "service/result.h"

#include <stdlib.h>

#define WARM_TOKENS 16u /* that each request generates in the run before */
#define WARM_SHARE  8u  /* of the prompt: enough for steps of the sizes that come */

typedef struct bench {
    mr_runtime *runtime;
    mr_waiter waiter;
    mr_local_run *runs; /* [requests], owns */
    uint32_t *prompt;   /* [prompt], owns: scratch */
    uint32_t requests;
    uint32_t started;
    uint32_t ended;
    uint64_t made;             /* prompts, in all runs */
    uint64_t prompt_tokens;    /* of the run that goes on */
    uint64_t generated_tokens; /* likewise */
} bench;

static mr_status start_one(bench *b, uint32_t prompt, const mr_request_params *params,
                           mr_error *err)
{
    const mr_model_config *model = mr_model_config_get(mr_runtime_model(b->runtime));
    mr_generation_lists lists = {0};
    const mr_local_ask ask = {
        .prompt = b->prompt, .n_prompt = prompt, .params = params, .lists = &lists};
    mr_load_prompt(0, b->made++, model->vocab_size, b->prompt, prompt);
    mr_local_run *run = &b->runs[b->started];
    const mr_status status = mr_local_run_start(run, b->runtime, &b->waiter, &ask, err);
    if (status != MR_OK) {
        mr_local_run_deinit(run);
        return status;
    }
    b->started++;
    return MR_OK;
}

static mr_status take_news(bench *b, mr_error *err)
{
    for (uint32_t i = 0; i < b->started; i++) {
        mr_local_run *run = &b->runs[i];
        if (run->ended) {
            continue;
        }
        MR_TRY(mr_local_run_take(run, err));
        const mr_result *result = &run->results[0];
        if (!run->ended) {
            continue;
        }
        b->ended++;
        if (result->error.status != MR_OK) {
            return mr_fail(err, result->error.status, "request %u: %s", i, result->error.message);
        }
        b->prompt_tokens += result->prompt_tokens;
        b->generated_tokens += result->token_ids.count;
    }
    return MR_OK;
}

/* Ends what still runs after an error, and frees all. */
static void end_all(bench *b)
{
    for (uint32_t i = 0; i < b->started; i++) {
        mr_local_run *run = &b->runs[i];
        if (!run->ended) {
            mr_engine_cancel(mr_runtime_engine(b->runtime), run->request);
            while (!mr_local_run_discard(run)) {
                (void)mr_waiter_wait(&b->waiter, -1);
            }
        }
        mr_local_run_deinit(run);
    }
    b->started = 0;
    b->ended = 0;
}

static mr_status run_all(bench *b, uint32_t prompt, uint32_t generate, double *seconds,
                         mr_error *err)
{
    const mr_generation_ask ask = {.has_temperature = true, /* 0: greedy */
                                   .has_seed = true,
                                   .has_max_tokens = true,
                                   .max_tokens = generate,
                                   .ignore_eos = true};
    mr_request_params params;
    MR_TRY(mr_generation_check(&ask, MR_SURFACE_CLI, &params, err));
    b->prompt_tokens = 0;
    b->generated_tokens = 0;
    const uint64_t begin_ns = mr_monotonic_ns();
    mr_status status = MR_OK;
    while (status == MR_OK && b->started < b->requests) {
        status = start_one(b, prompt, &params, err);
    }
    while (status == MR_OK && b->ended < b->requests) {
        (void)mr_waiter_wait(&b->waiter, -1);
        status = take_news(b, err);
    }
    *seconds = (double)(mr_monotonic_ns() - begin_ns) / 1e9;
    end_all(b);
    return status;
}

/* seconds: [spec->repeat]. */
static mr_status measure(bench *b, const mr_bench_requests_spec *spec, double *seconds,
                         mr_error *err)
{
    MR_TRY(run_all(b, (spec->prompt + WARM_SHARE - 1) / WARM_SHARE,
                   mr_min_u32(spec->generate, WARM_TOKENS), &seconds[0], err));
    for (uint32_t i = 0; i < spec->repeat; i++) {
        MR_TRY(run_all(b, spec->prompt, spec->generate, &seconds[i], err));
    }
    return MR_OK;
}

mr_status mr_bench_requests(mr_runtime *runtime, const mr_bench_requests_spec *spec,
                            mr_bench_requests_result *out, mr_error *err)
{
    bench b = {.runtime = runtime, .requests = spec->requests};
    mr_status status;
    double *runs = mr_calloc(spec->repeat, sizeof(*runs));
    MR_TRY_CLEANUP(status, mr_waiter_init(&b.waiter, err));
    b.runs = mr_calloc(spec->requests, sizeof(*b.runs));
    b.prompt = mr_calloc(spec->prompt, sizeof(*b.prompt));
    if (runs == NULL || b.runs == NULL || b.prompt == NULL) {
        status =
            mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for %u requests", spec->requests);
        goto cleanup;
    }
    MR_TRY_CLEANUP(status, measure(&b, spec, runs, err));
    *out = (mr_bench_requests_result){
        .seconds = mr_bench_median(runs, spec->repeat),
        .prompt_tokens = b.prompt_tokens,
        .generated_tokens = b.generated_tokens,
    };
cleanup:
    mr_waiter_deinit(&b.waiter);
    free(b.runs);
    free(b.prompt);
    free(runs);
    return status;
}
