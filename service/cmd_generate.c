/* SPDX-License-Identifier: Apache-2.0 */
#include "service/api_key.h"
#include "service/batch.h"
#include "service/commands.h"
#include "service/generate_remote.h"
#include "service/generation.h"
#include "service/generation_lists.h"
#include "service/jsonl.h"
#include "service/listen.h"
#include "service/prompt.h"

#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_MAX_BYTES ((size_t)16 << 20)

typedef struct generate_options {
    mr_cli_model model;
    const char *server;
    uint64_t timeout_ms;  /* of --server */
    const char *key_file; /* of --server */
    mr_client_tls tls;    /* of --server */
    bool chat;
    bool json;
    bool jsonl;
    mr_generation_ask ask;
    mr_cli_texts stops;
    mr_stop_string stop_strings[MR_CLI_MAX_LIST]; /* what `ask` borrows */
    mr_cli_texts operands;
} generate_options;

/* Text that streams to standard output as it grows. */
typedef struct printer {
    bool quiet;   /* --json: the result follows as a whole */
    size_t shown; /* bytes */
} printer;

static void print_news(void *ctx, const mr_result *result)
{
    printer *p = ctx;
    if (!p->quiet && result->text.size > p->shown) {
        fwrite(result->text.data + p->shown, 1, result->text.size - p->shown, stdout);
        fflush(stdout);
        p->shown = result->text.size;
    }
}

static int finish(const generate_options *options, const mr_result *result)
{
    if (result->error.status != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &result->error);
    }
    if (!options->json) {
        putchar('\n');
        return MR_EXIT_OK;
    }
    mr_error err;
    return mr_jsonl_write(stdout, mr_jsonl_result_row(NULL, result), &err) == MR_OK
               ? MR_EXIT_OK
               : mr_cli_fail(MR_EXIT_FAILED, &err);
}

static mr_status encode_prompt(const generate_options *options, const mr_model *model,
                               mr_bytes prompt, mr_ids *ids, mr_error *err)
{
    if (!options->chat) {
        return mr_prompt_from_text(model, prompt, "PROMPT", ids, err);
    }
    static const char user[] = "user";
    const mr_chat_message message = {
        .role = {(const uint8_t *)user, sizeof(user) - 1},
        .content = prompt,
    };
    return mr_prompt_from_chat(model, &message, 1, ids, NULL, err);
}

static mr_status run_request(mr_runtime *runtime, const mr_local_ask *ask, mr_local_run *run,
                             printer *p, mr_error *err)
{
    mr_waiter waiter;
    mr_status status = mr_waiter_init(&waiter, err);
    if (status == MR_OK) {
        status = mr_local_run_start(run, runtime, &waiter, ask, err);
    }
    while (status == MR_OK && !run->ended) {
        (void)mr_waiter_wait(&waiter, -1);
        status = mr_local_run_take(run, err);
        print_news(p, &run->results[0]);
    }
    if (status != MR_OK && run->request != NULL) {
        mr_engine_cancel(mr_runtime_engine(runtime), run->request);
        while (!mr_local_run_discard(run)) {
            (void)mr_waiter_wait(&waiter, -1);
        }
    }
    mr_waiter_deinit(&waiter);
    return status;
}

static mr_status list_stops(const generate_options *options, mr_generation_lists *lists,
                            mr_error *err)
{
    for (size_t i = 0; i < options->ask.n_stops; i++) {
        if (mr_generation_lists_stop(lists, options->ask.stops[i]) != MR_OK) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for the stop strings");
        }
    }
    return mr_generation_lists_make_stop(lists, err);
}

static int generate_on(mr_runtime *runtime, const generate_options *options, mr_bytes prompt,
                       mr_request_params *params)
{
    const mr_model *model = mr_runtime_model(runtime);
    mr_error err = {0};
    mr_ids ids = {0};
    mr_local_run run = {0};
    mr_generation_lists lists = {0};
    mr_generation_fill_defaults(&options->ask, model, params);
    mr_status status = encode_prompt(options, model, prompt, &ids, &err);
    if (status == MR_OK) {
        status = mr_generation_check_model(&options->ask, MR_SURFACE_CLI, model, &err);
    }
    if (status == MR_OK) {
        status = list_stops(options, &lists, &err);
    }
    if (status == MR_OK) {
        status = mr_generation_check_prompt(&ids, mr_model_config_get(model)->vocab_size,
                                            mr_runtime_config(runtime)->max_seq_length, "PROMPT",
                                            params, &err);
    }
    if (status == MR_OK) {
        printer p = {.quiet = options->json};
        const mr_local_ask ask = {
            .prompt = ids.data, .n_prompt = ids.count, .params = params, .lists = &lists};
        status = run_request(runtime, &ask, &run, &p, &err);
    }
    const int result =
        status == MR_OK ? finish(options, &run.results[0]) : mr_cli_fail(MR_EXIT_FAILED, &err);
    mr_local_run_deinit(&run);
    mr_generation_lists_deinit(&lists);
    mr_ids_deinit(&ids);
    return result;
}

