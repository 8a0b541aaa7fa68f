/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The determinism contract, through the scheduler and the CPU backend: what a request gets,
 * logprobs bit by bit, is what it gets alone, whatever the neighbours, chunks, threads,
 * preemptions by recompute or by swap, the number of choices, and what of its tokens was found in
 * the prefix cache.
 */
#include "base/log.h"
#include "kernels/cpu/cpu_backend.h"
#include "scheduler/scheduler.h"
#include "tiny_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    BLOCK_SIZE = 8,
    CONTEXT = 72,
    MAX_CHOICES = 4,
    MAX_TOKENS = 24,
    MAX_PROMPT = 40,
    N_TOP = 3,
    NEIGHBOURS = 4,
    WORLDS = 24,
};

/* ---- what is asked ---- */

typedef struct ask {
    uint32_t n_prompt;
    uint64_t prompt_seed;
    mr_request_params params;
} ask;

#define BASE(t, s)                                                                                 \
    .temperature = (t), .seed = (s), .top_p = 1.0f, .repetition_penalty = 1.0f,                    \
    .max_tokens = MAX_TOKENS, .ignore_eos = true, .logprobs = true
#define SAMPLED(t, s) BASE(t, s), .top_logprobs = N_TOP

enum { GREEDY, DRAWN, DRAWN_ELSEWHERE, OTHER_SEED, SEVERAL, ONE_OF_THEM, SCORED, SEARCH, ASKS };

static const ask asks[ASKS] = {
    [GREEDY] = {9, 1, {SAMPLED(0.0f, 0)}},
    [DRAWN] = {23, 2, {SAMPLED(0.8f, 7), .top_k = 40}},
    [DRAWN_ELSEWHERE] = {23, 3, {SAMPLED(0.8f, 7), .top_k = 40}},
    [OTHER_SEED] = {23, 2, {SAMPLED(0.8f, 8), .top_k = 40}},
    [SEVERAL] = {19, 4, {SAMPLED(0.8f, 9), .n = 4, .presence_penalty = 0.5f}},
    [ONE_OF_THEM] = {19, 4, {SAMPLED(0.8f, 9), .presence_penalty = 0.5f}},
    [SCORED] = {40,
                5,
                {SAMPLED(0.0f, 0), .n = 2, .prompt_logprobs = true, .logprobs_processed = true,
                 .frequency_penalty = 0.25f}},
    [SEARCH] = {13, 6, {BASE(0.0f, 0), .beam_width = 3, .n = 2, .length_penalty = 1.0f}},
};

/* ---- what comes out; compared byte by byte, so zeroed first ---- */

typedef struct answer {
    uint32_t n_tokens[MAX_CHOICES];
    uint32_t tokens[MAX_CHOICES][MAX_TOKENS];
    float logprobs[MAX_CHOICES][MAX_TOKENS];
    double cumulative[MAX_CHOICES][MAX_TOKENS];
    mr_alternative top[MAX_CHOICES][MAX_TOKENS][N_TOP];
    float prompt_logprobs[MAX_PROMPT];
    mr_alternative prompt_top[MAX_PROMPT][N_TOP];
} answer;

static void take_event(const mr_token_event *event, answer *out)
{
    const uint32_t c = event->choice;
    const uint32_t at = out->n_tokens[c]++;
    assert_int_not_equal(event->token, MR_NO_TOKEN);
    assert_true(c < MAX_CHOICES && at < MAX_TOKENS);
    out->tokens[c][at] = event->token;
    out->logprobs[c][at] = event->logprob;
    out->cumulative[c][at] = event->cumulative_logprob;
    memcpy(out->top[c][at], event->top, event->n_top * sizeof(event->top[0]));
}

