/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "base/cpu.h"
#include "service/bench.h"
#include "service/bench_requests.h"
#include "service/commands.h"
#include "service/jsonl.h"
#include "service/profile.h"

#include <inttypes.h>
#include <string.h>

#define MAX_REQUESTS 65536u

typedef struct bench_options {
    mr_cli_model model;
    mr_cli_counts prefill;
    mr_cli_counts decode;
    uint64_t prompt;
    uint64_t generate;
    uint64_t repeat;
    uint64_t requests; /* 0: steps are measured, not requests */
    bool has_requests;
    bool has_prefill;
    bool has_decode;
    bool json;
    bool profile;
} bench_options;

typedef struct bench_report {
    mr_bench_result prefill[MR_CLI_MAX_LIST]; /* as bench_options.prefill */
    mr_bench_result decode[MR_CLI_MAX_LIST];
    mr_ceilings ceilings; /* measured for a profile */
    double load_s;
    mr_bench_requests_result requests;
} bench_report;

static uint32_t largest(const mr_cli_counts *counts)
{
    uint32_t most = 1;
    for (size_t i = 0; i < counts->count; i++) {
        most = counts->items[i] > most ? counts->items[i] : most;
    }
    return most;
}

/* A limit that was given must leave room for what is measured; one that was not makes just that
 * room. */
static mr_status fit(const mr_config *config, const char *key, uint32_t *limit, uint32_t needed,
                     mr_error *err)
{
    if (!mr_config_given(config, key)) {
        *limit = needed;
    } else if (*limit < needed) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, key,
                             "%s is %" PRIu32 ", and what is to be measured needs %" PRIu32
                             ": raise it, or measure less",
                             key, *limit, needed);
    }
    return MR_OK;
}

static mr_status fit_config(const bench_options *o, mr_config *config, mr_error *err)
{
    const uint32_t batch = largest(&o->decode);
    const uint32_t sequence = (uint32_t)(o->prompt + o->generate);
    const uint32_t prefill = largest(&o->prefill);
    if (o->requests > 0) {
        MR_TRY(fit(config, "max_queue_requests", &config->max_queue_requests, (uint32_t)o->requests,
                   err));
        return fit(config, "max_seq_length", &config->max_seq_length, sequence, err);
    }
    MR_TRY(fit(config, "max_batch_size", &config->max_batch_size, batch, err));
    MR_TRY(fit(config, "max_seq_length", &config->max_seq_length,
               sequence > prefill ? sequence : prefill, err));
    const uint32_t step = config->max_batch_tokens > batch ? config->max_batch_tokens : batch;
    return fit(config, "max_batch_tokens", &config->max_batch_tokens, step, err);
}

static mr_status measure(const bench_options *o, mr_runtime *runtime, bench_report *report,
                         mr_error *err)
{
    if (o->requests > 0) {
        const mr_bench_requests_spec spec = {
            .requests = (uint32_t)o->requests,
            .prompt = (uint32_t)o->prompt,
            .generate = (uint32_t)o->generate,
            .repeat = (uint32_t)o->repeat,
        };
        return mr_bench_requests(runtime, &spec, &report->requests, err);
    }
    if (o->profile) {
        mr_exec_memory memory;
        mr_runtime_exec(runtime)->vt->memory(mr_runtime_exec(runtime), &memory);
        MR_TRY(mr_runtime_ceilings(runtime, memory.weights_bytes, &report->ceilings, err));
    }
    for (size_t i = 0; i < o->prefill.count; i++) {
        MR_TRY(mr_bench_prefill(runtime, o->prefill.items[i], (uint32_t)o->repeat,
                                &report->prefill[i], err));
    }
    for (size_t i = 0; i < o->decode.count; i++) {
        const mr_bench_decode_spec spec = {
            .batch = o->decode.items[i],
            .prompt = (uint32_t)o->prompt,
            .generate = (uint32_t)o->generate,
            .repeat = (uint32_t)o->repeat,
        };
        MR_TRY(mr_bench_decode(runtime, &spec, &report->decode[i], err));
    }
    return MR_OK;
}

static json_t *results_array(const char *name, const mr_cli_counts *counts,
                             const mr_bench_result *results, const mr_ceilings *profile)
{
    json_t *array = json_array();
    for (size_t i = 0; i < counts->count; i++) {
        json_t *entry =
            json_pack("{s:I, s:f, s:o*}", name, (json_int_t)counts->items[i], "tokens_per_s",
                      results[i].tokens_per_s, "profile",
                      profile != NULL ? mr_profile_object(&results[i].spent, profile) : NULL);
        if (json_array_append_new(array, entry) != 0) {
            json_decref(array);
            return NULL;
        }
    }
    return array;
}

static double total_rate(const mr_bench_requests_result *of)
{
    return (double)(of->prompt_tokens + of->generated_tokens) / of->seconds;
}

