/* SPDX-License-Identifier: Apache-2.0 */
#include "model/gguf_vocab.h"

#include "base/checked.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "tokenizer.ggml."

/* tokenizer.ggml.token_type */
enum {
    TYPE_NORMAL = 1,
    TYPE_UNKNOWN = 2,
    TYPE_CONTROL = 3,
    TYPE_USER_DEFINED = 4,
    TYPE_UNUSED = 5,
    TYPE_BYTE = 6,
};

/* The tables of a tokenizer while it is made. */
typedef struct vocab {
    char model[MR_GGUF_NAME_MAX];
    char pre[MR_GGUF_NAME_MAX];
    mr_bytes *tokens; /* owns */
    uint32_t n_tokens;
    uint32_t *types; /* owns; NULL: all are normal */
    uint32_t n_types;
    uint8_t *kinds;   /* owns, [n_tokens] */
    mr_bytes *merges; /* owns */
    uint32_t n_merges;
    float *scores; /* owns, [n_scores] */
    uint32_t n_scores;
    mr_tokenizer_spec spec;
} vocab;

/* Reads the id of a token; UINT32_MAX, which some files write for "none", if there is none. */
static mr_status read_id(const mr_gguf *gguf, const char *key, uint32_t vocab_size, uint32_t *out,
                         mr_error *err)
{
    *out = UINT32_MAX;
    MR_TRY(mr_gguf_read_u32(gguf, key, MR_GGUF_OPTIONAL, out, err));
    if (*out != UINT32_MAX && *out >= vocab_size) {
        return mr_fail(err, MR_DATA_LOSS,
                       "the key '%s' is the id %" PRIu32 " where the vocabulary has %" PRIu32
                       " tokens; the file is corrupt",
                       key, *out, vocab_size);
    }
    return MR_OK;
}

static mr_status map_kinds(vocab *v, mr_error *err)
{
    v->kinds = mr_calloc((size_t)v->n_tokens + 1, 1);
    if (v->kinds == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for %" PRIu32 " tokens", v->n_tokens);
    }
    if (v->types == NULL) {
        return MR_OK;
    }
    if (v->n_types != v->n_tokens) {
        return mr_fail(err, MR_DATA_LOSS,
                       PREFIX "token_type has %" PRIu32 " entries where " PREFIX
                              "tokens has %" PRIu32 "; the file is corrupt",
                       v->n_types, v->n_tokens);
    }
    static const uint8_t kinds[] = {
        [TYPE_NORMAL] = MR_TOKEN_NORMAL,   [TYPE_UNKNOWN] = MR_TOKEN_NORMAL,
        [TYPE_CONTROL] = MR_TOKEN_SPECIAL, [TYPE_USER_DEFINED] = MR_TOKEN_ADDED,
        [TYPE_UNUSED] = MR_TOKEN_UNUSED,   [TYPE_BYTE] = MR_TOKEN_NORMAL,
    };
    for (uint32_t i = 0; i < v->n_tokens; i++) {
        const uint32_t type = v->types[i];
        if (type < TYPE_NORMAL || type > TYPE_BYTE) {
            return mr_fail(err, MR_DATA_LOSS,
                           PREFIX "token_type[%" PRIu32 "] is %" PRIu32
                                  " where 1 to 6 is allowed; the file is corrupt",
                           i, type);
        }
        v->kinds[i] = kinds[type];
    }
    return MR_OK;
}

static mr_status read_tables(const mr_gguf *gguf, uint32_t vocab_size, vocab *v, mr_error *err)
{
    MR_TRY(mr_gguf_read_strings(gguf, PREFIX "tokens", MR_GGUF_REQUIRED, &v->tokens, &v->n_tokens,
                                err));
    if (vocab_size != UINT32_MAX && v->n_tokens != vocab_size) {
        return mr_fail(err, MR_DATA_LOSS,
                       PREFIX "tokens has %" PRIu32 " entries where the embedding has %" PRIu32
                              " rows; the file is inconsistent, convert the model again",
                       v->n_tokens, vocab_size);
    }
    MR_TRY(mr_gguf_read_u32s(gguf, PREFIX "token_type", MR_GGUF_OPTIONAL, &v->types, &v->n_types,
                             err));
    MR_TRY(map_kinds(v, err));
    return mr_gguf_read_strings(gguf, PREFIX "merges", MR_GGUF_OPTIONAL, &v->merges, &v->n_merges,
                                err);
}

