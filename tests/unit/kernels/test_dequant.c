/* SPDX-License-Identifier: Apache-2.0 */
/* Every quantised type against what the Python package gguf makes of the same blocks, bit by bit:
 * tests/tools/make_dequant_fixtures.py. */
#include "kernels/dtype.h"
#include "kernels/quant_block.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROWS = 5, WIDTH = 256, ELEMENTS = ROWS * WIDTH };

/* Fills out[size] from the fixture of a type, which must be exactly that long. */
static void read_fixture(mr_dtype dtype, uint8_t *out, size_t size)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/dequant/%s.bin", MR_TEST_DATA,
                   mr_dtype_info_get(dtype)->name);
    for (char *c = strrchr(path, '/'); *c != '\0'; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        fail_msg("%s cannot be opened", path);
        return;
    }
    assert_int_equal(fread(out, 1, size, file), size);
    assert_int_equal(fgetc(file), EOF);
    assert_int_equal(fclose(file), 0);
}

static void check_type(mr_dtype dtype)
{
    uint64_t stored = 0;
    assert_true(mr_dtype_row_bytes(dtype, ELEMENTS, &stored));
    const size_t size = (size_t)stored + ELEMENTS * sizeof(float);
    uint8_t *fixture = malloc(size + 1);
    assert_non_null(fixture);
    uint8_t *blocks = fixture + 1; /* unaligned on purpose */
    float expected[ELEMENTS];
    float found[ELEMENTS];
    read_fixture(dtype, blocks, size);
    memcpy(expected, blocks + stored, sizeof(expected));
    mr_dequantize(dtype, blocks, found, ELEMENTS);
    for (uint32_t i = 0; i < ELEMENTS; i++) {
        /* Sign and payload of a NaN are not defined. */
        const bool both_nan = isnan(found[i]) && isnan(expected[i]);
        if (!both_nan && memcmp(&found[i], &expected[i], sizeof(float)) != 0) {
            fail_msg("%s row %u element %u: %a instead of %a", mr_dtype_info_get(dtype)->name,
                     i / WIDTH, i % WIDTH, (double)found[i], (double)expected[i]);
        }
    }
    free(fixture);
}

static void test_every_type_is_bit_equal(void **state)
{
    (void)state;
    uint32_t types = 0;
    for (unsigned dtype = 0; dtype < MR_DTYPE_COUNT; dtype++) {
        if (mr_dtype_info_get((mr_dtype)dtype)->block_elements > 1) {
            check_type((mr_dtype)dtype);
            types++;
        }
    }
    assert_int_equal(types, 12);
}

/* What packing relies on: codes times scales less minima, of 16 elements each, is all there is. */
static void test_groups_have_each_half(void **state)
{
    (void)state;
    uint8_t q6_k[210] = {0};
    mr_quant_group groups[MR_QUANT_GROUPS_MAX];
    q6_k[209] = 0x3c; /* d = 1 */
    for (uint32_t i = 0; i < 16; i++) {
        q6_k[192 + i] = (uint8_t)(i - 8);
    }
    mr_quant_unpack(MR_DTYPE_Q6_K, q6_k, groups);
    for (uint32_t i = 0; i < 16; i++) {
        assert_true(groups[i / 2].scale[i % 2] == (float)i - 8.0f);
        assert_true(groups[i / 2].min[i % 2] == 0.0f);
        assert_int_equal(groups[i / 2].codes[i], -32);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_type_is_bit_equal),
        cmocka_unit_test(test_groups_have_each_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
