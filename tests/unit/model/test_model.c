/* SPDX-License-Identifier: Apache-2.0 */
#include "model/model.h"
#include "model/model_internal.h"
#include "tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../base/temp_dir.h"

static mr_status open_bytes(gguf_writer *w, mr_model **out, mr_error *err)
{
    size_t size;
    const uint8_t *file = gguf_finish(w, &size);
    return mr_model_open_memory(file, size, "m", out, err);
}

/* The file is refused and the message has the text. Empties the writer. */
static void refused(gguf_writer *w, mr_status status, const char *text)
{
    mr_model *model = NULL;
    mr_error err = {0};
    const mr_status found = open_bytes(w, &model, &err);
    if (found != status || strstr(err.message, text) == NULL) {
        fail_msg("status %d, message \"%s\" lacks \"%s\"", found, err.message, text);
    }
    gguf_writer_deinit(w);
    gguf_writer_init(w);
}

/* A vocabulary of `count` one-letter tokens: '!', '"', '#' … */
static void put_tokens(gguf_writer *w, uint32_t count)
{
    gguf_key(w, "tokenizer.ggml.tokens", GGUF_ARRAY);
    gguf_put_u32(&w->values, GGUF_STRING);
    gguf_put_u64(&w->values, count);
    for (uint32_t i = 0; i < count; i++) {
        const char text[2] = {(char)('!' + i), '\0'};
        gguf_put_string(&w->values, text);
    }
}

static void put_types(gguf_writer *w, uint32_t count, uint32_t last)
{
    gguf_key(w, "tokenizer.ggml.token_type", GGUF_ARRAY);
    gguf_put_u32(&w->values, GGUF_I32);
    gguf_put_u64(&w->values, count);
    for (uint32_t i = 0; i < count; i++) {
        gguf_put_u32(&w->values, i + 1 < count ? 1 : last);
    }
}

static void put_tokenizer(gguf_writer *w, uint32_t count)
{
    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_key_string(w, "tokenizer.ggml.pre", "smollm");
    put_tokens(w, count);
}

static void test_opens_a_file(void **state)
{
    gguf_writer *w = *state;
    const temp_dir dir = temp_dir_make();
    char path[PATH_MAX];
    tiny_llama_write(w, &(tiny_llama){0});
    memset(w->data.data, 0x11, w->data.size);
    size_t size;
    const uint8_t *bytes = gguf_finish(w, &size);
    FILE *file = fopen(temp_dir_join(&dir, "small model.gguf", path), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);

    mr_model *model = NULL;
    mr_error err = {0};
    assert_int_equal(mr_model_open(path, &model, &err), MR_OK);
    assert_string_equal(mr_model_config_get(model)->name, "small model");
    assert_int_equal(mr_model_tensor_count(model), 2 + 2 * 9);
    /* Dropped pages come back from the file. */
    mr_plan *plan = NULL;
    assert_int_equal(mr_model_plan(model, &plan, &err), MR_OK);
    for (uint32_t i = 0; i < plan->n_weights; i++) {
        plan->release(plan->release_ctx, plan->weights[i].data, plan->weights[i].bytes);
    }
    mr_plan_destroy(plan);
    const mr_model_tensor *tensor = mr_model_tensor_at(model, 0);
    assert_memory_equal(tensor->data, w->data.data, tensor->bytes);
    mr_model_close(model);
    temp_dir_remove(&dir);
}