/* Whether raw prompts get BOS and EOS. Files of the Llama families leave the first unsaid. */
static mr_status read_additions(const mr_gguf *gguf, uint32_t vocab_size, vocab *v, mr_error *err)
{
    mr_tokenizer_spec *spec = &v->spec;
    MR_TRY(read_id(gguf, PREFIX "bos_token_id", vocab_size, &spec->bos_id, err));
    MR_TRY(read_id(gguf, PREFIX "eos_token_id", vocab_size, &spec->eos_id, err));
    const bool llama3 = strcmp(v->pre, "llama-bpe") == 0 || strcmp(v->pre, "llama3") == 0 ||
                        strcmp(v->pre, "llama-v3") == 0;
    const bool llama = strcmp(v->model, "llama") == 0;
    spec->add_bos = (llama3 || llama) && spec->bos_id != UINT32_MAX;
    MR_TRY(mr_gguf_read_bool(gguf, PREFIX "add_bos_token", MR_GGUF_OPTIONAL, &spec->add_bos, err));
    MR_TRY(mr_gguf_read_bool(gguf, PREFIX "add_eos_token", MR_GGUF_OPTIONAL, &spec->add_eos, err));
    const bool lacks_bos = spec->add_bos && spec->bos_id == UINT32_MAX;
    if (lacks_bos || (spec->add_eos && spec->eos_id == UINT32_MAX)) {
        const char *name = lacks_bos ? "bos" : "eos";
        return mr_fail(err, MR_DATA_LOSS,
                       PREFIX "add_%s_token is true but " PREFIX
                              "%s_token_id is missing; convert the model again",
                       name, name);
    }
    return MR_OK;
}

/* SentencePiece's model as files name it: "llama". A space is U+2581 in its tokens; text and what
 * follows an added token begin with one. */
static mr_status read_llama(const mr_gguf *gguf, vocab *v, mr_error *err)
{
    static const mr_bytes space = {.data = (const uint8_t *)" ", .size = 1};
    static const mr_bytes mark = {.data = (const uint8_t *)"\xE2\x96\x81", .size = 3};
    mr_tokenizer_spec *spec = &v->spec;
    bool prefix = true;
    bool trim = false;
    MR_TRY(mr_gguf_read_bool(gguf, PREFIX "add_space_prefix", MR_GGUF_OPTIONAL, &prefix, err));
    MR_TRY(
        mr_gguf_read_bool(gguf, PREFIX "remove_extra_whitespaces", MR_GGUF_OPTIONAL, &trim, err));
    MR_TRY(
        mr_gguf_read_f32s(gguf, PREFIX "scores", MR_GGUF_REQUIRED, &v->scores, &v->n_scores, err));
    if (trim) {
        return mr_fail(err, MR_UNIMPLEMENTED,
                       PREFIX "remove_extra_whitespaces is not implemented; use another model, or "
                              "send token ids");
    }
    if (v->n_scores != v->n_tokens) {
        return mr_fail(err, MR_DATA_LOSS,
                       PREFIX "scores has %" PRIu32 " entries where " PREFIX "tokens has %" PRIu32
                              "; the file is corrupt",
                       v->n_scores, v->n_tokens);
    }
    for (uint32_t i = 0; v->types != NULL && i < v->n_tokens && !spec->has_unknown; i++) {
        if (v->types[i] == TYPE_UNKNOWN) {
            spec->has_unknown = true;
            spec->unknown_id = i;
            v->kinds[i] = MR_TOKEN_SPECIAL; /* as in Hugging Face's conversions */
        }
    }
    spec->scores = v->scores;
    spec->byte_fallback = true;
    spec->fuse_unknown = true;
    if (prefix) {
        spec->normalizer[spec->n_normalizer++] =
            (mr_text_step){.kind = MR_TEXT_PREPEND, .to = mark};
        spec->decode_strip = 1;
    }
    spec->normalizer[spec->n_normalizer++] =
        (mr_text_step){.kind = MR_TEXT_REPLACE, .from = space, .to = mark};
    spec->decode[spec->n_decode++] =
        (mr_text_step){.kind = MR_TEXT_REPLACE, .from = mark, .to = space};
    return MR_OK;
}