static double output_rate(const mr_bench_requests_result *of)
{
    return (double)of->generated_tokens / of->seconds;
}

/* NULL if steps were measured. */
static json_t *requests_object(const bench_options *o, const mr_bench_requests_result *of)
{
    return o->requests == 0 ? NULL
                            : json_pack("{s:I, s:f, s:f, s:f}", "requests", (json_int_t)o->requests,
                                        "seconds", of->seconds, "total_tokens_per_s",
                                        total_rate(of), "output_tokens_per_s", output_rate(of));
}

static json_t *report_object(const bench_options *o, mr_runtime *runtime,
                             const bench_report *report)
{
    const mr_backend_info *backend = mr_runtime_backend(runtime);
    mr_exec_memory memory;
    mr_runtime_exec(runtime)->vt->memory(mr_runtime_exec(runtime), &memory);
    const mr_dtype kv_dtype = mr_runtime_exec_options(runtime)->kv_dtype;
    json_t *kv = json_pack(
        "{s:s, s:I}", "dtype", mr_runtime_config(runtime)->kv_cache_dtype, "bytes_per_token",
        (json_int_t)mr_kv_block_bytes(&mr_runtime_plan(runtime)->kv, kv_dtype, 1));
    json_t *bytes =
        json_pack("{s:I, s:I, s:I}", "weights", (json_int_t)memory.weights_bytes, "kv_cache",
                  (json_int_t)memory.kv_bytes, "activations", (json_int_t)memory.activation_bytes);
    const mr_ceilings *profile = o->profile ? &report->ceilings : NULL;
    json_t *ceilings = profile != NULL
                           ? json_pack("{s:f, s:f}", "read_bytes_per_s", profile->read_bytes_per_s,
                                       "int8_per_s", profile->int8_per_s)
                           : NULL;
    return json_pack("{s:s, s:I, s:s, s:o, s:o, s:I, s:I, s:I, s:f, s:I, s:o, s:o, s:o*, s:o*}",
                     "backend", backend->name, "threads", (json_int_t)backend->threads, "model",
                     mr_runtime_model_name(runtime), "prefill",
                     results_array("tokens", &o->prefill, report->prefill, profile), "decode",
                     results_array("batch", &o->decode, report->decode, profile), "prompt",
                     (json_int_t)o->prompt, "generate", (json_int_t)o->generate, "repeat",
                     (json_int_t)o->repeat, "load_s", report->load_s, "peak_rss_bytes",
                     (json_int_t)mr_memory_peak_rss(), "memory_bytes", bytes, "kv_cache", kv,
                     "ceilings", ceilings, "requests", requests_object(o, &report->requests));
}

static void print_rates(const char *what, const mr_cli_counts *counts,
                        const mr_bench_result *results, const mr_ceilings *profile)
{
    for (size_t i = 0; i < counts->count; i++) {
        printf("%s %-8" PRIu32 "  %14.1f\n", what, counts->items[i], results[i].tokens_per_s);
        if (profile != NULL) {
            mr_profile_print(&results[i].spent, profile);
        }
    }
}

static void print_table(const bench_options *o, mr_runtime *runtime, const bench_report *report)
{
    const mr_ceilings *profile = o->profile ? &report->ceilings : NULL;
    const mr_backend_info *backend = mr_runtime_backend(runtime);
    printf("%s, %s, %" PRIu32 " threads; loaded in %.2f s; peak memory %.0f MiB\n\n",
           mr_runtime_model_name(runtime), backend->name, backend->threads, report->load_s,
           (double)mr_memory_peak_rss() / (1 << 20));
    if (profile != NULL) {
        printf("measured: %.1f GB/s read over a buffer as large as the weights, %.0f GOP/s of int8 "
               "from registers\n\n",
               profile->read_bytes_per_s / 1e9, profile->int8_per_s / 1e9);
    }
    if (o->requests > 0) {
        printf("%" PRIu64 " requests of %" PRIu64 " + %" PRIu64 " tokens at once: %.2f s, %.1f "
               "tokens/s, of them %.1f generated\n",
               o->requests, o->prompt, o->generate, report->requests.seconds,
               total_rate(&report->requests), output_rate(&report->requests));
        return;
    }
    puts("what                     tokens/s");
    print_rates("prefill", &o->prefill, report->prefill, profile);
    print_rates("decode ×", &o->decode, report->decode, profile);
}

static int run(const bench_options *o)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&o->model, &config, &err) != MR_OK ||
        fit_config(o, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t begin = mr_clock_now(&clock);
    mr_runtime_options open = {.model_path = o->model.path, .with_engine = o->requests > 0};
    mr_runtime *runtime;
    const int opened = mr_command_open_runtime(&config, &open, &runtime);
    if (opened != MR_EXIT_OK) {
        return opened;
    }
    bench_report report = {.load_s = (double)(mr_clock_now(&clock) - begin) / 1e9};
    mr_status status = measure(o, runtime, &report, &err);
    if (status == MR_OK && o->json) {
        status = mr_jsonl_write(stdout, report_object(o, runtime, &report), &err);
    } else if (status == MR_OK) {
        print_table(o, runtime, &report);
    }
    mr_runtime_close(runtime);
    return status == MR_OK ? MR_EXIT_OK : mr_cli_fail(MR_EXIT_FAILED, &err);
}

