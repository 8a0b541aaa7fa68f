/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of the .proto files that the server speaks, for reflection. api/describe.py makes the
 * tables when millrace is built. */
#ifndef MILLRACE_SERVICE_DESCRIPTORS_H
#define MILLRACE_SERVICE_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

typedef struct mr_descriptor_file {
    const char *name;    /* path below the import root */
    const uint8_t *data; /* a google.protobuf.FileDescriptorProto, [size] bytes */
    size_t size;
    const uint16_t *closure; /* [n_closure] files: itself, then all that it imports */
    size_t n_closure;
} mr_descriptor_file;

typedef struct mr_descriptor_symbol {
    const char *name; /* fully qualified, without a dot in front */
    uint16_t file;
} mr_descriptor_symbol;

extern const mr_descriptor_file mr_descriptor_files[];
extern const size_t mr_descriptor_n_files;
extern const mr_descriptor_symbol mr_descriptor_symbols[]; /* sorted by bytes */
extern const size_t mr_descriptor_n_symbols;
extern const char *const mr_descriptor_services[]; /* sorted */
extern const size_t mr_descriptor_n_services;

#endif
