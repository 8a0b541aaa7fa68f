/* SPDX-License-Identifier: Apache-2.0 */
#include "model/piece_cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MANY 100000u /* more than a cache holds */

static mr_bytes name_of(uint32_t number, char out[16])
{
    (void)snprintf(out, 16, "piece %u", number);
    return mr_bytes_of(out);
}

static void test_get_gives_what_was_put_or_nothing(void **state)
{
    (void)state;
    mr_piece_caches *caches = NULL;
    assert_int_equal(mr_piece_caches_create(&caches), MR_OK);
    mr_piece_cache *cache = mr_piece_caches_take(caches);
    assert_non_null(cache);
    char text[16];
    for (uint32_t i = 0; i < MANY; i++) {
        const uint32_t ids[] = {i, ~i, 7};
        mr_piece_cache_put(cache, name_of(i, text), ids, 1 + i % 3);
    }
    size_t found = 0;
    for (uint32_t i = 0; i < 2 * MANY; i++) {
        const uint32_t *ids = NULL;
        const size_t count = mr_piece_cache_get(cache, name_of(i, text), &ids);
        if (count == 0) {
            continue;
        }
        found++;
        assert_true(i < MANY);
        assert_int_equal(count, 1 + i % 3);
        assert_int_equal(ids[0], i);
        assert_true(count < 2 || ids[1] == ~i);
        assert_true(count < 3 || ids[2] == 7);
    }
    /* The last one put is always there; a table of fixed size cannot hold them all. */
    assert_in_range(found, 1, MANY - 1);
    const uint32_t *last = NULL;
    assert_int_equal(mr_piece_cache_get(cache, name_of(MANY - 1, text), &last), 1 + (MANY - 1) % 3);
    mr_piece_cache_give(cache);
    mr_piece_caches_destroy(caches);
}

static void test_put_leaves_out_what_does_not_fit(void **state)
{
    (void)state;
    static const uint8_t text[MR_PIECE_CACHE_BYTES + 1] = "0123456789012345678901234567890";
    static const uint32_t ids[MR_PIECE_CACHE_IDS + 1] = {1, 2, 3, 4, 5, 6, 7};
    mr_piece_caches *caches = NULL;
    assert_int_equal(mr_piece_caches_create(&caches), MR_OK);
    mr_piece_cache *cache = mr_piece_caches_take(caches);
    const uint32_t *got = NULL;
    const mr_bytes longest = {.data = text, .size = MR_PIECE_CACHE_BYTES};
    const mr_bytes longer = {.data = text, .size = MR_PIECE_CACHE_BYTES + 1};
    const mr_bytes empty = {.data = text, .size = 0};
    mr_piece_cache_put(cache, longer, ids, 1);
    assert_int_equal(mr_piece_cache_get(cache, longer, &got), 0);
    mr_piece_cache_put(cache, empty, ids, 1);
    assert_int_equal(mr_piece_cache_get(cache, empty, &got), 0);
    mr_piece_cache_put(cache, longest, ids, MR_PIECE_CACHE_IDS + 1);
    assert_int_equal(mr_piece_cache_get(cache, longest, &got), 0);
    mr_piece_cache_put(cache, longest, ids, MR_PIECE_CACHE_IDS);
    assert_int_equal(mr_piece_cache_get(cache, longest, &got), MR_PIECE_CACHE_IDS);
    assert_memory_equal(got, ids, MR_PIECE_CACHE_IDS * sizeof(*ids));
    mr_piece_cache_give(cache);
    mr_piece_caches_destroy(caches);
}

static void test_take_lends_each_cache_once(void **state)
{
    (void)state;
    mr_piece_caches *caches = NULL;
    assert_int_equal(mr_piece_caches_create(&caches), MR_OK);
    mr_piece_cache *lent[8];
    for (size_t i = 0; i < 8; i++) {
        lent[i] = mr_piece_caches_take(caches);
        assert_non_null(lent[i]);
        for (size_t j = 0; j < i; j++) {
            assert_ptr_not_equal(lent[i], lent[j]);
        }
    }
    assert_null(mr_piece_caches_take(caches));
    mr_piece_cache_give(NULL);
    mr_piece_cache_give(lent[3]);
    assert_ptr_equal(mr_piece_caches_take(caches), lent[3]);
    for (size_t i = 0; i < 8; i++) {
        mr_piece_cache_give(lent[i]);
    }
    mr_piece_caches_destroy(caches);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_gives_what_was_put_or_nothing),
        cmocka_unit_test(test_put_leaves_out_what_does_not_fit),
        cmocka_unit_test(test_take_lends_each_cache_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
