/* SPDX-License-Identifier: Apache-2.0 */
/* Growable byte buffer, and the same for 32-bit ids. Zero-initialised is valid and empty. */
#ifndef MILLRACE_BASE_BUFFER_H
#define MILLRACE_BASE_BUFFER_H

#include "base/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct mr_buffer {
    uint8_t *data; /* owns */
    size_t size;   /* bytes in use */
    size_t capacity;
} mr_buffer;

MR_MUST_USE mr_status mr_buffer_reserve(mr_buffer *buffer, size_t more);
MR_MUST_USE mr_status mr_buffer_append(mr_buffer *buffer, const void *data, size_t bytes);
MR_MUST_USE mr_status mr_buffer_printf(mr_buffer *buffer, const char *fmt, ...) MR_PRINTF(2, 3);
/* Drops the first `bytes`. */
void mr_buffer_consume(mr_buffer *buffer, size_t bytes);
void mr_buffer_deinit(mr_buffer *buffer);

typedef struct mr_ids {
    uint32_t *data; /* owns */
    size_t count;
    size_t capacity;
} mr_ids;

MR_MUST_USE mr_status mr_ids_reserve(mr_ids *ids, size_t more);
MR_MUST_USE mr_status mr_ids_append(mr_ids *ids, const uint32_t *data, size_t count);
MR_MUST_USE mr_status mr_ids_push(mr_ids *ids, uint32_t id);
void mr_ids_deinit(mr_ids *ids);

#endif
