/* SPDX-License-Identifier: Apache-2.0 */
/* Keys whose value is a list of mappings. A list replaces what an earlier source gave. */
#ifndef MILLRACE_SERVICE_CONFIG_LIST_H
#define MILLRACE_SERVICE_CONFIG_LIST_H

#include "service/config_internal.h"

#include <yaml.h>

/* `text` is the list in YAML's flow form, of which JSON is a part. Errors name entry and field. */
MR_MUST_USE mr_status mr_config_list_parse(mr_config *config, const char *key, const char *text,
                                           mr_error *err);
/* `node` is the list in the document. */
MR_MUST_USE mr_status mr_config_list_read(mr_config *config, const char *key,
                                          yaml_document_t *document, const yaml_node_t *node,
                                          mr_error *err);
/* Whether the key is of this kind. */
bool mr_config_list_known(const char *key);
/* Entries that the list has. */
uint32_t mr_config_list_count(const mr_config *config, const char *key);
/* Field `index` of the list's entries; false when there is none. */
bool mr_config_list_about(const char *key, size_t index, mr_config_about *out);
/* The same as a row of the table, which lives as long as the program; NULL when there is none. */
const struct mr_config_key *mr_config_list_field(const char *key, size_t index);
/* Entries that the list may have. */
size_t mr_config_list_most(const char *key);
/* Appends the list as YAML that sets it again, after "key:". */
MR_MUST_USE mr_status mr_config_list_yaml(const mr_config *config, const char *key, mr_buffer *out);

#endif