/* True once the request has ended. */
static bool take_events(mr_request *request, answer *out)
{
    bool last = false;
    const mr_token_event *event;
    while ((event = mr_ring_peek(&request->events, 0)) != NULL) {
        take_event(event, out);
        last = event->last;
        mr_ring_pop(&request->events, 1);
    }
    for (uint32_t i = 1; last && i < request->n_prompt_scored; i++) {
        out->prompt_logprobs[i] = request->prompt_logprobs[i].logprob;
        memcpy(out->prompt_top[i], request->prompt_top + (size_t)i * N_TOP,
               request->prompt_logprobs[i].n_top * sizeof(mr_alternative));
    }
    return last;
}

/* ---- a server of one thread ---- */

typedef struct server {
    mr_backend *backend;
    mr_weights *weights;
    mr_exec *exec;
    mr_block_pool *pool;
    mr_host_tier *tier; /* NULL: none */
    mr_scheduler *scheduler;
    mr_batch_storage *storage;
    mr_sink sink;
    uint64_t now_ns;
    mr_request *requests[3 * ASKS + NEIGHBOURS];
    answer answers[3 * ASKS + NEIGHBOURS];
    const mr_prefix_root *root; /* NULL: no prefix caching */
    uint32_t n_requests;
} server;

/* What was in the batches of all worlds. */
static struct {
    uint32_t several_rows;
    uint32_t long_chunks;
    uint32_t mixed; /* steps of chunks and decodes */
    uint32_t preemptions;
    uint32_t swapped_in;
    uint32_t copies;
    uint32_t hits;             /* requests that found something */
    uint32_t mid_prefill;      /* that found what another was still computing the rest of */
    uint32_t preempted_cached; /* preemptions with prefix caching */
} seen;

typedef struct setting {
    mr_cpu_isa isa;
    uint32_t threads;
    uint32_t max_batch_size;
    uint32_t max_batch_tokens;
    uint32_t max_rows;
    uint32_t n_blocks;
    mr_dtype kv_dtype;
    bool swaps; /* has a host tier */
    bool cached;
} setting;

static const mr_prefix_root root = {.hash = {{1, 2, 3}}, .block_size = BLOCK_SIZE};

static void ignore_news(mr_sink *sink, mr_request *const *requests, uint32_t count)
{
    (void)sink;
    (void)requests;
    (void)count;
}

static void open_tier(server *s, const tiny_plan *tiny, const setting *how)
{
    const uint64_t bytes = mr_kv_block_bytes(&tiny->plan->kv, how->kv_dtype, BLOCK_SIZE);
    const mr_host_tier_options options = {.memory_bytes = 30 * bytes,
                                          .block_bytes = bytes,
                                          .block_size = BLOCK_SIZE,
                                          .immediate = true,
                                          .timeout_ns = MR_NS_PER_S,
                                          .clock = mr_clock_monotonic()};
    assert_int_equal(mr_host_tier_create(&options, s->exec, s->pool, &s->tier, NULL), MR_OK);
}

