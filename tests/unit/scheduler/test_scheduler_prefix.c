/* SPDX-License-Identifier: Apache-2.0 */
/* Prefix caching in the scheduler: who finds what, and what is left to compute. The script's tokens
 * come out only if every block found holds what it should. */
#include "allocations.h"
#include "base/log.h"
#include "rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { SIZE = 4 };

static const mr_prefix_root root_a = {.hash = {{0xaa}}, .block_size = SIZE};
static const mr_prefix_root root_b = {.hash = {{0xbb}}, .block_size = SIZE};

static void open_cached(rig *r, const mr_scheduler_options *options, uint32_t n_blocks)
{
    rig_open(r, options, SIZE, n_blocks);
    assert_int_equal(mr_block_pool_enable_cache(r->pool), MR_OK);
}

/* Prompts are {10, 11, …}, so that one is the beginning of another. */
static mr_request *add_of(rig *r, uint32_t n_prompt, const mr_request_params *params,
                          const mr_prefix_root *root)
{
    mr_request_spec spec = {.params = *params, .prefix = root};
    mr_request *request = rig_request_of(r, n_prompt, &spec);
    rig_submit(r, request);
    return request;
}

static mr_request *add(rig *r, uint32_t n_prompt, uint32_t max_tokens, const mr_prefix_root *root)
{
    const mr_request_params params = rig_params(max_tokens);
    return add_of(r, n_prompt, &params, root);
}

static mr_scheduler_stats stats_of(const rig *r)
{
    mr_scheduler_stats stats;
    mr_scheduler_stats_get(r->scheduler, &stats);
    return stats;
}

/* Runs it alone, checks what came, and gives the prompt tokens that were found. */
static uint32_t finish(rig *r, mr_request *request)
{
    rig_run(r);
    rig_expect_whole(r, request);
    const uint32_t cached = request->usage.cached_tokens;
    mr_request_unref(request);
    return cached;
}

static void test_prefix_is_found_up_to_the_last_token(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_prompt, cached;
    } cases[] = {{1, 0}, {4, 0}, {5, 4}, {8, 4}, {9, 8}, {16, 12}, {17, 16}, {23, 20}, {24, 20}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        rig r;
        const mr_scheduler_options options = rig_options();
        open_cached(&r, &options, 40);
        assert_int_equal(finish(&r, add(&r, cases[i].n_prompt, 1, &root_a)), 0);
        const uint64_t before = stats_of(&r).prompt_tokens;
        assert_int_equal(finish(&r, add(&r, cases[i].n_prompt, 1, &root_a)), cases[i].cached);
        const mr_scheduler_stats stats = stats_of(&r);
        assert_int_equal(stats.prompt_tokens - before, cases[i].n_prompt - cases[i].cached);
        assert_int_equal(stats.prefix_queries, 2 * cases[i].n_prompt);
        assert_int_equal(stats.prefix_hits, cases[i].cached);
        assert_int_equal(stats.blocks.live, 0);
        assert_int_equal(stats.blocks.cached, cases[i].n_prompt / SIZE);
        rig_close(&r);
    }
}

static void test_prefix_twin_finds_it_while_the_first_still_prefills(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options(); /* 8 tokens a step */
    open_cached(&r, &options, 40);
    mr_request *first = add(&r, 20, 3, &root_a);
    assert_true(rig_step(&r, NULL));
    mr_request *twin = add(&r, 20, 3, &root_a);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(mr_ring_count(&first->events), 0);
    assert_int_equal(twin->usage.scheduled_ns, 0);
    /* The end of the first one's prompt leaves room for the twin. */
    assert_true(rig_step(&r, NULL));
    assert_int_equal(r.batch->n_seqs, 2);
    assert_int_equal(twin->usage.cached_tokens, 16);
    assert_int_equal(r.batch->n_tokens, 8);
    assert_int_equal(rig_live_blocks(&r), 4 + 1 + 1); /* four are shared */
    rig_run(&r);
    rig_expect_whole(&r, first);
    rig_expect_whole(&r, twin);
    mr_request_unref(first);
    mr_request_unref(twin);
    rig_close(&r);
}

