/* SPDX-License-Identifier: Apache-2.0 */
#include "service/load_run.h"

#include "base/checked.h"
#include "base/clock.h"
#include "service/generate_remote.h"

#include <stdlib.h>

typedef struct load load;

/* One request under way. */
typedef struct shot {
    load *owner;
    uint64_t due_ns;
    uint64_t first_ns;     /* of the first token; 0: none yet */
    uint64_t last_ns;      /* of the last message with tokens */
    uint32_t first_tokens; /* of the first message */
    uint32_t tokens;
    uint32_t wanted; /* tokens; what a static batch makes beyond them is waste */
    uint32_t cached_tokens;
} shot;

struct load {
    mr_client *client;
    const mr_load_spec *spec;
    mr_load_result *result;
    mr_clock clock;
    uint64_t start_ns;
    mr_load_arrivals arrivals; /* open loop */
    uint64_t due_ns;           /* of the next request */
    uint32_t started;
    uint32_t in_flight;
    uint32_t batch_left;    /* static batches: places in the one that is being formed */
    uint32_t batch_longest; /* and the longest output in it */
    uint32_t *prompt;       /* owns, [prompt_tokens.most]: scratch */
    bool out_of_memory;     /* for samples */
};

static void add_sample(load *l, mr_load_samples *samples, uint64_t ns, uint32_t times)
{
    if (mr_load_samples_add(samples, ns, times) != MR_OK) {
        l->out_of_memory = true;
    }
}