static void server_open(server *s, const tiny_plan *tiny, const setting *how)
{
    memset(s, 0, sizeof(*s));
    mr_error err = {0};
    const mr_cpu_options cpu = {.isa = how->isa, .threads = how->threads};
    mr_scheduler_options options = {
        .max_batch_size = how->max_batch_size,
        .max_batch_tokens = how->max_batch_tokens,
        .max_rows = how->max_rows,
        .max_seq_length = CONTEXT,
        .max_queue = 64,
        .max_preemptions = 3,
        .prefill_interval = 1,
        .slow_reader_timeout_ns = MR_NEVER,
        .vocab_size = tiny->dims.vocab,
    };
    mr_batch_limits limits;
    mr_scheduler_batch_limits(&options, BLOCK_SIZE, &limits);
    const mr_exec_options exec = {
        .max_tokens = limits.max_tokens,
        .max_seqs = limits.max_seqs,
        .max_rows = limits.max_rows,
        .max_context = limits.max_context,
        .block_size = BLOCK_SIZE,
        .n_blocks = how->n_blocks,
        .kv_dtype = how->kv_dtype,
    };
    s->sink.publish = ignore_news;
    assert_int_equal(mr_cpu_backend_create(&cpu, &s->backend, &err), MR_OK);
    assert_int_equal(s->backend->vt->upload(s->backend, tiny->plan, NULL, NULL, &s->weights, &err),
                     MR_OK);
    assert_int_equal(
        s->backend->vt->compile(s->backend, tiny->plan, s->weights, &exec, &s->exec, &err), MR_OK);
    assert_int_equal(mr_block_pool_create(how->n_blocks, BLOCK_SIZE, &s->pool), MR_OK);
    if (how->swaps) {
        open_tier(s, tiny, how);
    }
    options.host_tier = s->tier;
    if (how->cached) {
        assert_int_equal(mr_block_pool_enable_cache(s->pool), MR_OK);
        s->root = &root;
    }
    assert_int_equal(mr_scheduler_create(&options, s->pool, &s->scheduler, &err), MR_OK);
    assert_int_equal(mr_batch_storage_create(&limits, &s->storage), MR_OK);
}

static void server_close(server *s)
{
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(s->scheduler, &stats);
    seen.preemptions += (uint32_t)stats.preemptions;
    seen.swapped_in += (uint32_t)stats.swapped_in;
    seen.preempted_cached += s->root != NULL ? (uint32_t)stats.preemptions : 0;
    assert_int_equal(stats.blocks.live, 0);
    assert_int_equal(stats.host.owned, 0);
    mr_scheduler_destroy(s->scheduler);
    mr_host_tier_destroy(s->tier);
    mr_batch_storage_destroy(s->storage);
    mr_block_pool_destroy(s->pool);
    s->exec->vt->destroy(s->exec);
    s->backend->vt->weights_destroy(s->backend, s->weights);
    s->backend->vt->destroy(s->backend);
}

static void server_add(server *s, const ask *a, uint32_t vocab)
{
    uint32_t prompt[MAX_PROMPT];
    uint64_t state = a->prompt_seed;
    for (uint32_t i = 0; i < a->n_prompt; i++) {
        prompt[i] = (uint32_t)(tiny_random(&state) % vocab);
    }
    const mr_request_spec spec = {
        .id = "d",
        .prompt = prompt,
        .n_prompt = a->n_prompt,
        .params = a->params,
        .deadline_ns = MR_NEVER,
        .sink = &s->sink,
        .prefix = s->root,
    };
    mr_request *request = NULL;
    assert_int_equal(mr_request_create(&spec, &request, NULL), MR_OK);
    mr_request_ref(request);
    s->requests[s->n_requests++] = request;
    mr_scheduler_add(s->scheduler, request, s->now_ns);
}

static void count_batch(const mr_batch *batch, size_t copies)
{
    uint32_t chunks = 0;
    for (uint32_t b = 0; b < batch->n_seqs; b++) {
        chunks += batch->seq_start[b + 1] - batch->seq_start[b] > 1;
    }
    seen.several_rows += batch->n_rows > 1;
    seen.long_chunks += chunks > 0;
    seen.mixed += chunks > 0 && chunks < batch->n_seqs;
    seen.copies += (uint32_t)copies;
}

/* Requests that just came in on blocks of one whose prompt is not done yet. */
static void count_mid_prefill(const server *s)
{
    for (uint32_t i = 0; i < s->n_requests; i++) {
        const mr_request *new = s->requests[i];
        if (new == NULL || new->usage.scheduled_ns != s->now_ns || new->usage.cached_tokens == 0) {
            continue;
        }
        for (uint32_t k = 0; k < s->n_requests; k++) {
            const mr_request *old = s->requests[k];
            seen.mid_prefill += old != NULL && k != i && old->key == new->key &&
                                old->usage.scheduled_ns != 0 && old->usage.first_token_ns == 0;
        }
    }
}

