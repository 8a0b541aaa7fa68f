/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "service/api_key.h"
#include "service/commands.h"
#include "service/jsonl.h"
#include "service/listen.h"
#include "service/load_run.h"
#include "service/progress.h"

#include <inttypes.h>
#include <math.h>

#define MODEL_TIMEOUT_MS 30000
#define MAX_REQUESTS     1000000u
#define MAX_SAMPLES      100000000u /* output tokens of a run: each is a sample of four bytes */
#define MAX_RATE         100000.0f
#define MAX_CONCURRENCY  10000u

typedef struct serve_options {
    const char *server;
    const char *key_file;
    mr_client_tls tls;
    uint64_t requests, concurrency, static_batch, seed, timeout_ms;
    uint64_t prompt_tokens, prompt_tokens_max, output_tokens, output_tokens_max;
    float rate, slo_ttft_ms, slo_itl_ms;
    mr_generation_ask sampling;
    bool has_concurrency, has_static_batch, has_rate, has_slo_ttft, has_slo_itl;
    bool has_prompt_max, has_output_max;
    bool json;
} serve_options;

/* The summaries, in the order that they are shown in. */
typedef struct serve_report {
    mr_load_summary ttft, inter_token, tpot, e2e, late;
} serve_report;

static double seconds(const mr_load_result *result)
{
    return result->duration_ns > 0 ? (double)result->duration_ns / (double)MR_NS_PER_S : HUGE_VAL;
}

/* Milliseconds; nulls where nothing was measured. */
static json_t *summary_object(const mr_load_summary *s)
{
    if (s->count == 0) {
        return json_pack("{s:n, s:n, s:n, s:n, s:n}", "p50", "p90", "p99", "mean", "max");
    }
    return json_pack("{s:f, s:f, s:f, s:f, s:f}", "p50", s->p50, "p90", s->p90, "p99", s->p99,
                     "mean", s->mean, "max", s->max);
}

static json_t *errors_object(const mr_load_result *result)
{
    json_t *object = json_object();
    for (int i = 0; i < MR_LOAD_STATUSES; i++) {
        if (result->errors[i] > 0 &&
            json_object_set_new(object, mr_status_name((mr_status)i),
                                json_integer((json_int_t)result->errors[i])) != 0) {
            json_decref(object);
            return NULL;
        }
    }
    return object;
}

static json_t *goodput_object(const serve_options *o, const mr_load_result *result)
{
    if (!o->has_slo_ttft && !o->has_slo_itl) {
        return json_null();
    }
    json_t *object =
        json_pack("{s:I, s:f, s:f}", "good", (json_int_t)result->good, "requests_per_s",
                  (double)result->good / seconds(result), "output_tokens_per_s",
                  (double)result->good_tokens / seconds(result));
    int failed = json_object_set_new(
        object, "slo_ttft_ms", o->has_slo_ttft ? json_real((double)o->slo_ttft_ms) : json_null());
    failed |= json_object_set_new(object, "slo_itl_ms",
                                  o->has_slo_itl ? json_real((double)o->slo_itl_ms) : json_null());
    if (failed != 0) {
        json_decref(object);
        return NULL;
    }
    return object;
}

/* Those that were given; false: out of memory. */
static bool put_sampling(const mr_generation_ask *ask, json_t *object)
{
    const struct {
        const char *name;
        bool given;
        json_t *value;
    } fields[] = {
        {"temperature", ask->has_temperature, json_real((double)ask->temperature)},
        {"top_p", ask->has_top_p, json_real((double)ask->top_p)},
        {"top_k", ask->has_top_k, json_integer((json_int_t)ask->top_k)},
        {"min_p", ask->has_min_p, json_real((double)ask->min_p)},
    };
    bool put = true;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        if (fields[i].given) {
            put = json_object_set(object, fields[i].name, fields[i].value) == 0 && put;
        }
        json_decref(fields[i].value);
    }
    return put;
}

