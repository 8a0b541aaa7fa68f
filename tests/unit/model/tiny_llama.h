/* SPDX-License-Identifier: Apache-2.0 */
/* A Llama of a few thousand weights as a GGUF file in memory. */
#ifndef MILLRACE_TESTS_TINY_LLAMA_H
#define MILLRACE_TESTS_TINY_LLAMA_H

#include "gguf_writer.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    TINY_LAYERS = 2,
    TINY_WIDTH = 32,
    TINY_HEADS = 4,
    TINY_KV_HEADS = 2,
    TINY_HEAD_WIDTH = 8,
    TINY_FFN = 64,
    TINY_VOCAB = 48,
};

typedef struct tiny_llama {
    bool untied;       /* an output.weight of its own */
    bool biases;       /* of q, k, v and down */
    const char *skip;  /* tensor or key to leave out */
    const char *widen; /* matrix that gets one row too many */
    const char *extra; /* vector that no Llama has */
    uint32_t vocab;    /* 0: TINY_VOCAB */
} tiny_llama;

/* Appends keys and tensors to `w`, which has been initialised. */
void tiny_llama_write(gguf_writer *w, const tiny_llama *t);

#endif
