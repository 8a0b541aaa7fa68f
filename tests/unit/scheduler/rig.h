/* SPDX-License-Identifier: Apache-2.0 */
/* A scheduler with a scripted model in virtual time, stepped by hand. */
#ifndef MILLRACE_TESTS_SCHEDULER_RIG_H
#define MILLRACE_TESTS_SCHEDULER_RIG_H

#include "oracle.h"
#include "scheduler/internal.h"

#define RIG_EOS_A               3u
#define RIG_EOS_B               7u
#define RIG_TRANSFER_TIMEOUT_NS (8 * MR_NS_PER_MS)

typedef struct rig {
    mr_sink sink; /* counts */
    mr_scheduler_options options;
    mr_block_pool *pool;
    mr_host_tier *tier; /* NULL: none */
    mr_scheduler *scheduler;
    mr_batch_storage *storages[2]; /* of the step that was submitted last, and the other */
    uint32_t last;                 /* of them */
    uint64_t n_steps;              /* submitted */
    bool ahead;                    /* plans steps ahead where it can; set after opening */
    bool in_flight;                /* a step is submitted and not applied */
    uint32_t n_ahead;              /* steps planned so */
    scripted_exec exec;
    const mr_batch *batch; /* of the last step */
    uint64_t now_ns;
    uint64_t wake_ns;
    uint32_t publishes; /* calls of the sink */
    uint32_t published; /* requests in them */
    uint32_t n_requests;
} rig;

/* 4 sequences, 8 tokens a step, 64 tokens a sequence, no batching window. */
mr_scheduler_options rig_options(void);
void rig_open(rig *r, const mr_scheduler_options *options, uint32_t block_size, uint32_t n_blocks);
/* The same with a host tier of so many blocks; 0: none. */
void rig_open_swapping(rig *r, const mr_scheduler_options *options, uint32_t block_size,
                       uint32_t n_blocks, uint32_t host_blocks);
/* That tier's transfers are always over when they have started. */
void rig_open_immediate(rig *r, const mr_scheduler_options *options, uint32_t block_size,
                        uint32_t n_blocks, uint32_t host_blocks);
/* Asserts that no block is live any more, nor owned in the host tier, once transfers have ended;
 * the scheduler must be idle. */
void rig_close(rig *r);

/* A tokenizer of 40 tokens: 3 is special (its bytes are "<b>"), the others are short strings over
 * a, b and c, some of which end in half of a two-byte character. Destroyed by the caller. */
mr_tokenizer *rig_tokenizer(void);
/* The automaton of `count` strings that end in NUL. */
mr_stop *rig_stop(const char *const *strings, size_t count);

/* Greedy, without end tokens. */
mr_request_params rig_params(uint32_t max_tokens);
/* A request with prompt {10, 11, …}, and the caller's reference on it. */
mr_request *rig_request(rig *r, uint32_t n_prompt, const mr_request_params *params);
/* The same from a spec whose id, prompt, arrival, deadline (0: none) and sink are filled in. */
mr_request *rig_request_of(rig *r, uint32_t n_prompt, mr_request_spec *spec);
/* As rig_request(), and given to the scheduler. */
mr_request *rig_add(rig *r, uint32_t n_prompt, uint32_t max_tokens);
/* The same of a tenant. */
mr_request *rig_add_of(rig *r, uint32_t tenant, uint32_t weight, int32_t priority,
                       uint32_t n_prompt, uint32_t max_tokens);
void rig_submit(rig *r, mr_request *request);

/* Plans, publishes, runs, applies, publishes; with `ahead` as the engine does with an executor that
 * takes two steps. False, with wake_ns set, when nothing was planned.
 * `tokens` (may be NULL) replaces what the script drew for the rows. */
bool rig_step(rig *r, const uint32_t *tokens);
/* Steps until the scheduler is idle. Reading events is the caller's. */
void rig_run(rig *r);

typedef struct rig_event {
    uint32_t token;
    uint32_t choice;
    mr_finish finish;
    bool last;
    uint32_t matched_token;
    uint32_t matched_stop;
    uint64_t text_bytes;
    float logprob;
    double cumulative;
} rig_event;

/* The oldest unread event, taken out; token MR_NO_TOKEN and finish NONE when there is none. */
rig_event rig_read(mr_request *request);
/* Asserts that the event is the `index`-th one of its choice in the script. */
void rig_expect_event(const rig_event *event, const scripted_result *expected, uint32_t index);
/* Reads everything; asserts that each choice equals the script and ended with its finish. */
void rig_expect_whole(rig *r, mr_request *request);
/* Reads everything; asserts that the last event of each choice has no token and this finish, and
 * the request this status. */
void rig_expect_end(mr_request *request, mr_finish finish, mr_status status);

uint32_t rig_live_blocks(const rig *r);

#endif
