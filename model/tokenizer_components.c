/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tokenizer_components.h"

#include "model/hf_json.h"
#include "model/json_tree.h"

#include <stdio.h>

#define MAX_STRIP  16
#define MAX_NESTED 8u /* sequences in sequences */

static const char byte_level_model[] = "gpt2";
static const char character_model[] = "llama";
static const uint8_t one_space[] = {' '};

/* What is known while the components are read. */
typedef struct reader {
    mr_tokenizer_spec *spec;
    bool byte_level;    /* a ByteLevel pre-tokenizer was read: nothing may follow it */
    bool any_split;     /* a pre-tokenizer was read: text may not change any more */
    bool decodes_bytes; /* the decoder has ByteLevel */
    bool decodes_byte_fallback;
    bool fused;
    bool has_decoder;
    mr_error *err;
} reader;

/* --- Reading values ------------------------------------------------------------------------- */

static mr_status refuse(reader *r, const char *part, const char *what)
{
    return mr_fail(r->err, MR_UNIMPLEMENTED,
                   "tokenizer.json has the %s %s, which this build does not compute; use another "
                   "model, or send token ids",
                   part, what);
}

static mr_status refuse_type(reader *r, const char *part, const json_t *item)
{
    const mr_bytes type = mr_json_tree_string(item, "type");
    char what[80];
    snprintf(what, sizeof(what), "\"%.*s\"", type.size < 60 ? (int)type.size : 60,
             type.size > 0 ? (const char *)type.data : "");
    return refuse(r, part, what);
}

static bool is_type(const json_t *item, const char *name)
{
    return mr_bytes_is(mr_json_tree_string(item, "type"), name);
}

static mr_status read_text(reader *r, const json_t *item, const char *key, mr_bytes *out)
{
    *out = mr_json_tree_string(item, key);
    return out->data != NULL ? MR_OK : mr_fail(r->err, MR_DATA_LOSS, "\"%s\" is not a text", key);
}

/* An absent component may also be written as null. */
static const json_t *component(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    return json_is_null(value) ? NULL : value;
}

/* Calls `read` for each component of a sequence, however sequences are nested. */
static mr_status each(reader *r, const json_t *item, const char *list, unsigned nested,
                      mr_status (*read)(reader *r, const json_t *item))
{
    if (item == NULL || !is_type(item, "Sequence")) {
        return item == NULL ? MR_OK : read(r, item);
    }
    const json_t *items = json_object_get(item, list);
    if (!json_is_array(items) || nested == MAX_NESTED) {
        return mr_fail(r->err, MR_DATA_LOSS, "\"%s\" is not a list", list);
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        MR_TRY(each(r, json_array_get(items, i), list, nested + 1, read));
    }
    return MR_OK;
}

static mr_status push_text_step(reader *r, mr_text_step *steps, uint32_t *count, mr_text_step step)
{
    if (*count == MR_MAX_TEXT_STEPS) {
        return refuse(r, "sequence", "of more steps than 8");
    }
    steps[(*count)++] = step;
    return MR_OK;
}

/* {"String": …} of a Replace. */
static mr_status read_replace(reader *r, const char *part, const json_t *item, mr_text_step *out)
{
    out->kind = MR_TEXT_REPLACE;
    out->from = mr_json_tree_string(json_object_get(item, "pattern"), "String");
    if (out->from.size == 0) {
        return refuse(r, part, "\"Replace\" of a pattern");
    }
    return read_text(r, item, "content", &out->to);
}

/* --- Normalizer ----------------------------------------------------------------------------- */

static mr_status read_normalizer(reader *r, const json_t *item)
{
    static const struct {
        const char *name;
        mr_text_step_kind kind;
    } forms[] = {
        {"NFC", MR_TEXT_NFC},
        {"NFD", MR_TEXT_NFD},
        {"NFKC", MR_TEXT_NFKC},
        {"NFKD", MR_TEXT_NFKD},
    };
    mr_text_step step = {0};
    bool known = false;
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
        if (is_type(item, forms[i].name)) {
            step.kind = forms[i].kind;
            known = true;
        }
    }
    if (is_type(item, "Prepend")) {
        step.kind = MR_TEXT_PREPEND;
        MR_TRY(read_text(r, item, "prepend", &step.to));
    } else if (is_type(item, "Replace")) {
        MR_TRY(read_replace(r, "normalizer", item, &step));
    } else if (!known) {
        return refuse_type(r, "normalizer", item);
    }
    return push_text_step(r, r->spec->normalizer, &r->spec->n_normalizer, step);
}

