/* SPDX-License-Identifier: Apache-2.0 */
#include "base/event.h"
#include "base/flag.h"
#include "base/log.h"
#include "rig.h"
#include "scheduler/engine.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK_SIZE 4u
#define N_BLOCKS   40u
#define SUBMITTERS 4u
#define EACH       40u

/* A sink that a thread sleeps on. */
typedef struct waiter {
    mr_sink sink;
    mr_event event;
} waiter;

static void wake(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    (void)requests;
    (void)count;
    mr_event_set(&((waiter *)sink)->event);
}

typedef struct fixture {
    mr_scheduler_options options;
    scripted_exec exec;
    mr_engine *engine;
    bool prefix_caching;
    mr_clock clock;
    bool takes_two;
    mr_event *failed;
    waiter waiters[SUBMITTERS];
} fixture;

static void start(fixture *f)
{
    const mr_engine_options options = {
        .scheduler = f->options,
        .block_size = BLOCK_SIZE,
        .n_blocks = N_BLOCKS,
        .prefix_caching = f->prefix_caching,
        .prefix_events = f->prefix_caching ? 64 : 0,
        .takes_two = f->takes_two,
        .failed = f->failed,
        .clock = f->clock,
    };
    mr_error err = {0};
    assert_int_equal(mr_engine_create(&options, &f->exec.base, &f->engine, &err), MR_OK);
}

/* Until nothing waits or runs; the engine's last step may still be going on when its news is out.
 */
static void wait_idle(mr_engine *engine)
{
    mr_engine_stats stats;
    mr_engine_stats_get(engine, &stats);
    while (stats.busy) {
        sched_yield();
        mr_engine_stats_get(engine, &stats);
    }
}

static void open_fixture(fixture *f)
{
    *f = (fixture){.options = rig_options(), .clock = mr_clock_monotonic()};
    f->options.max_queue = SUBMITTERS * EACH;
    f->options.max_seq_length = 128;
    f->options.slow_reader_timeout_ns = MR_NEVER;
    scripted_exec_init(&f->exec, &f->options, BLOCK_SIZE, N_BLOCKS);
    for (size_t i = 0; i < SUBMITTERS; i++) {
        f->waiters[i].sink.publish = wake;
        mr_event_init(&f->waiters[i].event);
    }
}

static void close_fixture(fixture *f)
{
    mr_engine_destroy(f->engine);
    assert_string_equal(f->exec.violation, "");
    scripted_exec_deinit(&f->exec);
    for (size_t i = 0; i < SUBMITTERS; i++) {
        mr_event_deinit(&f->waiters[i].event);
    }
}

/* `ring_capacity` 2 makes a request that pauses after each token until it is read. */
static mr_request *make_request(waiter *w, uint32_t first, uint32_t n_prompt, uint32_t max_tokens,
                                uint32_t ring_capacity)
{
    uint32_t prompt[32];
    mr_request *request = NULL;
    for (uint32_t i = 0; i < n_prompt; i++) {
        prompt[i] = (first * 7 + i) % 900;
    }
    const mr_clock clock = mr_clock_monotonic();
    const mr_request_spec spec = {
        .id = "e",
        .prompt = prompt,
        .n_prompt = n_prompt,
        .params = rig_params(max_tokens),
        .arrived_ns = mr_clock_now(&clock),
        .deadline_ns = MR_NEVER,
        .sink = &w->sink,
        .ring_capacity = ring_capacity,
    };
    return mr_request_create(&spec, &request, NULL) == MR_OK ? request : NULL;
}

static mr_request *submit(fixture *f, uint32_t max_tokens, uint32_t ring_capacity)
{
    mr_request *request = make_request(&f->waiters[0], 1, 3, max_tokens, ring_capacity);
    assert_non_null(request);
    assert_int_equal(mr_engine_submit(f->engine, request, NULL), MR_OK);
    return request;
}