static void server_step(server *s)
{
    uint64_t wake_ns;
    size_t n_copies;
    mr_step_output output;
    mr_error err = {0};
    s->now_ns += MR_NS_PER_MS;
    if (mr_scheduler_plan(s->scheduler, s->now_ns, s->storage, &wake_ns)) {
        const mr_batch *batch = mr_batch_get(s->storage);
        const mr_block_copy *copies = mr_scheduler_copies(s->scheduler, &n_copies);
        count_batch(batch, n_copies);
        count_mid_prefill(s);
        assert_int_equal(s->exec->vt->copy_blocks(s->exec, copies, n_copies, &err), MR_OK);
        if (mr_exec_run(s->exec, batch, &output, &err) != MR_OK) {
            fail_msg("%s", err.message);
        }
        mr_scheduler_apply(s->scheduler, &output, s->now_ns);
    }
    mr_scheduler_publish(s->scheduler);
}

static void count_hits(const mr_request *request)
{
    const uint32_t most = (request->n_prompt - 1) / BLOCK_SIZE * BLOCK_SIZE;
    const uint32_t cached = request->usage.cached_tokens;
    assert_true(cached <= most && (cached == 0 || !request->params.prompt_logprobs));
    seen.hits += cached > 0;
}

static void server_read(server *s)
{
    for (uint32_t i = 0; i < s->n_requests; i++) {
        if (s->requests[i] != NULL && take_events(s->requests[i], &s->answers[i])) {
            assert_int_equal(s->requests[i]->error.status, MR_OK);
            count_hits(s->requests[i]);
            mr_request_unref(s->requests[i]);
            s->requests[i] = NULL;
        }
    }
}

static void server_run(server *s)
{
    for (uint32_t i = 0; i < 5000 && !mr_scheduler_idle(s->scheduler); i++) {
        server_step(s);
        server_read(s);
    }
    assert_true(mr_scheduler_idle(s->scheduler));
    server_read(s);
}

/* ---- tests ---- */

static server world;

/* Each ask on a server of its own: one thread, the prompt in one chunk. */
static answer *answers_alone(const tiny_plan *tiny, mr_cpu_isa isa, mr_dtype kv_dtype)
{
    answer *alone = calloc(ASKS, sizeof(*alone));
    assert_non_null(alone);
    const setting how = {.isa = isa,
                         .threads = 1,
                         .max_batch_size = 4,
                         .max_batch_tokens = 512,
                         .max_rows = 64,
                         .n_blocks = 100,
                         .kv_dtype = kv_dtype};
    for (uint32_t i = 0; i < ASKS; i++) {
        server_open(&world, tiny, &how);
        server_add(&world, &asks[i], tiny->dims.vocab);
        server_run(&world);
        alone[i] = world.answers[0];
        server_close(&world);
    }
    return alone;
}

static uint32_t pick(uint64_t *state, uint32_t low, uint32_t high)
{
    return low + (uint32_t)(tiny_random(state) % (high - low + 1));
}

static void add_neighbour(uint64_t *state, uint32_t vocab)
{
    const ask neighbour = {
        .n_prompt = pick(state, 1, MAX_PROMPT),
        .prompt_seed = tiny_random(state),
        .params = {BASE((float)pick(state, 0, 2) * 0.6f, tiny_random(state)),
                   .n = pick(state, 1, 2)},
    };
    server_add(&world, &neighbour, vocab);
}

static void compare(const answer *alone, const answer *found, uint32_t number, uint32_t which)
{
    if (memcmp(alone, found, sizeof(*alone)) != 0) {
        fail_msg("world %u: request %u is not what it is alone", number, which);
    }
}

/* Everything twice more, while some of it runs: what those have computed is found, also of a
 * prompt that is not done yet. */
