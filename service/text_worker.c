/* SPDX-License-Identifier: Apache-2.0 */
#include "service/text_worker.h"

#include "base/clock.h"
#include "service/rpc.h"

#include <stddef.h>

static mr_text_job *job_of(mr_inbox_node *node)
{
    return (void *)((char *)node - offsetof(mr_text_job, node));
}

/* The job may be gone once it is inside. */
static void hand_back(mr_text_job *job)
{
    mr_rpc_queue *queue = job->queue;
    if (mr_inbox_put(&queue->worked, &job->node)) {
        mr_rpc_queue_post(queue, &queue->worked_tag);
    }
}

static void *worker_main(void *arg)
{
    mr_text_worker *worker = arg;
    while (!mr_flag_get(&worker->stop)) {
        (void)mr_event_wait(&worker->event, MR_NEVER);
        mr_inbox_node *node = mr_inbox_take_all(&worker->inbox);
        while (node != NULL) {
            mr_inbox_node *next = node->next;
            mr_text_job *job = job_of(node);
            mr_inbox_release(node);
            job->skipped =
                mr_flag_get(&job->abandoned) || mr_flag_get(&job->queue->server->cut_off);
            if (!job->skipped) {
                job->run(job);
            }
            hand_back(job);
            node = next;
        }
    }
    return NULL;
}

mr_status mr_text_worker_start(mr_text_worker *worker, mr_error *err)
{
    mr_inbox_init(&worker->inbox);
    mr_event_init(&worker->event);
    if (pthread_create(&worker->thread, NULL, worker_main, worker) != 0) {
        mr_event_deinit(&worker->event);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                       "the system gave no thread for texts that take long");
    }
    worker->started = true;
    return MR_OK;
}

void mr_text_worker_stop(mr_text_worker *worker)
{
    if (!worker->started) {
        return;
    }
    mr_flag_set(&worker->stop);
    mr_event_set(&worker->event);
    pthread_join(worker->thread, NULL);
    mr_event_deinit(&worker->event);
    worker->started = false;
}

void mr_text_work(mr_rpc_queue *queue, mr_text_job *job, uint64_t bytes)
{
    if (bytes <= MR_TEXT_LONG_BYTES) {
        job->run(job);
        job->done(job);
        return;
    }
    job->queue = queue;
    mr_inbox_node_init(&job->node);
    mr_text_worker *worker = &queue->server->texts;
    mr_counter_add(&worker->begun, 1);
    if (mr_inbox_put(&worker->inbox, &job->node)) {
        mr_event_set(&worker->event);
    }
}

bool mr_text_worker_is_idle(const mr_text_worker *worker)
{
    const uint64_t done = mr_counter_get(&worker->done);
    return done == mr_counter_get(&worker->begun);
}

void mr_text_worked_init(mr_rpc_queue *queue)
{
    mr_inbox_init(&queue->worked);
    queue->worked_tag.event = MR_RPC_WORKED;
}

void mr_text_worked_take(mr_rpc_queue *queue)
{
    mr_inbox_node *node = mr_inbox_take_all(&queue->worked);
    while (node != NULL) {
        mr_inbox_node *next = node->next;
        mr_text_job *job = job_of(node);
        mr_inbox_release(node);
        job->done(job);
        mr_counter_add(&queue->server->texts.done, 1);
        node = next;
    }
    mr_event_set(&queue->server->news); /* a drain may wait for the last of them */
}
