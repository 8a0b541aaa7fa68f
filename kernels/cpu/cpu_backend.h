/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend: the scalar reference interpreter, and the vectorised paths behind the same
 * interface. */
#ifndef MILLRACE_KERNELS_CPU_CPU_BACKEND_H
#define MILLRACE_KERNELS_CPU_CPU_BACKEND_H

#include "kernels/backend.h"

#include <stdbool.h>

typedef enum mr_compute {
    MR_COMPUTE_AUTO, /* the fastest path of this CPU: int8 activations for quantised weights */
    MR_COMPUTE_F32,  /* the reference: weights dequantised, float32 activations, scalar C */
} mr_compute;

typedef enum mr_cpu_isa {
    MR_CPU_ISA_AUTO,
    MR_CPU_ISA_PORTABLE,
    MR_CPU_ISA_AVX2,
    MR_CPU_ISA_AVX512_VNNI,
    MR_CPU_ISA_AVX512_BF16,
    MR_CPU_ISA_AMX,
    MR_CPU_ISA_COUNT,
} mr_cpu_isa;

typedef struct mr_cpu_options {
    mr_compute compute;
    mr_cpu_isa
        isa; /* AUTO: the best this CPU has. FAILED_PRECONDITION if it lacks the one asked for */
    uint32_t threads; /* 0: mr_cpu_count() */
} mr_cpu_options;

/* Gives a backend; destroy it through its table. */
MR_MUST_USE mr_status mr_cpu_backend_create(const mr_cpu_options *options, mr_backend **out,
                                            mr_error *err);

/* "auto", "portable", … whatever this build has. `isa` is below COUNT. Any thread. */
const char *mr_cpu_isa_name(mr_cpu_isa isa);

/* The name of a vectorised path, slowest first in the enum; NULL when this build lacks it. *runs
 * tells whether this CPU has what it takes. Any thread. */
const char *mr_cpu_path_name(mr_cpu_isa isa, bool *runs);

#endif
