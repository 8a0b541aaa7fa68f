/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a server goes out of service, as times alone: somebody else does what the phases say.
 *
 *   SERVING ─start─► PRE_STOP ─► REFUSING ─┬─ nothing left ───────────────► DONE
 *                    pre_stop    timeout   └─► ENDING ─► DROPPING ─────────► DONE
 *                                              last words
 *
 * Not safe for threads.
 */
#ifndef MILLRACE_SERVICE_DRAIN_H
#define MILLRACE_SERVICE_DRAIN_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* How long new calls are refused, with a retry time, before connections close: the last streams'
 * clients may call again at once, and gRPC gives CANCELLED to calls that meet its own end. */
#define MR_DRAIN_LINGER_NS (MR_NS_PER_S / 4)
/* What streams that are ended get for their last message, */
#define MR_DRAIN_LAST_WORDS_NS (2 * MR_NS_PER_S)
/* and those that did not take it for their status alone. When it is forced there were no last
 * words, and the status has the time of both. */
#define MR_DRAIN_DROP_NS MR_NS_PER_S
/* So long before the end it no longer waits behind what a client does not take. */
#define MR_DRAIN_HURRY_NS (MR_NS_PER_S / 4 * 3)

typedef enum mr_drain_phase {
    MR_DRAIN_SERVING,
    MR_DRAIN_PRE_STOP, /* not ready any more, and still takes requests */
    MR_DRAIN_REFUSING, /* takes no new ones; what runs or waits goes on */
    MR_DRAIN_ENDING,   /* that ends with a status, after what there is to say */
    MR_DRAIN_DROPPING, /* and now with a status alone */
    MR_DRAIN_DONE,     /* nothing is left, or nothing more can be done about it */
} mr_drain_phase;

/* Zero-initialised is valid: SERVING. Times are those of one clock. */
typedef struct mr_drain {
    mr_drain_phase phase;
    bool leaves;        /* connections close, since the process is to end */
    uint64_t refuse_ns; /* when each phase begins at the latest */
    uint64_t end_ns;
    uint64_t drop_ns;
    uint64_t done_ns;
} mr_drain;

typedef struct mr_drain_plan {
    uint64_t pre_stop_ns;
    uint64_t timeout_ns; /* of what runs, from the end of pre_stop on */
    bool leaves;
} mr_drain_plan;

/* Begins a drain. One that goes on can only become shorter, and has no second window; one that is
 * DONE goes on when the server is to leave. */
void mr_drain_start(mr_drain *drain, const mr_drain_plan *plan, uint64_t now_ns);
/* Whatever is left ends now. Only after start. */
void mr_drain_force(mr_drain *drain, uint64_t now_ns);
/* Enters the phase that is due and gives it. `idle`: nothing is left to wait for. `wake_ns`: when
 * to come again unless something happens before; MR_NEVER: not at all. */
mr_drain_phase mr_drain_step(mr_drain *drain, uint64_t now_ns, bool idle, uint64_t *wake_ns);
/* Whether it is in a hurry: see MR_DRAIN_HURRY_NS. */
bool mr_drain_hurries(const mr_drain *drain, uint64_t now_ns);
/* Whether new calls were refused for long enough. */
bool mr_drain_lingered(const mr_drain *drain, uint64_t now_ns);

#endif
