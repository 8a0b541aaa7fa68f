/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host does in a step besides the model: planning with its deltas, applying the results
 * and publishing. Under load: as many sequences as can run do, each as long as asked for, and for
 * each that ends another one waits. The device draws tokens at once and computes nothing; that, the
 * making of requests and the reading of events are not measured. With prefix caching the hashes of
 * generated blocks are, unless --hashing 0 puts numbers in their place.
 *
 * Of KV memory it tells what paging wastes: the part of the blocks that sequences hold which no
 * token of theirs will fill, as blocks are whole.
 *
 * Steps with prompts and steps of decodes alone are both steps; "cpu_without_prompts" has the
 * latter. Prompts come in so that one ends a step, about.
 */
#include "base/checked.h"
#include "base/clock.h"
#include "scheduler/internal.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VOCAB   32000u
#define US(ns)  ((double)(ns) / 1000.0)
#define PERCENT 100.0

typedef struct settings {
    uint32_t sequences, context, waiting, steps, batch_tokens, block_size, tenants;
    uint32_t output, prefix_caching, hashing;
} settings;

typedef struct bench {
    settings set;
    mr_sink sink; /* does nothing: events are read from the outside */
    mr_block_pool *pool;
    mr_scheduler *scheduler;
    mr_batch_storage *storage;
    mr_request **requests; /* [n_requests] */
    uint32_t n_requests;
    mr_prefix_root root;
    uint64_t random;
    uint32_t *prompt;                    /* [context] */
    uint32_t *tokens;                    /* [rows] what is drawn */
    uint8_t *zeros;                      /* [rows] */
    double *all_us, *cpu_us, *decode_us; /* [steps] */
    uint32_t n_all, n_decode;
    double waste, most_waste; /* sum over steps, and the largest */
} bench;

static uint32_t draw(bench *b, uint32_t below)
{
    b->random = b->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((b->random >> 33) % below);
}

/* ---- the scheduler's hashing, which the linker leads through here ---- */

void real_block_hash(mr_hasher *hasher, const mr_block_hash *parent, const uint32_t *tokens,
                     uint32_t n, mr_block_hash *out) __asm__("__real_mr_prefix_block_hash");
void block_hash(mr_hasher *hasher, const mr_block_hash *parent, const uint32_t *tokens, uint32_t n,
                mr_block_hash *out) __asm__("__wrap_mr_prefix_block_hash");

static bool hashing;

void block_hash(mr_hasher *hasher, const mr_block_hash *parent, const uint32_t *tokens, uint32_t n,
                mr_block_hash *out)
{
    if (hashing) {
        real_block_hash(hasher, parent, tokens, n, out);
        return;
    }
    /* Different from all others, and spread like a hash: by multiples of an odd number. */
    static uint64_t count;
    const uint64_t number = ++count * UINT64_C(0x9e3779b97f4a7c15);
    memset(out, 0, sizeof(*out));
    memcpy(out->bytes, &number, sizeof(number));
}

/* ---- load ---- */

static void publish(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    (void)sink;
    (void)requests;
    (void)count;
}

static uint64_t now(void)
{
    const mr_clock clock = mr_clock_monotonic();
    return mr_clock_now(&clock);
}

/* Of this thread, while it runs: what others take on a busy machine is not in it. */
static uint64_t thread_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * MR_NS_PER_S + (uint64_t)t.tv_nsec;
}

/* A request that will reach the context asked for and ends there; `spread` gives the first ones
 * different lives, so that they do not end together. */