static mr_status read_vocab(const mr_gguf *gguf, uint32_t vocab_size, vocab *v, mr_error *err)
{
    snprintf(v->pre, sizeof(v->pre), "default");
    MR_TRY(mr_gguf_read_name(gguf, PREFIX "pre", MR_GGUF_OPTIONAL, v->pre, err));
    MR_TRY(read_tables(gguf, vocab_size, v, err));
    MR_TRY(read_additions(gguf, v->n_tokens, v, err));
    v->spec.model = v->model;
    v->spec.pre_tokenizer = v->pre;
    v->spec.tokens = v->tokens;
    v->spec.kinds = v->kinds;
    v->spec.n_tokens = v->n_tokens;
    v->spec.merges = v->merges;
    v->spec.n_merges = v->n_merges;
    return strcmp(v->model, "llama") == 0 ? read_llama(gguf, v, err) : MR_OK;
}

mr_status mr_gguf_read_tokenizer(const mr_gguf *gguf, uint32_t vocab_size, mr_tokenizer **out,
                                 mr_error *err)
{
    *out = NULL;
    vocab v = {0};
    MR_TRY(mr_gguf_read_name(gguf, PREFIX "model", MR_GGUF_OPTIONAL, v.model, err));
    if (v.model[0] == '\0' || strcmp(v.model, "none") == 0 || strcmp(v.model, "no_vocab") == 0) {
        return MR_OK;
    }
    mr_error local = {0};
    mr_status status = read_vocab(gguf, vocab_size, &v, err);
    if (status == MR_OK) {
        status = mr_tokenizer_create(&v.spec, out, &local);
        if (status != MR_OK) {
            /* Tables that contradict each other are the file's fault, not the caller's. */
            status = status == MR_INVALID_ARGUMENT ? MR_DATA_LOSS : status;
            status = mr_fail(err, status, "tokenizer: %s", local.message);
        }
    }
    free(v.tokens);
    free(v.types);
    free(v.kinds);
    free(v.merges);
    free(v.scores);
    return status;
}

/* The text of the token that a key names, empty if it names none. */
static mr_status read_end(const mr_gguf *gguf, const char *key, const mr_tokenizer *tokenizer,
                          mr_bytes *out, mr_error *err)
{
    uint32_t id = UINT32_MAX;
    *out = (mr_bytes){0};
    MR_TRY(mr_gguf_read_u32(gguf, key, MR_GGUF_OPTIONAL, &id, err));
    if (tokenizer != NULL && id < mr_tokenizer_vocab_size(tokenizer)) {
        *out = mr_tokenizer_token_bytes(tokenizer, id);
    }
    return MR_OK;
}

mr_status mr_gguf_read_chat(const mr_gguf *gguf, const mr_tokenizer *tokenizer,
                            mr_chat_template **out, mr_error *err)
{
    mr_bytes text = {0};
    mr_bytes bos;
    mr_bytes eos;
    MR_TRY(read_end(gguf, PREFIX "bos_token_id", tokenizer, &bos, err));
    MR_TRY(read_end(gguf, PREFIX "eos_token_id", tokenizer, &eos, err));
    MR_TRY(mr_gguf_read_string(gguf, "tokenizer.chat_template", MR_GGUF_OPTIONAL, &text, err));
    MR_TRY(mr_chat_template_create(text, out, err));
    return mr_chat_template_set_ends(*out, bos, eos, err);
}

mr_status mr_gguf_read_eos(const mr_gguf *gguf, mr_model_config *config, mr_error *err)
{
    static const char *const keys[] = {
        PREFIX "eos_token_id",
        PREFIX "eot_token_id",
        PREFIX "eom_token_id",
    };
    _Static_assert(sizeof(keys) / sizeof(keys[0]) <= MR_MAX_EOS, "config->eos holds all");
    config->n_eos = 0;
    for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++) {
        uint32_t id;
        MR_TRY(read_id(gguf, keys[k], config->vocab_size, &id, err));
        bool known = id == UINT32_MAX;
        for (uint32_t i = 0; i < config->n_eos; i++) {
            known = known || config->eos[i] == id;
        }
        if (!known) {
            config->eos[config->n_eos++] = id;
        }
    }
    return MR_OK;
}
