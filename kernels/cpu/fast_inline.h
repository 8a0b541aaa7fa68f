/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MR_SIMD: a small vector function, expanded where it is used, with its constant arguments folded.
 * Not under the address sanitizer: a kernel whose every expanded access is checked takes the
 * compiler minutes and a gigabyte. The functions are the same, called instead.
 */
#ifndef MILLRACE_KERNELS_CPU_FAST_INLINE_H
#define MILLRACE_KERNELS_CPU_FAST_INLINE_H

#if defined(__SANITIZE_ADDRESS__)
#define MR_SIMD static __attribute__((noinline, unused))
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MR_SIMD static __attribute__((noinline, unused))
#endif
#endif

#ifndef MR_SIMD
#define MR_SIMD static inline __attribute__((always_inline))
#endif

#endif