/* Reads until the last event; puts the tokens into out[max]. */
static mr_finish read_all(waiter *w, mr_request *request, uint32_t *out, uint32_t max, uint32_t *n)
{
    *n = 0;
    for (;;) {
        while (mr_ring_count(&request->events) > 0) {
            const rig_event event = rig_read(request);
            if (event.token != MR_NO_TOKEN && *n < max) {
                out[(*n)++] = event.token;
            }
            if (event.finish != MR_FINISH_NONE) {
                return event.finish;
            }
        }
        mr_event_wait(&w->event, MR_NEVER);
    }
}

static bool is_scripted(const fixture *f, mr_request *request, const uint32_t *tokens, uint32_t n)
{
    scripted_result expected;
    scripted_output(&f->options, request, 0, &expected);
    return n <= expected.n_tokens && memcmp(tokens, expected.tokens, n * sizeof(*tokens)) == 0;
}

static void expect_ends(fixture *f, mr_request *request, mr_finish finish, mr_status status)
{
    uint32_t tokens[128];
    uint32_t n;
    assert_int_equal(read_all(&f->waiters[0], request, tokens, 128, &n), finish);
    assert_int_equal(request->error.status, status);
    assert_int_equal(request->usage.completion_tokens, n);
    assert_true(is_scripted(f, request, tokens, n));
    mr_request_unref(request);
}

typedef struct submitter {
    fixture *f;
    uint32_t number;
    uint32_t good; /* requests that went as they should */
} submitter;

static bool serve_one(const submitter *s, uint32_t i)
{
    waiter *w = &s->f->waiters[s->number];
    const bool cancels = i % 5 == 4;
    mr_request *request =
        make_request(w, s->number * EACH + i, 1 + i % 20, cancels ? 100 : 1 + i, 0);
    uint32_t tokens[128];
    uint32_t n;
    if (request == NULL || mr_engine_submit(s->f->engine, request, NULL) != MR_OK) {
        return false;
    }
    if (cancels) {
        mr_engine_cancel(s->f->engine, request);
        mr_engine_cancel(s->f->engine, request);
    }
    const mr_finish finish = read_all(w, request, tokens, 128, &n);
    const bool ended = finish == MR_FINISH_LENGTH || (cancels && finish == MR_FINISH_CANCELLED);
    const bool good = ended && is_scripted(s->f, request, tokens, n);
    mr_engine_cancel(s->f->engine, request); /* harmless after the end */
    mr_request_unref(request);
    return good;
}

static void *submitter_main(void *arg)
{
    submitter *s = arg;
    for (uint32_t i = 0; i < EACH; i++) {
        s->good += serve_one(s, i);
    }
    return NULL;
}

static void serve_several_threads(bool takes_two)
{
    fixture f;
    pthread_t threads[SUBMITTERS];
    submitter submitters[SUBMITTERS];
    mr_engine_stats stats;
    open_fixture(&f);
    f.takes_two = takes_two;
    start(&f);
    for (uint32_t i = 0; i < SUBMITTERS; i++) {
        submitters[i] = (submitter){.f = &f, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, submitter_main, &submitters[i]), 0);
    }
    for (uint32_t i = 0; i < SUBMITTERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(submitters[i].good, EACH);
    }
    wait_idle(f.engine);
    mr_engine_stats_get(f.engine, &stats);
    assert_int_equal(stats.scheduler.started, SUBMITTERS * EACH);
    uint64_t finished = 0;
    uint64_t steps = 0;
    for (size_t i = 0; i <= MR_FINISH_ERROR; i++) {
        finished += stats.scheduler.finished[i];
    }
    for (size_t i = 0; i <= MR_STEP_SIZES; i++) {
        steps += stats.scheduler.step_sizes[i];
    }
    assert_true(finished == stats.scheduler.started && steps == stats.scheduler.steps);
    assert_true(stats.step_started_ns == 0 && stats.step_ns > 0);
    assert_int_equal(stats.scheduler.blocks.live, 0);
    assert_int_equal(stats.scheduler.running + stats.scheduler.waiting, 0);
    assert_false(stats.busy);
    assert_false(stats.failed);
    assert_true(stats.last_step_ns > 0);
    assert_true(takes_two == (f.exec.most_batches == 2));
    close_fixture(&f);
}

