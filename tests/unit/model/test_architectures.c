/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small random models, one an architecture, against the float32 logits and greedy tokens of
 * Hugging Face transformers. A few are in tests/data; the others are in MILLRACE_REFERENCE and
 * skipped without it.
 */
#include "kernels/cpu/cpu_backend.h"
#include "model/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tiny_plan.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT 40
#define GREEDY 24
#define TOKENS (PROMPT + GREEDY)

typedef struct sample {
    mr_model *model;
    mr_backend *backend;
    tiny_plan tiny; /* the plan alone */
    tiny_session session;
    uint32_t vocab;
    float *logits;          /* [PROMPT][vocab], expected */
    float largest;          /* of their magnitudes */
    int32_t tokens[TOKENS]; /* the prompt, and what is drawn */
    int32_t greedy[GREEDY]; /* expected */
    uint32_t certain;       /* of those: before the first near-tie */
} sample;

/* The directory of a model; false if it is nowhere. */
static bool find_directory(const char *name, char path[PATH_MAX])
{
    const char *reference = getenv("MILLRACE_REFERENCE");
    snprintf(path, PATH_MAX, "%s/architectures/%s", MR_TEST_DATA, name);
    if (access(path, R_OK) == 0) {
        return true;
    }
    snprintf(path, PATH_MAX, "%s/architectures/%s",
             reference != NULL ? reference : MR_TEST_REFERENCE, name);
    return access(path, R_OK) == 0;
}

