/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The signals of a serving process. The first SIGTERM or SIGINT drains the server, the second ends
 * what still runs, the third the process; SIGHUP reloads settings (reload.h) until the first. A
 * thread waits for them and acts.
 *
 *   init ─► start ─► loaded ─► left
 *
 * While the model loads, which cannot be interrupted, the first signal ends the process: calls get
 * their status before. Signals that come within a quarter of a second after the first say nothing
 * new.
 *
 * One a process, and it lasts as long as that. All functions are the main thread's.
 */
#ifndef MILLRACE_SERVICE_SIGNAL_WATCH_H
#define MILLRACE_SERVICE_SIGNAL_WATCH_H

#include "base/status.h"
#include "service/cli.h"
#include "service/config.h"
#include "service/server.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>

typedef struct mr_signal_watch {
    sigset_t signals;
    const mr_cli_model *model; /* where settings come from */
    mr_config config;          /* what they were at the start */

    pthread_mutex_t mutex; /* held while the process ends before the model is loaded */
    mr_server *server;     /* under the mutex; NULL once it has left */
    bool loaded;           /* under the mutex */
    int forced_by;         /* under the mutex: the second signal; 0: none came */
} mr_signal_watch;

/* Blocks the signals of a zeroed watch, before there is any other thread: none is lost. */
void mr_signal_watch_init(mr_signal_watch *watch);
/* Starts the thread, for a server that was started. `model` says where the settings come from,
 * which at the start were `config` (not finished; copied); borrows watch, server and model as long
 * as the process lives. RESOURCE_EXHAUSTED when the system gives no thread. */
MR_MUST_USE mr_status mr_signal_watch_start(mr_signal_watch *watch, mr_server *server,
                                            const mr_cli_model *model, const mr_config *config,
                                            mr_error *err);
/* The model is there, or will not be: from now on the server's own thread ends it. Does not return
 * if the process is ending already. */
void mr_signal_watch_loaded(mr_signal_watch *watch);
/* The server has left: it is not touched any more. Gives the exit status of the process: `status`,
 * or as a shell has it of a signal when a second one came. */
int mr_signal_watch_left(mr_signal_watch *watch, int status);

#endif