static void again(const tiny_plan *tiny, const uint32_t *order, bool forget)
{
    if (forget) {
        mr_scheduler_reset_prefix_cache(world.scheduler, 0);
    }
    for (uint32_t i = 0; i < 2 * ASKS; i++) {
        server_add(&world, &asks[order[i / 2]], tiny->dims.vocab);
        server_step(&world);
        server_read(&world);
    }
}

static void run_world(const tiny_plan *tiny, const setting *base, uint32_t number,
                      const answer *alone)
{
    static const uint32_t budgets[] = {3, 4, 7, 16, 33, 64, 128, 512};
    uint64_t state = 0xd0d0 + number;
    uint32_t order[ASKS];
    const setting how = {
        .isa = base->isa,
        .kv_dtype = base->kv_dtype,
        .swaps = number % 8 == 0 || number % 8 == 6, /* with prefix caching, and without */
        .threads = 1 + number % 3,
        .max_batch_size = pick(&state, 3, 9),
        .max_batch_tokens = budgets[number % 8],
        .max_rows = pick(&state, 0, 70),
        .n_blocks = number % 2 == 0 ? 20 : 120,
        .cached = number % 4 < 2,
    };
    for (uint32_t i = 0; i < ASKS; i++) {
        order[i] = i;
    }
    server_open(&world, tiny, &how);
    for (uint32_t i = ASKS; i > 0; i--) {
        const uint32_t at = pick(&state, 0, i - 1);
        const uint32_t which = order[at];
        order[at] = order[i - 1];
        order[i - 1] = which;
        server_add(&world, &asks[which], tiny->dims.vocab);
        for (uint32_t steps = pick(&state, 0, 3); steps > 0; steps--) {
            server_step(&world);
            server_read(&world);
        }
        if (i <= NEIGHBOURS) {
            add_neighbour(&state, tiny->dims.vocab);
        }
    }
    again(tiny, order, number % 8 < 4);
    server_run(&world);
    uint32_t at = 0;
    for (uint32_t i = ASKS; i > 0; i--) {
        compare(&alone[order[i - 1]], &world.answers[at], number, order[i - 1]);
        at += i <= NEIGHBOURS ? 2 : 1;
    }
    for (uint32_t i = 0; i < 2 * ASKS; i++) {
        compare(&alone[order[i / 2]], &world.answers[at++], number, order[i / 2]);
    }
    server_close(&world);
}

static void expect_contract(const tiny_plan *tiny, mr_cpu_isa isa, mr_dtype kv_dtype)
{
    const setting base = {.isa = isa, .kv_dtype = kv_dtype};
    answer *alone = answers_alone(tiny, isa, kv_dtype);
    memset(&seen, 0, sizeof(seen));
    for (uint32_t i = 0; i < WORLDS; i++) {
        run_world(tiny, &base, i, alone);
    }
    assert_true(seen.several_rows > 100 && seen.long_chunks > 100 && seen.mixed > 100);
    assert_true(seen.preemptions > WORLDS / 2);
    assert_true(seen.swapped_in > WORLDS / 6);
    assert_true(seen.copies > WORLDS);
    assert_true(seen.hits > 2 * WORLDS);
    assert_true(seen.mid_prefill > WORLDS / 4);
    assert_true(seen.preempted_cached > WORLDS / 4);
    free(alone);
}

#ifndef MR_TEST_EMULATED

static void test_determinism_alone_or_in_any_company_D1_D4(void **state)
{
    (void)state;
    tiny_plan tiny;
    tiny_dims dims = tiny_dims_default();
    tiny_plan_create(&dims, &tiny);
    expect_contract(&tiny, MR_CPU_ISA_PORTABLE, MR_DTYPE_BF16);
    tiny_plan_destroy(&tiny);
}

static void test_determinism_of_every_kv_type_D1_D4(void **state)
{
    (void)state;
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_I8};
    tiny_plan tiny;
    tiny_dims dims = tiny_dims_default();
    dims.layers = 1;
    tiny_plan_create(&dims, &tiny);
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        expect_contract(&tiny, MR_CPU_ISA_AUTO, types[i]);
    }
    tiny_plan_destroy(&tiny);
}

