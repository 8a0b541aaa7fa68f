/* SPDX-License-Identifier: Apache-2.0 */
/* Limits that control groups (v2 and v1) put on this process. */
#ifndef MILLRACE_BASE_CGROUP_H
#define MILLRACE_BASE_CGROUP_H

#include <stdint.h>

#define MR_CGROUP_UNLIMITED UINT64_MAX

/* The tightest limit between the process's group and the root counts, since a parent's limit binds
 * its children. `membership` is the path of /proc/self/cgroup and `mount` that of /sys/fs/cgroup;
 * tests give trees of their own. A file that is missing or malformed sets no limit. Any thread. */

/* Thousandths of a CPU. */
uint64_t mr_cgroup_cpu_limit(const char *membership, const char *mount);

/* Bytes left below the limit. Page cache that the kernel drops first counts as free. */
uint64_t mr_cgroup_memory_left(const char *membership, const char *mount);

#endif
