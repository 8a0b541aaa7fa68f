/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU of the table of kernels/cuda/api.h that computes nothing: it has memory, counts calls,
 * writes down launches, and fails where it is told to. */
#ifndef MILLRACE_TESTS_FAKE_GPU_H
#define MILLRACE_TESTS_FAKE_GPU_H

#include "kernels/cuda/api.h"

#include <stdbool.h>
#include <stdint.h>

#define FAKE_TRACE 512

typedef struct fake_gpu {
    uint64_t total_bytes; /* of memory */
    uint64_t others;      /* in use by others */
    int devices;
    uint32_t major;

    /* The call of this name fails from its fail_at-th time on, with code 700; NULL: none. */
    const char *fail;
    uint32_t fail_at;
    uint32_t fail_seen;

    uint8_t *memory; /* what alloc gave: host memory, so that copies work */
    uint64_t allocated;
    uint32_t host_areas; /* not yet released */
    uint32_t contexts;
    uint32_t graphs; /* alive */
    uint32_t graph_launches;
    bool capturing;
    uint32_t transfers; /* ended, in order; the first `transferred` of them are over */
    uint32_t transferred;
    uint32_t transfer_events[MR_CUDA_TRANSFERS];

    const char *trace[FAKE_TRACE]; /* names of launches since the trace was cleared, in order */
    uint32_t n_trace;
    mr_cuda_linear linears[FAKE_TRACE]; /* the products among them */
    uint32_t n_linears;
    mr_cuda_norm norms[FAKE_TRACE];
    uint32_t n_norms;
    mr_cuda_attention attentions[FAKE_TRACE];
    uint32_t n_attentions;

    uint32_t decode_rows;   /* that it takes layers for; 0: none */
    uint32_t decode_pieces; /* of attention likewise */
    mr_cuda_decode asked;   /* what it was asked about last */
    mr_cuda_decode decoded; /* what it ran last */
    uint32_t maps;          /* layers whose maps were made */
} fake_gpu;

extern fake_gpu fake;

/* As new: 8 GiB of which nothing is used, compute capability 9.0. */
void fake_reset(void);
void fake_clear_trace(void);
uint32_t fake_count(const char *name);
const mr_cuda_api *fake_api(void);

#endif
