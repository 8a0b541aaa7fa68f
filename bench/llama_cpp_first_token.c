/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shortest program that brings llama.cpp from nothing to a first token: load, prefill a prompt,
 * take the likeliest token, print it. The peer of `millrace generate --max-tokens 1`; built and run
 * by cpu_vs_llama_cpp.py, never part of millrace.
 *
 * usage: llama_cpp_first_token MODEL CONTEXT THREADS PROMPT
 */
#include "llama.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PROMPT 4096

static void quiet(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)level;
    (void)text;
    (void)ctx;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        return 2;
    }
    llama_log_set(quiet, NULL);
    llama_backend_init();
    struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)atoi(argv[2]);
    params.n_threads = params.n_threads_batch = atoi(argv[3]);
    params.type_k = params.type_v = GGML_TYPE_BF16;
    struct llama_context *ctx = model != NULL ? llama_init_from_model(model, params) : NULL;
    if (ctx == NULL) {
        return 1;
    }
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    llama_token tokens[MAX_PROMPT];
    const int32_t length = (int32_t)strlen(argv[4]);
    const int n = llama_tokenize(vocab, argv[4], length, tokens, MAX_PROMPT, true, false);
    if (n <= 0 || llama_decode(ctx, llama_batch_get_one(tokens, n)) != 0) {
        return 1;
    }
    const float *logits = llama_get_logits_ith(ctx, -1);
    int best = 0;
    for (int i = 1; i < llama_vocab_n_tokens(vocab); i++) {
        best = logits[i] > logits[best] ? i : best;
    }
    char piece[256];
    const int bytes = llama_token_to_piece(vocab, best, piece, sizeof(piece), 0, true);
    printf("%.*s\n", bytes > 0 ? bytes : 0, piece);
    return 0;
}
