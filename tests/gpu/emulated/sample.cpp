/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling: the source that nvcc compiles, over what stands in for CUDA. */
#include "kernels/cuda/sample/sample.cu"
