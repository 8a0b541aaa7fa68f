/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Offline batches on a model whose weights are all zero: every logit is equal, so that temperature
 * 0 takes token 0, the lowest id, each time.
 */
#include "service/batch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "../base/temp_dir.h"
#include "tiny_llama.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>

typedef struct fixture {
    temp_dir dir;
    mr_runtime *runtime;
} fixture;

static void write_model(const char *path)
{
    gguf_writer writer;
    gguf_writer_init(&writer);
    tiny_llama_write(&writer, &(tiny_llama){0});
    size_t size;
    const uint8_t *file = gguf_finish(&writer, &size);
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(file, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
    gguf_writer_deinit(&writer);
}

static int open_runtime(void **state)
{
    static fixture f;
    f.dir = temp_dir_make();
    char path[PATH_MAX];
    write_model(temp_dir_join(&f.dir, "tiny.gguf", path));
    mr_config config;
    mr_error err = {0};
    assert_int_equal(mr_config_init(&config, &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "max_batch_size=3", &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "compute=f32", &err), MR_OK);
    assert_int_equal(mr_config_set(&config, "threads=1", &err), MR_OK);
    assert_int_equal(mr_config_finish(&config, &err), MR_OK);
    const mr_runtime_options options = {.model_path = path, .config = &config, .with_engine = true};
    if (mr_runtime_open(&options, &f.runtime, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    *state = &f;
    return 0;
}

static int close_runtime(void **state)
{
    fixture *f = *state;
    mr_runtime_close(f->runtime);
    temp_dir_remove(&f->dir);
    return 0;
}

static json_t *next_row(FILE *output)
{
    static char line[1 << 16];
    assert_non_null(fgets(line, sizeof(line), output));
    json_t *row = json_loads(line, 0, NULL);
    assert_non_null(row);
    return row;
}

static json_int_t number(const json_t *row, const char *name)
{
    const json_t *value = json_object_get(row, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* Request i asks for 1 + i mod 5 tokens; every seventh line is bad. */
static void write_requests(FILE *input, int count)
{
    for (int i = 0; i < count; i++) {
        if (i % 7 == 3) {
            fprintf(input, "{\"id\": %d, \"prompt_ids\": [1], \"top_p\": 7}\n", i);
        } else {
            fprintf(input,
                    "{\"id\": %d, \"prompt_ids\": [1, 2, %d], \"max_tokens\": %d, "
                    "\"temperature\": 0, \"seed\": %d}\n",
                    i, i % TINY_VOCAB, 1 + i % 5, i);
        }
    }
    fflush(input);
    assert_int_equal(lseek(fileno(input), 0, SEEK_SET), 0);
}

static void check_row(const json_t *row, int i)
{
    assert_int_equal(number(row, "id"), i);
    const char *reason = json_string_value(json_object_get(row, "finish_reason"));
    if (i % 7 == 3) {
        const json_t *error = json_object_get(row, "error");
        assert_string_equal(reason, "error");
        assert_string_equal(json_string_value(json_object_get(error, "field")), "top_p");
        return;
    }
    assert_null(json_object_get(row, "error"));
    assert_string_equal(reason, "length");
    assert_int_equal(number(row, "completion_tokens"), 1 + i % 5);
    assert_int_equal(number(row, "prompt_tokens"), 3);
    assert_int_equal(number(row, "seed"), i);
    const json_t *ids = json_object_get(row, "token_ids");
    assert_int_equal(json_array_size(ids), 1 + i % 5);
    for (size_t t = 0; t < json_array_size(ids); t++) {
        assert_int_equal(json_integer_value(json_array_get(ids, t)), 0);
    }
}

/* More lines than run, or wait in the window, at a time. */
static void test_batch_S7_rows_in_input_order(void **state)
{
    enum { COUNT = 300 };
    const fixture *f = *state;
    FILE *input = tmpfile();
    FILE *output = tmpfile();
    write_requests(input, COUNT);
    mr_batch_summary summary;
    mr_error err = {0};
    assert_int_equal(mr_batch_run_lines(f->runtime, fileno(input), output, &summary, &err), MR_OK);
    assert_int_equal(summary.requests, COUNT);
    assert_int_equal(summary.failed, COUNT / 7 + (COUNT % 7 > 3 ? 1 : 0));
    rewind(output);
    for (int i = 0; i < COUNT; i++) {
        json_t *row = next_row(output);
        check_row(row, i);
        json_decref(row);
    }
    assert_int_equal(fgetc(output), EOF);
    fclose(input);
    fclose(output);
}

/* One row a choice, in index order; every token has the probability 1 / TINY_VOCAB. */
static void test_batch_rows_of_choices_and_beams(void **state)
{
    const fixture *f = *state;
    FILE *input = tmpfile();
    FILE *output = tmpfile();
    fputs("{\"id\": 0, \"prompt_ids\": [1], \"max_tokens\": 4, \"temperature\": 0, \"n\": 3,"
          " \"logit_bias\": {\"5\": 3}, \"stop_token_ids\": [5]}\n"
          "{\"id\": 1, \"prompt_ids\": [1], \"max_tokens\": 3, \"ignore_eos\": true,"
          " \"beam_width\": 3, \"n\": 2}\n",
          input);
    fflush(input);
    assert_int_equal(lseek(fileno(input), 0, SEEK_SET), 0);
    mr_batch_summary summary;
    mr_error err = {0};
    assert_int_equal(mr_batch_run_lines(f->runtime, fileno(input), output, &summary, &err), MR_OK);
    assert_int_equal(summary.requests, 2);
    assert_int_equal(summary.failed, 0);
    rewind(output);
    for (int i = 0; i < 5; i++) {
        json_t *row = next_row(output);
        const bool beam = i >= 3;
        assert_int_equal(number(row, "id"), beam ? 1 : 0);
        assert_int_equal(number(row, "index"), beam ? i - 3 : i);
        assert_int_equal(number(row, "completion_tokens"), beam ? 3 : 1);
        const char *reason = json_string_value(json_object_get(row, "finish_reason"));
        assert_string_equal(reason, beam ? "length" : "stop");
        if (beam) {
            const double total = json_real_value(json_object_get(row, "cumulative_logprob"));
            assert_true(fabs(total + 3 * log(TINY_VOCAB)) < 1e-4);
        } else {
            assert_int_equal(number(row, "matched_stop"), 5);
            assert_null(json_object_get(row, "cumulative_logprob"));
        }
        json_decref(row);
    }
    assert_int_equal(fgetc(output), EOF);
    fclose(input);
    fclose(output);
}

static void test_batch_of_nothing(void **state)
{
    const fixture *f = *state;
    FILE *input = tmpfile();
    mr_batch_summary summary;
    mr_error err = {0};
    assert_int_equal(mr_batch_run_lines(f->runtime, fileno(input), stdout, &summary, &err), MR_OK);
    assert_int_equal(summary.requests, 0);
    fclose(input);
}

/* The rows cannot be written: it gives up, and what runs is ended. */
static void test_batch_reports_a_full_disk(void **state)
{
    const fixture *f = *state;
    FILE *full = fopen("/dev/full", "w");
    if (full == NULL) {
        skip();
    }
    FILE *input = tmpfile();
    write_requests(input, 50);
    mr_batch_summary summary;
    mr_error err = {0};
    assert_int_equal(mr_batch_run_lines(f->runtime, fileno(input), full, &summary, &err),
                     MR_INTERNAL);
    fclose(input);
    fclose(full);
}

typedef struct talk {
    mr_runtime *runtime;
    int input;
    FILE *output;
    mr_status status;
} talk;

static void *run_talk(void *arg)
{
    talk *t = arg;
    mr_batch_summary summary;
    mr_error err = {0};
    t->status = mr_batch_run_lines(t->runtime, t->input, t->output, &summary, &err);
    fclose(t->output);
    return NULL;
}

/* A caller that waits for each answer before it asks again gets it. */
static void test_batch_answers_while_the_input_is_open(void **state)
{
    const fixture *f = *state;
    int in[2];
    int out[2];
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    talk t = {.runtime = f->runtime, .input = in[0], .output = fdopen(out[1], "w")};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_talk, &t), 0);
    FILE *answers = fdopen(out[0], "r");
    static const int questions[] = {0, 1, 2, 4, 5};
    for (size_t q = 0; q < sizeof(questions) / sizeof(questions[0]); q++) {
        const int i = questions[q];
        assert_true(dprintf(in[1],
                            "{\"id\": %d, \"prompt_ids\": [1, 2, 3], \"max_tokens\": %d, "
                            "\"temperature\": 0, \"seed\": %d}\n",
                            i, 1 + i % 5, i) > 0);
        json_t *row = next_row(answers);
        check_row(row, i);
        json_decref(row);
    }
    close(in[1]);
    pthread_join(thread, NULL);
    assert_int_equal(t.status, MR_OK);
    assert_int_equal(fgetc(answers), EOF);
    fclose(answers);
    close(in[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_batch_S7_rows_in_input_order),
        cmocka_unit_test(test_batch_rows_of_choices_and_beams),
        cmocka_unit_test(test_batch_of_nothing),
        cmocka_unit_test(test_batch_reports_a_full_disk),
        cmocka_unit_test(test_batch_answers_while_the_input_is_open),
    };
    return cmocka_run_group_tests(tests, open_runtime, close_runtime);
}
