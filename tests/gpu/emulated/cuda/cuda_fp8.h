/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name: declared only, so that a kernel that calls it is found
 * out when its module is loaded. */
#ifndef MILLRACE_TESTS_EMULATED_CUDA_FP8_H
#define MILLRACE_TESTS_EMULATED_CUDA_FP8_H

#include <cuda_fp16.h>

enum { __NV_SATFINITE };
enum { __NV_E4M3 };

uint16_t __nv_cvt_float2_to_fp8x2(float2 x, int saturation, int type);
__half __nv_cvt_fp8_to_halfraw(uint8_t x, int type);

#endif
