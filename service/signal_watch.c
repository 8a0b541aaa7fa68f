/* SPDX-License-Identifier: Apache-2.0 */
#include "service/signal_watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "service/reload.h"

#include <time.h>
#include <unistd.h>

/* As a shell gives it for a process that a signal ended. */
#define EXIT_BY_SIGNAL 128
/* Signals that come so soon after the first say nothing new; below a second. */
#define SAME_ASK_NS (MR_NS_PER_S / 4)

void mr_signal_watch_init(mr_signal_watch *watch)
{
    sigset_t *set = &watch->signals;
    sigemptyset(set);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, set, NULL);
    signal(SIGPIPE, SIG_IGN);
}

/* Loading cannot be interrupted, and nothing depends on its end: calls get their status, then the
 * process goes. */
static void leave_if_loading(mr_signal_watch *watch)
{
    pthread_mutex_lock(&watch->mutex);
    if (!watch->loaded) {
        mr_server_leave(watch->server);
        const bool ended = mr_server_run(watch->server);
        mr_log_flush();
        _exit(ended ? MR_EXIT_OK : MR_EXIT_FAILED);
    }
    pthread_mutex_unlock(&watch->mutex);
}

static int wait_for_signal(const mr_signal_watch *watch)
{
    int number = 0;
    while (sigwait(&watch->signals, &number) != 0) {
    }
    return number;
}

/* Drops what comes for a while: supervisors signal a process, and then its group. */
static void pass_over_signals(const mr_signal_watch *watch)
{
    const mr_clock clock = mr_clock_monotonic();
    const uint64_t until_ns = mr_time_add(mr_clock_now(&clock), SAME_ASK_NS);
    for (uint64_t now_ns = mr_clock_now(&clock); now_ns < until_ns; now_ns = mr_clock_now(&clock)) {
        const struct timespec left = {.tv_nsec = (long)(until_ns - now_ns)};
        (void)sigtimedwait(&watch->signals, NULL, &left);
    }
}

/* A signal to end by. Once the server drains, nothing is reloaded any more. */
static int wait_for_end(mr_signal_watch *watch, bool reloads)
{
    int number = wait_for_signal(watch);
    while (number == SIGHUP) {
        pthread_mutex_lock(&watch->mutex);
        if (reloads && watch->server != NULL) {
            mr_reload(watch->server, watch->model, &watch->config);
        }
        pthread_mutex_unlock(&watch->mutex);
        number = wait_for_signal(watch);
    }
    return number;
}

/* False when the server has left already. */
static bool ask(mr_signal_watch *watch, void (*for_what)(mr_server *server))
{
    pthread_mutex_lock(&watch->mutex);
    const bool there = watch->server != NULL;
    if (there) {
        for_what(watch->server);
    }
    pthread_mutex_unlock(&watch->mutex);
    return there;
}

/* Without the server's leave. */
static _Noreturn void end_now(int number)
{
    mr_log_flush();
    _exit(EXIT_BY_SIGNAL + number);
}

static void log_signal(const char *message, int number)
{
    mr_log(MR_LOG_INFO, "serve", message, "signal=%s", number == SIGTERM ? "SIGTERM" : "SIGINT");
}

/* The first signal drains the server, the second ends what still runs, the third the process. */
static void *watch_signals(void *arg)
{
    mr_signal_watch *watch = arg;
    log_signal("shutting down", wait_for_end(watch, true));
    leave_if_loading(watch);
    ask(watch, mr_server_leave);
    pass_over_signals(watch);

    const int second = wait_for_end(watch, false);
    log_signal("forced to end at once", second);
    pthread_mutex_lock(&watch->mutex);
    watch->forced_by = second;
    pthread_mutex_unlock(&watch->mutex);
    end_now(ask(watch, mr_server_force) ? wait_for_end(watch, false) : second);
}

mr_status mr_signal_watch_start(mr_signal_watch *watch, mr_server *server,
                                const mr_cli_model *model, const mr_config *config, mr_error *err)
{
    watch->server = server;
    watch->model = model;
    watch->config = *config;
    pthread_mutex_init(&watch->mutex, NULL);
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch_signals, watch) != 0) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "the system gave no thread to wait for signals");
    }
    pthread_detach(thread);
    return MR_OK;
}

void mr_signal_watch_loaded(mr_signal_watch *watch)
{
    pthread_mutex_lock(&watch->mutex);
    watch->loaded = true;
    pthread_mutex_unlock(&watch->mutex);
}

int mr_signal_watch_left(mr_signal_watch *watch, int status)
{
    pthread_mutex_lock(&watch->mutex);
    watch->server = NULL;
    const int number = watch->forced_by;
    pthread_mutex_unlock(&watch->mutex);
    return number != 0 ? EXIT_BY_SIGNAL + number : status;
}
