/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_llama.h"

#include <stdio.h>
#include <string.h>

static bool same(const char *name, const char *other)
{
    return other != NULL && strcmp(name, other) == 0;
}

static void key_u32(gguf_writer *w, const tiny_llama *t, const char *key, uint32_t value)
{
    if (!same(key, t->skip)) {
        gguf_key_u32(w, key, value);
    }
}

/* Types with 32 elements a block have 34 (Q8_0) or 20 (Q4_1) bytes in each. */
static void matrix(gguf_writer *w, const tiny_llama *t, const char *name, uint64_t n, uint64_t k,
                   uint32_t type)
{
    if (same(name, t->skip)) {
        return;
    }
    n += same(name, t->widen) ? 1 : 0;
    const uint64_t row = type == GGML_F32 ? 4 * k : (k / 32) * (type == GGML_Q8_0 ? 34 : 20);
    gguf_tensor(w, name, n, k, type, (size_t)(n * row));
}

static void vector(gguf_writer *w, const tiny_llama *t, const char *name, uint64_t k)
{
    if (!same(name, t->skip)) {
        gguf_tensor(w, name, 0, k, GGML_F32, (size_t)k * sizeof(float));
    }
}

static void layer(gguf_writer *w, const tiny_llama *t, unsigned index)
{
    static const struct {
        const char *name;
        uint32_t n;
        uint32_t k;
        uint32_t type;
        bool bias;
    } matrices[] = {
        {"attn_q", TINY_HEADS * TINY_HEAD_WIDTH, TINY_WIDTH, GGML_Q8_0, true},
        {"attn_k", TINY_KV_HEADS * TINY_HEAD_WIDTH, TINY_WIDTH, GGML_Q8_0, true},
        {"attn_v", TINY_KV_HEADS * TINY_HEAD_WIDTH, TINY_WIDTH, GGML_F32, true},
        {"attn_output", TINY_WIDTH, TINY_HEADS * TINY_HEAD_WIDTH, GGML_Q8_0, false},
        {"ffn_gate", TINY_FFN, TINY_WIDTH, GGML_Q8_0, false},
        {"ffn_up", TINY_FFN, TINY_WIDTH, GGML_Q8_0, false},
        {"ffn_down", TINY_WIDTH, TINY_FFN, GGML_Q4_1, true},
    };
    char name[64];
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        snprintf(name, sizeof(name), "blk.%u.%s.weight", index, matrices[i].name);
        matrix(w, t, name, matrices[i].n, matrices[i].k, matrices[i].type);
        if (t->biases && matrices[i].bias) {
            snprintf(name, sizeof(name), "blk.%u.%s.bias", index, matrices[i].name);
            vector(w, t, name, matrices[i].n);
        }
    }
    snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", index);
    vector(w, t, name, TINY_WIDTH);
    snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", index);
    vector(w, t, name, TINY_WIDTH);
}

void tiny_llama_write(gguf_writer *w, const tiny_llama *t)
{
    gguf_key_string(w, "general.architecture", "llama");
    key_u32(w, t, "llama.block_count", TINY_LAYERS);
    key_u32(w, t, "llama.context_length", 128);
    key_u32(w, t, "llama.embedding_length", TINY_WIDTH);
    key_u32(w, t, "llama.feed_forward_length", TINY_FFN);
    key_u32(w, t, "llama.attention.head_count", TINY_HEADS);
    key_u32(w, t, "llama.attention.head_count_kv", TINY_KV_HEADS);
    gguf_key_f32(w, "llama.attention.layer_norm_rms_epsilon", 0.0009765625f); /* 2^-10 */

    const uint32_t vocab = t->vocab == 0 ? TINY_VOCAB : t->vocab;
    matrix(w, t, "token_embd.weight", vocab, TINY_WIDTH, GGML_Q8_0);
    if (t->untied) {
        matrix(w, t, "output.weight", vocab, TINY_WIDTH, GGML_F32);
    }
    for (unsigned i = 0; i < TINY_LAYERS; i++) {
        layer(w, t, i);
    }
    vector(w, t, "output_norm.weight", TINY_WIDTH);
    if (t->extra != NULL) {
        vector(w, t, t->extra, 4);
    }
}