static bool in_range(uint64_t value, uint64_t high)
{
    return value >= 1 && value <= high;
}

/* MR_EXIT_OK, or what is wrong is printed. Of requests no steps are measured beside them. */
static int check(bench_options *o)
{
    if (o->model.path == NULL) {
        return mr_cli_fail_usage("bench offline: --model PATH is missing");
    }
    if (!in_range(o->prompt, 1u << 20) || !in_range(o->generate, 1u << 20) ||
        !in_range(o->repeat, 1000)) {
        return mr_cli_fail_usage("bench offline: --prompt and --generate take 1 to 1048576, "
                                 "--repeat 1 to 1000");
    }
    if (largest(&o->decode) > 4096) {
        return mr_cli_fail_usage("bench offline: --decode takes batches of up to 4096");
    }
    if (!o->has_requests) {
        return MR_EXIT_OK;
    }
    if (o->has_prefill || o->has_decode || o->profile) {
        return mr_cli_fail_usage("bench offline: --requests measures whole requests; --prefill, "
                                 "--decode and --profile measure steps");
    }
    if (!in_range(o->requests, MAX_REQUESTS)) {
        return mr_cli_fail_usage("bench offline: --requests takes 1 to %u", MAX_REQUESTS);
    }
    o->prefill.count = 0;
    o->decode.count = 0;
    return MR_EXIT_OK;
}

static int bench_offline(int argc, char **argv)
{
    bench_options o = {
        .prefill = {.items = {512, 4096}, .count = 2},
        .decode = {.items = {1, 4, 8, 32}, .count = 4},
        .prompt = 128,
        .generate = 64,
        .repeat = 3,
    };
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&o.model),
        {"prefill", MR_CLI_COUNTS, &o.prefill, &o.has_prefill, "N,…",
         "prompt lengths (default 512,4096)"},
        {"decode", MR_CLI_COUNTS, &o.decode, &o.has_decode, "N,…",
         "batch sizes (default 1,4,8,32)"},
        {"prompt", MR_CLI_COUNT, &o.prompt, NULL, "N",
         "tokens that a decoding sequence has already (default 128)"},
        {"generate", MR_CLI_COUNT, &o.generate, NULL, "N", "tokens to decode (default 64)"},
        {"repeat", MR_CLI_COUNT, &o.repeat, NULL, "N", "runs to take the median of (default 3)"},
        {"requests", MR_CLI_COUNT, &o.requests, &o.has_requests, "N",
         "instead: N requests of --prompt and --generate tokens, all at once"},
        {"profile", MR_CLI_FLAG, &o.profile, NULL, NULL,
         "time, bytes and operations of each operator, against the machine's limits"},
        {"json", MR_CLI_FLAG, &o.json, NULL, NULL, "a JSON object instead of a table"},
    };
    const mr_cli_command command = {
        .name = "bench offline",
        .usage = "--model PATH [OPTION]...",
        .about = "Measures prompt and decode throughput of a model on this machine, or that of "
                 "whole requests.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace bench offline --model model.gguf\n"
                    "millrace bench offline --model model.gguf --prefill 512 --decode 1,8 --json "
                    "--set threads=4\n"
                    "millrace bench offline --model model.gguf --decode 1 --profile\n"
                    "millrace bench offline --model model.gguf --requests 64 --prompt 512 "
                    "--generate 256\n",
        .mistakes = "Figures jump between runs: stop what else runs, and raise --repeat.\n"
                    "Long prefills do not fit: --prefill, and --prompt with --generate, must stay "
                    "within the model's context.\n",
        .shows_config = true,
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    const int checked = check(&o);
    return checked == MR_EXIT_OK ? run(&o) : checked;
}

int mr_cmd_bench(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "offline") == 0) {
        return bench_offline(argc - 1, argv + 1);
    }
    if (argc > 1 && strcmp(argv[1], "serve") == 0) {
        return mr_cmd_bench_serve(argc - 1, argv + 1);
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        puts("usage: millrace bench offline --model PATH [OPTION]...    a model on this machine\n"
             "       millrace bench serve --server HOST:PORT [OPTION]...  a running server\n\n"
             "millrace bench offline --help and millrace bench serve --help say more.");
        return MR_EXIT_OK;
    }
    return mr_cli_fail_usage("bench: say what to measure: millrace bench offline --model PATH, or "
                             "millrace bench serve --server HOST:PORT");
}
