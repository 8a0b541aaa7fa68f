/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_map.h"
#include "service/commands.h"
#include "service/jsonl.h"
#include "service/stepper.h"

#include <inttypes.h>
#include <math.h>

typedef struct score_options {
    mr_cli_model model;
    const char *ids_path;
    const char *text_path;
    bool json;
} score_options;

static mr_status ids_from_json(const mr_file_map *map, mr_ids *ids, mr_error *err)
{
    json_t *object;
    const char *text = map->data == NULL ? "" : (const char *)map->data;
    if (mr_jsonl_parse(text, map->size, &object, err) != MR_OK) {
        return mr_fail_context(err, "--ids takes a file of {\"ids\": [1, 2, …]}");
    }
    const mr_status status = mr_jsonl_ids(json_object_get(object, "ids"), "ids", ids, err);
    json_decref(object);
    return status;
}

static mr_status ids_from_text(const mr_model *model, const mr_file_map *map, mr_ids *ids,
                               mr_error *err)
{
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    if (tokenizer == NULL) {
        return mr_fail(err, MR_FAILED_PRECONDITION,
                       "the model has no tokenizer: give --ids FILE.json instead of a text");
    }
    const mr_encode_options options = {0};
    return mr_tokenizer_encode(tokenizer, map->data, map->size, &options, ids, err);
}

static mr_status read_ids(const score_options *options, const mr_model *model, mr_ids *ids,
                          mr_error *err)
{
    const bool json = options->ids_path != NULL;
    const char *path = json ? options->ids_path : options->text_path;
    mr_file_map map;
    MR_TRY(mr_file_map_open(path, &map, err));
    const mr_status status =
        json ? ids_from_json(&map, ids, err) : ids_from_text(model, &map, ids, err);
    mr_file_map_close(&map);
    if (status != MR_OK) {
        (void)mr_fail_context(err, "%s", path);
    }
    return status;
}

static mr_status check_ids(const mr_runtime *runtime, const mr_ids *ids, mr_error *err)
{
    const uint32_t limit = mr_runtime_config(runtime)->max_seq_length;
    const uint32_t vocab = mr_model_config_get(mr_runtime_model(runtime))->vocab_size;
    if (ids->count < 2 || ids->count - 1 > limit) {
        return mr_fail_field(err, MR_INVALID_ARGUMENT, "ids",
                             "there are %zu tokens to score: it takes from 2 to %" PRIu32,
                             ids->count, limit + 1);
    }
    for (size_t i = 0; i < ids->count; i++) {
        if (ids->data[i] >= vocab) {
            return mr_fail_field(err, MR_INVALID_ARGUMENT, "ids",
                                 "token %zu is %" PRIu32 ", the vocabulary ends at %" PRIu32, i,
                                 ids->data[i], vocab - 1);
        }
    }
    return MR_OK;
}

/* One step over inputs [begin, end): adds −ln p of the token after each. */
static mr_status score_chunk(mr_stepper *stepper, const mr_ids *ids, uint32_t begin, uint32_t end,
                             double *nll, mr_error *err)
{
    mr_row_params row = {.top_p = 1.0f, .repetition_penalty = 1.0f, .want_logprob = true};
    mr_stepper_begin(stepper);
    MR_TRY(mr_stepper_sequence(stepper, 0, end - begin));
    for (uint32_t i = begin; i < end; i++) {
        row.target = ids->data[i + 1];
        MR_TRY(mr_stepper_token(stepper, (int32_t)ids->data[i], &row));
    }
    mr_step_output output;
    MR_TRY(mr_stepper_run(stepper, &output, err));
    for (uint32_t r = 0; r < output.n_rows; r++) {
        if (output.corrupt[r] != 0) {
            return mr_fail(err, MR_INTERNAL, "the logits at position %" PRIu32 " hold a NaN",
                           begin + r);
        }
        *nll -= (double)output.logprobs[r];
    }
    return MR_OK;
}

