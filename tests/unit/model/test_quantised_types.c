/* SPDX-License-Identifier: Apache-2.0 */
/* A Llama of two layers as a file in each storage type, and in all of them at once: what the fast
 * path makes of it against the float32 reference. */
#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"
#include "model/model_internal.h"

#include "gguf_writer.h"
#include "random_blocks.h"
#include "tiny_plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, WIDTH = 256, HEADS = 4, KV_HEADS = 2, FFN = 512, VOCAB = 64, LENGTH = 12 };

/* Numbers of the types in files, as ggml has them. */
static const uint32_t numbers[MR_DTYPE_COUNT] = {
    [MR_DTYPE_F32] = 0,   [MR_DTYPE_F16] = 1,     [MR_DTYPE_BF16] = 30,   [MR_DTYPE_Q8_0] = 8,
    [MR_DTYPE_Q4_0] = 2,  [MR_DTYPE_Q4_1] = 3,    [MR_DTYPE_Q5_0] = 6,    [MR_DTYPE_Q5_1] = 7,
    [MR_DTYPE_Q2_K] = 10, [MR_DTYPE_Q3_K] = 11,   [MR_DTYPE_Q4_K] = 12,   [MR_DTYPE_Q5_K] = 13,
    [MR_DTYPE_Q6_K] = 14, [MR_DTYPE_IQ4_NL] = 20, [MR_DTYPE_IQ4_XS] = 23,
};

typedef struct file {
    gguf_writer writer;
    mr_dtype dtype; /* MR_DTYPE_COUNT: each matrix has the next */
    uint32_t matrices;
    uint64_t seed;
} file;

static void matrix(file *f, const char *name, uint32_t n, uint32_t k)
{
    const bool mixed = f->dtype == MR_DTYPE_COUNT;
    const mr_dtype dtype = mixed ? (mr_dtype)(f->matrices % MR_DTYPE_COUNT) : f->dtype;
    uint64_t row_bytes = 0;
    assert_true(mr_dtype_row_bytes(dtype, k, &row_bytes));
    const size_t bytes = (size_t)row_bytes * n;
    gguf_tensor(&f->writer, name, n, k, numbers[dtype], bytes);
    mr_buffer *data = &f->writer.data;
    random_blocks(dtype, data->data + data->size - bytes, (uint64_t)n * k, 1.7f / sqrtf((float)k),
                  &f->seed);
    f->matrices++;
}

static void gain(file *f, const char *name)
{
    float values[WIDTH];
    for (uint32_t i = 0; i < WIDTH; i++) {
        values[i] = tiny_uniform(&f->seed, 0.5f, 1.5f);
    }
    gguf_vector(&f->writer, name, values, WIDTH);
}

static void layer(file *f, uint32_t index)
{
    const uint32_t kv = WIDTH / HEADS * KV_HEADS;
    const struct {
        const char *name;
        uint32_t n;
        uint32_t k;
    } matrices[] = {
        {"attn_q", WIDTH, WIDTH},      {"attn_k", kv, WIDTH},    {"attn_v", kv, WIDTH},
        {"attn_output", WIDTH, WIDTH}, {"ffn_gate", FFN, WIDTH}, {"ffn_up", FFN, WIDTH},
        {"ffn_down", WIDTH, FFN},
    };
    char name[64];
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        (void)snprintf(name, sizeof(name), "blk.%u.%s.weight", index, matrices[i].name);
        matrix(f, name, matrices[i].n, matrices[i].k);
    }
    (void)snprintf(name, sizeof(name), "blk.%u.attn_norm.weight", index);
    gain(f, name);
    (void)snprintf(name, sizeof(name), "blk.%u.ffn_norm.weight", index);
    gain(f, name);
}

