/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a call may begin, decided by its connection, its metadata and who calls, before anything
 * of its request is looked at; and what is owed for it at its end: the place that it took, and a
 * line on record for an administrator's method.
 *
 * Fills in the call's `connection`, `counted`, `ticket`, `tenants`, `tenant`, `caller`, `audited`,
 * `credited` and `refused`; others only read them. All of it on the thread of the call's queue.
 */
#ifndef MILLRACE_SERVICE_ADMISSION_H
#define MILLRACE_SERVICE_ADMISSION_H

#include "service/call.h"

/* MR_OK of a call that fits (its connection and the server have room), has no more metadata than
 * the server takes, and whose caller may call the method. Else it is to be finished with the error,
 * which is counted and logged already: RESOURCE_EXHAUSTED, with a retry time where there was no
 * room, UNAUTHENTICATED or PERMISSION_DENIED. Once, of a call that has just arrived. */
MR_MUST_USE mr_status mr_admission_check(mr_call *call, mr_error *err);

/* RESOURCE_EXHAUSTED, with a retry time, once the call's place was given to another. */
MR_MUST_USE mr_status mr_admission_keep(const mr_call *call, mr_error *err);

/* Puts on record how an administrator's method ended; nothing for others, and the second time. */
void mr_admission_record(mr_call *call, mr_status status);

/* Gives the call's place back, if it took one. Once, before the call is freed. */
void mr_admission_end(mr_call *call);

#endif