static void test_paths_that_are_no_model(void **state)
{
    (void)state;
    const temp_dir dir = temp_dir_make();
    mr_model *model = NULL;
    mr_error err = {0};
    assert_int_equal(mr_model_open(dir.path, &model, &err), MR_NOT_FOUND);
    assert_non_null(strstr(err.message, "no config.json"));
    temp_dir_remove(&dir);
    assert_int_equal(mr_model_open("/nonexistent/model.gguf", &model, &err), MR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nonexistent/model.gguf"));
    assert_null(model);
}

/* The end of a path is what tells files apart, and the message must still have room. */
static void test_long_paths_are_shortened(void **state)
{
    (void)state;
    char label[1024];
    memset(label, 'd', sizeof(label));
    snprintf(label + 1000, 24, "/name.gguf");
    mr_model *model = NULL;
    mr_error err = {0};
    _Alignas(8) static const char text[] = "hello";
    assert_int_equal(mr_model_open_memory(text, 5, label, &model, &err), MR_DATA_LOSS);
    assert_non_null(strstr(err.message, "d/name.gguf: not a GGUF file but text"));
    assert_memory_equal(err.message, "...d", 4);
}

static void test_names_are_made_printable(void **state)
{
    gguf_writer *w = *state;
    gguf_key_string(w, "general.name", "a\nb\xff");
    tiny_llama_write(w, &(tiny_llama){0});
    mr_model *model = NULL;
    assert_int_equal(open_bytes(w, &model, NULL), MR_OK);
    assert_string_equal(mr_model_config_get(model)->name, "a b\xef\xbf\xbd");
    mr_model_close(model);
}

static void test_T5_eos_is_the_union(void **state)
{
    gguf_writer *w = *state;
    tiny_llama_write(w, &(tiny_llama){0});
    gguf_key_u32(w, "tokenizer.ggml.eos_token_id", 7);
    gguf_key_u32(w, "tokenizer.ggml.eot_token_id", 9);
    gguf_key_u32(w, "tokenizer.ggml.eom_token_id", 7);
    mr_model *model = NULL;
    assert_int_equal(open_bytes(w, &model, NULL), MR_OK);
    const mr_model_config *c = mr_model_config_get(model);
    assert_int_equal(c->n_eos, 2);
    assert_int_equal(c->eos[0], 7);
    assert_int_equal(c->eos[1], 9);
    mr_model_close(model);
}

static void test_T5_eos_must_be_a_token(void **state)
{
    tiny_llama_write(*state, &(tiny_llama){0});
    gguf_key_u32(*state, "tokenizer.ggml.eot_token_id", TINY_VOCAB);
    refused(*state, MR_DATA_LOSS, "eot_token_id' is the id 48 where the vocabulary has 48");
}

static void test_tokenizer_is_made(void **state)
{
    gguf_writer *w = *state;
    put_tokenizer(w, TINY_VOCAB);
    put_types(w, TINY_VOCAB, 3);
    gguf_key_u32(w, "tokenizer.ggml.bos_token_id", 2);
    gguf_key_bool(w, "tokenizer.ggml.add_bos_token", 1);
    mr_model *model = NULL;
    mr_error err = {0};
    if (open_bytes(w, &model, &err) != MR_OK) {
        fail_msg("refused: %s", err.message);
    }
    const mr_tokenizer *tokenizer = mr_model_tokenizer(model);
    assert_non_null(tokenizer);
    assert_int_equal(mr_tokenizer_vocab_size(tokenizer), TINY_VOCAB);
    assert_int_equal(mr_tokenizer_kind(tokenizer, 0), MR_TOKEN_NORMAL);
    assert_int_equal(mr_tokenizer_kind(tokenizer, TINY_VOCAB - 1), MR_TOKEN_SPECIAL);
    assert_int_equal(mr_tokenizer_bos(tokenizer), 2);
    mr_model_close(model);
}

static void test_F5_tokenizer_tables_must_agree(void **state)
{
    put_tokenizer(*state, TINY_VOCAB - 1);
    refused(*state, MR_DATA_LOSS, "tokens has 47 entries where the embedding has 48 rows");

    put_tokenizer(*state, TINY_VOCAB);
    put_types(*state, TINY_VOCAB + 1, 1);
    refused(*state, MR_DATA_LOSS, "token_type has 49 entries");

    put_tokenizer(*state, TINY_VOCAB);
    put_types(*state, TINY_VOCAB, 7);
    refused(*state, MR_DATA_LOSS, "token_type[47] is 7");

    put_tokenizer(*state, TINY_VOCAB);
    gguf_key_bool(*state, "tokenizer.ggml.add_bos_token", 1);
    refused(*state, MR_DATA_LOSS, "bos_token_id is missing");
}

static void test_K3_unknown_tokenizers_are_named(void **state)
{
    tiny_llama_write(*state, &(tiny_llama){0});
    gguf_key_string(*state, "tokenizer.ggml.model", "morse");
    put_tokens(*state, TINY_VOCAB);
    refused(*state, MR_UNIMPLEMENTED, "morse");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, gguf_writer_setup, gguf_writer_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_opens_a_file),
        CASE(test_paths_that_are_no_model),
        CASE(test_long_paths_are_shortened),
        CASE(test_names_are_made_printable),
        CASE(test_T5_eos_is_the_union),
        CASE(test_T5_eos_must_be_a_token),
        CASE(test_tokenizer_is_made),
        CASE(test_F5_tokenizer_tables_must_agree),
        CASE(test_K3_unknown_tokenizers_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
