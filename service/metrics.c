/* SPDX-License-Identifier: Apache-2.0 */
#include "service/metrics.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#define LABELS_BYTES 768
#define NAME_BYTES   512

/* The bounds that vLLM's dashboards expect. */
static const double first_token_bounds[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                            0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                            20,    40,    80,   160,  640,  2560};
static const double token_bounds[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                      0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
static const double phase_bounds[] = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                      30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};
static const double count_bounds[] = {1,     2,      5,      10,     20,     50,    100,
                                      200,   500,    1000,   2000,   5000,   10000, 20000,
                                      50000, 100000, 200000, 500000, 1000000};
static const double choice_bounds[] = {1, 2, 5, 10, 20};
static const double preemption_bounds[] = {0, 1, 2, 5, 10, 20, 50, 100};

#define BOUNDS(array) array, sizeof(array) / sizeof((array)[0])

static const struct {
    const double *bounds;
    uint32_t n_bounds;
} measure_bounds[MR_MEASURES] = {
    [MR_MEASURE_FIRST_TOKEN] = {BOUNDS(first_token_bounds)},
    [MR_MEASURE_INTER_TOKEN] = {BOUNDS(token_bounds)},
    [MR_MEASURE_PER_TOKEN] = {BOUNDS(token_bounds)},
    [MR_MEASURE_REQUEST] = {BOUNDS(phase_bounds)},
    [MR_MEASURE_QUEUE] = {BOUNDS(phase_bounds)},
    [MR_MEASURE_INFERENCE] = {BOUNDS(phase_bounds)},
    [MR_MEASURE_PREFILL] = {BOUNDS(phase_bounds)},
    [MR_MEASURE_DECODE] = {BOUNDS(phase_bounds)},
    [MR_MEASURE_PROMPT_TOKENS] = {BOUNDS(count_bounds)},
    [MR_MEASURE_GENERATED_TOKENS] = {BOUNDS(count_bounds)},
    [MR_MEASURE_PREFILL_TOKENS] = {BOUNDS(count_bounds)},
    [MR_MEASURE_CHOICES] = {BOUNDS(choice_bounds)},
    [MR_MEASURE_MAX_TOKENS] = {BOUNDS(count_bounds)},
    [MR_MEASURE_LONGEST_CHOICE] = {BOUNDS(count_bounds)},
    [MR_MEASURE_PREEMPTIONS] = {BOUNDS(preemption_bounds)},
};

void mr_metrics_init(mr_metrics *metrics)
{
    for (uint32_t i = 0; i < MR_MEASURES; i++) {
        mr_histogram_init(&metrics->measures[i], measure_bounds[i].bounds,
                          measure_bounds[i].n_bounds);
    }
    for (uint32_t i = 0; i <= MR_UNAUTHENTICATED; i++) {
        mr_counter_set(&metrics->refused[i], 0);
    }
}

static double seconds(uint64_t ns)
{
    return (double)ns / (double)MR_NS_PER_S;
}

static double elapsed(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? seconds(to_ns - from_ns) : 0.0;
}

static void observe(mr_metrics *metrics, mr_measure measure, double value)
{
    mr_histogram_observe(&metrics->measures[measure], value, 1);
}

void mr_metrics_tokens(mr_metrics *metrics, mr_token_meter *meter, const mr_request *request,
                       uint32_t tokens, uint64_t now_ns)
{
    if (tokens == 0) {
        return;
    }
    if (meter->last_ns == 0) {
        observe(metrics, MR_MEASURE_FIRST_TOKEN, elapsed(request->arrived_ns, now_ns));
        /* Choices begin together; what else came with them waited for nothing. */
        const uint32_t more = tokens > request->params.n ? tokens - request->params.n : 0;
        mr_histogram_observe(&metrics->measures[MR_MEASURE_INTER_TOKEN], 0.0, more);
    } else {
        /* Tokens that come together share the time; so do choices, which advance side by side. */
        const double each = elapsed(meter->last_ns, now_ns) * request->params.n / tokens;
        mr_histogram_observe(&metrics->measures[MR_MEASURE_INTER_TOKEN], each, tokens);
    }
    meter->last_ns = now_ns;
}