static void test_prefix_finds_what_was_generated(void **state)
{
    (void)state;
    rig r;
    uint32_t prompt[32];
    const mr_scheduler_options options = rig_options();
    open_cached(&r, &options, 40);
    mr_request *first = add(&r, 6, 14, &root_a);
    rig_run(&r);
    memcpy(prompt, first->prompt, 20 * sizeof(prompt[0]));
    rig_expect_whole(&r, first);
    mr_request_unref(first);
    /* Its last token was never computed: 19 are, 16 in full blocks. */
    prompt[20] = 5;
    const mr_request_spec spec = {.id = "next",
                                  .prompt = prompt,
                                  .n_prompt = 21,
                                  .params = rig_params(3),
                                  .prefix = &root_a,
                                  .deadline_ns = MR_NEVER,
                                  .sink = &r.sink};
    mr_request *next = NULL;
    assert_int_equal(mr_request_create(&spec, &next, NULL), MR_OK);
    rig_submit(&r, next);
    assert_int_equal(finish(&r, next), 16);
    rig_close(&r);
}

static void test_prefix_stays_within_its_root_X1_X2(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    const mr_prefix_root later = {.hash = {{0xaa}}, .block_size = SIZE, .generation = 1};
    const mr_prefix_root other_size = {.hash = {{0xaa}}, .block_size = 2 * SIZE};
    open_cached(&r, &options, 60);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_b)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, NULL)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &later)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &other_size)), 0);
    assert_int_equal(stats_of(&r).blocks.cached, 2 * 5);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 16);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_b)), 16);
    rig_close(&r);
}

static void test_prefix_without_an_index_nothing_is_cached(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open(&r, &options, SIZE, 40);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 0);
    }
    mr_scheduler_reset_prefix_cache(r.scheduler, 0);
    const mr_scheduler_stats stats = stats_of(&r);
    assert_int_equal(stats.prefix_queries, 0);
    assert_int_equal(stats.blocks.cached, 0);
    rig_close(&r);
}

static void test_prefix_preempted_one_finds_its_own_blocks_M1(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_tokens = 16;
    open_cached(&r, &options, 9); /* 8 blocks */
    mr_request *old = add(&r, 9, 12, &root_a);
    mr_request *new = add(&r, 10, 12, &root_b);
    rig_run(&r);
    /* Both have 4 blocks when they need a fifth. The new one gives way with 16 tokens computed; the
     * old one takes the last of its blocks, and the other three are found again. */
    assert_int_equal(new->usage.preemptions, 1);
    assert_int_equal(stats_of(&r).step_tokens, (9 + 11) + (10 + 11) + 4);
    assert_int_equal(new->usage.cached_tokens, 0);
    assert_int_equal(stats_of(&r).prefix_hits, 0);
    rig_expect_whole(&r, old);
    rig_expect_whole(&r, new);
    mr_request_unref(old);
    mr_request_unref(new);
    rig_close(&r);
}

/* Their rows are needed, so they compute them; others find what they computed. */
static void test_prefix_prompt_logprobs_miss_no_row(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request_params params = rig_params(3);
    params.prompt_logprobs = true;
    open_cached(&r, &options, 40);
    r.exec.real_top = true;
    assert_int_equal(finish(&r, add(&r, 12, 2, &root_a)), 0);
    mr_request *scored = add_of(&r, 20, &params, &root_a);
    rig_run(&r);
    assert_int_equal(scored->n_prompt_scored, 20);
    assert_int_equal(scored->usage.cached_tokens, 0);
    rig_expect_whole(&r, scored);
    mr_request_unref(scored);
    assert_int_equal(stats_of(&r).prefix_queries, 12);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 16);
    rig_close(&r);
}

