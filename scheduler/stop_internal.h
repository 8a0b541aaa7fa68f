/* SPDX-License-Identifier: Apache-2.0 */
/* What tests look into. */
#ifndef MILLRACE_SCHEDULER_STOP_INTERNAL_H
#define MILLRACE_SCHEDULER_STOP_INTERNAL_H

#include "scheduler/stop.h"

/* Number of strings. */
size_t mr_stop_count(const mr_stop *stop);

#endif
