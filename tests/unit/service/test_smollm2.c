/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference mode (compute=f32) on a real model: logits at chosen positions of a text, against
 * tests/data/logits_persuasion.f32. Needs MILLRACE_MODEL, the SmolLM2 GGUF; skipped without it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/file_map.h"
#include "service/runtime.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifndef MR_TEST_DATA
#error "MR_TEST_DATA names tests/data"
#endif

#define CHUNK         512u
#define TOLERANCE     2e-3f
#define MAX_POSITIONS 16

typedef struct reference {
    uint32_t ids[4096];
    uint32_t n_ids;
    uint32_t positions[MAX_POSITIONS];
    uint32_t n_positions;
    uint32_t vocab;
    mr_file_map logits; /* [n_positions][vocab] float32 */
} reference;

static uint32_t read_numbers(const char *file, const char *key, uint32_t *out, size_t room)
{
    json_t *root = json_load_file(file, 0, NULL);
    assert_non_null(root);
    json_t *list = json_object_get(root, key);
    size_t count = json_array_size(list);
    assert_in_range(count, 1, room);
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    json_decref(root);
    return (uint32_t)count;
}

static void read_reference(reference *ref)
{
    ref->n_ids = read_numbers(MR_TEST_DATA "/perplexity_persuasion.json", "ids", ref->ids, 4096);
    ref->n_positions = read_numbers(MR_TEST_DATA "/logits_persuasion.json", "positions",
                                    ref->positions, MAX_POSITIONS);
    json_t *about = json_load_file(MR_TEST_DATA "/logits_persuasion.json", 0, NULL);
    ref->vocab = (uint32_t)json_integer_value(json_object_get(about, "vocab"));
    json_decref(about);
    assert_int_equal(mr_file_map_open(MR_TEST_DATA "/logits_persuasion.f32", &ref->logits, NULL),
                     MR_OK);
    assert_int_equal(ref->logits.size, (size_t)ref->n_positions * ref->vocab * sizeof(float));
}

/* One chunk of the text as a single sequence in slot 0, with a logit row at every wanted position.
 */
static void fill_chunk(mr_batch_storage *storage, const reference *ref, uint32_t begin,
                       uint32_t end, uint32_t block_size)
{
    static const mr_row_params greedy = {
        .top_p = 1.0f, .repetition_penalty = 1.0f, .target = MR_NO_TARGET};
    mr_batch_reset(storage);
    for (uint32_t b = begin / block_size; begin % block_size == 0 && b * block_size < end; b++) {
        mr_block_delta delta = {.index = b, .block = b + 1};
        assert_int_equal(mr_batch_add_block(storage, &delta), MR_OK);
    }
    assert_int_equal(mr_batch_add_seq(storage, 0, end, 0), MR_OK);
    for (uint32_t p = begin; p < end; p++) {
        uint32_t slot = (p / block_size + 1) * block_size + p % block_size;
        assert_int_equal(mr_batch_add_token(storage, (int32_t)ref->ids[p], p, &slot), MR_OK);
        for (uint32_t i = 0; i < ref->n_positions; i++) {
            if (ref->positions[i] == p) {
                mr_row_params row = greedy;
                row.position = p + 1;
                assert_int_equal(mr_batch_add_row(storage, &row, NULL, NULL), MR_OK);
            }
        }
    }
}

static float worst_difference(const float *got, const float *want, uint32_t count)
{
    float worst = 0.0f;
    for (uint32_t i = 0; i < count; i++) {
        float difference = fabsf(got[i] - want[i]);
        if (!(difference <= worst)) { /* a NaN becomes the worst, too */
            worst = difference;
        }
    }
    return worst;
}

static void compare_all(mr_runtime *runtime, const reference *ref)
{
    const mr_exec_options *options = mr_runtime_exec_options(runtime);
    mr_batch_limits limits = {.max_tokens = CHUNK,
                              .max_seqs = 1,
                              .max_rows = MAX_POSITIONS,
                              .max_context = ref->n_ids,
                              .block_size = options->block_size,
                              .kv_groups = 1};
    mr_batch_storage *storage = NULL;
    assert_int_equal(mr_batch_storage_create(&limits, &storage), MR_OK);
    const float *want = (const float *)(const void *)ref->logits.data;
    uint32_t compared = 0;
    for (uint32_t begin = 0; begin < ref->n_ids; begin += CHUNK) {
        uint32_t end = begin + CHUNK < ref->n_ids ? begin + CHUNK : ref->n_ids;
        fill_chunk(storage, ref, begin, end, options->block_size);
        mr_step_output output;
        mr_error err = {0};
        mr_status status =
            mr_exec_run(mr_runtime_exec(runtime), mr_batch_get(storage), &output, &err);
        assert_string_equal(err.message, "");
        assert_int_equal(status, MR_OK);
        for (uint32_t r = 0; r < output.n_rows; r++, compared++) {
            float worst = worst_difference(output.logits + (size_t)r * ref->vocab,
                                           want + (size_t)compared * ref->vocab, ref->vocab);
            if (!(worst <= TOLERANCE)) {
                fail_msg("position %u: logits differ by up to %g", ref->positions[compared],
                         (double)worst);
            }
        }
    }
    assert_int_equal(compared, ref->n_positions);
    mr_batch_storage_destroy(storage);
}

static void reference_mode_gives_the_reference_logits(void **state)
{
    (void)state;
    const char *path = getenv("MILLRACE_MODEL");
    if (path == NULL) {
        skip();
    }
    mr_error err = {0};
    mr_config config;
    assert_int_equal(mr_config_init(&config, &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "compute=f32", &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "max_seq_length=2048", &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "max_batch_size=16", &err), MR_OK);
    assert_int_equal(mr_config_finish(&config, &err), MR_OK);
    mr_runtime *runtime = NULL;
    mr_runtime_options options = {.model_path = path, .config = &config, .keep_logits = true};
    mr_status status = mr_runtime_open(&options, &runtime, &err);
    assert_string_equal(err.message, "");
    assert_int_equal(status, MR_OK);
    static reference ref;
    read_reference(&ref);
    compare_all(runtime, &ref);
    mr_file_map_close(&ref.logits);
    mr_runtime_close(runtime);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_mode_gives_the_reference_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
