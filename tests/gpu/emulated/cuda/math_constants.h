/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name. */
#ifndef MILLRACE_TESTS_EMULATED_MATH_CONSTANTS_H
#define MILLRACE_TESTS_EMULATED_MATH_CONSTANTS_H

#include <math.h>

#define CUDART_INF_F INFINITY

#endif
