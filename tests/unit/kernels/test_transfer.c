/* SPDX-License-Identifier: Apache-2.0 */
/* KV blocks of the CPU backend to host memory and back. */
#include "kernels/cpu/cpu_backend.h"
#include "tiny_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH = 24, VOCAB = 96 };

typedef struct fixture {
    tiny_plan tiny;
    mr_backend *backend;
    tiny_session session;
    uint64_t block_bytes;
    uint8_t *host; /* [n_blocks][block_bytes] */
    uint32_t n_blocks;
} fixture;

static void open_fixture(fixture *f, mr_dtype kv_dtype, uint32_t threads)
{
    const tiny_dims dims = tiny_dims_default();
    const mr_cpu_options cpu = {.threads = threads};
    mr_exec_options options = tiny_options();
    options.kv_dtype = kv_dtype;
    *f = (fixture){.n_blocks = options.n_blocks};
    tiny_plan_create(&dims, &f->tiny);
    assert_int_equal(mr_cpu_backend_create(&cpu, &f->backend, NULL), MR_OK);
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    f->block_bytes = mr_kv_block_bytes(&f->tiny.plan->kv, kv_dtype, options.block_size);
    f->host = f->session.exec->vt->host_alloc(f->session.exec, f->n_blocks * f->block_bytes);
    assert_non_null(f->host);
}

static void close_fixture(fixture *f)
{
    f->session.exec->vt->host_free(f->session.exec, f->host, f->n_blocks * f->block_bytes);
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
}

static mr_status move(fixture *f, mr_transfer_direction direction, const uint32_t *blocks,
                      uint8_t *const *host, uint32_t count)
{
    mr_exec *exec = f->session.exec;
    const mr_transfer transfer = {
        .direction = direction, .count = count, .blocks = blocks, .host = host};
    uint64_t ticket;
    mr_error err = {0};
    MR_TRY(exec->vt->transfer_start(exec, &transfer, &ticket, &err));
    assert_int_equal(exec->vt->transfer_poll(exec, ticket), MR_TRANSFER_DONE);
    return MR_OK;
}

/* All blocks but the null block, each into its own place or out of it. */
static void move_all(fixture *f, mr_transfer_direction direction, uint8_t *to)
{
    for (uint32_t block = 1; block < f->n_blocks; block++) {
        uint8_t *place = to + block * f->block_bytes;
        assert_int_equal(move(f, direction, &block, &place, 1), MR_OK);
    }
}

static void feed(fixture *f, uint32_t slot, uint32_t start, uint32_t count, mr_step_output *out)
{
    int32_t tokens[LENGTH];
    uint64_t seed = 5;
    for (uint32_t i = 0; i < LENGTH; i++) {
        tokens[i] = (int32_t)(tiny_random(&seed) % VOCAB);
    }
    mr_batch_reset(f->session.storage);
    tiny_feed(&f->session, slot, tokens + start, start, count, false);
    tiny_run(&f->session, out);
}

static uint32_t block_of(const fixture *f, uint32_t slot, uint32_t index)
{
    const uint32_t per_slot = f->session.options.max_context / f->session.options.block_size;
    return slot * per_slot + per_slot - index;
}

/* Two full blocks and one in part go out, come back as the blocks of another slot, and the next
 * token there is what it is here. Every other block stays as it is. */
static void check_type(mr_dtype kv_dtype, uint32_t threads)
{
    fixture f;
    mr_step_output out;
    open_fixture(&f, kv_dtype, threads);
    float here[VOCAB];
    feed(&f, 0, 0, LENGTH - 4, &out);
    uint32_t from[3];
    uint32_t to[3];
    uint8_t *places[3];
    for (uint32_t i = 0; i < 3; i++) {
        from[i] = block_of(&f, 0, i);
        to[i] = block_of(&f, 2, i);
        places[i] = f.host + (uint64_t)i * f.block_bytes;
    }
    assert_int_equal(move(&f, MR_TRANSFER_OUT, from, places, 3), MR_OK);
    feed(&f, 0, LENGTH - 4, 1, &out);
    memcpy(here, out.logits, sizeof(here));
    /* The slot's table, and rubbish in its blocks. */
    feed(&f, 2, 0, LENGTH - 4, &out);
    uint8_t *before = calloc(f.n_blocks, f.block_bytes);
    uint8_t *after = calloc(f.n_blocks, f.block_bytes);
    assert_true(before != NULL && after != NULL);
    uint8_t *rubbish[3] = {before, before, before};
    assert_int_equal(move(&f, MR_TRANSFER_IN, to, rubbish, 3), MR_OK);
    move_all(&f, MR_TRANSFER_OUT, before);
    assert_int_equal(move(&f, MR_TRANSFER_IN, to, places, 3), MR_OK);
    move_all(&f, MR_TRANSFER_OUT, after);
    for (uint32_t block = 1; block < f.n_blocks; block++) {
        const bool moved = block == to[0] || block == to[1] || block == to[2];
        const bool same = memcmp(before + block * f.block_bytes, after + block * f.block_bytes,
                                 f.block_bytes) == 0;
        assert_true(same != moved);
    }
    feed(&f, 2, LENGTH - 4, 1, &out);
    assert_memory_equal(out.logits, here, sizeof(here));
    free(before);
    free(after);
    close_fixture(&f);
}

static void test_transfer_out_and_in_elsewhere(void **state)
{
    (void)state;
    static const mr_dtype types[] = {MR_DTYPE_F32, MR_DTYPE_F16, MR_DTYPE_BF16, MR_DTYPE_I8};
    for (uint32_t i = 0; i < 4; i++) {
        check_type(types[i], 1 + i % 3);
    }
}

static void test_transfer_refuses_blocks_that_are_none(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, MR_DTYPE_F32, 1);
    const uint32_t bad[] = {MR_NULL_BLOCK, f.n_blocks};
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(move(&f, MR_TRANSFER_IN, &bad[i], &f.host, 1), MR_INVALID_ARGUMENT);
        assert_int_equal(move(&f, MR_TRANSFER_OUT, &bad[i], &f.host, 1), MR_INVALID_ARGUMENT);
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transfer_out_and_in_elsewhere),
        cmocka_unit_test(test_transfer_refuses_blocks_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