static void test_admission_counts_the_prompt_without_what_is_cached_M3(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_tokens = 32;
    open_cached(&r, &options, 9); /* 8 blocks */
    mr_request *first = add(&r, 21, 8, &root_a);
    assert_true(rig_step(&r, NULL));
    /* 6 blocks are held. A stranger of the same length must wait, a twin needs one of its own and
     * one for the decode that follows. */
    mr_request *stranger = add(&r, 21, 2, &root_b);
    assert_true(rig_step(&r, NULL));
    assert_int_equal(stranger->usage.scheduled_ns, 0);
    mr_flag_set(&stranger->cancelled);
    mr_request *twin = add(&r, 21, 2, &root_a);
    assert_true(rig_step(&r, NULL));
    assert_true(twin->usage.scheduled_ns != 0);
    assert_int_equal(twin->usage.cached_tokens, 20);
    rig_run(&r);
    rig_expect_whole(&r, first);
    rig_expect_whole(&r, twin);
    rig_expect_end(stranger, MR_FINISH_CANCELLED, MR_CANCELLED);
    mr_request_unref(first);
    mr_request_unref(stranger);
    mr_request_unref(twin);
    rig_close(&r);
}

static void test_prefix_choices_and_beams_find_the_prompt(void **state)
{
    (void)state;
    rig r;
    mr_scheduler_options options = rig_options();
    options.max_batch_size = 2; /* the third choice comes in later, by itself */
    options.max_rows = 4;
    options.vocab_size = 40;
    open_cached(&r, &options, 60);
    mr_request_params params = rig_params(5);
    params.n = 3;
    mr_request *several = add_of(&r, 18, &params, &root_a);
    rig_run(&r);
    /* The prompt was computed once, but for its last tokens again by choices that came later. */
    assert_true(stats_of(&r).prompt_tokens <= 18 + 2 + 2);
    rig_expect_whole(&r, several);
    mr_request_unref(several);

    r.exec.real_top = true;
    params.n = 1;
    params.beam_width = 2;
    static scripted_result expected[MR_MAX_CHOICES];
    double cumulative[MR_MAX_CHOICES];
    mr_request *search = add_of(&r, 18, &params, &root_a);
    assert_true(scripted_beams(&r.options, search, expected, cumulative) > 0);
    rig_run(&r);
    assert_int_equal(search->usage.cached_tokens, 16);
    for (uint32_t i = 0; i < expected[0].n_tokens; i++) {
        const rig_event event = rig_read(search);
        assert_int_equal(event.token, expected[0].tokens[i]);
    }
    mr_request_unref(search);
    rig_close(&r);
}

static void test_reset_hurts_no_running_request_and_keeps_none_of_it_X4(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    open_cached(&r, &options, 40);
    mr_request *running = add(&r, 20, 12, &root_a);
    assert_true(rig_step(&r, NULL));
    assert_true(rig_step(&r, NULL));
    assert_int_equal(stats_of(&r).prefix_blocks, 4);
    mr_scheduler_reset_prefix_cache(r.scheduler, 0);
    assert_int_equal(stats_of(&r).prefix_blocks, 0);
    rig_run(&r);
    rig_expect_whole(&r, running);
    mr_request_unref(running);
    assert_int_equal(stats_of(&r).blocks.cached, 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 16);
    /* A new generation: roots of the old one are nobody's any more. */
    const mr_prefix_root next = {.hash = {{0xaa}}, .block_size = SIZE, .generation = 1};
    assert_int_equal(stats_of(&r).prefix_blocks, 5);
    mr_scheduler_reset_prefix_cache(r.scheduler, 1);
    assert_int_equal(stats_of(&r).prefix_blocks, 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &root_a)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &next)), 0);
    assert_int_equal(finish(&r, add(&r, 20, 2, &next)), 16);
    rig_close(&r);
}

static void test_prefix_forgets_what_gave_no_usable_logits(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    open_cached(&r, &options, 40);
    r.exec.corrupt_at = 23;
    mr_request *damaged = add(&r, 20, 8, &root_a);
    rig_run(&r);
    rig_expect_end(damaged, MR_FINISH_ERROR, MR_INTERNAL);
    mr_request_unref(damaged);
    assert_int_equal(stats_of(&r).blocks.cached, 0);
    r.exec.corrupt_at = 0;
    assert_int_equal(finish(&r, add(&r, 20, 8, &root_a)), 0);
    rig_close(&r);
}