static mr_request *make_request(bench *b, uint32_t number, bool spread)
{
    const uint32_t output = b->set.output / 2 + draw(b, b->set.output);
    const uint32_t left = spread ? 1 + draw(b, output) : output;
    const uint32_t n_prompt = b->set.context > output + 1 ? b->set.context - output : 1;
    char id[32];
    snprintf(id, sizeof(id), "r%" PRIu32, number);
    /* Different from the beginning on, so that no prompt is found in the cache. */
    b->prompt[0] = number % VOCAB;
    for (uint32_t i = 0; i < 8; i++) {
        b->prompt[i < n_prompt ? i : 0] = draw(b, VOCAB);
    }
    const mr_request_spec spec = {
        .id = id,
        .tenant = number % b->set.tenants,
        .weight = 1 + number % b->set.tenants,
        .prompt = b->prompt,
        .n_prompt = n_prompt,
        .params = {.temperature = 1,
                   .top_p = 1,
                   .repetition_penalty = 1,
                   .max_tokens = left,
                   .ignore_eos = true,
                   .priority = (int32_t)draw(b, 3)},
        .arrived_ns = now(),
        .deadline_ns = MR_NEVER,
        .sink = &b->sink,
        .prefix = b->set.prefix_caching != 0 ? &b->root : NULL,
    };
    mr_request *request = NULL;
    mr_error err = {0};
    if (mr_request_create(&spec, &request, &err) != MR_OK) {
        fprintf(stderr, "host_work: %s\n", err.message);
        exit(EXIT_FAILURE);
    }
    return request;
}

static void submit(bench *b, uint32_t index, bool spread)
{
    b->requests[index] = make_request(b, index, spread);
    mr_request_ref(b->requests[index]);
    mr_scheduler_add(b->scheduler, b->requests[index], now());
}

/* Reads everything, and replaces what has ended. */
static void read_events(bench *b)
{
    for (uint32_t i = 0; i < b->n_requests; i++) {
        mr_ring *events = &b->requests[i]->events;
        bool ended = false;
        for (const mr_token_event *e = mr_ring_peek(events, 0); e != NULL;
             e = mr_ring_peek(events, 0)) {
            ended = e->last;
            mr_ring_pop(events, 1);
        }
        if (ended) {
            mr_request_unref(b->requests[i]);
            submit(b, i, false);
        }
    }
}

static void measure_waste(bench *b)
{
    const mr_scheduler *s = b->scheduler;
    uint64_t held = 0;
    uint64_t filled = 0;
    for (uint32_t i = 0; i < s->running.count; i++) {
        held += (uint64_t)s->running.items[i]->n_blocks * s->block_size;
        filled += s->running.items[i]->n_tokens;
    }
    const double waste = held > filled ? (double)(held - filled) / (double)held : 0.0;
    b->waste += waste;
    b->most_waste = waste > b->most_waste ? waste : b->most_waste;
}

/* One step; its times are kept if `measured`. */
static void step(bench *b, bool measured)
{
    uint64_t wake_ns;
    const uint64_t start = now();
    uint64_t cpu = thread_time();
    const bool planned = mr_scheduler_plan(b->scheduler, start, b->storage, &wake_ns);
    mr_scheduler_publish(b->scheduler);
    const uint64_t cpu_plan = thread_time() - cpu;
    const uint64_t middle = now();
    const mr_batch *batch = mr_batch_get(b->storage);
    for (uint32_t r = 0; planned && r < batch->n_rows; r++) {
        b->tokens[r] = draw(b, VOCAB);
    }
    const mr_step_output output = {
        .step = batch->step,
        .n_rows = planned ? batch->n_rows : 0,
        .tokens = b->tokens,
        .n_top = b->zeros,
        .corrupt = b->zeros,
    };
    const bool decodes = planned && batch->n_tokens == batch->n_seqs;
    const uint64_t begin = now();
    cpu = thread_time();
    if (planned) {
        mr_scheduler_apply(b->scheduler, &output, begin);
        mr_scheduler_publish(b->scheduler);
    }
    cpu = thread_time() - cpu + cpu_plan;
    const uint64_t end = now();
    if (measured) {
        const double us = US(middle - start + end - begin);
        b->cpu_us[b->n_all] = US(cpu);
        b->all_us[b->n_all++] = us;
        if (decodes) {
            b->decode_us[b->n_decode++] = US(cpu);
        }
        measure_waste(b);
    }
    read_events(b);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = mr_calloc(count, size);
    if (memory == NULL) {
        fprintf(stderr, "host_work: out of memory\n");
        exit(EXIT_FAILURE);
    }
    return memory;
}

