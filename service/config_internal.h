/* SPDX-License-Identifier: Apache-2.0 */
/* What config.c (the table) and config_file.c (YAML) share. */
#ifndef MILLRACE_SERVICE_CONFIG_INTERNAL_H
#define MILLRACE_SERVICE_CONFIG_INTERNAL_H

#include "service/config.h"

#define MR_CONFIG_MAX_KEYS 64

/* Sets one key from text; errors as mr_config_load_file gives them, without their place. */
MR_MUST_USE mr_status mr_config_set_key(mr_config *config, const char *name, const char *value,
                                        mr_error *err);
/* Below MR_CONFIG_MAX_KEYS; -1: no key of this build. */
int mr_config_key_index(const char *name);
MR_MUST_USE mr_status mr_config_apply_environment(mr_config *config, mr_error *err);

/* The name of a key in the environment. */
void mr_config_variable(const char *key, char *out, size_t bytes);

#endif
