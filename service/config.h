/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configuration. One table (service/config_keys.def) drives names, types, defaults, bounds, --set,
 * environment and files. Later sources win: defaults, file, environment, --set. A list is given as
 * a whole: as YAML in a file, in its flow form or as JSON elsewhere.
 *
 * Key "redis.url" is MILLRACE_REDIS_URL in the environment. Other variables of that prefix are left
 * alone (tools and Kubernetes set some), unless they are a key's name but for a slip.
 */
#ifndef MILLRACE_SERVICE_CONFIG_H
#define MILLRACE_SERVICE_CONFIG_H

#include "base/buffer.h"
#include "base/status.h"
#include "service/callers.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mr_config {
    char profile[16];            /* latency | throughput: sets batch_timeout_ms, prefill_interval */
    char served_model_name[128]; /* "": what the model calls itself */
    char load_format[16];        /* auto | random */
    uint64_t random_seed;        /* of load_format random */
    char backend[8];             /* auto | cpu | cuda */
    char compute[8];             /* auto | f32 | bf16 | f16 */
    char cpu_path[16];           /* auto | the name of a path, see cpu_backend.h */
    char batch_invariant[8];     /* auto | true | false */
    uint32_t threads;            /* 0: the CPUs this process may use */
    uint32_t max_batch_size;
    uint32_t max_seq_length; /* 0: the model's context length */
    uint32_t max_batch_tokens;
    uint32_t batch_timeout_ms; /* until finish, UINT32_MAX in these two: as the profile says */
    uint32_t prefill_interval;
    uint32_t max_queue_requests;
    uint32_t max_preemptions;
    uint32_t priority_ageing_ms;
    uint32_t max_overtakes;
    uint32_t overtake_timeout_ms;
    uint32_t slow_reader_timeout_ms;
    uint32_t stall_timeout_ms;
    uint32_t block_size;
    uint64_t kv_cache_memory;      /* bytes; 0: sized from the batch and the memory there is */
    uint64_t kv_host_memory;       /* bytes of the host tier; 0: none */
    double gpu_memory_utilization; /* share */
    char kv_cache_dtype[8];        /* auto | f32 | f16 | bf16 | int8 | fp8 */
    bool enable_prefix_caching;
    char cache_scope[8];         /* tenant | shared */
    char cache_salt_secret[256]; /* "": a random one at every start */
    char log_level[8];           /* debug | info | warn | error */
    char log_format[8];          /* logfmt | json */
    char tls_certificate[512];   /* path; "": plaintext, as of the key */
    char tls_private_key[512];   /* path */
    char tls_client_ca[512];     /* path */
    char tls_client_auth[16];    /* none | optional | require */
    uint32_t tls_reload_interval_ms;
    bool admin_enable;
    mr_admins admins;
    bool reflection_enable;
    uint64_t max_message_bytes; /* 0: by max_seq_length */
    uint32_t limits_connections;
    uint32_t limits_connection_calls;
    uint32_t limits_calls;
    uint32_t limits_header_bytes;
    uint32_t limits_handshake_timeout_ms;
    uint32_t limits_request_timeout_ms;
    uint32_t limits_penalty_ms;
    uint32_t keepalive_time_ms;
    uint32_t keepalive_timeout_ms;
    uint32_t keepalive_min_ping_interval_ms;
    bool keepalive_permit_without_calls;
    uint32_t drain_pre_stop_ms;
    uint32_t drain_timeout_ms;
    bool metrics_vllm_names;
    char redis_url[512];       /* "": no Redis; may hold a password */
    char redis_on_failure[8];  /* open | closed | local */
    char redis_replica_id[64]; /* "": HOSTNAME:PORT */
    uint32_t redis_timeout_ms;
    mr_tenants tenants;
    uint64_t given; /* keys that some source has set, a bit each; see mr_config_given */
} mr_config;

/* Defaults, then MILLRACE_… from the environment. */
MR_MUST_USE mr_status mr_config_init(mr_config *config, mr_error *err);
/* YAML file, then the environment again, which wins over files. INVALID_ARGUMENT names file, line,
 * key, value and the bounds or the nearest known key; FAILED_PRECONDITION names a key of the design
 * that this build lacks. */
MR_MUST_USE mr_status mr_config_load_file(mr_config *config, const char *path, mr_error *err);
/* "KEY=VALUE", as given to --set. */
MR_MUST_USE mr_status mr_config_set(mr_config *config, const char *assignment, mr_error *err);
/* Whether a server with these settings knows who calls as they say: INVALID_ARGUMENT for half of a
 * TLS configuration, credentials that nobody asks for, administrators without credentials. Changes
 * nothing; to be asked before anything listens, and part of mr_config_finish. */
MR_MUST_USE mr_status mr_config_check_callers(const mr_config *config, mr_error *err);
/* Checks across keys and applies the profile; after all sources. */
MR_MUST_USE mr_status mr_config_finish(mr_config *config, mr_error *err);
/* Appends "key=value" of every key, separated by spaces: the effective configuration. A secret
 * reads ***. */
MR_MUST_USE mr_status mr_config_format(const mr_config *config, mr_buffer *out);
/* True when a file, the environment or --set has given the key, and not asked for "auto". */
bool mr_config_given(const mr_config *config, const char *name);
/* One line a key: name, default, bounds, meaning; for --help. */
void mr_config_describe(void (*line)(void *ctx, const char *text), void *ctx);
/* Appends the reference of all keys, docs/configuration.md. */
MR_MUST_USE mr_status mr_config_markdown(mr_buffer *out);
/* Appends the JSON Schema (draft 7) of configuration files, keys with dots nested. */
MR_MUST_USE mr_status mr_config_schema(mr_buffer *out);
/* Appends the settings as a configuration file that sets the same; keys that were not given are
 * comments, and so are secrets, which are not shown. Before mr_config_finish. */
MR_MUST_USE mr_status mr_config_yaml(const mr_config *config, mr_buffer *out);

#endif