static bool same_tokens(const answer *a, uint32_t choice_a, const answer *b, uint32_t choice_b)
{
    return memcmp(a->tokens[choice_a], b->tokens[choice_b], sizeof(a->tokens[0])) == 0;
}

static void test_determinism_seeds_prompts_and_choices_differ_D2_D3(void **state)
{
    (void)state;
    tiny_plan tiny;
    const tiny_dims dims = tiny_dims_default();
    tiny_plan_create(&dims, &tiny);
    answer *alone = answers_alone(&tiny, MR_CPU_ISA_PORTABLE, MR_DTYPE_BF16);
    assert_false(same_tokens(&alone[DRAWN], 0, &alone[OTHER_SEED], 0));
    assert_false(same_tokens(&alone[DRAWN], 0, &alone[DRAWN_ELSEWHERE], 0));
    for (uint32_t a = 0; a < 4; a++) {
        for (uint32_t b = 0; b < a; b++) {
            assert_false(same_tokens(&alone[SEVERAL], a, &alone[SEVERAL], b));
        }
    }
    /* The first of several is the only one of one; greedy ones are all alike. */
    assert_true(same_tokens(&alone[SEVERAL], 0, &alone[ONE_OF_THEM], 0));
    assert_memory_equal(alone[SEVERAL].logprobs[0], alone[ONE_OF_THEM].logprobs[0],
                        sizeof(alone[0].logprobs[0]));
    assert_true(same_tokens(&alone[SCORED], 0, &alone[SCORED], 1));
    free(alone);
    tiny_plan_destroy(&tiny);
}

#endif

/* Quantised weights, and those in bf16 where a path has instructions for them; keys and values in
 * bf16, which attention multiplies as it is where it can. */
static void test_determinism_on_every_path_D1_D4(void **state)
{
    const mr_cpu_isa isa = *(const mr_cpu_isa *)*state;
    static const mr_dtype types[] = {MR_DTYPE_Q4_1, MR_DTYPE_BF16};
    const size_t count = isa >= MR_CPU_ISA_AVX512_BF16 ? 2 : 1;
    bool runs = false;
    if (mr_cpu_path_name(isa, &runs) == NULL || !runs) {
        skip(); /* this build or this CPU lacks it */
    }
    for (size_t i = 0; i < count; i++) {
        tiny_plan tiny;
        tiny_dims dims = tiny_dims_default();
        dims.dtype = types[i];
        dims.tied = true;
        tiny_plan_create(&dims, &tiny);
        expect_contract(&tiny, isa, MR_DTYPE_BF16);
        tiny_plan_destroy(&tiny);
    }
}

#define ON_PATH(name, isa)                                                                         \
    {                                                                                              \
        "test_determinism_on_every_path_D1_D4: " name, test_determinism_on_every_path_D1_D4, NULL, \
            NULL, &(mr_cpu_isa)                                                                    \
        {                                                                                          \
            isa                                                                                    \
        }                                                                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef MR_TEST_EMULATED
        cmocka_unit_test(test_determinism_alone_or_in_any_company_D1_D4),
        cmocka_unit_test(test_determinism_of_every_kv_type_D1_D4),
        cmocka_unit_test(test_determinism_seeds_prompts_and_choices_differ_D2_D3),
        ON_PATH("portable", MR_CPU_ISA_PORTABLE),
        ON_PATH("avx2", MR_CPU_ISA_AVX2),
        ON_PATH("avx512vnni", MR_CPU_ISA_AVX512_VNNI),
#endif
        ON_PATH("avx512bf16", MR_CPU_ISA_AVX512_BF16),
        ON_PATH("amx", MR_CPU_ISA_AMX),
    };
    mr_log_set_level(MR_LOG_WARN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
