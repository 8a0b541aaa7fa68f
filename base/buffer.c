/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include "base/checked.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_CAPACITY 64u

/* Grows *data (elements of `size` bytes) to hold used + more; at least doubles, so that appending
 * stays linear. */
static mr_status grow(void **data, size_t *capacity, size_t used, size_t more, size_t size)
{
    size_t need;
    if (__builtin_add_overflow(used, more, &need)) {
        return MR_RESOURCE_EXHAUSTED;
    }
    if (need <= *capacity) {
        return MR_OK;
    }
    size_t wanted = *capacity <= SIZE_MAX / 2 ? 2 * *capacity : need;
    wanted = wanted > need ? wanted : need;
    wanted = wanted > MIN_CAPACITY ? wanted : MIN_CAPACITY;
    void *grown = mr_reallocarray(*data, wanted, size);
    if (grown == NULL) {
        return MR_RESOURCE_EXHAUSTED;
    }
    *data = grown;
    *capacity = wanted;
    return MR_OK;
}

mr_status mr_buffer_reserve(mr_buffer *buffer, size_t more)
{
    void *data = buffer->data;
    const mr_status status = grow(&data, &buffer->capacity, buffer->size, more, 1);
    buffer->data = data;
    return status;
}

mr_status mr_buffer_append(mr_buffer *buffer, const void *data, size_t bytes)
{
    if (bytes == 0) {
        return MR_OK;
    }
    MR_TRY(mr_buffer_reserve(buffer, bytes));
    memcpy(buffer->data + buffer->size, data, bytes);
    buffer->size += bytes;
    return MR_OK;
}

mr_status mr_buffer_printf(mr_buffer *buffer, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    mr_status status = MR_INVALID_ARGUMENT;
    const int length = vsnprintf(NULL, 0, fmt, args);
    if (length >= 0) {
        /* One byte more for the NUL that vsnprintf writes; it is not part of the contents. */
        MR_TRY_CLEANUP(status, mr_buffer_reserve(buffer, (size_t)length + 1));
        vsnprintf((char *)buffer->data + buffer->size, (size_t)length + 1, fmt, again);
        buffer->size += (size_t)length;
    }
cleanup:
    va_end(again);
    va_end(args);
    return status;
}

void mr_buffer_consume(mr_buffer *buffer, size_t bytes)
{
    MR_CHECK(bytes <= buffer->size);
    buffer->size -= bytes;
    if (bytes > 0 && buffer->size > 0) {
        memmove(buffer->data, buffer->data + bytes, buffer->size);
    }
}

void mr_buffer_deinit(mr_buffer *buffer)
{
    free(buffer->data);
    *buffer = (mr_buffer){0};
}

mr_status mr_ids_reserve(mr_ids *ids, size_t more)
{
    void *data = ids->data;
    const mr_status status = grow(&data, &ids->capacity, ids->count, more, sizeof(uint32_t));
    ids->data = data;
    return status;
}

mr_status mr_ids_append(mr_ids *ids, const uint32_t *data, size_t count)
{
    if (count == 0) {
        return MR_OK;
    }
    MR_TRY(mr_ids_reserve(ids, count));
    memcpy(ids->data + ids->count, data, count * sizeof(*data));
    ids->count += count;
    return MR_OK;
}

mr_status mr_ids_push(mr_ids *ids, uint32_t id)
{
    return mr_ids_append(ids, &id, 1);
}

void mr_ids_deinit(mr_ids *ids)
{
    free(ids->data);
    *ids = (mr_ids){0};
}