static void test_engine_serves_several_threads_C4(void **state)
{
    (void)state;
    serve_several_threads(false);
}

/* Where the device takes a step while the one before it runs. */
static void test_engine_keeps_two_steps_under_way_C4(void **state)
{
    (void)state;
    serve_several_threads(true);
}

static void test_engine_cancel_ends_a_running_request_C1(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    start(&f);
    mr_request *request = submit(&f, 100, 2);
    while (mr_ring_count(&request->events) == 0) {
        mr_event_wait(&f.waiters[0].event, MR_NEVER);
    }
    mr_engine_cancel(f.engine, request);
    expect_ends(&f, request, MR_FINISH_CANCELLED, MR_CANCELLED);
    request = submit(&f, 5, 0);
    expect_ends(&f, request, MR_FINISH_LENGTH, MR_OK);
    close_fixture(&f);
}

/* The engine makes the copies that the scheduler lists. */
static void test_engine_serves_choices_and_searches(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    f.exec.real_top = true;
    start(&f);
    for (uint32_t i = 0; i < 20; i++) {
        mr_request *request = NULL;
        const uint32_t prompt[] = {i, i + 1, i + 2, i + 3, i + 4};
        mr_request_spec spec = {
            .id = "n",
            .prompt = prompt,
            .n_prompt = 5,
            .params = rig_params(10),
            .deadline_ns = MR_NEVER,
            .sink = &f.waiters[0].sink,
        };
        spec.params.n = 3;
        spec.params.beam_width = i % 2 == 0 ? 1 : 4;
        assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
        assert_int_equal(mr_engine_submit(f.engine, request, NULL), MR_OK);
        uint32_t n_read = 0;
        for (bool last = false; !last;) {
            while (!last && mr_ring_count(&request->events) > 0) {
                last = rig_read(request).last;
                n_read++;
            }
            if (!last) {
                mr_event_wait(&f.waiters[0].event, MR_NEVER);
            }
        }
        assert_int_equal(n_read, 30);
        mr_request_unref(request);
    }
    wait_idle(f.engine);
    assert_true(f.exec.n_copies > 0);
    close_fixture(&f);
}

static void test_engine_sleeps_through_the_batch_window(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    f.options.batch_timeout_ns = 2 * MR_NS_PER_MS;
    start(&f);
    expect_ends(&f, submit(&f, 5, 0), MR_FINISH_LENGTH, MR_OK);
    close_fixture(&f);
}

static void test_engine_device_failure_is_final(void **state)
{
    (void)state;
    fixture f;
    mr_error err = {0};
    mr_engine_stats stats;
    open_fixture(&f);
    f.exec.fail_at_step = 4;
    mr_event failed;
    mr_event_init(&failed);
    f.failed = &failed;
    start(&f);
    mr_request *request = submit(&f, 50, 0);
    mr_request *late = make_request(&f.waiters[0], 2, 3, 5, 0);
    assert_non_null(late);
    expect_ends(&f, request, MR_FINISH_ERROR, MR_INTERNAL);
    assert_true(mr_event_wait(&failed, MR_NEVER));
    mr_engine_stats_get(f.engine, &stats);
    assert_true(stats.failed);
    wait_idle(f.engine);
    mr_engine_stats_get(f.engine, &stats);
    assert_int_equal(stats.scheduler.blocks.live, 0);
    assert_int_equal(mr_engine_submit(f.engine, late, &err), MR_UNAVAILABLE);
    assert_int_equal(mr_ring_count(&late->events), 0);
    mr_request_unref(late);
    close_fixture(&f);
    mr_event_deinit(&failed);
}

static void test_engine_destroy_cancels_what_runs(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    start(&f);
    mr_request *running = submit(&f, 100, 2);
    mr_request *other = submit(&f, 100, 2);
    mr_engine_destroy(f.engine);
    f.engine = NULL;
    expect_ends(&f, running, MR_FINISH_CANCELLED, MR_CANCELLED);
    expect_ends(&f, other, MR_FINISH_CANCELLED, MR_CANCELLED);
    close_fixture(&f);
}

