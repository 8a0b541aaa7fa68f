/* SPDX-License-Identifier: Apache-2.0 */
/* The table of keys as text: for --help, docs/configuration.md and `millrace config`. */
#include "service/config.h"
#include "service/config_internal.h"
#include "service/config_list.h"
#include "service/unsupported.h"

#include <inttypes.h>
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
    "In the environment that is not so of every name: tools and Kubernetes set variables that\n"
    "begin with `MILLRACE_` too. One that is a key's name but for one or two letters is an error;\n"
    "any other that names no key is left alone, as are `MILLRACE_API_KEY`, the key of commands\n"
    "that call a server, and `MILLRACE_BIN`, `MILLRACE_MODEL`, `MILLRACE_REFERENCE` and\n"
    "`MILLRACE_CACHE`, which the project's tests and scripts use.\n"
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

/* The control character or line break that `text` begins with, of Unicode; 0: none. *bytes says how
 * long it is. */
static uint32_t control_at(const char *text, size_t *bytes)
{
    const unsigned char *c = (const unsigned char *)text;
    *bytes = 1;
    if (c[0] < 0x20 || c[0] == 0x7f) {
        return c[0];
    }
    if (c[0] == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0) {
        *bytes = 2;
        return c[1];
    }
    if (c[0] == 0xe2 && c[1] == 0x80 && (c[2] == 0xa8 || c[2] == 0xa9)) {
        *bytes = 3;
        return c[2] == 0xa8 ? 0x2028 : 0x2029;
    }
    return 0;
}

/* In double quotes; what a YAML line cannot hold is escaped, all else is as it was given. */
static mr_status append_quoted(mr_buffer *out, const char *value)
{
    MR_TRY(mr_buffer_append(out, "\"", 1));
    size_t bytes = 1;
    for (; *value != '\0'; value += bytes) {
        const uint32_t control = control_at(value, &bytes);
        if (control != 0) {
            MR_TRY(mr_buffer_printf(out, "\\u%04" PRIX32, control));
            continue;
        }
        if (*value == '"' || *value == '\\') {
            MR_TRY(mr_buffer_append(out, "\\", 1));
        }
        MR_TRY(mr_buffer_append(out, value, 1));
    }
    return mr_buffer_append(out, "\"\n", 2);
}

/* A value that YAML could take for something else is quoted. */
static mr_status append_value(mr_buffer *out, const char *type, const char *value)
{
    return strcmp(type, "text") != 0 ? mr_buffer_printf(out, "%s\n", value)
                                     : append_quoted(out, value);
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
            comment = "# not shown: ";
        }
        MR_TRY(mr_buffer_printf(out, "%s%s:%s", comment, about.name, is_list(&about) ? "" : " "));
        MR_TRY(is_list(&about) ? mr_config_list_yaml(config, about.name, out)
                               : append_setting(config, i, &about, out));
    }
    return MR_OK;
}