static void test_prefix_steps_with_hits_and_evictions_allocate_nothing(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    mr_request *requests[12];
    open_cached(&r, &options, 14);
    for (uint32_t i = 0; i < 12; i++) {
        requests[i] = add(&r, 12 + i % 3, 9, i % 4 == 3 ? &root_b : &root_a);
    }
    assert_true(rig_step(&r, NULL));
    const uint32_t before = allocations;
    rig_run(&r);
    assert_int_equal(allocations, before);
    assert_true(stats_of(&r).prefix_hits > 0);
    for (uint32_t i = 0; i < 12; i++) {
        rig_expect_whole(&r, requests[i]);
        mr_request_unref(requests[i]);
    }
    rig_close(&r);
}

/* What the pool evicts goes to the host tier, and comes back from there. */
static void test_prefix_evicted_blocks_come_back_from_the_host_tier(void **state)
{
    (void)state;
    rig r;
    const mr_scheduler_options options = rig_options();
    rig_open_immediate(&r, &options, SIZE, 9, 16); /* 8 blocks, and 16 of the host */
    assert_int_equal(mr_block_pool_enable_cache(r.pool), MR_OK);
    mr_request *requests[3];
    assert_int_equal(finish(&r, add(&r, 21, 1, &root_a)), 0);
    assert_int_equal(finish(&r, add(&r, 29, 1, &root_b)), 0); /* wants all 8 */
    assert_int_equal(stats_of(&r).host.cached, 5);
    const uint64_t before = stats_of(&r).prompt_tokens;
    requests[0] = add(&r, 21, 1, &root_a);
    requests[1] = add(&r, 29, 1, &root_b);
    const uint32_t allocated = allocations;
    rig_run(&r);
    assert_int_equal(allocations, allocated);
    assert_int_equal(finish(&r, requests[0]), 20);
    assert_int_equal(finish(&r, requests[1]), 28); /* some of it from here, some from there */
    assert_int_equal(stats_of(&r).prompt_tokens - before, 2);
    assert_true(stats_of(&r).host.blocks_in >= 5);
    assert_int_equal(stats_of(&r).prefix_hits, 48);
    assert_int_equal(finish(&r, add(&r, 21, 1, &root_b)), 20); /* and found as its own by now */
    /* A transfer that fails costs what it would have saved. */
    requests[2] = add(&r, 29, 1, &root_a);
    r.exec.transfers.fails = true;
    (void)finish(&r, requests[2]);
    r.exec.transfers.fails = false;
    mr_scheduler_reset_prefix_cache(r.scheduler, 0);
    assert_int_equal(stats_of(&r).host.cached, 0);
    assert_int_equal(finish(&r, add(&r, 21, 1, &root_a)), 0); /* X4 */
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefix_is_found_up_to_the_last_token),
        cmocka_unit_test(test_prefix_twin_finds_it_while_the_first_still_prefills),
        cmocka_unit_test(test_prefix_finds_what_was_generated),
        cmocka_unit_test(test_prefix_stays_within_its_root_X1_X2),
        cmocka_unit_test(test_prefix_without_an_index_nothing_is_cached),
        cmocka_unit_test(test_prefix_preempted_one_finds_its_own_blocks_M1),
        cmocka_unit_test(test_prefix_prompt_logprobs_miss_no_row),
        cmocka_unit_test(test_admission_counts_the_prompt_without_what_is_cached_M3),
        cmocka_unit_test(test_prefix_choices_and_beams_find_the_prompt),
        cmocka_unit_test(test_reset_hurts_no_running_request_and_keeps_none_of_it_X4),
        cmocka_unit_test(test_prefix_forgets_what_gave_no_usable_logits),
        cmocka_unit_test(test_prefix_evicted_blocks_come_back_from_the_host_tier),
        cmocka_unit_test(test_prefix_steps_with_hits_and_evictions_allocate_nothing),
    };
    mr_log_set_level(MR_LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