void mr_metrics_ended(mr_metrics *metrics, const mr_request *request)
{
    const mr_request_usage *usage = &request->usage;
    if (request->error.status != MR_OK || usage->first_token_ns == 0) {
        return;
    }
    const double decode = elapsed(usage->first_token_ns, usage->finished_ns);
    const uint32_t choices = request->params.n;
    observe(metrics, MR_MEASURE_REQUEST, elapsed(usage->arrived_ns, usage->finished_ns));
    observe(metrics, MR_MEASURE_QUEUE, elapsed(usage->arrived_ns, usage->scheduled_ns));
    observe(metrics, MR_MEASURE_INFERENCE, elapsed(usage->scheduled_ns, usage->finished_ns));
    observe(metrics, MR_MEASURE_PREFILL, elapsed(usage->scheduled_ns, usage->first_token_ns));
    observe(metrics, MR_MEASURE_DECODE, decode);
    if (usage->completion_tokens > choices) {
        const uint32_t after_first = usage->completion_tokens - choices;
        observe(metrics, MR_MEASURE_PER_TOKEN, decode * choices / after_first);
    }
    observe(metrics, MR_MEASURE_PROMPT_TOKENS, usage->prompt_tokens);
    observe(metrics, MR_MEASURE_GENERATED_TOKENS, usage->completion_tokens);
    observe(metrics, MR_MEASURE_PREFILL_TOKENS, usage->prompt_tokens - usage->cached_tokens);
    observe(metrics, MR_MEASURE_CHOICES, choices);
    observe(metrics, MR_MEASURE_MAX_TOKENS, request->params.max_tokens);
    observe(metrics, MR_MEASURE_LONGEST_CHOICE, usage->longest_choice);
    observe(metrics, MR_MEASURE_PREEMPTIONS, usage->preemptions);
}

void mr_metrics_refused(mr_metrics *metrics, mr_status status)
{
    mr_counter_add(&metrics->refused[status], 1);
}

void mr_metrics_drained(mr_metrics *metrics, bool cut_off)
{
    mr_counter_add(cut_off ? &metrics->drained_cut_off : &metrics->drained_finished, 1);
}

/* What the table's expressions are made of. */

static double refused(const mr_metrics *metrics, mr_status status)
{
    return (double)mr_counter_get(&metrics->refused[status]);
}

static double refused_otherwise(const mr_metrics *metrics)
{
    static const mr_status others[] = {
        MR_CANCELLED, MR_UNKNOWN,      MR_DEADLINE_EXCEEDED, MR_FAILED_PRECONDITION,
        MR_ABORTED,   MR_OUT_OF_RANGE, MR_INTERNAL,          MR_DATA_LOSS};
    double sum = 0.0;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        sum += refused(metrics, others[i]);
    }
    return sum;
}

static double kv_bytes(const mr_metrics_view *view, uint32_t blocks)
{
    /* The pool has one block more than it gives away. */
    const double all = (double)view->engine.scheduler.blocks.total + 1.0;
    return (double)view->memory.kv_bytes / all * blocks;
}

static double kv_bytes_per_token(const mr_metrics_view *view)
{
    return view->block_size == 0 ? 0.0 : kv_bytes(view, 1) / view->block_size;
}

static double kv_usage(const mr_scheduler_stats *stats)
{
    return stats->blocks.total == 0 ? 0.0 : (double)stats->blocks.live / stats->blocks.total;
}

/* Of a moment on the engine's clock; 0: it never came. */
static double since(const mr_metrics_view *view, uint64_t ns)
{
    return ns == 0 ? 0.0 : elapsed(ns, view->now_ns);
}

static double process_cpu_seconds(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) {
        return 0.0;
    }
    return (double)usage.ru_utime.tv_sec + (double)usage.ru_stime.tv_sec +
           ((double)usage.ru_utime.tv_usec + (double)usage.ru_stime.tv_usec) / 1e6;
}

static double process_resident_bytes(void)
{
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL) {
        return 0.0;
    }
    unsigned long pages = 0;
    const int found = fscanf(file, "%*u %lu", &pages);
    fclose(file);
    return found == 1 ? (double)pages * (double)sysconf(_SC_PAGESIZE) : 0.0;
}

/* The text. */

typedef enum family_set {
    NATIVE,
    VLLM,
} family_set;

typedef struct renderer {
    const mr_metrics_view *view;
    mr_buffer *out;
    char model_name[NAME_BYTES]; /* as a label's value */
    char base[NAME_BYTES + 64];  /* labels of every sample of the family */
    const char *family;
    bool skips; /* the family is switched off */
} renderer;

/* A label's value: quotes, backslashes and newlines escaped, all beyond ASCII replaced. */
static void escape(const char *text, char *out, size_t bytes)
{
    size_t used = 0;
    for (; *text != '\0' && used + 3 < bytes; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') {
            out[used++] = '\\';
        }
        const unsigned char shown = c >= 0x20 && c < 0x7f ? c : '?';
        out[used++] = (char)shown;
    }
    out[used] = '\0';
}

