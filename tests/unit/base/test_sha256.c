/* SPDX-License-Identifier: Apache-2.0 */
#include "base/sha256.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

static void assert_digest(const char *text, const char *want)
{
    uint8_t digest[MR_SHA256_BYTES];
    char hex[2 * MR_SHA256_BYTES + 1];
    mr_sha256(text, text != NULL ? strlen(text) : 0, digest);
    mr_sha256_hex(digest, hex);
    assert_string_equal(hex, want);
}

/* Examples of FIPS 180-2, appendix B, and the empty message. */
static void test_published_vectors(void **state)
{
    (void)state;
    assert_digest("abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    assert_digest("", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_digest(NULL, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void test_low64_is_the_big_endian_tail(void **state)
{
    (void)state;
    uint8_t digest[MR_SHA256_BYTES];
    mr_sha256("abc", 3, digest);
    assert_true(mr_sha256_low64(digest) == 0xb410ff61f20015adull);
}

static void test_equal_looks_at_every_bit(void **state)
{
    (void)state;
    uint8_t a[MR_SHA256_BYTES];
    uint8_t b[MR_SHA256_BYTES];
    mr_sha256("abc", 3, a);
    memcpy(b, a, sizeof(b));
    assert_true(mr_sha256_equal(a, b));
    for (size_t bit = 0; bit < 256; bit++) {
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_false(mr_sha256_equal(a, b));
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

/* RFC 4231, test cases 1, 2 and 6 (a key longer than a block). */
static void test_hmac_published_vectors(void **state)
{
    (void)state;
    uint8_t key[131];
    uint8_t digest[MR_SHA256_BYTES];
    char hex[2 * MR_SHA256_BYTES + 1];
    memset(key, 0x0b, 20);
    mr_hmac_sha256(key, 20, "Hi There", 8, digest);
    mr_sha256_hex(digest, hex);
    assert_string_equal(hex, "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    mr_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, digest);
    mr_sha256_hex(digest, hex);
    assert_string_equal(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof(key));
    mr_hmac_sha256(key, sizeof(key), "Test Using Larger Than Block-Size Key - Hash Key First", 54,
                   digest);
    mr_sha256_hex(digest, hex);
    assert_string_equal(hex, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

static void test_hasher_takes_parts_and_starts_anew(void **state)
{
    (void)state;
    mr_hasher *hasher = NULL;
    uint8_t digest[MR_SHA256_BYTES];
    char hex[2 * MR_SHA256_BYTES + 1];
    assert_int_equal(mr_hasher_create(&hasher), MR_OK);
    for (int round = 0; round < 3; round++) {
        mr_hasher_begin(hasher);
        mr_hasher_add(hasher, "a", 1);
        mr_hasher_add(hasher, "", 0);
        mr_hasher_add(hasher, "bc", 2);
        mr_hasher_end(hasher, digest);
        mr_sha256_hex(digest, hex);
        assert_string_equal(hex,
                            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }
    mr_hasher_destroy(hasher);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_vectors),
        cmocka_unit_test(test_low64_is_the_big_endian_tail),
        cmocka_unit_test(test_equal_looks_at_every_bit),
        cmocka_unit_test(test_hmac_published_vectors),
        cmocka_unit_test(test_hasher_takes_parts_and_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
