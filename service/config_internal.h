/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the configuration share: config.c (the table), config_value.c (values),
 * config_list.c (lists), config_file.c (YAML), config_docs.c. */
#ifndef MILLRACE_SERVICE_CONFIG_INTERNAL_H
#define MILLRACE_SERVICE_CONFIG_INTERNAL_H

#include "service/config.h"

#define MR_CONFIG_MAX_KEYS 64

/* Sets one key from text; errors as mr_config_load_file gives them, without their place. */
MR_MUST_USE mr_status mr_config_set_key(mr_config *config, const char *name, const char *value,
                                        mr_error *err);
/* Below MR_CONFIG_MAX_KEYS; -1: no key of this build. */
int mr_config_key_index(const char *name);
/* Whether names below `name` are keys of this build, or known and refused. */
bool mr_config_has_below(const char *name);
MR_MUST_USE mr_status mr_config_apply_environment(mr_config *config, mr_error *err);

/* What there is to say about a key. */
typedef struct mr_config_about {
    const char *name;
    const char *type; /* text | choice | number | decimal | size | fixed | list */
    const char *meaning;
    char initial[128]; /* the default */
    char bounds[128];
    char variable[128]; /* in the environment; "": none of its own */
} mr_config_about;

/* False when there is no key of this index. */
bool mr_config_key_about(size_t index, mr_config_about *out);
/* Appends the key's value as text: "auto" where it is automatic and not given, *** for what must
 * not be shown. Not of lists. */
MR_MUST_USE mr_status mr_config_value(const mr_config *config, size_t index, mr_buffer *out);
/* Whether that text leaves out a secret, so that it does not set the same. */
bool mr_config_hides(const mr_config *config, size_t index);

#endif