/* The model of a file in memory, which stays with `f`. */
static mr_model *open_model(file *f, mr_dtype dtype)
{
    *f = (file){.dtype = dtype, .seed = 7};
    gguf_writer *w = &f->writer;
    gguf_writer_init(w);
    gguf_key_string(w, "general.architecture", "llama");
    gguf_key_u32(w, "llama.block_count", LAYERS);
    gguf_key_u32(w, "llama.context_length", 128);
    gguf_key_u32(w, "llama.embedding_length", WIDTH);
    gguf_key_u32(w, "llama.feed_forward_length", FFN);
    gguf_key_u32(w, "llama.attention.head_count", HEADS);
    gguf_key_u32(w, "llama.attention.head_count_kv", KV_HEADS);
    gguf_key_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    matrix(f, "token_embd.weight", VOCAB, WIDTH);
    for (uint32_t i = 0; i < LAYERS; i++) {
        layer(f, i);
    }
    gain(f, "output_norm.weight");
    matrix(f, "output.weight", VOCAB, WIDTH);

    size_t size = 0;
    mr_model *model = NULL;
    mr_error err = {0};
    const uint8_t *bytes = gguf_finish(w, &size);
    if (mr_model_open_memory(bytes, size, "tiny.gguf", &model, &err) != MR_OK) {
        fail_msg("refused: %s", err.message);
    }
    return model;
}

/* Logits [LENGTH][VOCAB]; the caller frees them. */
static float *run(const mr_model *model, mr_compute compute)
{
    mr_error err = {0};
    tiny_plan tiny = {0};
    mr_backend *backend = NULL;
    const mr_cpu_options cpu = {.compute = compute, .threads = 2};
    assert_int_equal(mr_model_plan(model, &tiny.plan, &err), MR_OK);
    assert_int_equal(mr_cpu_backend_create(&cpu, &backend, &err), MR_OK);
    const mr_exec_options options = tiny_options();
    tiny_session session;
    tiny_session_create(&tiny, backend, &options, &session);
    int32_t tokens[LENGTH];
    for (int32_t i = 0; i < LENGTH; i++) {
        tokens[i] = 5 * i % VOCAB;
    }
    mr_batch_reset(session.storage);
    tiny_feed(&session, 0, tokens, 0, LENGTH, true);
    mr_step_output out;
    tiny_run(&session, &out);
    float *logits = malloc(sizeof(*logits) * LENGTH * VOCAB);
    assert_non_null(logits);
    memcpy(logits, out.logits, sizeof(*logits) * LENGTH * VOCAB);
    tiny_session_destroy(&session);
    backend->vt->destroy(backend);
    mr_plan_destroy(tiny.plan);
    return logits;
}

static void check(mr_dtype dtype, const char *name)
{
    file f;
    mr_model *model = open_model(&f, dtype);
    float *expected = run(model, MR_COMPUTE_F32);
    float *found = run(model, MR_COMPUTE_AUTO);
    double error = 0;
    double length = 0;
    for (uint32_t i = 0; i < LENGTH * VOCAB; i++) {
        const double difference = (double)found[i] - (double)expected[i];
        error += difference * difference;
        length += (double)expected[i] * (double)expected[i];
    }
    /* Activations lose about 1/254 of the largest of 32 to rounding. */
    const double relative = sqrt(error / length);
    if (!(relative < 0.02) || !(length > LENGTH)) {
        fail_msg("%s: relative error %g, length %g", name, relative, length);
    }
    free(expected);
    free(found);
    mr_model_close(model);
    gguf_writer_deinit(&f.writer);
}

static void test_every_type_in_a_file(void **state)
{
    (void)state;
    for (mr_dtype dtype = MR_DTYPE_F32; dtype < MR_DTYPE_COUNT; dtype++) {
        check(dtype, mr_dtype_info_get(dtype)->name);
    }
}

static void test_all_types_in_one_file(void **state)
{
    (void)state;
    check(MR_DTYPE_COUNT, "mixed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_in_a_file),
        cmocka_unit_test(test_all_types_in_one_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
