/* SPDX-License-Identifier: Apache-2.0 */
#include "service/drain.h"

#include "base/checked.h"

static void set_end(mr_drain *drain, uint64_t end_ns)
{
    drain->end_ns = end_ns;
    drain->drop_ns = mr_time_add(end_ns, MR_DRAIN_LAST_WORDS_NS);
    drain->done_ns = mr_time_add(drain->drop_ns, MR_DRAIN_DROP_NS);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

void mr_drain_start(mr_drain *drain, const mr_drain_plan *plan, uint64_t now_ns)
{
    if (drain->phase == MR_DRAIN_SERVING) {
        drain->phase = MR_DRAIN_PRE_STOP;
        drain->refuse_ns = mr_time_add(now_ns, plan->pre_stop_ns);
        set_end(drain, mr_time_add(drain->refuse_ns, plan->timeout_ns));
    } else if (drain->phase < MR_DRAIN_ENDING) {
        const uint64_t end_ns = mr_time_add(later(now_ns, drain->refuse_ns), plan->timeout_ns);
        set_end(drain, mr_min_u64(drain->end_ns, end_ns));
    } else if (drain->phase == MR_DRAIN_DONE && plan->leaves && !drain->leaves) {
        drain->phase = MR_DRAIN_REFUSING;
        set_end(drain, mr_time_add(now_ns, plan->timeout_ns));
    }
    drain->leaves = drain->leaves || plan->leaves;
}

void mr_drain_force(mr_drain *drain, uint64_t now_ns)
{
    drain->refuse_ns = mr_min_u64(drain->refuse_ns, now_ns);
    drain->end_ns = mr_min_u64(drain->end_ns, now_ns);
    drain->drop_ns = mr_min_u64(drain->drop_ns, now_ns);
    drain->done_ns =
        mr_min_u64(drain->done_ns, mr_time_add(now_ns, MR_DRAIN_LAST_WORDS_NS + MR_DRAIN_DROP_NS));
}

static uint64_t hurry_ns(const mr_drain *drain)
{
    return drain->done_ns - mr_min_u64(drain->done_ns, MR_DRAIN_HURRY_NS);
}

bool mr_drain_hurries(const mr_drain *drain, uint64_t now_ns)
{
    return drain->phase >= MR_DRAIN_DROPPING && now_ns >= hurry_ns(drain);
}

bool mr_drain_lingered(const mr_drain *drain, uint64_t now_ns)
{
    return now_ns >= mr_time_add(drain->refuse_ns, MR_DRAIN_LINGER_NS);
}

/* When the phase ends by itself. */
static uint64_t phase_end(const mr_drain *drain)
{
    switch (drain->phase) {
    case MR_DRAIN_PRE_STOP:
        return drain->refuse_ns;
    case MR_DRAIN_REFUSING:
        return drain->end_ns;
    case MR_DRAIN_ENDING:
        return drain->drop_ns;
    case MR_DRAIN_DROPPING:
        return drain->done_ns;
    case MR_DRAIN_SERVING:
    case MR_DRAIN_DONE:
        break;
    }
    return MR_NEVER;
}

mr_drain_phase mr_drain_step(mr_drain *drain, uint64_t now_ns, bool idle, uint64_t *wake_ns)
{
    while (now_ns >= phase_end(drain)) {
        drain->phase++;
    }
    const bool refuses = drain->phase >= MR_DRAIN_REFUSING && drain->phase < MR_DRAIN_DONE;
    const bool lingered = mr_drain_lingered(drain, now_ns);
    if (refuses && idle && lingered) {
        drain->phase = MR_DRAIN_DONE;
    }
    *wake_ns = phase_end(drain);
    if (drain->phase != MR_DRAIN_DONE && refuses && !lingered) {
        *wake_ns = mr_min_u64(*wake_ns, mr_time_add(drain->refuse_ns, MR_DRAIN_LINGER_NS));
    }
    if (drain->phase == MR_DRAIN_DROPPING && !mr_drain_hurries(drain, now_ns)) {
        *wake_ns = mr_min_u64(*wake_ns, hurry_ns(drain));
    }
    return drain->phase;
}