static void test_engine_refuses_bad_options(void **state)
{
    (void)state;
    fixture f;
    mr_error err = {0};
    mr_engine *engine = NULL;
    open_fixture(&f);
    mr_engine_options options = {
        .scheduler = f.options,
        .block_size = BLOCK_SIZE,
        .n_blocks = 1,
        .clock = mr_clock_monotonic(),
    };
    assert_int_equal(mr_engine_create(&options, &f.exec.base, &engine, &err), MR_INVALID_ARGUMENT);
    options.n_blocks = N_BLOCKS;
    options.scheduler.max_batch_size = 0;
    assert_int_equal(mr_engine_create(&options, &f.exec.base, &engine, &err), MR_INVALID_ARGUMENT);
    assert_string_equal(err.field, "max_batch_size");
    assert_null(engine);
    close_fixture(&f);
}

/* Runs a request of 12 prompt tokens and gives the tokens that it found. */
static uint32_t run_cached(fixture *f, const mr_prefix_root *root)
{
    uint32_t prompt[12];
    for (uint32_t i = 0; i < 12; i++) {
        prompt[i] = 100 + i;
    }
    const mr_request_spec spec = {.id = "c",
                                  .prompt = prompt,
                                  .n_prompt = 12,
                                  .params = rig_params(6),
                                  .deadline_ns = MR_NEVER,
                                  .sink = &f->waiters[0].sink,
                                  .prefix = root};
    mr_request *request = NULL;
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    mr_request_ref(request);
    assert_int_equal(mr_engine_submit(f->engine, request, NULL), MR_OK);
    expect_ends(f, request, MR_FINISH_LENGTH, MR_OK);
    const uint32_t cached = request->usage.cached_tokens;
    mr_request_unref(request);
    mr_engine_stats stats = {.busy = true};
    while (stats.busy) {
        mr_engine_stats_get(f->engine, &stats);
    }
    return cached;
}

static void test_engine_reset_is_done_before_later_requests_X4(void **state)
{
    (void)state;
    fixture f;
    const uint32_t most = 11 / BLOCK_SIZE * BLOCK_SIZE;
    const mr_prefix_root first = {.hash = {{1}}, .block_size = BLOCK_SIZE};
    const mr_prefix_root second = {.hash = {{2}}, .block_size = BLOCK_SIZE, .generation = 1};
    open_fixture(&f);
    f.prefix_caching = true;
    start(&f);
    mr_ring *events = mr_engine_prefix_events(f.engine);
    assert_non_null(events);
    assert_int_equal(mr_engine_reset_prefix_cache(f.engine, 0), 0);
    for (uint32_t i = 0; i < 50; i++) {
        assert_int_equal(run_cached(&f, &first), 0);
        assert_int_equal(run_cached(&f, &first), most);
        /* Prompt and output without its last token fill these. */
        assert_int_equal(mr_engine_reset_prefix_cache(f.engine, 0), 17 / BLOCK_SIZE);
    }
    assert_int_equal(mr_ring_count(events), 0);
    (void)mr_engine_reset_prefix_cache(f.engine, 1);
    assert_int_equal(run_cached(&f, &first), 0);
    /* No way back: a late reset of the generation before is one of this generation. */
    (void)mr_engine_reset_prefix_cache(f.engine, 0);
    assert_int_equal(run_cached(&f, &first), 0);
    assert_int_equal(run_cached(&f, &second), 0);
    assert_int_equal(run_cached(&f, &second), most);
    assert_int_equal(mr_ring_count(events), 2 + 17 / BLOCK_SIZE);
    assert_int_equal(((const mr_prefix_event *)mr_ring_peek(events, 0))->kind, MR_PREFIX_RESET);
    assert_int_equal(((const mr_prefix_event *)mr_ring_peek(events, 2))->kind, MR_PREFIX_ADDED);
    mr_engine_stats stats;
    mr_engine_stats_get(f.engine, &stats);
    assert_int_equal(stats.scheduler.blocks.live, 0);
    assert_int_equal(stats.scheduler.blocks.cached, 17 / BLOCK_SIZE);
    close_fixture(&f);
}

