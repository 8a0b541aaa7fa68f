/* SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "service/metrics.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define MS MR_NS_PER_MS

static uint64_t observed(const mr_metrics *metrics, mr_measure measure)
{
    const mr_histogram *histogram = &metrics->measures[measure];
    uint64_t count = 0;
    for (uint32_t i = 0; i <= histogram->n_bounds; i++) {
        count += mr_counter_get(&histogram->counts[i]);
    }
    return count;
}

static void assert_sum(const mr_metrics *metrics, mr_measure measure, double wanted)
{
    assert_true(fabs(mr_histogram_sum(&metrics->measures[measure]) - wanted) < 1e-9);
}

/* The first token counts from arrival; those that come together share the time since the last. */
static void test_metrics_time_between_tokens(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    mr_token_meter meter = {0};
    mr_request request = {.arrived_ns = 1000 * MS, .params.n = 1};
    mr_metrics_tokens(&metrics, &meter, &request, 0, 1100 * MS);
    assert_int_equal(observed(&metrics, MR_MEASURE_FIRST_TOKEN), 0);
    mr_metrics_tokens(&metrics, &meter, &request, 1, 1250 * MS);
    mr_metrics_tokens(&metrics, &meter, &request, 3, 1400 * MS);
    assert_int_equal(observed(&metrics, MR_MEASURE_FIRST_TOKEN), 1);
    assert_sum(&metrics, MR_MEASURE_FIRST_TOKEN, 0.25);
    assert_int_equal(observed(&metrics, MR_MEASURE_INTER_TOKEN), 3);
    assert_sum(&metrics, MR_MEASURE_INTER_TOKEN, 0.15);
    /* Two choices: each waited the whole time for its token. */
    request.params.n = 2;
    mr_metrics_tokens(&metrics, &meter, &request, 2, 1500 * MS);
    assert_int_equal(observed(&metrics, MR_MEASURE_INTER_TOKEN), 5);
    assert_sum(&metrics, MR_MEASURE_INTER_TOKEN, 0.35);
    /* More than the first token of each came at once. */
    mr_token_meter another = {0};
    mr_metrics_tokens(&metrics, &another, &request, 5, 1500 * MS);
    assert_int_equal(observed(&metrics, MR_MEASURE_FIRST_TOKEN), 2);
    assert_int_equal(observed(&metrics, MR_MEASURE_INTER_TOKEN), 8);
    assert_sum(&metrics, MR_MEASURE_INTER_TOKEN, 0.35);
}

static mr_request ended_request(void)
{
    return (mr_request){
        .params = {.n = 1, .max_tokens = 16},
        .usage = {.prompt_tokens = 7,
                  .completion_tokens = 5,
                  .longest_choice = 3,
                  .preemptions = 2,
                  .cached_tokens = 2,
                  .arrived_ns = 1000 * MS,
                  .scheduled_ns = 1500 * MS,
                  .first_token_ns = 2500 * MS,
                  .finished_ns = 4500 * MS},
    };
}

static void test_metrics_of_a_completed_request(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    const mr_request request = ended_request();
    mr_metrics_ended(&metrics, &request);
    assert_sum(&metrics, MR_MEASURE_REQUEST, 3.5);
    assert_sum(&metrics, MR_MEASURE_QUEUE, 0.5);
    assert_sum(&metrics, MR_MEASURE_INFERENCE, 3.0);
    assert_sum(&metrics, MR_MEASURE_PREFILL, 1.0);
    assert_sum(&metrics, MR_MEASURE_DECODE, 2.0);
    assert_sum(&metrics, MR_MEASURE_PER_TOKEN, 0.5);
    assert_sum(&metrics, MR_MEASURE_PROMPT_TOKENS, 7.0);
    assert_sum(&metrics, MR_MEASURE_GENERATED_TOKENS, 5.0);
    assert_sum(&metrics, MR_MEASURE_PREFILL_TOKENS, 5.0);
    assert_sum(&metrics, MR_MEASURE_MAX_TOKENS, 16.0);
    assert_sum(&metrics, MR_MEASURE_LONGEST_CHOICE, 3.0);
    assert_sum(&metrics, MR_MEASURE_PREEMPTIONS, 2.0);
}

