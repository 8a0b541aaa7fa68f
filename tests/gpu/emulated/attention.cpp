/* SPDX-License-Identifier: Apache-2.0 */
/* Split attention on matrix units: the source that nvcc compiles, over what stands in for CUDA. */
#include "mma.h"

#include "kernels/cuda/attention/warp_split.cu"
