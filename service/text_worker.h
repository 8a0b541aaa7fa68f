/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A thread for texts that take long: megabytes are turned into tokens there, so that the calls of
 * the completion queue that took them do not wait.
 *
 *   queue's thread          worker                          queue's thread
 *   mr_text_work ─ short: run, done
 *                └ long: into its inbox ─► run: into the queue's inbox
 *                                          └ it was empty: wake-up ──► MR_RPC_WORKED: done
 *
 * One after the other in the order they came: a long text waits for long texts only.
 */
#ifndef MILLRACE_SERVICE_TEXT_WORKER_H
#define MILLRACE_SERVICE_TEXT_WORKER_H

#include "base/event.h"
#include "base/flag.h"
#include "base/inbox.h"
#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* A slow tokenizer takes a few milliseconds for as many bytes. */
#define MR_TEXT_LONG_BYTES (UINT64_C(32) << 10)

struct mr_rpc_queue;

typedef struct mr_text_job {
    mr_inbox_node node;
    struct mr_rpc_queue *queue;
    void (*run)(struct mr_text_job *job);  /* touches nothing of the call */
    void (*done)(struct mr_text_job *job); /* on the queue's thread, once; may free the job */
    mr_flag abandoned;                     /* nobody waits for it any more: `run` may be left out */
    bool skipped; /* it was, since it is abandoned or the server ends what runs */
} mr_text_job;

typedef struct mr_text_worker {
    mr_inbox inbox; /* mr_text_job */
    mr_event event;
    mr_flag stop;
    pthread_t thread;
    bool started;
    mr_counter begun; /* long jobs */
    mr_counter done;
} mr_text_worker;

/* RESOURCE_EXHAUSTED when the system gives no thread. */
MR_MUST_USE mr_status mr_text_worker_start(mr_text_worker *worker, mr_error *err);
/* Once no job is under way. What was never started may be stopped. */
void mr_text_worker_stop(mr_text_worker *worker);

/* Does a job of `bytes`, here or on the worker; `run` and `done` are set. The queue's thread, with
 * a call that stays until `done`. */
void mr_text_work(struct mr_rpc_queue *queue, mr_text_job *job, uint64_t bytes);

/* Whether no long job is between mr_text_work and the end of its `done`. Any thread. */
bool mr_text_worker_is_idle(const mr_text_worker *worker);

void mr_text_worked_init(struct mr_rpc_queue *queue);
/* On MR_RPC_WORKED. */
void mr_text_worked_take(struct mr_rpc_queue *queue);

#endif
