/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tells ThreadSanitizer about an object that passes from one thread to another through gRPC's
 * completion queue: the library orders the two, but it is not instrumented. Nothing in other
 * builds.
 */
#ifndef MILLRACE_SERVICE_HANDOFF_H
#define MILLRACE_SERVICE_HANDOFF_H

#if defined(__SANITIZE_THREAD__)
#define MR_UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MR_UNDER_TSAN 1
#endif
#endif

#ifdef MR_UNDER_TSAN
void __tsan_acquire(void *object);
void __tsan_release(void *object);
/* The giver, after it has read or written `object` for the last time. */
#define MR_HANDOFF_GIVE(object) __tsan_release(object)
/* The taker, before it touches it. */
#define MR_HANDOFF_TAKE(object) __tsan_acquire(object)
#else
#define MR_HANDOFF_GIVE(object) ((void)(object))
#define MR_HANDOFF_TAKE(object) ((void)(object))
#endif

#endif
