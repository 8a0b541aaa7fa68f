/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys as text: for --help, docs/configuration.md and `millrace config`. */
#include "service/config.h"
#include "service/config_internal.h"
#include "service/config_list.h"
#include "service/generation.h"

#include <stdio.h>
#include <string.h>

static bool is_list(const mr_config_about *about)
{
    return strcmp(about->type, "list") == 0;
}

static void describe_one(const mr_config_about *about, void (*line)(void *ctx, const char *text),
                         void *ctx)
{
    char text[640];
    snprintf(text, sizeof(text), "%s=%s (%s): %s", about->name, about->initial, about->bounds,
             about->meaning);
    line(ctx, text);
}

void mr_config_describe(void (*line)(void *ctx, const char *text), void *ctx)
{
    mr_config_about about;
    for (size_t i = 0; mr_config_key_about(i, &about); i++) {
        describe_one(&about, line, ctx);
        const char *list = is_list(&about) ? about.name : NULL;
        for (size_t f = 0; list != NULL && mr_config_list_about(list, f, &about); f++) {
            describe_one(&about, line, ctx);
        }
    }
}

/* '|' would end a table's cell. */
static mr_status append_cell(mr_buffer *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            MR_TRY(mr_buffer_append(out, ", ", 2));
        } else {
            MR_TRY(mr_buffer_append(out, text, 1));
        }
    }
    return mr_buffer_append(out, " | ", 3);
}

static mr_status append_row(mr_buffer *out, const mr_config_about *about)
{
    char initial[sizeof(about->initial) + 2];
    snprintf(initial, sizeof(initial), "%s%s%s", about->initial[0] == '\0' ? "" : "`",
             about->initial[0] == '\0' ? "empty" : about->initial,
             about->initial[0] == '\0' ? "" : "`");
    MR_TRY(mr_buffer_printf(out, "| `%s` | ", about->name));
    MR_TRY(append_cell(out, about->type));
    MR_TRY(append_cell(out, initial));
    MR_TRY(append_cell(out, strcmp(about->bounds, "text") == 0 ? "any" : about->bounds));
    MR_TRY(append_cell(out, about->meaning));
    return about->variable[0] == '\0' ? mr_buffer_printf(out, "|\n")
                                      : mr_buffer_printf(out, "`%s` |\n", about->variable);
}

static mr_status append_unsupported(mr_buffer *out)
{
    size_t count;
    const mr_unsupported *rows = mr_unsupported_table(&count);
    for (size_t i = 0; i < count; i++) {
        if (rows[i].surface == MR_SURFACE_CONFIG) {
            char sample[128];
            snprintf(sample, sizeof(sample), "%s", rows[i].sample);
            MR_TRY(mr_buffer_printf(out, "| `%s` | `%s` | %s |\n", rows[i].name, sample,
                                    rows[i].what));
        }
    }
    return MR_OK;
}

static const char head[] =
    "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"
    "<!-- Written by `millrace config --markdown` from service/config_keys.def; change that. -->\n"
    "# Configuration\n"
    "\n"
    "Every setting can be given in four places; the later one wins:\n"
    "\n"
    "1. the default,\n"
    "2. a YAML file, `--config FILE`: `max_batch_size: 8`, and `log: {level: debug}` or\n"
    "   `log.level: debug` for a name with a dot,\n"
    "3. the environment: the name in capitals after `MILLRACE_`, dots as underscores,\n"
    "4. `--set KEY=VALUE`, as often as needed.\n"
    "\n"
    "A key that does not exist, a value out of bounds and a setting that cannot act are errors at\n"
    "the start, with the nearest known name. `millrace config --config FILE` checks a file and\n"
    "prints what it sets, and all other keys with their defaults as comments. A server logs the\n"
    "configuration in effect when it is ready.\n"
    "\n"
    "Types: a *choice* is one of the listed words; a *number* is whole; a *size* is bytes, or a\n"
    "number with `KiB`, `MiB`, `GiB` or `TiB`; *fixed* keys say what happens anyway, so that a\n"
    "file may state it. `auto` asks for the automatic value where that is the default.\n"
    "\n"
    "`name[].field` is a field of each entry of a list. A list is given as a whole, and a later "
    "one\n"
    "replaces it; elsewhere than in a file it is written in one line:\n"
    "`--set 'tenants=[{name: a, keys: [SHA256], weight: 3}]'`, or as JSON.\n"
    "\n"
    "| Key | Type | Default | Bounds | Meaning | Environment |\n"
    "|---|---|---|---|---|---|\n";

static const char middle[] = "\n"
                             "## Named, and not built yet\n"
                             "\n"
                             "These are refused at the start by name, never ignored.\n"
                             "\n"
                             "| Key | For example | Feature |\n"
                             "|---|---|---|\n";

mr_status mr_config_markdown(mr_buffer *out)
{
    MR_TRY(mr_buffer_append(out, head, sizeof(head) - 1));
    mr_config_about about;
    for (size_t i = 0; mr_config_key_about(i, &about); i++) {
        MR_TRY(append_row(out, &about));
        const char *list = is_list(&about) ? about.name : NULL;
        for (size_t f = 0; list != NULL && mr_config_list_about(list, f, &about); f++) {
            MR_TRY(append_row(out, &about));
        }
    }
    MR_TRY(mr_buffer_append(out, middle, sizeof(middle) - 1));
    return append_unsupported(out);
}

/* A value that YAML could take for something else is quoted. */
static mr_status append_value(mr_buffer *out, const char *type, const char *value)
{
    if (strcmp(type, "text") != 0) {
        return mr_buffer_printf(out, "%s\n", value);
    }
    MR_TRY(mr_buffer_append(out, "\"", 1));
    for (; *value != '\0'; value++) {
        if (*value == '"' || *value == '\\') {
            MR_TRY(mr_buffer_append(out, "\\", 1));
        }
        MR_TRY(mr_buffer_append(out, value, 1));
    }
    return mr_buffer_append(out, "\"\n", 2);
}

static mr_status append_setting(const mr_config *config, size_t index, const mr_config_about *about,
                                mr_buffer *out)
{
    mr_buffer value = {0};
    mr_status status = mr_config_value(config, index, &value);
    if (status == MR_OK) {
        status = mr_buffer_append(&value, "", 1);
    }
    if (status == MR_OK) {
        status = append_value(out, about->type, (const char *)value.data);
    }
    mr_buffer_deinit(&value);
    return status;
}

mr_status mr_config_yaml(const mr_config *config, mr_buffer *out)
{
    mr_config_about about;
    for (size_t i = 0; mr_config_key_about(i, &about); i++) {
        const char *comment = mr_config_given(config, about.name) ? "" : "# ";
        if (mr_config_hides(config, i)) {
            comment = "# with a password, which is not shown: ";
        }
        MR_TRY(mr_buffer_printf(out, "%s%s:%s", comment, about.name, is_list(&about) ? "" : " "));
        MR_TRY(is_list(&about) ? mr_config_list_yaml(config, about.name, out)
                               : append_setting(config, i, &about, out));
    }
    return MR_OK;
}
