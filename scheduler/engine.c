/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler/engine.h"

#include "base/checked.h"
#include "base/event.h"
#include "base/inbox.h"
#include "base/log.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

/* Longer than any copy takes on a machine that works. */
#define TRANSFER_TIMEOUT_NS (2 * MR_NS_PER_S)

struct mr_engine {
    mr_clock clock;
    mr_exec *exec;  /* borrows */
    mr_inbox inbox; /* submitted requests */
    mr_event wake;
    mr_event *failed; /* borrows; NULL: nobody waits for it, or it is set already */
    pthread_t thread;

    /* The engine thread's alone, once it runs. */
    mr_block_pool *pool;
    mr_host_tier *host_tier; /* NULL: none */
    mr_scheduler *scheduler;
    mr_batch_storage *storages[2]; /* of the step that was submitted last, and of the other one */
    uint32_t last;                 /* of them */
    uint64_t n_submitted;          /* steps */
    bool takes_two;
    bool in_flight;   /* a planned step was submitted and is not applied */
    mr_error failure; /* status MR_OK until the device fails */
    uint64_t taken;   /* requests taken out of the inbox */
    uint64_t last_step_ns;

    /* Everybody's, under the mutex. */
    pthread_mutex_t mutex;
    mr_engine_stats snapshot;
    uint64_t submitted;
    uint64_t snapshot_taken;
    uint64_t untaken_ns; /* since when a request waits in the inbox, if one does */
    uint64_t turn_ns;    /* when the thread was last seen to move */
    bool asleep;         /* since then: it has nothing to run */
    bool reset_asked;    /* of the prefix cache */
    uint32_t generation;
    bool quits; /* and takes no new requests */
};

static void take_inbox(mr_engine *engine)
{
    mr_inbox_node *node = mr_inbox_take_all(&engine->inbox);
    while (node != NULL) {
        mr_inbox_node *next = node->next;
        mr_inbox_release(node);
        mr_request *request = (void *)((char *)node - offsetof(mr_request, to_engine));
        mr_scheduler_add(engine->scheduler, request, mr_clock_now(&engine->clock));
        engine->taken++;
        node = next;
    }
    /* Who slipped in before submit() knew of the failure. */
    if (engine->failure.status != MR_OK && !mr_scheduler_idle(engine->scheduler)) {
        mr_scheduler_fail(engine->scheduler, &engine->failure, mr_clock_now(&engine->clock));
    }
}

static void device_failed(mr_engine *engine, const mr_error *err)
{
    engine->failure = *err;
    if (engine->failure.status == MR_OK) {
        mr_fail(&engine->failure, MR_INTERNAL, "the device failed and did not say why");
    }
    char cause[2 * MR_ERROR_MESSAGE_MAX];
    mr_log(MR_LOG_ERROR, "engine", "the device failed, every request ends", "status=%s error=%s",
           mr_status_name(engine->failure.status),
           mr_log_quote(engine->failure.message, cause, sizeof(cause)));
    mr_scheduler_fail(engine->scheduler, &engine->failure, mr_clock_now(&engine->clock));
}

/* Shows the others that a step runs from now on, or, with 0, that it is over. */
static void mark_step(mr_engine *engine, uint64_t started_ns)
{
    const uint64_t now_ns = mr_clock_now(&engine->clock);
    pthread_mutex_lock(&engine->mutex);
    if (started_ns == 0) {
        engine->snapshot.step_ns += now_ns - engine->snapshot.step_started_ns;
    }
    engine->snapshot.step_started_ns = started_ns;
    engine->turn_ns = now_ns;
    engine->asleep = false;
    pthread_mutex_unlock(&engine->mutex);
}

/* The storage for the next step: not that of the step that may be under way. */
static mr_batch_storage *next_storage(mr_engine *engine)
{
    mr_batch_storage *storage = engine->storages[1 - engine->last];
    mr_batch_follow(storage, engine->n_submitted);
    return storage;
}

/* Submits what was planned into next_storage(). */
static mr_status submit(mr_engine *engine, mr_error *err)
{
    engine->last = 1 - engine->last;
    engine->n_submitted++;
    return engine->exec->vt->submit(engine->exec, mr_batch_get(engine->storages[engine->last]),
                                    err);
}