static void open_bench(bench *b)
{
    const settings *set = &b->set;
    const mr_scheduler_options options = {
        .max_batch_size = set->sequences,
        .max_batch_tokens = set->batch_tokens,
        .max_seq_length = set->context + 2 * set->output,
        .max_queue = set->waiting + set->sequences,
        .max_preemptions = 3,
        .fair = {.ageing_ns = 10 * MR_NS_PER_S, .max_overtakes = 8, .overtake_ns = MR_NS_PER_S},
        .prefill_interval = 1,
        .slow_reader_timeout_ns = 30 * MR_NS_PER_S,
        .vocab_size = VOCAB,
    };
    const uint32_t each = mr_blocks_for(set->context + 2 * set->output, set->block_size);
    mr_batch_limits limits;
    mr_error err = {0};
    mr_scheduler_batch_limits(&options, set->block_size, &limits);
    if (mr_block_pool_create(set->sequences * each + 1, set->block_size, &b->pool) != MR_OK ||
        (set->prefix_caching != 0 && mr_block_pool_enable_cache(b->pool) != MR_OK) ||
        mr_scheduler_create(&options, b->pool, &b->scheduler, &err) != MR_OK ||
        mr_batch_storage_create(&limits, &b->storage) != MR_OK) {
        fprintf(stderr, "host_work: %s\n", err.message[0] != '\0' ? err.message : "out of memory");
        exit(EXIT_FAILURE);
    }
    if (set->prefix_caching != 0) {
        b->root.block_size = set->block_size;
        b->root.generation = mr_prefix_index_generation(mr_block_pool_index(b->pool));
    }
    b->sink.publish = publish;
    b->random = 1;
    b->n_requests = set->sequences + set->waiting;
    b->requests = allocate(b->n_requests, sizeof(mr_request *));
    b->prompt = allocate(set->context, sizeof(uint32_t));
    b->tokens = allocate(limits.max_rows, sizeof(uint32_t));
    b->zeros = allocate(limits.max_rows, 1);
    b->all_us = allocate(set->steps, sizeof(double));
    b->decode_us = allocate(set->steps, sizeof(double));
    b->cpu_us = allocate(set->steps, sizeof(double));
}

