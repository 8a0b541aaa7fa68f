/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text: strict, whatever the locale, and of any length. */
#ifndef MILLRACE_BASE_DIGITS_H
#define MILLRACE_BASE_DIGITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* True, and the number, if text[bytes] is decimal digits, one at least, and the number fits: no
 * sign, no space, no fraction. Else *out is left alone. */
bool mr_digits_u64(const char *text, size_t bytes, uint64_t *out);

/* Value of a hexadecimal digit of either case; -1: it is none. */
int mr_digits_hex_value(char c);

/* Writes data[bytes] as lower-case hex, 2 * bytes characters and a terminating NUL. */
void mr_digits_hex_write(const uint8_t *data, size_t bytes, char *out);

#endif