/* Plans a step and submits it, with no other under way. False, and when to come again, when there
 * is nothing to run. */
static bool begin(mr_engine *engine, uint64_t *wake_ns, mr_error *err)
{
    const uint64_t now_ns = mr_clock_now(&engine->clock);
    if (!mr_scheduler_plan(engine->scheduler, now_ns, next_storage(engine), wake_ns)) {
        return false;
    }
    /* Who ended while planning hears of it before the step, which may take long. */
    mr_scheduler_publish(engine->scheduler);
    mark_step(engine, now_ns);
    size_t count;
    const mr_block_copy *copies = mr_scheduler_copies(engine->scheduler, &count);
    mr_status status = MR_OK;
    if (count > 0) {
        status = engine->exec->vt->copy_blocks(engine->exec, copies, count, err);
    }
    engine->in_flight = status == MR_OK && submit(engine, err) == MR_OK;
    return true;
}

/* The step under way is waited for, behind one more if that can be planned already. */
static mr_status finish(mr_engine *engine, mr_step_output *output, bool *ahead, mr_error *err)
{
    *ahead = engine->takes_two &&
             mr_scheduler_plan_ahead(engine->scheduler, mr_clock_now(&engine->clock),
                                     next_storage(engine));
    if (*ahead) {
        MR_TRY(submit(engine, err));
    }
    return engine->exec->vt->wait(engine->exec, output, err);
}

/* Runs a step to its end. False, and when to come again, when there is nothing to run. */
static bool step(mr_engine *engine, uint64_t *wake_ns)
{
    mr_error err = {0};
    mr_step_output output;
    bool ahead = false;
    if (!engine->in_flight && !begin(engine, wake_ns, &err)) {
        return false;
    }
    const bool done = engine->in_flight && finish(engine, &output, &ahead, &err) == MR_OK;
    mark_step(engine, 0);
    engine->in_flight = done && ahead;
    if (!done) {
        device_failed(engine, &err);
        return true;
    }
    engine->last_step_ns = mr_clock_now(&engine->clock);
    if (ahead) {
        mark_step(engine, engine->last_step_ns);
    }
    mr_scheduler_apply(engine->scheduler, &output, engine->last_step_ns);
    return true;
}

/* Nothing may be under way when the executor goes. */
static void drop_step(mr_engine *engine)
{
    mr_step_output output;
    if (engine->in_flight) {
        (void)engine->exec->vt->wait(engine->exec, &output, NULL);
    }
}

/* Shows the others where the engine stands. False when it shall quit. */
static bool show(mr_engine *engine, bool sleeps)
{
    const uint64_t now_ns = mr_clock_now(&engine->clock);
    pthread_mutex_lock(&engine->mutex);
    mr_scheduler_stats_get(engine->scheduler, &engine->snapshot.scheduler);
    engine->snapshot.last_step_ns = engine->last_step_ns;
    engine->snapshot.failed = engine->failure.status != MR_OK;
    engine->snapshot.busy = !mr_scheduler_idle(engine->scheduler) || engine->in_flight;
    engine->snapshot_taken = engine->taken;
    engine->untaken_ns = now_ns;
    engine->turn_ns = now_ns;
    engine->asleep = sleeps;
    const bool goes_on = !engine->quits;
    pthread_mutex_unlock(&engine->mutex);
    return goes_on;
}

/* Sleeps until something arrives or the engine's clock, which need not be the system's, passes
 * wake_ns. */
static void sleep_until(mr_engine *engine, uint64_t wake_ns)
{
    uint64_t until_ns = MR_NEVER;
    if (wake_ns != MR_NEVER) {
        const uint64_t now_ns = mr_clock_now(&engine->clock);
        const mr_clock monotonic = mr_clock_monotonic();
        until_ns = mr_time_add(mr_clock_now(&monotonic), wake_ns > now_ns ? wake_ns - now_ns : 0);
    }
    mr_event_wait(&engine->wake, until_ns);
}

/* After the inbox was taken: requests in there that came after the asking see it done. */
static void reset_if_asked(mr_engine *engine)
{
    pthread_mutex_lock(&engine->mutex);
    const bool asked = engine->reset_asked;
    const uint32_t generation = engine->generation;
    engine->reset_asked = false;
    pthread_mutex_unlock(&engine->mutex);
    if (asked) {
        mr_scheduler_reset_prefix_cache(engine->scheduler, generation);
    }
}

