/* SPDX-License-Identifier: Apache-2.0 */
#include "service/batch.h"

#include "base/checked.h"
#include "service/jsonl.h"
#include "service/lines.h"
#include "service/result.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Results that wait for an earlier, longer one keep their place in a window of this many times the
 * requests in flight. */
#define WINDOW_FACTOR 8u

typedef enum slot_state {
    SLOT_EMPTY,
    SLOT_RUNNING,
    SLOT_DONE,
} slot_state;

/* A line of the input, until its row is written. */
typedef struct slot {
    slot_state state;
    json_t *id;       /* owns */
    mr_local_run run; /* while RUNNING */
    json_t *rows;     /* owns, when DONE: a list; NULL: memory was short */
} slot;

typedef struct batch {
    mr_runtime *runtime;
    mr_waiter waiter;
    mr_lines lines;
    slot *slots; /* [window], a ring */
    uint32_t window;
    uint32_t first; /* the oldest line not written yet */
    uint32_t used;  /* lines from `first` on */
    uint32_t running;
    uint32_t in_flight; /* at most this many run */
    bool ended;         /* the input has */
    FILE *output;
    mr_batch_summary *summary;
} batch;

static slot *slot_at(const batch *b, uint32_t index)
{
    return &b->slots[(b->first + index) % b->window];
}

static void finish_slot(batch *b, slot *s, json_t *rows, bool failed)
{
    s->rows = rows;
    s->state = SLOT_DONE;
    b->summary->failed += failed ? 1 : 0;
}

/* A list of one; takes the reference. */
static json_t *one_row(json_t *row)
{
    json_t *rows = json_array();
    if (json_array_append_new(rows, row) != 0) {
        json_decref(rows);
        return NULL;
    }
    return rows;
}

static json_t *result_rows(json_t *id, const mr_local_run *run)
{
    json_t *rows = json_array();
    for (uint32_t i = 0; i < run->n_results && rows != NULL; i++) {
        if (json_array_append_new(rows, mr_jsonl_result_row(id, &run->results[i])) != 0) {
            json_decref(rows);
            rows = NULL;
        }
    }
    return rows;
}

static void start_line(batch *b, slot *s, const char *text, size_t bytes)
{
    const mr_model *model = mr_runtime_model(b->runtime);
    const uint32_t limit = mr_runtime_config(b->runtime)->max_seq_length;
    mr_error err = {0};
    mr_jsonl_request request;
    mr_status status = mr_jsonl_read_request(model, limit, text, bytes, &request, &err);
    s->id = json_incref(request.id);
    if (status == MR_OK) {
        const mr_local_ask ask = {.prompt = request.prompt.data,
                                  .n_prompt = request.prompt.count,
                                  .params = &request.params,
                                  .lists = &request.lists};
        status = mr_local_run_start(&s->run, b->runtime, &b->waiter, &ask, &err);
        if (status != MR_OK) {
            mr_local_run_deinit(&s->run);
        }
    }
    mr_jsonl_request_deinit(&request);
    if (status == MR_OK) {
        s->state = SLOT_RUNNING;
        b->running++;
    } else {
        (void)mr_fail_context(&err, "line %" PRIu64, b->lines.number);
        finish_slot(b, s, one_row(mr_jsonl_error_row(s->id, &err)), true);
    }
}

static bool wants_lines(const batch *b)
{
    return !b->ended && b->used < b->window && b->running < b->in_flight;
}

/* True when it took all lines that are here, false when there was no room for more. */
static bool take_lines(batch *b)
{
    while (wants_lines(b)) {
        const char *text;
        size_t bytes;
        const mr_line_kind kind = mr_lines_next(&b->lines, &text, &bytes);
        if (kind == MR_LINE_WANTING || kind == MR_LINE_END) {
            b->ended = kind == MR_LINE_END;
            return true;
        }
        slot *s = slot_at(b, b->used++);
        b->summary->requests++;
        if (kind == MR_LINE_WHOLE) {
            start_line(b, s, text, bytes);
        } else {
            mr_error err;
            (void)mr_fail(&err, MR_INVALID_ARGUMENT, "line %" PRIu64 " is longer than %zu bytes",
                          b->lines.number, MR_LINE_MAX_BYTES);
            finish_slot(b, s, one_row(mr_jsonl_error_row(NULL, &err)), true);
        }
    }
    return false;
}

