/* SPDX-License-Identifier: Apache-2.0 */
/* In place of CUDA's header of this name: types that declarations name. */
#ifndef MILLRACE_TESTS_EMULATED_CUBLASLT_H
#define MILLRACE_TESTS_EMULATED_CUBLASLT_H

using cublasLtHandle_t = void *;
using cublasStatus_t = int;
struct cublasLtMatmulAlgo_t;
struct cublasLtMatmulHeuristicResult_t;

#endif