static int generate_here(const generate_options *options, mr_bytes prompt)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&options->model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_request_params params;
    if (mr_generation_check(&options->ask, MR_SURFACE_CLI, &params, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    if (!mr_config_given(&config, "max_batch_size")) {
        config.max_batch_size = 1; /* nothing else runs: the KV cache need not be larger */
    }
    mr_runtime_options open = {.model_path = options->model.path, .with_engine = true};
    mr_runtime *runtime;
    int status = mr_command_open_runtime(&config, &open, &runtime);
    if (status == MR_EXIT_OK) {
        status = generate_on(runtime, options, prompt, &params);
        mr_runtime_close(runtime);
    }
    return status;
}

static int generate_there(const generate_options *options, mr_bytes prompt)
{
    mr_error err = {0};
    mr_request_params params;
    if (mr_generation_check(&options->ask, MR_SURFACE_CLI, &params, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    char key[MR_API_KEY_MAX + 1];
    if (mr_api_key_load(options->key_file, key, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    const mr_remote_ask ask = {.server = options->server,
                               .key = key,
                               .tls = &options->tls,
                               .prompt = prompt,
                               .timeout_ms = options->timeout_ms,
                               .chat = options->chat,
                               .generation = &options->ask};
    printer p = {.quiet = options->json};
    mr_result result;
    mr_result_init(&result);
    const mr_status status = mr_generate_remote(&ask, print_news, &p, &result, &err);
    const int code = status == MR_OK ? finish(options, &result) : mr_cli_fail(MR_EXIT_FAILED, &err);
    mr_result_deinit(&result);
    return code;
}

static int generate_lines(const generate_options *options)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&options->model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_runtime_options open = {.model_path = options->model.path, .with_engine = true};
    mr_runtime *runtime;
    const int opened = mr_command_open_runtime(&config, &open, &runtime);
    if (opened != MR_EXIT_OK) {
        return opened;
    }
    mr_batch_summary summary;
    const mr_status status = mr_batch_run_lines(runtime, STDIN_FILENO, stdout, &summary, &err);
    mr_runtime_close(runtime);
    if (status != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    if (summary.failed > 0) {
        (void)mr_fail(&err, MR_UNKNOWN,
                      "%" PRIu64 " of %" PRIu64 " requests failed: see their "
                      "error rows",
                      summary.failed, summary.requests);
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return MR_EXIT_OK;
}

/* MR_EXIT_OK, or the message is printed. */
static int read_prompt(mr_buffer *input, mr_bytes *prompt)
{
    if (isatty(STDIN_FILENO) == 1) {
        fputs("millrace: reading the prompt from the terminal; end it with Ctrl-D\n", stderr);
    }
    mr_error err;
    if (mr_command_read_all(STDIN_FILENO, PROMPT_MAX_BYTES, input, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    if (input->size == 0) {
        return mr_cli_fail_usage("generate: PROMPT is missing; give it as the last argument, or on "
                                 "standard input");
    }
    /* As a shell's $(…) does: the newline that ends a text file is not part of the prompt. */
    const bool newline = input->data[input->size - 1] == '\n';
    *prompt = (mr_bytes){input->data, input->size - (newline ? 1 : 0)};
    return MR_EXIT_OK;
}

static int generate_one(const generate_options *options)
{
    mr_buffer input = {0};
    mr_bytes prompt = {0};
    int status = MR_EXIT_OK;
    if (options->operands.count > 0) {
        const char *text = options->operands.items[0];
        prompt = mr_bytes_of(text);
    } else {
        status = read_prompt(&input, &prompt);
    }
    if (status == MR_EXIT_OK) {
        status = options->server != NULL ? generate_there(options, prompt)
                                         : generate_here(options, prompt);
    }
    mr_buffer_deinit(&input);
    return status;
}

/* NULL, or how the options contradict each other. */
static const char *find_conflict(const generate_options *o)
{
    if ((o->server != NULL) == (o->model.path != NULL)) {
        return "generate: give either --model PATH or --server HOST:PORT";
    }
    if (o->server != NULL && (o->model.config_path != NULL || o->model.sets.count > 0)) {
        return "generate: --config and --set are settings of a model here; the server has its own";
    }
    const bool tls = o->tls.ca != NULL || o->tls.certificate != NULL ||
                     o->tls.private_key != NULL || o->tls.server_name != NULL;
    if (o->server == NULL && (o->timeout_ms > 0 || o->key_file != NULL || tls)) {
        return "generate: --timeout-ms, --api-key-file and --tls-… are for --server";
    }
    if (mr_client_tls_conflict(&o->tls) != NULL) {
        return mr_client_tls_conflict(&o->tls);
    }
    if (o->jsonl && o->server != NULL) {
        return "generate: --jsonl runs a batch here: give --model PATH instead of --server";
    }
    const mr_generation_ask *ask = &o->ask;
    const bool asks = ask->has_max_tokens || ask->has_temperature || ask->has_top_p ||
                      ask->has_top_k || ask->has_min_p || ask->has_seed || ask->n_stops > 0;
    if (o->jsonl && (asks || o->chat || o->json || o->operands.count > 0)) {
        return "generate: with --jsonl, prompts and their options come from the lines of the "
               "standard input";
    }
    return NULL;
}

static void lend_stops(generate_options *o)
{
    for (size_t i = 0; i < o->stops.count; i++) {
        const char *text = o->stops.items[i];
        o->stop_strings[i] = (mr_stop_string){text, strlen(text)};
    }
    o->ask.stops = o->stop_strings;
    o->ask.n_stops = o->stops.count;
}

static int generate(generate_options *o)
{
    if (o->server != NULL && !mr_listen_is_address(o->server)) {
        return mr_cli_fail_server(o->server);
    }
    lend_stops(o);
    const char *conflict = find_conflict(o);
    if (conflict != NULL) {
        return mr_cli_fail_usage("%s", conflict);
    }
    return o->jsonl ? generate_lines(o) : generate_one(o);
}

int mr_cmd_generate(int argc, char **argv)
{
    generate_options o = {0};
    mr_generation_ask *ask = &o.ask;
    const mr_cli_option options[] = {
        {"server", MR_CLI_TEXT, &o.server, NULL, "HOST:PORT", "generate on a server"},
        MR_CLI_KEY_OPTION(&o.key_file),
        MR_CLI_TLS_OPTIONS(&o.tls),
        MR_CLI_MODEL_OPTIONS(&o.model),
        {"timeout-ms", MR_CLI_COUNT, &o.timeout_ms, NULL, "N",
         "with --server: give up after N ms (default: never)"},
        {"chat", MR_CLI_FLAG, &o.chat, NULL, NULL, "PROMPT is a user's message to an assistant"},
        {"max-tokens", MR_CLI_COUNT, &ask->max_tokens, &ask->has_max_tokens, "N",
         "tokens to generate at most (default 256)"},
        MR_CLI_SAMPLING_OPTIONS(ask),
        {"seed", MR_CLI_COUNT, &ask->seed, &ask->has_seed, "N",
         "the same seed gives the same text (default: a random one)"},
        {"stop", MR_CLI_TEXTS, &o.stops, NULL, "TEXT",
         "end before TEXT; may be given again and again"},
        {"json", MR_CLI_FLAG, &o.json, NULL, NULL, "one JSON object instead of text"},
        {"jsonl", MR_CLI_FLAG, &o.jsonl, NULL, NULL,
         "a batch: requests from standard input, results in their order"},
    };
    const mr_cli_command command = {
        .name = "generate",
        .usage = "(--model PATH | --server HOST:PORT) [OPTION]... [PROMPT]",
        .about = "Generates text from PROMPT, or from standard input (less the newline at its "
                 "end), here or on a server.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace generate --model model.gguf --chat \"Why is the sky blue?\"\n"
                    "millrace generate --server 127.0.0.1:8001 --max-tokens 50 --temperature 0 "
                    "\"Once upon a time\"\n"
                    "millrace generate --model model.gguf < prompt.txt\n"
                    "echo '{\"id\": 1, \"prompt\": \"Once\", \"max_tokens\": 20}' | millrace "
                    "generate --model model.gguf --jsonl\n",
        .mistakes =
            "The answer rambles: a chat model wants --chat, which puts PROMPT into its template.\n"
            "A prompt of several words wants quotes; one that begins with -- goes after a lone "
            "--.\n"
            "Each run says something else: --temperature 0, or a --seed, repeats it.\n"
            "It stops in mid-sentence: --max-tokens is 256 unless given.\n",
        .max_operands = 1,
        .shows_config = true,
    };
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &o.operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    return generate(&o);
}