static mr_status take_news(batch *b, mr_error *err)
{
    for (uint32_t i = 0; i < b->used; i++) {
        slot *s = slot_at(b, i);
        if (s->state != SLOT_RUNNING) {
            continue;
        }
        MR_TRY(mr_local_run_take(&s->run, err));
        if (s->run.ended) {
            const bool failed = s->run.results[0].error.status != MR_OK;
            finish_slot(b, s, result_rows(s->id, &s->run), failed);
            mr_local_run_deinit(&s->run);
            b->running--;
        }
    }
    return MR_OK;
}

/* Takes the reference. */
static mr_status write_line(batch *b, json_t *rows, mr_error *err)
{
    if (rows == NULL) {
        return mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory for a result");
    }
    mr_status status = MR_OK;
    for (size_t i = 0; i < json_array_size(rows) && status == MR_OK; i++) {
        status = mr_jsonl_write(b->output, json_incref(json_array_get(rows, i)), err);
    }
    json_decref(rows);
    return status;
}

static mr_status write_rows(batch *b, mr_error *err)
{
    bool wrote = false;
    while (b->used > 0 && slot_at(b, 0)->state == SLOT_DONE) {
        slot *s = slot_at(b, 0);
        json_t *rows = s->rows;
        json_decref(s->id);
        *s = (slot){0};
        b->first = (b->first + 1) % b->window;
        b->used--;
        MR_TRY(write_line(b, rows, err));
        wrote = true;
    }
    if (wrote && fflush(b->output) != 0) {
        return mr_fail(err, MR_INTERNAL, "writing results: %s", strerror(errno));
    }
    return MR_OK;
}

static mr_status run(batch *b, mr_error *err)
{
    for (;;) {
        MR_TRY(take_news(b, err));
        const bool took_all = take_lines(b);
        MR_TRY(write_rows(b, err));
        if (b->ended && b->used == 0) {
            return MR_OK;
        }
        if (!took_all && wants_lines(b)) {
            continue; /* the rows written made room for lines that are here already */
        }
        if (mr_waiter_wait(&b->waiter, wants_lines(b) ? b->lines.fd : -1)) {
            MR_TRY(mr_lines_read(&b->lines, err));
        }
    }
}

/* Ends what still runs after an error, and frees what is left. */
static void clean_up(batch *b)
{
    for (uint32_t i = 0; i < b->used; i++) {
        slot *s = slot_at(b, i);
        if (s->state == SLOT_RUNNING) {
            mr_engine_cancel(mr_runtime_engine(b->runtime), s->run.request);
            while (!mr_local_run_discard(&s->run)) {
                (void)mr_waiter_wait(&b->waiter, -1);
            }
            mr_local_run_deinit(&s->run);
        }
        json_decref(s->id);
        json_decref(s->rows);
    }
    free(b->slots);
    mr_lines_deinit(&b->lines);
    mr_waiter_deinit(&b->waiter);
}

mr_status mr_batch_run_lines(mr_runtime *runtime, int input_fd, FILE *output,
                             mr_batch_summary *summary, mr_error *err)
{
    const mr_config *config = mr_runtime_config(runtime);
    *summary = (mr_batch_summary){0};
    batch b = {.runtime = runtime, .output = output, .summary = summary};
    /* Twice the batch keeps the engine fed; a queue that is shorter must not overflow. */
    const uint32_t fed = 2 * config->max_batch_size;
    b.in_flight = fed < config->max_queue_requests ? fed : config->max_queue_requests;
    b.window = b.in_flight * WINDOW_FACTOR;
    mr_lines_init(&b.lines, input_fd);
    mr_status status = mr_waiter_init(&b.waiter, err);
    if (status == MR_OK) {
        b.slots = mr_calloc(b.window, sizeof(*b.slots));
        status =
            b.slots != NULL ? run(&b, err) : mr_fail(err, MR_RESOURCE_EXHAUSTED, "out of memory");
    }
    clean_up(&b);
    return status;
}
