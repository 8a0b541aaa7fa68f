/* SPDX-License-Identifier: Apache-2.0 */
/* KV blocks of the GPU to host memory and back, beside steps. */
#include "gpu.h"
#include "tiny_schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 24, VOCAB = 96, BLOCKS = 3 };

typedef struct fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
    uint64_t block_bytes;
    uint8_t *host; /* [2][BLOCKS][block_bytes] */
} fixture;

static void open_fixture(fixture *f, mr_dtype type)
{
    const tiny_dims dims = tiny_dims_default();
    mr_exec_options options = tiny_options();
    options.kv_dtype = type;
    *f = (fixture){0};
    f->backend = gpu_backend(type);
    tiny_plan_create(&dims, &f->tiny);
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    f->block_bytes = mr_kv_block_bytes(&f->tiny.plan->kv, type, options.block_size);
    f->host = f->session.exec->vt->host_alloc(f->session.exec, 2 * BLOCKS * f->block_bytes);
    assert_non_null(f->host);
}

static void close_fixture(fixture *f)
{
    f->session.exec->vt->host_free(f->session.exec, f->host, 2 * BLOCKS * f->block_bytes);
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
}

static uint64_t start(fixture *f, mr_transfer_direction direction, const uint32_t *blocks,
                      uint8_t *const *host)
{
    mr_exec *exec = f->session.exec;
    const mr_transfer transfer = {
        .direction = direction, .count = BLOCKS, .blocks = blocks, .host = host};
    uint64_t ticket = 0;
    mr_error err = {0};
    if (exec->vt->transfer_start(exec, &transfer, &ticket, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return ticket;
}

static void finish(fixture *f, uint64_t ticket)
{
    mr_exec *exec = f->session.exec;
    mr_transfer_state state = MR_TRANSFER_RUNS;
    while (state == MR_TRANSFER_RUNS) {
        state = exec->vt->transfer_poll(exec, ticket);
    }
    assert_int_equal(state, MR_TRANSFER_DONE);
}

static void feed(fixture *f, uint32_t slot, uint32_t from, uint32_t count, mr_step_output *out)
{
    int32_t tokens[LENGTH];
    tiny_tokens(&f->tiny, 5, tokens, LENGTH);
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, slot, tokens + from, from, count, false);
    tiny_run(&f->session, out);
}

static uint32_t block_of(const fixture *f, uint32_t slot, uint32_t index)
{
    const uint32_t per_slot = f->session.options.max_context / f->session.options.block_size;
    return slot * per_slot + per_slot - index;
}

/* A sequence's blocks go out right behind the step that wrote them, while other steps run, come
 * back as the blocks of another slot, and the next token there is what it is here. */
static void check_type(mr_dtype type)
{
    fixture f;
    mr_step_output out;
    float here[VOCAB];
    open_fixture(&f, type);
    uint32_t from[BLOCKS];
    uint32_t to[BLOCKS];
    uint8_t *places[BLOCKS];
    uint8_t *again[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        from[i] = block_of(&f, 0, i);
        to[i] = block_of(&f, 2, i);
        places[i] = f.host + i * f.block_bytes;
        again[i] = places[i] + BLOCKS * f.block_bytes;
    }
    feed(&f, 0, 0, LENGTH - 4, &out);
    const uint64_t first = start(&f, MR_TRANSFER_OUT, from, places);
    feed(&f, 2, 0, LENGTH, &out); /* the other slot's table, and rubbish in its blocks */
    finish(&f, first);
    feed(&f, 0, LENGTH - 4, 1, &out);
    memcpy(here, out.logits, sizeof(here));
    finish(&f, start(&f, MR_TRANSFER_IN, to, places));
    finish(&f, start(&f, MR_TRANSFER_OUT, to, again));
    assert_memory_equal(places[0], again[0], BLOCKS * f.block_bytes);
    feed(&f, 2, LENGTH - 4, 1, &out);
    assert_memory_equal(out.logits, here, sizeof(here));
    close_fixture(&f);
}

static void test_transfer_out_and_in_elsewhere(void **state)
{
    (void)state;
    check_type(MR_DTYPE_F32);
    check_type(MR_DTYPE_F16);
    check_type(MR_DTYPE_BF16);
}

/* Tickets end in order, whoever is asked first, and many may be under way. */
static void test_many_transfers(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MR_DTYPE_BF16);
    const uint32_t blocks[BLOCKS] = {1, 2, 3};
    uint8_t *places[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        places[i] = f.host + i * f.block_bytes;
    }
    uint64_t tickets[200];
    for (uint32_t i = 0; i < 200; i++) {
        tickets[i] = start(&f, i % 2 == 0 ? MR_TRANSFER_OUT : MR_TRANSFER_IN, blocks, places);
        if (i >= 60) {
            finish(&f, tickets[i - 60]);
        }
    }
    finish(&f, tickets[199]);
    finish(&f, tickets[150]);
    close_fixture(&f);
}

/* An argument names the cases to run, with * and ?; none: all. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfer_out_and_in_elsewhere),
        cmocka_unit_test(test_many_transfers),
    };
    cmocka_set_test_filter(argc > 1 ? argv[1] : NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
