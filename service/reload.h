/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a serving process takes up anew without a restart: tenants with their credentials and
 * limits, administrators, certificates, and what is logged. All of it is for the calls that come.
 */
#ifndef MILLRACE_SERVICE_RELOAD_H
#define MILLRACE_SERVICE_RELOAD_H

#include "service/cli.h"
#include "service/config.h"
#include "service/server.h"

#include <stdbool.h>

/* Reads the settings again from where the command line has them, and puts them into effect. What is
 * wrong with them, or needs a restart since it differs from `before` (the settings that the process
 * started with, not finished), is for the log; settings that are wrong change nothing but the
 * certificates. The thread that looks at signals. */
void mr_reload(mr_server *server, const mr_cli_model *model, const mr_config *before);

/* Whether a reload takes up all that differs between two configurations, neither of them finished.
 * True, too, when memory is short. */
bool mr_reload_suffices(const mr_config *now, const mr_config *before);

#endif