static uint64_t since(uint64_t now_ns, uint64_t then_ns)
{
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

static bool on_response(void *ctx, const Millrace__V1__GenerateResponse *response)
{
    shot *s = ctx;
    load *l = s->owner;
    const uint64_t now_ns = mr_clock_now(&l->clock);
    uint32_t tokens = 0;
    for (size_t i = 0; i < response->n_chunks; i++) {
        tokens += (uint32_t)response->chunks[i]->n_tokens;
    }
    if (response->usage != NULL) {
        s->cached_tokens = response->usage->cached_tokens;
    }
    tokens = mr_min_u32(tokens, s->wanted - s->tokens);
    if (tokens == 0) {
        return true;
    }
    if (s->first_ns == 0) {
        s->first_ns = now_ns;
        s->first_tokens = tokens;
    } else {
        add_sample(l, &l->result->inter_token, since(now_ns, s->last_ns) / tokens, tokens);
    }
    s->last_ns = now_ns;
    s->tokens += tokens;
    return !l->out_of_memory;
}

static mr_status start_stream(load *l, shot *s, mr_error *err)
{
    const mr_load_spec *spec = l->spec;
    const mr_load_lengths lengths =
        mr_load_lengths_of(spec->seed, l->started, spec->prompt_tokens, spec->output_tokens);
    mr_load_prompt(spec->seed, l->started, spec->vocab_size, l->prompt, lengths.prompt);
    Millrace__V1__Tokens tokens;
    millrace__v1__tokens__init(&tokens);
    tokens.n_ids = lengths.prompt;
    tokens.ids = l->prompt;
    Millrace__V1__Sampling sampling;
    millrace__v1__sampling__init(&sampling);
    mr_generate_remote_sampling(spec->sampling, &sampling);
    sampling._seed_case = MILLRACE__V1__SAMPLING___SEED_SEED;
    sampling.seed = (spec->seed + l->started) & ((UINT64_C(1) << 53) - 1);
    Millrace__V1__Stopping stopping;
    millrace__v1__stopping__init(&stopping);
    stopping._max_tokens_case = MILLRACE__V1__STOPPING___MAX_TOKENS_MAX_TOKENS;
    stopping.max_tokens = spec->static_batch > 0 ? l->batch_longest : lengths.output;
    s->wanted = lengths.output;
    stopping.ignore_eos = true;
    Millrace__V1__GenerateRequest request;
    millrace__v1__generate_request__init(&request);
    request.input_case = MILLRACE__V1__GENERATE_REQUEST__INPUT_TOKENS;
    request.tokens = &tokens;
    request.sampling = &sampling;
    request.stopping = &stopping;
    const mr_client_call call = {
        .timeout_ms = spec->timeout_ms, .on_response = on_response, .ctx = s};
    mr_client_stream *stream;
    return mr_client_stream_start(l->client, &request, &call, &stream, err);
}

static mr_status start_shot(load *l, mr_error *err)
{
    shot *s = mr_calloc(1, sizeof(*s));
    if (s == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a request");
    }
    s->owner = l;
    s->due_ns = l->due_ns;
    add_sample(l, &l->result->late, since(mr_clock_now(&l->clock), s->due_ns), 1);
    const mr_status status = start_stream(l, s, err);
    if (status != MR_OK) {
        free(s);
        return status;
    }
    l->started++;
    l->in_flight++;
    if (l->in_flight > l->result->most_in_flight) {
        l->result->most_in_flight = l->in_flight;
    }
    return MR_OK;
}

static void count_done(load *l, const shot *s, uint64_t now_ns)
{
    const mr_load_spec *spec = l->spec;
    mr_load_result *result = l->result;
    const uint64_t ttft_ns = since(s->first_ns, s->due_ns);
    const uint32_t later = s->tokens - s->first_tokens;
    const uint64_t token_ns = later == 0 ? 0 : since(s->last_ns, s->first_ns) / later;
    result->done++;
    result->output_tokens += s->tokens;
    result->cached_tokens += s->cached_tokens;
    add_sample(l, &result->ttft, ttft_ns, 1);
    add_sample(l, &result->e2e, since(now_ns, s->due_ns), 1);
    if (later > 0) {
        add_sample(l, &result->tpot, token_ns, 1);
    }
    if ((double)ttft_ns / 1e6 <= spec->slo_ttft_ms && (double)token_ns / 1e6 <= spec->slo_itl_ms) {
        result->good++;
        result->good_tokens += s->tokens;
    }
}

static void end_shot(load *l, mr_client_stream *stream)
{
    shot *s = mr_client_stream_ctx(stream);
    const uint64_t now_ns = mr_clock_now(&l->clock);
    mr_load_result *result = l->result;
    mr_error err = {0};
    mr_status status = mr_client_stream_end(stream, &err);
    if (status == MR_OK && s->tokens != s->wanted) {
        status = mr_fail(&err, MR_UNKNOWN, "a stream ended well after %u of %u tokens", s->tokens,
                         s->wanted);
    }
    if (status == MR_OK) {
        count_done(l, s, now_ns);
    } else {
        result->failed++;
        result->errors[status]++;
        if (result->first_error.status == MR_OK) {
            result->first_error = err;
        }
    }
    free(s);
    l->in_flight--;
    result->duration_ns = now_ns - l->start_ns;
    if (l->spec->concurrency > 0) {
        l->due_ns = now_ns;
    }
    if (l->spec->progress != NULL) {
        l->spec->progress(l->spec->progress_ctx, result->done + result->failed, l->spec->requests);
    }
}

/* Begins a static batch of what has arrived: nobody leaves it before its longest output is done. */
static void form_batch(load *l)
{
    const mr_load_spec *spec = l->spec;
    const uint64_t now_ns = mr_clock_now(&l->clock);
    mr_load_arrivals arrivals = l->arrivals;
    uint64_t due_ns = l->due_ns;
    l->batch_left = 0;
    l->batch_longest = 0;
    while (l->batch_left < spec->static_batch && due_ns <= now_ns &&
           l->started + l->batch_left < spec->requests) {
        const uint32_t output = mr_load_lengths_of(spec->seed, l->started + l->batch_left,
                                                   spec->prompt_tokens, spec->output_tokens)
                                    .output;
        l->batch_longest = output > l->batch_longest ? output : l->batch_longest;
        l->batch_left++;
        due_ns = mr_time_add(l->start_ns, mr_load_arrivals_next(&arrivals));
    }
}

/* Starts what is due. *wait_ns: when to look again if nothing happens. */
static mr_status start_due(load *l, uint64_t *wait_ns, mr_error *err)
{
    const mr_load_spec *spec = l->spec;
    *wait_ns = MR_NEVER;
    if (spec->static_batch > 0 && l->in_flight == 0) {
        form_batch(l);
    }
    while (l->started < spec->requests) {
        if (spec->static_batch > 0 && l->batch_left == 0) {
            *wait_ns = l->in_flight == 0 ? l->due_ns : MR_NEVER;
            return MR_OK;
        }
        if (spec->concurrency > 0 && l->in_flight >= spec->concurrency) {
            return MR_OK;
        }
        if (spec->concurrency == 0 && mr_clock_now(&l->clock) < l->due_ns) {
            *wait_ns = l->due_ns;
            return MR_OK;
        }
        MR_TRY(start_shot(l, err));
        l->batch_left -= l->batch_left > 0;
        if (spec->concurrency == 0) {
            l->due_ns = mr_time_add(l->start_ns, mr_load_arrivals_next(&l->arrivals));
        }
    }
    return MR_OK;
}

static mr_status run_all(load *l, mr_error *err)
{
    mr_status status = MR_OK;
    while (status == MR_OK && (l->in_flight > 0 || l->started < l->spec->requests)) {
        uint64_t wait_ns;
        status = start_due(l, &wait_ns, err);
        if (status == MR_OK) {
            mr_client_stream *ended = mr_client_stream_wait(l->client, wait_ns);
            if (ended != NULL) {
                end_shot(l, ended);
            }
        }
        if (l->out_of_memory) {
            status = mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for measured times");
        }
    }
    l->out_of_memory = status != MR_OK; /* streams still under way then end with their next token */
    while (l->in_flight > 0) {
        mr_client_stream *ended = mr_client_stream_wait(l->client, MR_NEVER);
        if (ended != NULL) {
            end_shot(l, ended);
        }
    }
    return status;
}

mr_status mr_load_run(mr_client *client, const mr_load_spec *spec, mr_load_result *result,
                      mr_error *err)
{
    *result = (mr_load_result){0};
    load l = {
        .client = client,
        .spec = spec,
        .result = result,
        .clock = mr_clock_monotonic(),
        .prompt = mr_calloc(spec->prompt_tokens.most, sizeof(uint32_t)),
    };
    if (l.prompt == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a prompt");
    }
    mr_load_arrivals_init(&l.arrivals, spec->seed, spec->rate);
    l.start_ns = mr_clock_now(&l.clock);
    l.due_ns = l.start_ns;
    if (spec->concurrency == 0) {
        l.due_ns += mr_load_arrivals_next(&l.arrivals);
    }
    const mr_status status = run_all(&l, err);
    free(l.prompt);
    return status;
}

void mr_load_result_deinit(mr_load_result *result)
{
    mr_load_samples_deinit(&result->ttft);
    mr_load_samples_deinit(&result->inter_token);
    mr_load_samples_deinit(&result->tpot);
    mr_load_samples_deinit(&result->e2e);
    mr_load_samples_deinit(&result->late);
}