/* After stats have it. */
static void tell_failure(mr_engine *engine)
{
    if (engine->failure.status != MR_OK && engine->failed != NULL) {
        mr_event_set(engine->failed);
        engine->failed = NULL;
    }
}

static void *engine_main(void *arg)
{
    mr_engine *engine = arg;
    for (;;) {
        uint64_t wake_ns = MR_NEVER;
        take_inbox(engine);
        reset_if_asked(engine);
        const bool ran = step(engine, &wake_ns);
        mr_scheduler_publish(engine->scheduler);
        if (!show(engine, !ran)) {
            break;
        }
        tell_failure(engine);
        if (!ran) {
            sleep_until(engine, wake_ns);
        }
    }
    drop_step(engine);
    take_inbox(engine);
    mr_scheduler_destroy(engine->scheduler);
    engine->scheduler = NULL;
    return NULL;
}

static mr_status create_tier(mr_engine *engine, const mr_engine_options *options, mr_error *err)
{
    if (options->host_memory == 0) {
        return MR_OK;
    }
    const mr_host_tier_options tier = {
        .memory_bytes = options->host_memory,
        .block_bytes = options->block_bytes,
        .block_size = options->block_size,
        .immediate = !options->asynchronous,
        .timeout_ns = TRANSFER_TIMEOUT_NS,
        .clock = options->clock,
    };
    return mr_host_tier_create(&tier, engine->exec, engine->pool, &engine->host_tier, err);
}

static mr_status create_cache(mr_engine *engine, const mr_engine_options *options, mr_error *err)
{
    if (!options->prefix_caching) {
        return MR_OK;
    }
    mr_status status = mr_block_pool_enable_cache(engine->pool);
    if (status == MR_OK && options->prefix_events > 0) {
        status = mr_prefix_index_observe(mr_block_pool_index(engine->pool), options->prefix_events);
    }
    return status == MR_OK ? MR_OK
                           : mr_fail(err, status, "no prefix index of %u KV blocks can be made",
                                     options->n_blocks);
}

static mr_status create_parts(mr_engine *engine, const mr_engine_options *options, mr_error *err)
{
    const mr_status status =
        mr_block_pool_create(options->n_blocks, options->block_size, &engine->pool);
    if (status != MR_OK) {
        return mr_fail(err, status, "no pool of %u KV blocks of %u tokens can be made",
                       options->n_blocks, options->block_size);
    }
    MR_TRY(create_cache(engine, options, err));
    MR_TRY(create_tier(engine, options, err));
    mr_scheduler_options scheduler = options->scheduler;
    scheduler.host_tier = engine->host_tier;
    MR_TRY(mr_scheduler_create(&scheduler, engine->pool, &engine->scheduler, err));
    mr_batch_limits limits;
    mr_scheduler_batch_limits(&options->scheduler, options->block_size, &limits);
    for (int i = 0; i < 2; i++) {
        if (mr_batch_storage_create(&limits, &engine->storages[i]) != MR_OK) {
            return mr_fail(err, MR_RESOURCE_EXHAUSTED,
                           "no memory for batches of %u tokens; lower max_batch_tokens",
                           limits.max_tokens);
        }
    }
    return MR_OK;
}

static void destroy_parts(mr_engine *engine)
{
    mr_scheduler_destroy(engine->scheduler);
    mr_host_tier_destroy(engine->host_tier);
    mr_batch_storage_destroy(engine->storages[0]);
    mr_batch_storage_destroy(engine->storages[1]);
    mr_block_pool_destroy(engine->pool);
    mr_event_deinit(&engine->wake);
    pthread_mutex_destroy(&engine->mutex);
    free(engine);
}

static void init_shared(mr_engine *engine)
{
    MR_CHECK(pthread_mutex_init(&engine->mutex, NULL) == 0);
    mr_event_init(&engine->wake);
    mr_inbox_init(&engine->inbox);
}

