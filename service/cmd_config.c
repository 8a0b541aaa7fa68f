/* SPDX-License-Identifier: Apache-2.0 */
#include "service/commands.h"

#include <stdio.h>

static mr_status write_settings(bool markdown, bool schema, const mr_config *config, mr_buffer *out)
{
    if (schema) {
        return mr_config_schema(out);
    }
    return markdown ? mr_config_markdown(out) : mr_config_yaml(config, out);
}

static int print(bool markdown, bool schema, const mr_config *config)
{
    mr_buffer text = {0};
    const mr_status status = write_settings(markdown, schema, config, &text);
    if (status == MR_OK) {
        fwrite(text.data, 1, text.size, stdout);
    }
    mr_buffer_deinit(&text);
    if (status != MR_OK) {
        mr_error err;
        (void)mr_fail(&err, status, "out of memory for the settings");
        return mr_cli_fail(MR_EXIT_FAILED, &err);
    }
    return MR_EXIT_OK;
}

int mr_cmd_config(int argc, char **argv)
{
    mr_cli_model model = {0};
    bool markdown = false;
    bool schema = false;
    const mr_cli_option options[] = {
        MR_CLI_CONFIG_OPTIONS(&model),
        {"markdown", MR_CLI_FLAG, &markdown, NULL, NULL,
         "the reference of all settings instead, docs/configuration.md"},
        {"schema", MR_CLI_FLAG, &schema, NULL, NULL,
         "the JSON Schema of such files instead, for editors and checks"},
    };
    const mr_cli_command command = {
        .name = "config",
        .usage = "[--config FILE] [--set KEY=VALUE]... [--markdown | --schema]",
        .about =
            "Checks settings as a server would, and prints them as a file for --config: what is "
            "not given is a\ncomment with its default.",
        .options = options,
        .n_options = sizeof(options) / sizeof(options[0]),
        .examples = "millrace config --config millrace.yaml\n"
                    "millrace config --set profile=throughput > millrace.yaml\n"
                    "millrace config --markdown > docs/configuration.md\n",
        .mistakes = "A size is written 512MiB or 4GiB: MB, G and decimals are refused.\n"
                    "The environment wins over the file, and --set over both.\n",
        .shows_config = true,
    };
    mr_cli_texts operands;
    const mr_cli_outcome outcome = mr_cli_parse(&command, argc, argv, &operands);
    if (outcome != MR_CLI_RUN) {
        return outcome == MR_CLI_HELPED ? MR_EXIT_OK : MR_EXIT_USAGE;
    }
    if (markdown && schema) {
        return mr_cli_fail_usage("config: --markdown and --schema ask for different things");
    }
    mr_error err = {0};
    mr_config config;
    if (mr_cli_load_config(&model, &config, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    mr_config checked = config;
    if (mr_config_finish(&checked, &err) != MR_OK) {
        return mr_cli_fail(MR_EXIT_USAGE, &err);
    }
    return print(markdown, schema, &config);
}
