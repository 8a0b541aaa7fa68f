/* SPDX-License-Identifier: Apache-2.0 */
#include "base/digits.h"

#include "base/checked.h"

bool mr_digits_u64(const char *text, size_t bytes, uint64_t *out)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] < '0' || text[i] > '9' || !mr_mul_u64(value, 10, &value) ||
            !mr_add_u64(value, (uint64_t)(text[i] - '0'), &value)) {
            return false;
        }
    }
    if (bytes == 0) {
        return false;
    }
    *out = value;
    return true;
}

int mr_digits_hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

void mr_digits_hex_write(const uint8_t *data, size_t bytes, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < bytes; i++) {
        out[2 * i] = digits[data[i] >> 4];
        out[2 * i + 1] = digits[data[i] & 15];
    }
    out[2 * bytes] = '\0';
}