mr_status mr_engine_create(const mr_engine_options *options, mr_exec *exec, mr_engine **out,
                           mr_error *err)
{
    mr_engine *engine = mr_calloc(1, sizeof(*engine));
    if (engine == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "no memory for the engine");
    }
    engine->clock = options->clock;
    engine->exec = exec;
    engine->asleep = true;
    engine->failed = options->failed;
    engine->takes_two = options->takes_two;
    init_shared(engine);
    const mr_status status = create_parts(engine, options, err);
    if (status != MR_OK) {
        destroy_parts(engine);
        return status;
    }
    mr_scheduler_stats_get(engine->scheduler, &engine->snapshot.scheduler);
    if (pthread_create(&engine->thread, NULL, engine_main, engine) != 0) {
        destroy_parts(engine);
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the engine thread could not be started");
    }
    pthread_setname_np(engine->thread, "mr-engine");
    *out = engine;
    return MR_OK;
}

void mr_engine_destroy(mr_engine *engine)
{
    if (engine == NULL) {
        return;
    }
    pthread_mutex_lock(&engine->mutex);
    engine->quits = true;
    pthread_mutex_unlock(&engine->mutex);
    mr_event_set(&engine->wake);
    pthread_join(engine->thread, NULL);
    destroy_parts(engine);
}

mr_status mr_engine_submit(mr_engine *engine, mr_request *request, mr_error *err)
{
    const uint64_t now_ns = mr_clock_now(&engine->clock);
    pthread_mutex_lock(&engine->mutex);
    const bool failed = engine->snapshot.failed;
    const bool refused = failed || engine->quits;
    if (!refused) {
        if (engine->submitted == engine->snapshot_taken) {
            engine->untaken_ns = now_ns;
        }
        engine->submitted++;
    }
    pthread_mutex_unlock(&engine->mutex);
    if (refused) {
        return mr_fail(err, MR_UNAVAILABLE,
                       failed ? "the device of this server failed; use another replica"
                              : "the server is stopping; use another replica");
    }
    mr_request_ref(request);
    mr_inbox_put(&engine->inbox, &request->to_engine);
    mr_event_set(&engine->wake);
    return MR_OK;
}

void mr_engine_cancel(mr_engine *engine, mr_request *request)
{
    mr_flag_set(&request->cancelled);
    mr_event_set(&engine->wake);
}

uint32_t mr_engine_reset_prefix_cache(mr_engine *engine, uint32_t generation)
{
    pthread_mutex_lock(&engine->mutex);
    engine->reset_asked = true;
    engine->generation = generation > engine->generation ? generation : engine->generation;
    const uint32_t known = engine->snapshot.scheduler.prefix_blocks;
    engine->snapshot.scheduler.prefix_blocks = 0;
    pthread_mutex_unlock(&engine->mutex);
    mr_event_set(&engine->wake);
    return known;
}

mr_ring *mr_engine_prefix_events(mr_engine *engine)
{
    mr_prefix_index *index = mr_block_pool_index(engine->pool);
    return index == NULL ? NULL : mr_prefix_index_events(index);
}

/* Under the mutex. */
static bool is_busy(const mr_engine *engine)
{
    return engine->submitted != engine->snapshot_taken || engine->snapshot.busy;
}

/* Under the mutex. MR_NEVER: nothing is pending. */
static uint64_t pending_since(const mr_engine *engine)
{
    if (!engine->asleep) {
        return engine->turn_ns;
    }
    return engine->submitted != engine->snapshot_taken ? engine->untaken_ns : MR_NEVER;
}

void mr_engine_stats_get(mr_engine *engine, mr_engine_stats *out)
{
    pthread_mutex_lock(&engine->mutex);
    *out = engine->snapshot;
    out->busy = is_busy(engine);
    const uint64_t pending_ns = pending_since(engine);
    const uint64_t arriving = engine->submitted - engine->snapshot_taken;
    pthread_mutex_unlock(&engine->mutex);
    out->scheduler.started += arriving;
    out->scheduler.waiting += (uint32_t)arriving;
    const uint64_t now_ns = mr_clock_now(&engine->clock);
    out->pending_ns = now_ns > pending_ns ? now_ns - pending_ns : 0;
    if (out->step_started_ns != 0 && now_ns > out->step_started_ns) {
        out->step_ns += now_ns - out->step_started_ns;
    }
}
