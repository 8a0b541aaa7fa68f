/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is measured, and its text for Prometheus. One table (service/metrics.def) has every family;
 * all of them are in the text from the first scrape on, with zeros. Names and labels are a contract
 * that a test holds: nothing a client sends is ever a label.
 */
#ifndef MILLRACE_SERVICE_METRICS_H
#define MILLRACE_SERVICE_METRICS_H

#include "base/buffer.h"
#include "base/histogram.h"
#include "base/status.h"
#include "kernels/backend.h"
#include "scheduler/engine.h"
#include "service/sharing.h"
#include "service/tls.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum mr_measure {
    MR_MEASURE_FIRST_TOKEN, /* from arrival on, s */
    MR_MEASURE_INTER_TOKEN, /* s */
    MR_MEASURE_PER_TOKEN,   /* mean of a request, s */
    MR_MEASURE_REQUEST,     /* s, as those below */
    MR_MEASURE_QUEUE,
    MR_MEASURE_INFERENCE,
    MR_MEASURE_PREFILL,
    MR_MEASURE_DECODE,
    MR_MEASURE_PROMPT_TOKENS,
    MR_MEASURE_GENERATED_TOKENS,
    MR_MEASURE_PREFILL_TOKENS, /* of the prompt, those that were not cached */
    MR_MEASURE_CHOICES,
    MR_MEASURE_MAX_TOKENS,
    MR_MEASURE_LONGEST_CHOICE, /* tokens */
    MR_MEASURE_PREEMPTIONS,
    MR_MEASURES,
} mr_measure;

/* What the service measures itself; the engine counts the rest. Any thread. */
typedef struct mr_metrics {
    mr_histogram measures[MR_MEASURES];
    mr_counter refused[MR_UNAUTHENTICATED + 1]; /* by status, before the engine saw the request */
    mr_counter drains_by_signal;
    mr_counter drains_by_request;
    mr_counter drained_finished; /* requests that ended by themselves during a drain */
    mr_counter drained_cut_off;  /* and that it ended */
} mr_metrics;

void mr_metrics_init(mr_metrics *metrics);

/* One request's, on its thread. Zero-initialised is valid. */
typedef struct mr_token_meter {
    uint64_t last_ns; /* when the last tokens came; 0: none did */
} mr_token_meter;

/* `tokens` tokens of all choices together came at `now_ns`. */
void mr_metrics_tokens(mr_metrics *metrics, mr_token_meter *meter, const mr_request *request,
                       uint32_t tokens, uint64_t now_ns);
/* The engine is done with the request. Those that failed or were cancelled have no times and sizes.
 */
void mr_metrics_ended(mr_metrics *metrics, const mr_request *request);
void mr_metrics_refused(mr_metrics *metrics, mr_status status);
/* A request ended during a drain. */
void mr_metrics_drained(mr_metrics *metrics, bool cut_off);

/* One consistent look at the rest. */
typedef struct mr_metrics_view {
    bool vllm_names; /* the vllm: families too */
    bool serving;
    bool draining;
    bool stalled;
    const char *model_name; /* "" until the model is loaded, as the others */
    const char *backend;
    const char *kv_dtype;
    bool prefix_caching;
    uint32_t block_size;     /* tokens */
    uint32_t max_seq_length; /* 0: not known yet */
    mr_engine_stats engine;
    mr_exec_memory memory;
    mr_sharing_stats sharing;
    mr_tls_stats tls;  /* zeros: plaintext */
    uint64_t now_ns;   /* the engine's clock */
    double busy_ratio; /* share of the time since an earlier look that steps took */
    double unix_s;
} mr_metrics_view;

/* Appends the text, format 0.0.4. RESOURCE_EXHAUSTED when memory is short. */
MR_MUST_USE mr_status mr_metrics_format(const mr_metrics *metrics, const mr_metrics_view *view,
                                        mr_buffer *out);

#endif