/* --- Pre-tokenizer -------------------------------------------------------------------------- */

static mr_status push_split(reader *r, mr_split_step step)
{
    if (r->spec->n_splits == MR_MAX_SPLIT_STEPS) {
        return refuse(r, "pre-tokenizer", "of more steps than 8");
    }
    r->spec->splits[r->spec->n_splits++] = step;
    return MR_OK;
}

static mr_status read_split(reader *r, const json_t *item)
{
    static const char *const behaviors[] = {
        [MR_SPLIT_ISOLATED] = "Isolated",
        [MR_SPLIT_REMOVED] = "Removed",
        [MR_SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
        [MR_SPLIT_WITH_NEXT] = "MergedWithNext",
        [MR_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    mr_split_step step = {.kind = MR_SPLIT_PATTERN};
    mr_bytes behavior;
    const json_t *pattern = json_object_get(item, "pattern");
    step.pattern = mr_json_tree_string(pattern, "Regex");
    if (step.pattern.data == NULL) {
        step.kind = MR_SPLIT_LITERAL;
        MR_TRY(read_text(r, pattern, "String", &step.pattern));
    }
    MR_TRY(read_text(r, item, "behavior", &behavior));
    MR_TRY(mr_hf_json_bool(item, "invert", &step.invert, r->err));
    for (size_t i = 0; i < sizeof(behaviors) / sizeof(behaviors[0]); i++) {
        if (mr_bytes_is(behavior, behaviors[i])) {
            step.behavior = (mr_split_behavior)i;
            return push_split(r, step);
        }
    }
    return refuse(r, "pre-tokenizer", "\"Split\" with an unknown behavior");
}

static mr_status read_byte_level(reader *r, const json_t *item)
{
    bool prefix = true;
    bool pattern = true;
    MR_TRY(mr_hf_json_bool(item, "add_prefix_space", &prefix, r->err));
    MR_TRY(mr_hf_json_bool(item, "use_regex", &pattern, r->err));
    if (prefix && r->any_split) {
        return refuse(r, "pre-tokenizer", "\"ByteLevel\" with add_prefix_space behind another");
    }
    if (prefix) {
        const mr_text_step step = {.kind = MR_TEXT_PREPEND_MISSING,
                                   .to = {.data = one_space, .size = 1}};
        MR_TRY(push_text_step(r, r->spec->prepare, &r->spec->n_prepare, step));
    }
    r->byte_level = true;
    return pattern ? push_split(r, (mr_split_step){.kind = MR_SPLIT_GPT2}) : MR_OK;
}

/* The scheme of a Metaspace; files before 2024 have add_prefix_space instead. */
static mr_status read_scheme(reader *r, const json_t *item, bool *always, bool *first)
{
    const mr_bytes scheme = mr_json_tree_string(item, "prepend_scheme");
    *always = true;
    *first = false;
    if (scheme.data == NULL) {
        return mr_hf_json_bool(item, "add_prefix_space", always, r->err);
    }
    *always = mr_bytes_is(scheme, "always");
    *first = mr_bytes_is(scheme, "first");
    return *always || *first || mr_bytes_is(scheme, "never")
               ? MR_OK
               : refuse(r, "component", "\"Metaspace\" with an unknown prepend_scheme");
}

static mr_status read_metaspace(reader *r, const json_t *item)
{
    bool always = true;
    bool first = false;
    bool split = true;
    mr_bytes mark;
    MR_TRY(read_text(r, item, "replacement", &mark));
    MR_TRY(mr_hf_json_bool(item, "split", &split, r->err));
    MR_TRY(read_scheme(r, item, &always, &first));
    if (r->any_split) {
        return refuse(r, "pre-tokenizer", "\"Metaspace\" behind another");
    }
    const mr_text_step spaces = {
        .kind = MR_TEXT_REPLACE, .from = {.data = one_space, .size = 1}, .to = mark};
    MR_TRY(push_text_step(r, r->spec->prepare, &r->spec->n_prepare, spaces));
    if (always || first) {
        const mr_text_step prefix = {
            .kind = always ? MR_TEXT_PREPEND_MISSING : MR_TEXT_PREPEND_START, .to = mark};
        MR_TRY(push_text_step(r, r->spec->prepare, &r->spec->n_prepare, prefix));
    }
    return split ? push_split(r, (mr_split_step){.kind = MR_SPLIT_LITERAL,
                                                 .behavior = MR_SPLIT_WITH_NEXT,
                                                 .pattern = mark})
                 : MR_OK;
}

static mr_status read_digits(reader *r, const json_t *item)
{
    bool individual = false;
    MR_TRY(mr_hf_json_bool(item, "individual_digits", &individual, r->err));
    return push_split(r, (mr_split_step){.kind = individual ? MR_SPLIT_DIGIT : MR_SPLIT_DIGITS});
}

static mr_status read_pre_tokenizer(reader *r, const json_t *item)
{
    if (r->byte_level) {
        return refuse(r, "pre-tokenizer", "\"ByteLevel\" before another");
    }
    mr_status status;
    if (is_type(item, "Split")) {
        status = read_split(r, item);
    } else if (is_type(item, "ByteLevel")) {
        status = read_byte_level(r, item);
    } else if (is_type(item, "Digits")) {
        status = read_digits(r, item);
    } else if (is_type(item, "Metaspace")) {
        status = read_metaspace(r, item);
    } else {
        status = refuse_type(r, "pre-tokenizer", item);
    }
    r->any_split = true;
    return status;
}

/* --- Model ---------------------------------------------------------------------------------- */

static mr_status read_model(reader *r, const json_t *model, mr_bytes *unknown)
{
    if (json_object_get(model, "type") != NULL && !is_type(model, "BPE")) {
        return refuse_type(r, "model", model);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0.0) {
        return refuse(r, "model", "\"BPE\" with dropout");
    }
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof(affixes) / sizeof(affixes[0]); i++) {
        if (mr_json_tree_string(model, affixes[i]).size > 0) {
            char what[64];
            snprintf(what, sizeof(what), "\"BPE\" with %s", affixes[i]);
            return refuse(r, "model", what);
        }
    }
    MR_TRY(mr_hf_json_bool(model, "fuse_unk", &r->spec->fuse_unknown, r->err));
    MR_TRY(mr_hf_json_bool(model, "byte_fallback", &r->spec->byte_fallback, r->err));
    MR_TRY(mr_hf_json_bool(model, "ignore_merges", &r->spec->whole_tokens, r->err));
    *unknown = mr_json_tree_string(model, "unk_token");
    return MR_OK;
}

/* --- Decoder -------------------------------------------------------------------------------- */

static mr_status read_strip(reader *r, const json_t *item)
{
    const mr_bytes content = mr_json_tree_string(item, "content");
    const json_int_t start = json_integer_value(json_object_get(item, "start"));
    const json_int_t stop = json_integer_value(json_object_get(item, "stop"));
    if (!mr_bytes_is(content, " ") || start < 0 || start > MAX_STRIP || stop != 0 || !r->fused) {
        return refuse(r, "decoder", "\"Strip\" of anything but spaces before the whole text");
    }
    r->spec->decode_strip = (uint32_t)start;
    return MR_OK;
}

static mr_status read_metaspace_decoder(reader *r, const json_t *item)
{
    bool always = true;
    bool first = false;
    mr_text_step step = {.kind = MR_TEXT_REPLACE, .to = {.data = one_space, .size = 1}};
    MR_TRY(read_text(r, item, "replacement", &step.from));
    MR_TRY(read_scheme(r, item, &always, &first));
    r->spec->decode_bare_first = always || first;
    return push_text_step(r, r->spec->decode, &r->spec->n_decode, step);
}

static mr_status read_decoder(reader *r, const json_t *item)
{
    r->has_decoder = true;
    if (is_type(item, "Fuse")) {
        r->fused = true;
        return MR_OK;
    }
    if (is_type(item, "Strip")) {
        return read_strip(r, item);
    }
    if (is_type(item, "ByteLevel")) {
        r->decodes_bytes = true;
        return MR_OK;
    }
    if (r->fused || r->decodes_byte_fallback) {
        /* Bytes are decoded on their own here, and what follows would not see them. */
        return refuse(r, "decoder", "sequence with a step behind \"ByteFallback\" or \"Fuse\"");
    }
    if (is_type(item, "ByteFallback")) {
        r->decodes_byte_fallback = true;
        return MR_OK;
    }
    if (is_type(item, "Metaspace")) {
        return read_metaspace_decoder(r, item);
    }
    if (is_type(item, "Replace")) {
        mr_text_step step = {0};
        MR_TRY(read_replace(r, "decoder", item, &step));
        return push_text_step(r, r->spec->decode, &r->spec->n_decode, step);
    }
    return refuse_type(r, "decoder", item);
}

/* Whether decoder and model belong together. */
static mr_status check_decoder(reader *r)
{
    const mr_tokenizer_spec *spec = r->spec;
    if (r->byte_level && spec->byte_fallback) {
        return refuse(r, "model", "\"BPE\" with byte_fallback under \"ByteLevel\"");
    }
    if (!r->has_decoder) {
        return MR_OK;
    }
    const bool others = spec->n_decode > 0 || r->decodes_byte_fallback || spec->decode_strip > 0;
    if (r->byte_level != r->decodes_bytes || (r->byte_level && others)) {
        return refuse(r, "decoder", "of another kind than its pre-tokenizer");
    }
    return spec->byte_fallback == r->decodes_byte_fallback
               ? MR_OK
               : refuse(r, "decoder", "of another kind than its model's byte_fallback");
}

/* --- Post-processor ------------------------------------------------------------------------- */

/* The one id that a special token of a template stands for. */
static mr_status read_template_id(reader *r, const json_t *item, const json_t *token, uint32_t *id)
{
    const mr_bytes name = mr_json_tree_string(token, "id");
    const json_t *specials = json_object_get(item, "special_tokens");
    const json_t *special =
        name.size > 0 ? json_object_getn(specials, (const char *)name.data, name.size) : NULL;
    const json_t *ids = json_object_get(special, "ids");
    const json_t *only = json_array_size(ids) == 1 ? json_array_get(ids, 0) : NULL;
    const json_int_t value = json_is_integer(only) ? json_integer_value(only) : -1;
    if (value < 0 || value >= UINT32_MAX || *id != UINT32_MAX) {
        return refuse(r, "post-processor", "\"TemplateProcessing\" of other than BOS, text, EOS");
    }
    *id = (uint32_t)value;
    return MR_OK;
}

static mr_status read_template(reader *r, const json_t *item, mr_template_ends *ends)
{
    const json_t *single = json_object_get(item, "single");
    bool text_seen = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *part = json_array_get(single, i);
        const json_t *token = json_object_get(part, "SpecialToken");
        if (token != NULL) {
            MR_TRY(read_template_id(r, item, token, text_seen ? &ends->eos_id : &ends->bos_id));
        } else if (json_object_get(part, "Sequence") != NULL && !text_seen) {
            text_seen = true;
        } else {
            return refuse(r, "post-processor",
                          "\"TemplateProcessing\" of other than BOS, text, EOS");
        }
    }
    return text_seen ? MR_OK
                     : refuse(r, "post-processor", "\"TemplateProcessing\" without the text");
}

static mr_status read_post_processor(reader *r, const json_t *item, unsigned nested,
                                     mr_template_ends *ends)
{
    if (item == NULL || is_type(item, "ByteLevel")) {
        return MR_OK; /* it only changes offsets */
    }
    if (is_type(item, "TemplateProcessing")) {
        return read_template(r, item, ends);
    }
    const json_t *items = json_object_get(item, "processors");
    if (!is_type(item, "Sequence") || !json_is_array(items) || nested == MAX_NESTED) {
        return refuse_type(r, "post-processor", item);
    }
    for (size_t i = 0; i < json_array_size(items); i++) {
        MR_TRY(read_post_processor(r, json_array_get(items, i), nested + 1, ends));
    }
    return MR_OK;
}

mr_status mr_tokenizer_components_read(const json_t *root, mr_tokenizer_spec *spec,
                                       mr_template_ends *ends, mr_bytes *unknown, mr_error *err)
{
    reader r = {.spec = spec, .err = err};
    *ends = (mr_template_ends){.bos_id = UINT32_MAX, .eos_id = UINT32_MAX};
    const json_t *model = component(root, "model");
    if (!json_is_object(model)) {
        return mr_fail(err, MR_DATA_LOSS, "tokenizer.json has no model; the file is corrupt");
    }
    MR_TRY(read_model(&r, model, unknown));
    MR_TRY(each(&r, component(root, "normalizer"), "normalizers", 0, read_normalizer));
    MR_TRY(each(&r, component(root, "pre_tokenizer"), "pretokenizers", 0, read_pre_tokenizer));
    MR_TRY(each(&r, component(root, "decoder"), "decoders", 0, read_decoder));
    MR_TRY(check_decoder(&r));
    MR_TRY(read_post_processor(&r, component(root, "post_processor"), 0, ends));
    spec->model = r.byte_level ? byte_level_model : character_model;
    return MR_OK;
}
