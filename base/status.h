/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes and error records.
 *
 * A function that can fail returns mr_status and gives its result through an out-parameter. The
 * numeric values are those of gRPC's canonical codes, so the edge needs no translation table.
 * `mr_error` is a fixed-size record that the caller owns: no allocation, safe to copy, safe to
 * fill on any thread that owns it. Every `err` parameter may be NULL.
 */
#ifndef MILLRACE_BASE_STATUS_H
#define MILLRACE_BASE_STATUS_H

#include <stdint.h>

typedef enum mr_status {
    MR_OK = 0,
    MR_CANCELLED = 1,
    MR_UNKNOWN = 2,
    MR_INVALID_ARGUMENT = 3,
    MR_DEADLINE_EXCEEDED = 4,
    MR_NOT_FOUND = 5,
    MR_ALREADY_EXISTS = 6,
    MR_PERMISSION_DENIED = 7,
    MR_RESOURCE_EXHAUSTED = 8,
    MR_FAILED_PRECONDITION = 9,
    MR_ABORTED = 10,
    MR_OUT_OF_RANGE = 11,
    MR_UNIMPLEMENTED = 12,
    MR_INTERNAL = 13,
    MR_UNAVAILABLE = 14,
    MR_DATA_LOSS = 15,
    MR_UNAUTHENTICATED = 16,
} mr_status;

#define MR_ERROR_FIELD_MAX   64
#define MR_ERROR_MESSAGE_MAX 448

typedef struct mr_error {
    mr_status status;
    uint32_t retry_after_ms;            /* 0: retrying is not known to help */
    char field[MR_ERROR_FIELD_MAX];     /* path of the offending field, "" if none */
    char message[MR_ERROR_MESSAGE_MAX]; /* what, where, and the way out; no trailing newline */
} mr_error;

#if defined(__GNUC__)
#define MR_PRINTF(fmt_index, first_arg) __attribute__((format(printf, fmt_index, first_arg)))
#define MR_MUST_USE                     __attribute__((warn_unused_result))
#else
#define MR_PRINTF(fmt_index, first_arg)
#define MR_MUST_USE
#endif

/* Fills `err` (when not NULL) with status and message, clears field, and returns `status`.
 * Too long a message is cut at a character boundary and ends in "...". Any thread. */
mr_status mr_fail(mr_error *err, mr_status status, const char *fmt, ...) MR_PRINTF(3, 4);

/* As mr_fail, naming the field (as the caller wrote it: "sampling.top_p", "--set threads"). */
mr_status mr_fail_field(mr_error *err, mr_status status, const char *field, const char *fmt, ...)
    MR_PRINTF(4, 5);

/* Puts "<fmt>: " before the message that `err` already holds (file names, line numbers). Returns
 * err->status, or MR_INTERNAL when err is NULL. */
mr_status mr_fail_context(mr_error *err, const char *fmt, ...) MR_PRINTF(2, 3);

/* Upper-case gRPC name of the code, "INVALID_ARGUMENT". Static string. */
const char *mr_status_name(mr_status status);

/* Returns from the enclosing function with the status of `expr` unless it is MR_OK. */
#define MR_TRY(expr)                                                                               \
    do {                                                                                           \
        mr_status mr_try_status_ = (expr);                                                         \
        if (mr_try_status_ != MR_OK) {                                                             \
            return mr_try_status_;                                                                 \
        }                                                                                          \
    } while (0)

/* As MR_TRY, but stores into `status` and jumps to the function's single `cleanup:` label. */
#define MR_TRY_CLEANUP(status, expr)                                                               \
    do {                                                                                           \
        (status) = (expr);                                                                         \
        if ((status) != MR_OK) {                                                                   \
            goto cleanup;                                                                          \
        }                                                                                          \
    } while (0)

/* Always-on check of one of our own memory-safety invariants, never of input: prints the
 * expression, file and line and traps. */
void mr_check_failed(const char *expression, const char *file, int line) __attribute__((noreturn));
#define MR_CHECK(expr) ((expr) ? (void)0 : mr_check_failed(#expr, __FILE__, __LINE__))

#endif