static json_t *report_object(const serve_options *o, const mr_client_model *model,
                             const mr_load_result *result, const serve_report *report)
{
    json_t *object = json_pack(
        "{s:I, s:I, s:f, s:o, s:o, s:o, s:o, s:o}", "requests", (json_int_t)o->requests, "failed",
        (json_int_t)result->failed, "output_tokens_per_s",
        (double)result->output_tokens / seconds(result), "ttft_ms", summary_object(&report->ttft),
        "inter_token_ms", summary_object(&report->inter_token), "e2e_ms",
        summary_object(&report->e2e), "tpot_ms", summary_object(&report->tpot), "late_ms",
        summary_object(&report->late));
    json_t *more = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:I, s:I, s:I, s:o, s:o}",
        "server", o->server, "model", model->name, "backend", model->backend, "version",
        model->version, "loop", o->has_rate ? "open" : "closed", "prompt_tokens",
        (json_int_t)o->prompt_tokens, "prompt_tokens_max", (json_int_t)o->prompt_tokens_max,
        "output_tokens", (json_int_t)o->output_tokens, "output_tokens_max",
        (json_int_t)o->output_tokens_max, "seed", (json_int_t)o->seed, "duration_s",
        (double)result->duration_ns / 1e9, "requests_per_s", (double)result->done / seconds(result),
        "max_in_flight", (json_int_t)result->most_in_flight, "cached_tokens",
        (json_int_t)result->cached_tokens, "done", (json_int_t)result->done, "errors",
        errors_object(result), "goodput", goodput_object(o, result));
    const bool put = put_sampling(&o->sampling, more);
    json_t *mode = o->has_rate ? json_pack("{s:f, s:I}", "rate", (double)o->rate, "static_batch",
                                           (json_int_t)o->static_batch)
                               : json_pack("{s:I}", "concurrency", (json_int_t)o->concurrency);
    const bool failed = !put || more == NULL || mode == NULL ||
                        json_object_update(object, more) != 0 ||
                        json_object_update(object, mode) != 0;
    json_decref(more);
    json_decref(mode);
    if (failed) {
        json_decref(object);
        return NULL;
    }
    return object;
}

static void print_summary(const char *what, const mr_load_summary *s)
{
    if (s->count > 0) {
        printf("%-22s %10.2f %10.2f %10.2f %10.2f\n", what, s->p50, s->p90, s->p99, s->max);
    }
}

static void print_lengths(const char *before, uint64_t least, uint64_t most)
{
    printf("%s%" PRIu64, before, least);
    if (most > least) {
        printf("-%" PRIu64, most);
    }
}

static void print_table(const serve_options *o, const mr_client_model *model,
                        const mr_load_result *result, const serve_report *report)
{
    printf("%s on %s, %s\n", model->name, o->server, model->backend);
    if (o->has_rate) {
        printf("open loop, %g requests/s", (double)o->rate);
        if (o->has_static_batch) {
            printf(" in static batches of %" PRIu64, o->static_batch);
        }
    } else {
        printf("closed loop, %" PRIu64 " at a time", o->concurrency);
    }
    print_lengths("; ", o->prompt_tokens, o->prompt_tokens_max);
    print_lengths(" + ", o->output_tokens, o->output_tokens_max);
    printf(" tokens; at most %" PRIu32 " under way\n\n", result->most_in_flight);
    printf("%" PRIu64 " requests, %" PRIu64 " failed, in %.2f s: %.1f output tokens/s, %.2f "
           "requests/s\n",
           o->requests, result->failed, (double)result->duration_ns / 1e9,
           (double)result->output_tokens / seconds(result), (double)result->done / seconds(result));
    if (o->has_slo_ttft || o->has_slo_itl) {
        printf("%" PRIu64 " within the objectives: %.2f requests/s, %.1f output tokens/s\n",
               result->good, (double)result->good / seconds(result),
               (double)result->good_tokens / seconds(result));
    }
    printf("\n%-22s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max");
    print_summary("first token", &report->ttft);
    print_summary("between tokens", &report->inter_token);
    print_summary("mean of a request", &report->tpot);
    print_summary("whole request", &report->e2e);
    print_summary("sent late by", &report->late);
}