static void close_bench(bench *b)
{
    mr_scheduler_destroy(b->scheduler);
    for (uint32_t i = 0; i < b->n_requests; i++) {
        mr_request_unref(b->requests[i]);
    }
    mr_batch_storage_destroy(b->storage);
    mr_block_pool_destroy(b->pool);
    free(b->requests);
    free(b->prompt);
    free(b->tokens);
    free(b->zeros);
    free(b->all_us);
    free(b->decode_us);
    free(b->cpu_us);
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts. */
static void print_times(const char *name, double *us, uint32_t count)
{
    if (count == 0) {
        printf("\"%s\":{\"steps\":0}", name);
        return;
    }
    qsort(us, count, sizeof(*us), ascending);
    printf("\"%s\":{\"steps\":%" PRIu32
           ",\"p50_us\":%.1f,\"p90_us\":%.1f,\"p99_us\":%.1f,\"max_us\":%.1f}",
           name, count, us[count / 2], us[(uint64_t)count * 90 / 100],
           us[(uint64_t)count * 99 / 100], us[count - 1]);
}

static void report(bench *b)
{
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(b->scheduler, &stats);
    printf("{\"sequences\":%" PRIu32 ",\"context\":%" PRIu32 ",\"output\":%" PRIu32
           ",\"waiting\":%" PRIu32 ",\"tenants\":%" PRIu32 ",\"batch_tokens\":%" PRIu32
           ",\"block_size\":%" PRIu32 ",\"prefix_caching\":%" PRIu32 ",\"hashing\":%" PRIu32 ",",
           b->set.sequences, b->set.context, b->set.output, b->set.waiting, b->set.tenants,
           b->set.batch_tokens, b->set.block_size, b->set.prefix_caching, b->set.hashing);
    print_times("wall", b->all_us, b->n_all);
    printf(",");
    print_times("cpu", b->cpu_us, b->n_all);
    printf(",");
    print_times("cpu_without_prompts", b->decode_us, b->n_decode);
    printf(",\"wasted_percent\":{\"mean\":%.3f,\"max\":%.3f},\"preemptions\":%" PRIu64 "}\n",
           PERCENT * b->waste / b->n_all, PERCENT * b->most_waste, stats.preemptions);
}

static void run(bench *b)
{
    for (uint32_t i = 0; i < b->n_requests; i++) {
        submit(b, i, i < b->set.sequences);
    }
    /* Until all that can run do, and the first ones have made room for others. */
    const uint64_t warm_tokens = (uint64_t)b->n_requests * b->set.context;
    const uint64_t warm = 2 * (uint64_t)b->set.output + warm_tokens / b->set.batch_tokens;
    for (uint64_t i = 0; i < warm; i++) {
        step(b, false);
    }
    for (uint32_t i = 0; i < b->set.steps; i++) {
        step(b, true);
    }
}

static bool read_count(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end = NULL;
    const unsigned long value = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || value < low || value > high) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

int main(int argc, char **argv)
{
    static bench b = {.set = {256, 8192, 64, 5000, 8192, 16, 4, 1024, 0, 1}};
    const struct {
        const char *name, *help;
        uint32_t *value;
        uint32_t low, high;
    } options[] = {
        {"sequences", "that run together (256)", &b.set.sequences, 1, 4096},
        {"context", "tokens of each at its end (8192)", &b.set.context, 2, 1u << 20},
        {"output", "tokens that a request generates, about (1024)", &b.set.output, 2, 1u << 16},
        {"waiting", "requests behind them (64)", &b.set.waiting, 0, 1u << 20},
        {"steps", "that are measured (5000)", &b.set.steps, 1, 1u << 24},
        {"batch-tokens", "of a step (8192)", &b.set.batch_tokens, 1, 1u << 16},
        {"block-size", "tokens of a KV block (16)", &b.set.block_size, 1, 256},
        {"prefix-caching", "1: full blocks are hashed, registered and evicted too (0)",
         &b.set.prefix_caching, 0, 1},
        {"hashing", "0: generated blocks get numbers instead of hashes (1)", &b.set.hashing, 0, 1},
        {"tenants", "that the requests belong to (4)", &b.set.tenants, 1, MR_MAX_TENANTS},
    };
    enum { N_OPTIONS = sizeof(options) / sizeof(options[0]) };
    struct option known[N_OPTIONS + 1] = {{0}};
    for (int i = 0; i < N_OPTIONS; i++) {
        known[i] = (struct option){options[i].name, required_argument, NULL, i};
    }
    int which = 0;
    while ((which = getopt_long(argc, argv, "", known, NULL)) != -1) {
        if (which < 0 || which >= N_OPTIONS ||
            !read_count(optarg, options[which].low, options[which].high, options[which].value)) {
            fprintf(stderr, "Microseconds a step of the host's work, as JSON. Options:\n");
            for (int i = 0; i < N_OPTIONS; i++) {
                fprintf(stderr, "  --%s N  %s\n", options[i].name, options[i].help);
            }
            return 2;
        }
    }
    hashing = b.set.hashing != 0;
    open_bench(&b);
    run(&b);
    report(&b);
    close_bench(&b);
    return EXIT_SUCCESS;
}
