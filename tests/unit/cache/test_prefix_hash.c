/* SPDX-License-Identifier: Apache-2.0 */
/* Expected values: Python's hashlib and hmac over the bytes that the header describes. */
#include "cache/prefix_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void expect_hex(const uint8_t digest[MR_SHA256_BYTES], const char *want)
{
    char hex[2 * MR_SHA256_BYTES + 1];
    mr_sha256_hex(digest, hex);
    assert_string_equal(hex, want);
}

static void salt_of(const char *tenant, const char *client, uint8_t out[MR_SHA256_BYTES])
{
    const mr_prefix_salt_spec spec = {.secret = "secret",
                                      .secret_bytes = 6,
                                      .tenant = tenant,
                                      .client = client,
                                      .client_bytes = strlen(client)};
    mr_prefix_salt(&spec, out);
}

static mr_prefix_material material_of(const char *numerics)
{
    mr_prefix_material m = {.numerics = numerics, .block_size = 4};
    for (uint8_t i = 0; i < MR_SHA256_BYTES; i++) {
        m.model[i] = i;
        m.rope[i] = 0xaa;
    }
    salt_of("default", "", m.salt);
    return m;
}

static void test_salt_is_the_servers_and_a_client_narrows_it_X1(void **state)
{
    (void)state;
    uint8_t salt[MR_SHA256_BYTES];
    uint8_t other[MR_SHA256_BYTES];
    salt_of("default", "", salt);
    expect_hex(salt, "6e886773117acbdf68b80a1aad72c00b39953e461df48de7ea1bbd62f792e8d1");
    salt_of("default", "room 7", salt);
    expect_hex(salt, "74c0d6125050629fdf5442184757db83ff82726c175f969fb637ba8ab1d4cb5d");
    salt_of("", "", salt);
    expect_hex(salt, "f9e66e179b6747ae54108f82f8ade8b3c25d76fd30afde6c395822c530196169");
    /* No client salt of one tenant is the salt of another: not its name, nor its bytes. */
    salt_of("a", "b", salt);
    salt_of("b", "", other);
    assert_memory_not_equal(salt, other, sizeof(salt));
    salt_of("ab", "", other);
    assert_memory_not_equal(salt, other, sizeof(salt));
    salt_of("b", "a", other);
    assert_memory_not_equal(salt, other, sizeof(salt));
}

static void test_root_and_blocks_as_designed_X2(void **state)
{
    (void)state;
    const uint32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, UINT32_MAX};
    const mr_prefix_material m = material_of("cpu/avx2/auto/bf16/1");
    mr_hasher *hasher = NULL;
    mr_block_hash hash;
    assert_int_equal(mr_hasher_create(&hasher), MR_OK);
    mr_prefix_root_hash(&m, &hash);
    expect_hex(hash.bytes, "e562d106dc78db11405cee7dc614a50f7cce81c087dd8c9420582966f3e6a74b");
    mr_prefix_block_hash(hasher, &hash, tokens, 4, &hash);
    expect_hex(hash.bytes, "54ad6a397482e677bc6fa47b6770e2fb3eb02cb1215d35c789f4d087b4d381c2");
    mr_prefix_block_hash(hasher, &hash, tokens + 4, 4, &hash);
    expect_hex(hash.bytes, "722148cd0a5a93af9d8b2948081a01521cd32f52cc9c5781f71576759b35a034");
    mr_hasher_destroy(hasher);
}

static void test_every_part_makes_another_root_X2_X4(void **state)
{
    (void)state;
    mr_prefix_material parts[8];
    mr_block_hash roots[8];
    for (uint32_t i = 0; i < 8; i++) {
        parts[i] = material_of("cpu/avx2/auto/bf16/1");
    }
    parts[1].model[0]++;
    parts[2].adapter[0]++;
    parts[3].adapter_scale = 1.0f;
    parts[4].salt[31]++;
    parts[5].numerics = "cpu/avx2/auto/bf16/2";
    parts[6].rope[5]++;
    parts[7].block_size = 8;
    for (uint32_t i = 0; i < 8; i++) {
        mr_prefix_root_hash(&parts[i], &roots[i]);
        for (uint32_t j = 0; j < i; j++) {
            assert_memory_not_equal(&roots[i], &roots[j], sizeof(roots[i]));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_salt_is_the_servers_and_a_client_narrows_it_X1),
        cmocka_unit_test(test_root_and_blocks_as_designed_X2),
        cmocka_unit_test(test_every_part_makes_another_root_X2_X4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