static void read_ids(const json_t *array, int32_t *out, size_t count)
{
    assert_int_equal(json_array_size(array), count);
    for (size_t i = 0; i < count; i++) {
        out[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
}

static void read_expected(const char *dir, sample *s)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/expected.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    assert_non_null(root);
    read_ids(json_object_get(root, "prompt_ids"), s->tokens, PROMPT);
    read_ids(json_object_get(root, "greedy_ids"), s->greedy, GREEDY);
    const json_t *tie = json_object_get(root, "first_gap_below_0.02");
    s->certain = json_is_integer(tie) ? (uint32_t)json_integer_value(tie) : GREEDY;
    json_decref(root);

    snprintf(path, sizeof(path), "%s/logits.f32", dir);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    const size_t count = (size_t)PROMPT * s->vocab;
    s->logits = malloc(count * sizeof(*s->logits));
    assert_non_null(s->logits);
    assert_int_equal(fread(s->logits, sizeof(*s->logits), count, file), count);
    assert_int_equal(fclose(file), 0);
    for (size_t i = 0; i < count; i++) {
        s->largest = fmaxf(s->largest, fabsf(s->logits[i]));
    }
}

/* Skips the test when the model is nowhere. */
static void sample_open(const char *name, mr_compute compute, mr_cpu_isa isa, sample *s)
{
    char dir[PATH_MAX];
    mr_error err = {0};
    *s = (sample){0};
    if (!find_directory(name, dir)) {
        print_message("%s: no such model in MILLRACE_REFERENCE\n", name);
        skip();
    }
    const mr_cpu_options cpu = {.compute = compute, .isa = isa, .threads = 2};
    if (mr_model_open(dir, &s->model, &err) != MR_OK ||
        mr_model_plan(s->model, &s->tiny.plan, &err) != MR_OK ||
        mr_cpu_backend_create(&cpu, &s->backend, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    s->vocab = mr_model_config_get(s->model)->vocab_size;
    read_expected(dir, s);
    const mr_exec_options options = tiny_options();
    tiny_session_create(&s->tiny, s->backend, &options, &s->session);
}

static void sample_close(sample *s)
{
    tiny_session_destroy(&s->session);
    s->backend->vt->destroy(s->backend);
    mr_plan_destroy(s->tiny.plan);
    mr_model_close(s->model);
    free(s->logits);
}

/* Computes the prompt in chunks; every position's logits are within `tolerance` of the largest. */
static void check_chunks(sample *s, uint32_t chunk, float tolerance)
{
    for (uint32_t begin = 0; begin < PROMPT; begin += chunk) {
        const uint32_t count = PROMPT - begin < chunk ? PROMPT - begin : chunk;
        mr_step_output out;
        mr_batch_reset(s->session.storage);
        tiny_feed(&s->session, 0, s->tokens + begin, begin, count, true);
        mr_batch_set_rope_length(s->session.storage, PROMPT);
        tiny_run(&s->session, &out);
        for (size_t i = 0; i < (size_t)count * s->vocab; i++) {
            const float expected = s->logits[(size_t)begin * s->vocab + i];
            if (!(fabsf(out.logits[i] - expected) <= tolerance * s->largest)) {
                fail_msg("chunks of %u, position %zu, logit %zu: %g, not %g (largest %g)", chunk,
                         begin + i / s->vocab, i % s->vocab, (double)out.logits[i],
                         (double)expected, (double)s->largest);
            }
        }
    }
}

/* transformers computes all tokens again in each step: so do we where the frequencies of rotary
 * positions follow the length, and continue where they do not. */
static void check_greedy(sample *s)
{
    const bool again = mr_model_config_get(s->model)->rope.rule != MR_ROPE_FIXED;
    uint32_t done = 0;
    for (uint32_t i = 0; i < s->certain; i++) {
        const uint32_t length = PROMPT + i;
        mr_step_output out;
        mr_batch_reset(s->session.storage);
        tiny_feed(&s->session, 0, s->tokens + done, done, length - done, false);
        tiny_run(&s->session, &out);
        s->tokens[length] = (int32_t)out.tokens[0];
        assert_int_equal(s->tokens[length], s->greedy[i]);
        done = again ? 0 : length;
    }
}

static void check_architecture(void **state)
{
    sample s;
    sample_open(*state, MR_COMPUTE_F32, MR_CPU_ISA_AUTO, &s);
    static const uint32_t chunks[] = {PROMPT, 7, 1};
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        check_chunks(&s, chunks[i], 1e-4f);
    }
    check_greedy(&s);
    sample_close(&s);
}

/* Weights in bf16 and activations in float32 here too: only sums are ordered another way, and the
 * exponential is another. Where the instructions multiply bf16, activations are rounded to it: by
 * 1/512 of themselves at most, in each of a handful of products one after the other, and this is
 * the largest difference of some thousands. */
static void check_fast_path(void **state)
{
    for (unsigned isa = MR_CPU_ISA_PORTABLE; isa < MR_CPU_ISA_COUNT; isa++) {
        bool runs;
        (void)mr_cpu_path_name((mr_cpu_isa)isa, &runs);
        if (runs) {
            const float tolerance = isa >= MR_CPU_ISA_AVX512_BF16 ? 2e-2f : 1e-3f;
            sample s;
            sample_open(*state, MR_COMPUTE_AUTO, (mr_cpu_isa)isa, &s);
            check_chunks(&s, PROMPT, tolerance);
            check_chunks(&s, 1, tolerance);
            sample_close(&s);
        }
    }
}

#define ARCHITECTURE(name)                                                                         \
    {"logits of " name, check_architecture, NULL, NULL, (void *)(uintptr_t)(name)},                \
    {                                                                                              \
        "fast path of " name, check_fast_path, NULL, NULL, (void *)(uintptr_t)(name)               \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARCHITECTURE("llama"),         ARCHITECTURE("llama-tied-bias"),
        ARCHITECTURE("llama-headdim"), ARCHITECTURE("llama-linear"),
        ARCHITECTURE("llama-dynamic"), ARCHITECTURE("llama-llama3"),
        ARCHITECTURE("llama-yarn"),    ARCHITECTURE("mistral-window"),
        ARCHITECTURE("qwen2"),         ARCHITECTURE("qwen3"),
        ARCHITECTURE("phi3"),          ARCHITECTURE("phi3-longrope"),
        ARCHITECTURE("opt"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
