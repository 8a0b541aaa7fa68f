/* SPDX-License-Identifier: Apache-2.0 */
/* What changes a model's digest, and what does not. */
#include "model/digest.h"
#include "model/model_internal.h"
#include "tiny_llama.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Digest of a tiny model in whose file one bit is changed: so many bytes before the end, or of the
 * value of a key with 4 bytes. */
static void digest_of(const tiny_llama *how, size_t from_end, const char *key,
                      uint8_t out[MR_SHA256_BYTES])
{
    gguf_writer w;
    mr_model *model = NULL;
    mr_error err = {0};
    const mr_flag go_on = {false};
    size_t size;
    gguf_writer_init(&w);
    tiny_llama_write(&w, how);
    const uint8_t *file = gguf_finish(&w, &size);
    uint8_t *changed = malloc(size);
    assert_non_null(changed);
    memcpy(changed, file, size);
    if (from_end > 0) {
        changed[size - from_end] ^= 1;
    }
    if (key != NULL) {
        uint8_t *at = memmem(changed, size, key, strlen(key));
        assert_non_null(at);
        at[strlen(key) + 4] ^= 1; /* behind the type */
    }
    if (mr_model_open_memory(changed, size, "m", &model, &err) != MR_OK ||
        mr_model_digest(model, &go_on, out, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    mr_model_close(model);
    gguf_writer_deinit(&w);
    free(changed);
}

static void test_digest_is_of_the_content_X4(void **state)
{
    (void)state;
    uint8_t digests[5][MR_SHA256_BYTES];
    uint8_t again[MR_SHA256_BYTES];
    digest_of(&(tiny_llama){0}, 0, NULL, digests[0]);
    digest_of(&(tiny_llama){.untied = true}, 0, NULL, digests[1]);
    digest_of(&(tiny_llama){.biases = true}, 0, NULL, digests[2]);
    digest_of(&(tiny_llama){0}, 200, NULL, digests[3]); /* of a weight */
    digest_of(&(tiny_llama){0}, 0, "llama.attention.layer_norm_rms_epsilon", digests[4]);
    digest_of(&(tiny_llama){0}, 0, NULL, again);
    assert_memory_equal(again, digests[0], sizeof(again));
    for (int i = 0; i < 5; i++) {
        for (int j = 0; j < i; j++) {
            assert_memory_not_equal(digests[i], digests[j], sizeof(digests[i]));
        }
    }
}

static void test_digest_stops_when_told(void **state)
{
    (void)state;
    gguf_writer w;
    mr_model *model = NULL;
    mr_error err = {0};
    mr_flag stop = {false};
    size_t size;
    uint8_t digest[MR_SHA256_BYTES];
    gguf_writer_init(&w);
    tiny_llama_write(&w, &(tiny_llama){0});
    const uint8_t *file = gguf_finish(&w, &size);
    assert_int_equal(mr_model_open_memory(file, size, "m", &model, &err), MR_OK);
    mr_flag_set(&stop);
    assert_int_equal(mr_model_digest(model, &stop, digest, &err), MR_CANCELLED);
    mr_model_close(model);
    gguf_writer_deinit(&w);
}

static void test_rope_digest_is_of_the_tables_in_effect(void **state)
{
    (void)state;
    const float a[] = {1.0f, 0.5f};
    const float b[] = {1.0f, 0.25f};
    mr_plan_rope ropes[] = {
        {.pairing = MR_ROPE_HALVES, .dims = 4, .inv_freq = a, .attention_factor = 1.0f},
        {.pairing = MR_ROPE_HALVES, .dims = 4, .inv_freq = b, .attention_factor = 1.0f},
        {.pairing = MR_ROPE_HALVES, .dims = 4, .inv_freq = a, .attention_factor = 2.0f},
        {.pairing = MR_ROPE_INTERLEAVED, .dims = 4, .inv_freq = a, .attention_factor = 1.0f},
        {.pairing = MR_ROPE_HALVES, .dims = 2, .inv_freq = a, .attention_factor = 1.0f},
    };
    uint8_t digests[5][MR_SHA256_BYTES];
    mr_hasher *hasher = NULL;
    assert_int_equal(mr_hasher_create(&hasher), MR_OK);
    for (int i = 0; i < 5; i++) {
        const mr_plan plan = {.ropes = &ropes[i], .n_ropes = 1};
        mr_plan_rope_digest(hasher, &plan, digests[i]);
        for (int j = 0; j < i; j++) {
            assert_memory_not_equal(digests[i], digests[j], sizeof(digests[i]));
        }
    }
    mr_hasher_destroy(hasher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digest_is_of_the_content_X4),
        cmocka_unit_test(test_digest_stops_when_told),
        cmocka_unit_test(test_rope_digest_is_of_the_tables_in_effect),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
