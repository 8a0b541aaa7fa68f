/* SPDX-License-Identifier: Apache-2.0 */
/* Where the time of a benchmark went, operator by operator, against what the machine can do. */
#ifndef MILLRACE_SERVICE_PROFILE_H
#define MILLRACE_SERVICE_PROFILE_H

#include "kernels/backend.h"

#include <jansson.h>

/* {"steps", "ops": [{"op", "calls", "ns", "bytes", "operations", "share", "bytes_per_s",
 * "operations_per_s", "of_read_bandwidth", "of_int8_peak"}]}, sums over the steps: kinds that ran,
 * in the order of a forward pass; fractions are absent where the ceiling is not known, bytes and
 * operations are counted of linear and attention. NULL when memory is short. */
json_t *mr_profile_object(const mr_exec_times *spent, const mr_ceilings *ceilings);

/* The same as a table on stdout, indented. */
void mr_profile_print(const mr_exec_times *spent, const mr_ceilings *ceilings);

#endif