/* A device that holds each step until it is let go, and a clock that the test moves. */
static struct {
    const mr_exec_vtable *real;
    mr_exec_vtable table;
    mr_event entered;
    mr_event let_go;
    mr_counter now_ns;
} stuck;

static mr_status stuck_submit(mr_exec *exec, const mr_batch *batch, mr_error *err)
{
    mr_event_set(&stuck.entered);
    mr_event_wait(&stuck.let_go, MR_NEVER);
    return stuck.real->submit(exec, batch, err);
}

static uint64_t stuck_now(void *ctx)
{
    return mr_counter_get(ctx);
}

static uint64_t pending_ns(const fixture *f)
{
    mr_engine_stats stats;
    mr_engine_stats_get(f->engine, &stats);
    return stats.pending_ns;
}

/* An idle engine is never late, however long it sleeps; one in a step is late by the step's time,
 * also with others waiting; each step that ends begins anew. */
static void test_engine_tells_how_long_a_step_is_pending_H1(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    stuck.real = f.exec.base.vt;
    stuck.table = *stuck.real;
    stuck.table.submit = stuck_submit;
    f.exec.base.vt = &stuck.table;
    mr_event_init(&stuck.entered);
    mr_event_init(&stuck.let_go);
    mr_counter_set(&stuck.now_ns, 5 * MR_NS_PER_S);
    f.clock = (mr_clock){.now_ns = stuck_now, .ctx = &stuck.now_ns};
    start(&f);
    mr_counter_add(&stuck.now_ns, 3600 * MR_NS_PER_S);
    assert_int_equal(pending_ns(&f), 0);

    mr_request *request = submit(&f, 2, 0);
    mr_event_wait(&stuck.entered, MR_NEVER);
    assert_int_equal(pending_ns(&f), 0);
    mr_counter_add(&stuck.now_ns, 7 * MR_NS_PER_S);
    mr_request *waiting = submit(&f, 1, 0);
    mr_counter_add(&stuck.now_ns, 2 * MR_NS_PER_S);
    assert_int_equal(pending_ns(&f), 9 * MR_NS_PER_S);
    mr_event_set(&stuck.let_go);
    mr_event_wait(&stuck.entered, MR_NEVER);
    assert_int_equal(pending_ns(&f), 0);
    mr_counter_add(&stuck.now_ns, MR_NS_PER_S);
    assert_int_equal(pending_ns(&f), MR_NS_PER_S);

    f.exec.base.vt = stuck.real;
    mr_event_set(&stuck.let_go);
    expect_ends(&f, request, MR_FINISH_LENGTH, MR_OK);
    expect_ends(&f, waiting, MR_FINISH_LENGTH, MR_OK);
    wait_idle(f.engine);
    mr_counter_add(&stuck.now_ns, 3600 * MR_NS_PER_S);
    assert_int_equal(pending_ns(&f), 0);
    close_fixture(&f);
    mr_event_deinit(&stuck.entered);
    mr_event_deinit(&stuck.let_go);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_serves_several_threads_C4),
        cmocka_unit_test(test_engine_keeps_two_steps_under_way_C4),
        cmocka_unit_test(test_engine_cancel_ends_a_running_request_C1),
        cmocka_unit_test(test_engine_serves_choices_and_searches),
        cmocka_unit_test(test_engine_sleeps_through_the_batch_window),
        cmocka_unit_test(test_engine_device_failure_is_final),
        cmocka_unit_test(test_engine_destroy_cancels_what_runs),
        cmocka_unit_test(test_engine_refuses_bad_options),
        cmocka_unit_test(test_engine_reset_is_done_before_later_requests_X4),
        cmocka_unit_test(test_engine_tells_how_long_a_step_is_pending_H1),
    };
    mr_log_set_level(MR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