static mr_status begin_family(renderer *r, family_set set, const char *type, const char *name,
                              const char *help)
{
    r->skips = set == VLLM && !r->view->vllm_names;
    r->family = name;
    r->base[0] = '\0';
    if (r->skips) {
        return MR_OK;
    }
    if (set == VLLM) {
        snprintf(r->base, sizeof(r->base), "model_name=\"%s\",engine=\"0\"", r->model_name);
    }
    return mr_buffer_printf(r->out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Whole numbers as such: exact up to 2^53. */
static mr_status append_number(mr_buffer *out, double value)
{
    const bool whole = value == floor(value) && fabs(value) < 9007199254740992.0;
    return mr_buffer_printf(out, whole ? "%.0f" : "%.12g", value);
}

static mr_status append_labels(const renderer *r, const char *labels)
{
    const bool both = r->base[0] != '\0' && labels[0] != '\0';
    if (r->base[0] == '\0' && labels[0] == '\0') {
        return mr_buffer_append(r->out, " ", 1);
    }
    return mr_buffer_printf(r->out, "{%s%s%s} ", r->base, both ? "," : "", labels);
}

static mr_status append_sample(const renderer *r, const char *suffix, const char *labels,
                               double value)
{
    if (r->skips) {
        return MR_OK;
    }
    MR_TRY(mr_buffer_printf(r->out, "%s%s", r->family, suffix));
    MR_TRY(append_labels(r, labels));
    MR_TRY(append_number(r->out, value));
    return mr_buffer_append(r->out, "\n", 1);
}

static mr_status append_labelled(const renderer *r, double value, const char *format, ...)
    MR_PRINTF(3, 4);

static mr_status append_labelled(const renderer *r, double value, const char *format, ...)
{
    char labels[LABELS_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(labels, sizeof(labels), format, args);
    va_end(args);
    return append_sample(r, "", labels, value);
}

static mr_status append_bucket(const renderer *r, double bound, uint64_t count)
{
    char labels[64];
    snprintf(labels, sizeof(labels), bound >= 1e6 ? "le=\"%.0f\"" : "le=\"%g\"", bound);
    return append_sample(r, "_bucket", labels, (double)count);
}

/* What comes after the buckets; `count` is that of the last one, so that they always agree. */
static mr_status end_histogram(const renderer *r, uint64_t count, double sum)
{
    MR_TRY(append_sample(r, "_bucket", "le=\"+Inf\"", (double)count));
    MR_TRY(append_sample(r, "_sum", "", sum));
    return append_sample(r, "_count", "", (double)count);
}

/* Token counts have no bounds beyond the longest sequence. */
static bool is_needless(const renderer *r, const mr_histogram *histogram, uint32_t index)
{
    const uint32_t longest = r->view->max_seq_length;
    return histogram->bounds == count_bounds && longest != 0 && histogram->bounds[index] > longest;
}

static mr_status append_histogram(const renderer *r, const mr_histogram *histogram)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < histogram->n_bounds; i++) {
        count += mr_counter_get(&histogram->counts[i]);
        if (!is_needless(r, histogram, i)) {
            MR_TRY(append_bucket(r, histogram->bounds[i], count));
        }
    }
    count += mr_counter_get(&histogram->counts[histogram->n_bounds]);
    return end_histogram(r, count, mr_histogram_sum(histogram));
}

static mr_status append_steps(const renderer *r, const mr_scheduler_stats *stats)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < MR_STEP_SIZES; i++) {
        count += stats->step_sizes[i];
        MR_TRY(append_bucket(r, mr_step_size_bounds[i], count));
    }
    count += stats->step_sizes[MR_STEP_SIZES];
    return end_histogram(r, count, (double)stats->step_tokens);
}

mr_status mr_metrics_format(const mr_metrics *metrics, const mr_metrics_view *view, mr_buffer *out)
{
    renderer state = {.view = view, .out = out};
    escape(view->model_name, state.model_name, sizeof(state.model_name));
    renderer *r = &state;
    const mr_metrics *m = metrics;
    const mr_metrics_view *v = view;
    const mr_scheduler_stats *s = &view->engine.scheduler;
#define MR_FAMILY(set, type, name, help) MR_TRY(begin_family(r, set, type, name, help));
#define MR_SAMPLE(labels, value)         MR_TRY(append_sample(r, "", labels, (double)(value)));
#define MR_LABELLED(value, ...)          MR_TRY(append_labelled(r, value, __VA_ARGS__));
#define MR_HISTOGRAM(measure)            MR_TRY(append_histogram(r, &m->measures[measure]));
#define MR_STEP_HISTOGRAM()              MR_TRY(append_steps(r, s));
#include "service/metrics.def"
#undef MR_FAMILY
#undef MR_SAMPLE
#undef MR_LABELLED
#undef MR_HISTOGRAM
#undef MR_STEP_HISTOGRAM
    return MR_OK;
}