static int report_run(const serve_options *o, const mr_client_model *model, mr_load_result *result)
{
    const serve_report report = {
        .ttft = mr_load_samples_sum_up(&result->ttft),
        .inter_token = mr_load_samples_sum_up(&result->inter_token),
        .tpot = mr_load_samples_sum_up(&result->tpot),
        .e2e = mr_load_samples_sum_up(&result->e2e),
        .late = mr_load_samples_sum_up(&result->late),
    };
    mr_error err = {0};
    if (!o->json) {
        print_table(o, model, result, &report);
    } else if (mr_jsonl_write(stdout, report_object(o, model, result, &report), &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    if (result->failed == 0) {
        return MR_EXIT_OK;
    }
    (void)mr_fail_context(&result->first_error,
                          "%" PRIu64 " of %" PRIu64 " requests failed; the first with %s",
                          result->failed, o->requests, mr_status_name(result->first_error.status));
    return mr_cli_fail(MR_EXIT_FAILED, &result->first_error);
}

/* A request longer than the server allows would be cut short, and measure something else. */
static mr_status check_length(const serve_options *o, const mr_client_model *model, mr_error *err)
{
    if (model->vocab_size == 0) {
        return mr_fail(err, MR_INTERNAL, "%s: the served model has no vocabulary", o->server);
    }
    if (o->prompt_tokens_max + o->output_tokens_max > model->max_seq_length) {
        return mr_fail(err, MR_INVALID_ARGUMENT,
                       "prompts of %" PRIu64 " and outputs of %" PRIu64
                       " tokens are together more than the %" PRIu32
                       " that %s allows: lower one, or serve with a larger max_seq_length",
                       o->prompt_tokens_max, o->output_tokens_max, model->max_seq_length,
                       o->server);
    }
    return MR_OK;
}

static int run(const serve_options *o)
{
    mr_error err = {0};
    mr_request_params checked;
    if (mr_generation_check(&o->sampling, MR_SURFACE_CLI, &checked, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_client *client;
    mr_client_model model = {0};
    mr_load_result result = {0};
    char key[MR_API_KEY_MAX + 1];
    if (mr_api_key_load(o->key_file, key, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    if (mr_client_open(o->server, key, &o->tls, &client, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    mr_progress progress;
    mr_progress_init(&progress, "requests");
    progress.counts = true;
    mr_status status = mr_client_get_model(client, MODEL_TIMEOUT_MS, &model, &err);
    if (status == MR_OK) {
        status = check_length(o, &model, &err);
    }
    if (status == MR_OK) {
        const mr_load_spec spec = {
            .requests = (uint32_t)o->requests,
            .concurrency = o->has_rate ? 0 : (uint32_t)o->concurrency,
            .static_batch = (uint32_t)o->static_batch,
            .rate = (double)o->rate,
            .prompt_tokens = {(uint32_t)o->prompt_tokens, (uint32_t)o->prompt_tokens_max},
            .output_tokens = {(uint32_t)o->output_tokens, (uint32_t)o->output_tokens_max},
            .vocab_size = model.vocab_size,
            .sampling = &o->sampling,
            .seed = o->seed,
            .timeout_ms = o->timeout_ms,
            .slo_ttft_ms = o->has_slo_ttft ? (double)o->slo_ttft_ms : HUGE_VAL,
            .slo_itl_ms = o->has_slo_itl ? (double)o->slo_itl_ms : HUGE_VAL,
            .progress = mr_progress_update,
            .progress_ctx = &progress,
        };
        status = mr_load_run(client, &spec, &result, &err);
    }
    mr_progress_deinit(&progress);
    mr_client_close(client);
    const int code =
        status == MR_OK ? report_run(o, &model, &result) : mr_cli_fail(MR_EXIT_FAILED, &err);
    mr_load_result_deinit(&result);
    return code;
}

static bool valid_lengths(uint64_t least, uint64_t most)
{
    return least >= 1 && least <= most && most <= 1u << 20;
}

static int check_lengths(const serve_options *o)
{
    if (!valid_lengths(o->prompt_tokens, o->prompt_tokens_max) ||
        !valid_lengths(o->output_tokens, o->output_tokens_max) ||
        o->requests * o->output_tokens_max > MAX_SAMPLES) {
        return mr_cli_fail_usage("bench serve: --prompt-tokens and --output-tokens take 1 to "
                                 "1048576, the options with -max no less than these; all requests "
                                 "together at most %u output tokens",
                                 MAX_SAMPLES);
    }
    return MR_EXIT_OK;
}

/* MR_EXIT_OK, or the message is printed. */
static int check(const serve_options *o)
{
    if (o->server == NULL) {
        return mr_cli_fail_usage("bench serve: --server HOST:PORT is missing");
    }
    if (!mr_listen_is_address(o->server)) {
        return mr_cli_fail_server(o->server);
    }
    if (mr_client_tls_conflict(&o->tls) != NULL) {
        return mr_cli_fail_usage("bench serve: %s", mr_client_tls_conflict(&o->tls));
    }
    if (o->has_concurrency && o->has_rate) {
        return mr_cli_fail_usage("bench serve: give --concurrency (a closed loop) or --rate (an "
                                 "open one), not both");
    }
    if (o->requests < 1 || o->requests > MAX_REQUESTS || o->concurrency < 1 ||
        o->concurrency > MAX_CONCURRENCY) {
        return mr_cli_fail_usage("bench serve: --requests takes 1 to %u, --concurrency 1 to %u",
                                 MAX_REQUESTS, MAX_CONCURRENCY);
    }
    if (o->has_rate && !(o->rate > 0.0f && o->rate <= MAX_RATE)) {
        return mr_cli_fail_usage("bench serve: --rate takes requests a second, above 0 and up to "
                                 "%.0f",
                                 (double)MAX_RATE);
    }
    if (o->has_static_batch &&
        (!o->has_rate || o->static_batch < 1 || o->static_batch > MAX_CONCURRENCY)) {
        return mr_cli_fail_usage("bench serve: --static-batch takes 1 to %u, and needs --rate",
                                 MAX_CONCURRENCY);
    }
    if ((o->has_slo_ttft && !(o->slo_ttft_ms > 0.0f)) ||
        (o->has_slo_itl && !(o->slo_itl_ms > 0.0f)) || o->seed >= UINT64_C(1) << 53) {
        return mr_cli_fail_usage("bench serve: --slo-ttft-ms and --slo-itl-ms take numbers above "
                                 "0, --seed 0 to 2^53 - 1");
    }
    return check_lengths(o);
}

/* A length without a range is one of itself. */
static void set_ranges(serve_options *o)
{
    o->prompt_tokens_max = o->has_prompt_max ? o->prompt_tokens_max : o->prompt_tokens;
    o->output_tokens_max = o->has_output_max ? o->output_tokens_max : o->output_tokens;
}

int mr_cmd_bench_serve(int argc, char **argv)
{
    serve_options o = {
        .requests = 100, .concurrency = 8, .prompt_tokens = 128, .output_tokens = 64};
    const mr_cli_option options[] = {
        {"server", MR_CLI_TEXT, &o.server, NULL, "HOST:PORT", "the server to load"},
        MR_CLI_KEY_OPTION(&o.key_file),
        MR_CLI_TLS_OPTIONS(&o.tls),
        {"requests", MR_CLI_COUNT, &o.requests, NULL, "N", "requests in all (default 100)"},
        {"concurrency", MR_CLI_COUNT, &o.concurrency, &o.has_concurrency, "C",
         "closed loop: so many at a time (default 8)"},
        {"rate", MR_CLI_FLOAT, &o.rate, &o.has_rate, "R",
         "open loop: Poisson arrivals, R a second, whatever is still under way"},
        {"static-batch", MR_CLI_COUNT, &o.static_batch, &o.has_static_batch, "N",
         "open loop: … sent N at a time, each batch until its longest output ends"},
        {"prompt-tokens", MR_CLI_COUNT, &o.prompt_tokens, NULL, "P",
         "random tokens of each prompt (default 128)"},
        {"prompt-tokens-max", MR_CLI_COUNT, &o.prompt_tokens_max, &o.has_prompt_max, "P",
         "… from --prompt-tokens to P, each as likely (default: no range)"},
        {"output-tokens", MR_CLI_COUNT, &o.output_tokens, NULL, "O",
         "tokens that each generates, end tokens ignored (default 64)"},
        {"output-tokens-max", MR_CLI_COUNT, &o.output_tokens_max, &o.has_output_max, "O",
         "… from --output-tokens to O (default: no range)"},
        MR_CLI_SAMPLING_OPTIONS(&o.sampling),
        {"slo-ttft-ms", MR_CLI_FLOAT, &o.slo_ttft_ms, &o.has_slo_ttft, "X",
         "goodput: requests whose first token came within X ms"},
        {"slo-itl-ms", MR_CLI_FLOAT, &o.slo_itl_ms, &o.has_slo_itl, "Y",
         "goodput: … and whose mean time between tokens is at most Y ms"},
        {"timeout-ms", MR_CLI_COUNT, &o.timeout_ms, NULL, "N",
         "deadline of each request (default: none)"},
        {"seed", MR_CLI_COUNT, &o.seed, NULL, "N", "of prompts, lengths and arrivals (default 0)"},
        {"json", MR_CLI_FLAG, &o.json, NULL, NULL, "a JSON object instead of a table"},
    };
    const mr_cli_command command = {
        .name = "bench serve",
        .usage = "--server HOST:PORT [--requests N] [--concurrency C | --rate R] [OPTION]...",
        .about = "Loads a running server and reports throughput and latencies as its clients see "
                 "them. Times count\nfrom when a request was due, so a server that stalls does "
                 "not hide it.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace bench serve --server 127.0.0.1:8001 --requests 100 --concurrency 8\n"
                    "millrace bench serve --server 127.0.0.1:8001 --requests 500 --rate 4 "
                    "--slo-ttft-ms 500 --slo-itl-ms 100 --json\n"
                    "millrace bench serve --server 127.0.0.1:8001 --rate 4 --prompt-tokens 64 "
                    "--prompt-tokens-max 512\n",
        .mistakes = "A closed loop slows down with the server and hides its queue: --rate shows "
                    "what users would see.\n"
                    "Client and server share the CPU: run it from another machine; \"late\" says "
                    "when the client was behind.\n"
                    "A rate above what the server can do measures the queue, which grows with "
                    "--requests.\n",
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    set_ranges(&o);
    const int checked = check(&o);
    return checked == MR_EXIT_OK ? run(&o) : checked;
}
