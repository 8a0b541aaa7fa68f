/* SPDX-License-Identifier: Apache-2.0 */
/* What this build is made of: for `millrace --version` and reports of faults. */
#ifndef MILLRACE_SERVICE_BUILD_INFO_H
#define MILLRACE_SERVICE_BUILD_INFO_H

/* Prints version, commit, compiler, CPU paths and libraries, a line each. */
void mr_build_info_print(void);

#endif