/* A request that was cancelled or failed is not counted as one that took no time. */
static void test_metrics_I1_no_zeros_for_aborted_requests(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    mr_request cancelled = ended_request();
    cancelled.error.status = MR_CANCELLED;
    mr_metrics_ended(&metrics, &cancelled);
    mr_request unborn = ended_request();
    unborn.usage.scheduled_ns = 0;
    unborn.usage.first_token_ns = 0;
    mr_metrics_ended(&metrics, &unborn);
    for (int i = 0; i < MR_MEASURES; i++) {
        assert_int_equal(observed(&metrics, (mr_measure)i), 0);
    }
}

static mr_metrics_view view_of(const char *model_name)
{
    return (mr_metrics_view){
        .vllm_names = true,
        .model_name = model_name,
        .backend = "cpu",
        .kv_dtype = "bf16",
        .block_size = 16,
        .max_seq_length = 64,
    };
}

static void format(const mr_metrics *metrics, const mr_metrics_view *view, mr_buffer *out)
{
    assert_int_equal(mr_metrics_format(metrics, view, out), MR_OK);
    assert_int_equal(mr_buffer_append(out, "", 1), MR_OK);
}

static void assert_has(const mr_buffer *text, const char *wanted)
{
    if (strstr((const char *)text->data, wanted) == NULL) {
        fail_msg("not in the text: %s", wanted);
    }
}

/* A name comes from a file: it may not break out of its label. */
static void test_metrics_names_are_escaped(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    const mr_metrics_view view = view_of("a\"b\\c\n\xff");
    mr_buffer text = {0};
    format(&metrics, &view, &text);
    assert_has(&text, "vllm:num_requests_running{model_name=\"a\\\"b\\\\c??\",engine=\"0\"} 0\n");
    mr_buffer_deinit(&text);
}

static void test_metrics_text_of_histograms(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    mr_metrics_view view = view_of("m");
    view.engine.scheduler.step_sizes[1] = 3;
    view.engine.scheduler.step_sizes[MR_STEP_SIZES] = 1;
    view.engine.scheduler.step_tokens = 20020;
    const mr_request request = ended_request();
    mr_metrics_ended(&metrics, &request);
    mr_buffer text = {0};
    format(&metrics, &view, &text);
    assert_has(&text, "millrace_step_tokens_bucket{le=\"1\"} 0\n"
                      "millrace_step_tokens_bucket{le=\"8\"} 3\n"
                      "millrace_step_tokens_bucket{le=\"16\"} 3\n");
    assert_has(&text, "millrace_step_tokens_bucket{le=\"16384\"} 3\n"
                      "millrace_step_tokens_bucket{le=\"+Inf\"} 4\n"
                      "millrace_step_tokens_sum 20020\nmillrace_step_tokens_count 4\n");
    /* No bound beyond max_seq_length. */
    const char *labels = "{model_name=\"m\",engine=\"0\",le=\"";
    char wanted[256];
    snprintf(
        wanted, sizeof(wanted),
        "vllm:request_prompt_tokens_bucket%s50\"} 1\nvllm:request_prompt_tokens_bucket%s+Inf\"} "
        "1\n",
        labels, labels);
    assert_has(&text, wanted);
    mr_buffer_deinit(&text);
}

static void test_metrics_refusals_are_all_counted(void **state)
{
    (void)state;
    mr_metrics metrics;
    mr_metrics_init(&metrics);
    for (int status = MR_CANCELLED; status <= MR_UNAUTHENTICATED; status++) {
        mr_metrics_refused(&metrics, (mr_status)status);
    }
    const mr_metrics_view view = view_of("m");
    mr_buffer text = {0};
    format(&metrics, &view, &text);
    assert_has(&text, "millrace_requests_refused_total{status=\"INVALID_ARGUMENT\"} 1\n");
    /* Sixteen, of which eight have a sample of their own. */
    assert_has(&text, "millrace_requests_refused_total{status=\"other\"} 8\n");
    mr_buffer_deinit(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_time_between_tokens),
        cmocka_unit_test(test_metrics_of_a_completed_request),
        cmocka_unit_test(test_metrics_I1_no_zeros_for_aborted_requests),
        cmocka_unit_test(test_metrics_names_are_escaped),
        cmocka_unit_test(test_metrics_text_of_histograms),
        cmocka_unit_test(test_metrics_refusals_are_all_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