static mr_status score(mr_runtime *runtime, const mr_ids *ids, double *mean_nll, mr_error *err)
{
    MR_TRY(check_ids(runtime, ids, err));
    const uint32_t inputs = (uint32_t)ids->count - 1;
    const uint32_t chunk = mr_runtime_exec_options(runtime)->max_tokens;
    mr_stepper *stepper;
    MR_TRY(mr_stepper_create(runtime, 1, inputs, &stepper, err));
    mr_stepper_set_rope_length(stepper, (uint32_t)ids->count);
    double nll = 0.0;
    mr_status status = MR_OK;
    for (uint32_t begin = 0; begin < inputs && status == MR_OK; begin += chunk) {
        const uint32_t end = inputs - begin < chunk ? inputs : begin + chunk;
        status = score_chunk(stepper, ids, begin, end, &nll, err);
    }
    mr_stepper_destroy(stepper);
    *mean_nll = nll / inputs;
    return status;
}

static mr_status report(const score_options *options, size_t tokens, double mean_nll, mr_error *err)
{
    const double perplexity = exp(mean_nll);
    if (!options->json) {
        printf("%zu tokens, mean negative log-likelihood %.6f, perplexity %.4f\n", tokens, mean_nll,
               perplexity);
        return MR_OK;
    }
    return mr_jsonl_write(stdout,
                          json_pack("{s:I, s:f, s:f}", "tokens", (json_int_t)tokens, "mean_nll",
                                    mean_nll, "perplexity", perplexity),
                          err);
}

static int run(const score_options *options)
{
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&options->model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    if (!mr_config_given(&config, "max_batch_size")) {
        config.max_batch_size = 1; /* one text: the KV cache need not be larger */
    }
    mr_runtime_options open = {.model_path = options->model.path, .score_rows = true};
    mr_runtime *runtime;
    const int opened = mr_command_open_runtime(&config, &open, &runtime);
    if (opened != MR_EXIT_OK) {
        return opened;
    }
    mr_ids ids = {0};
    double mean_nll = 0.0;
    mr_status status = read_ids(options, mr_runtime_model(runtime), &ids, &err);
    if (status == MR_OK) {
        status = score(runtime, &ids, &mean_nll, &err);
    }
    if (status == MR_OK) {
        status = report(options, ids.count - 1, mean_nll, &err);
    }
    mr_ids_deinit(&ids);
    mr_runtime_close(runtime);
    return status == MR_OK ? MR_EXIT_OK : mr_cli_fail(MR_EXIT_FAILED, &err);
}

int mr_cmd_score(int argc, char **argv)
{
    score_options o = {0};
    const mr_cli_option options[] = {
        MR_CLI_MODEL_OPTIONS(&o.model),
        {"ids", MR_CLI_TEXT, &o.ids_path, NULL, "FILE.json", "score {\"ids\": […]} as they are"},
        {"json", MR_CLI_FLAG, &o.json, NULL, NULL, "a JSON object instead of a line of text"},
    };
    const mr_cli_command command = {
        .name = "score",
        .usage = "--model PATH (--ids FILE.json | TEXTFILE) [--json]",
        .about = "Mean negative log-likelihood and perplexity of a text, of every token given all "
                 "before it.\nNothing is added to the text, and special tokens in it are text.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace score --model model.gguf text.txt\n"
                    "millrace score --model model.gguf --ids ids.json --json --set compute=f32\n",
        .mistakes = "Figures differ a little from another program's: compute=f32 is the exact "
                    "reference, auto rounds activations.\n"
                    "A text longer than max_seq_length is refused: cut it, and score the parts.\n",
        .max_operands = 1,
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    o.text_path = operands.count > 0 ? operands.items[0] : NULL;
    if (o.model.path == NULL) {
        return mr_cli_fail_usage("score: --model PATH is missing");
    }
    if ((o.ids_path != NULL) == (o.text_path != NULL)) {
        return mr_cli_fail_usage("score: give either --ids FILE.json or a text file");
    }
    return run(&o);
}
