/* SPDX-License-Identifier: Apache-2.0 */
/* KV blocks to and from host memory on the host side of the CUDA backend. */
#include "cuda_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static mr_status transfer(cuda_fixture *f, mr_transfer_direction direction, uint32_t block,
                          uint8_t *host, uint64_t *ticket, mr_error *err)
{
    const mr_transfer one = {.direction = direction, .count = 1, .blocks = &block, .host = &host};
    return f->session.exec->vt->transfer_start(f->session.exec, &one, ticket, err);
}

/* Plane by plane there and back, without waiting; over when the device says so, in order. */
static void test_transfers_go_beside_the_steps(void **state)
{
    (void)state;
    cuda_fixture f;
    mr_error err = {0};
    cuda_fixture_open_heads(&f, 64);
    mr_exec *exec = f.session.exec;
    const mr_cuda_exec *cuda = (const mr_cuda_exec *)exec;
    const uint64_t bytes =
        mr_kv_block_bytes(&f.tiny.plan->kv, MR_DTYPE_BF16, f.session.options.block_size);
    uint8_t *host = exec->vt->host_alloc(exec, bytes);
    assert_non_null(host);
    const uint64_t plane = cuda->sizes.kv_block_bytes;
    for (uint64_t i = 0; i < bytes / plane; i++) {
        uint8_t *from = (uint8_t *)(uintptr_t)(cuda->kv + i * cuda->sizes.kv_plane_bytes);
        memset(from + 3 * plane, (int)(i + 1), plane); /* block 3 */
        memset(from + 5 * plane, 0, plane);
    }
    uint64_t out = 0;
    uint64_t in = 0;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 3, host, &out, &err), MR_OK);
    assert_int_equal(transfer(&f, MR_TRANSFER_IN, 5, host, &in, &err), MR_OK);
    cuda_decode(&f, 1, 0);
    assert_int_equal(exec->vt->transfer_poll(exec, out), MR_TRANSFER_RUNS);
    assert_false(exec->vt->transfer_cancel(exec, out));
    fake.transferred = 1;
    assert_int_equal(exec->vt->transfer_poll(exec, in), MR_TRANSFER_RUNS);
    assert_int_equal(exec->vt->transfer_poll(exec, out), MR_TRANSFER_DONE);
    fake.transferred = 2;
    assert_true(exec->vt->transfer_cancel(exec, in));
    for (uint64_t i = 0; i < bytes / plane; i++) {
        const uint8_t *to = (uint8_t *)(uintptr_t)(cuda->kv + i * cuda->sizes.kv_plane_bytes);
        assert_int_equal(host[i * plane], i + 1);
        assert_int_equal(to[5 * plane + plane - 1], i + 1);
    }
    exec->vt->host_free(exec, host, bytes);
    cuda_fixture_close(&f);
}

static void test_transfers_that_cannot_be(void **state)
{
    (void)state;
    cuda_fixture f;
    mr_error err = {0};
    cuda_fixture_open_heads(&f, 64);
    mr_exec *exec = f.session.exec;
    uint8_t *host = exec->vt->host_alloc(exec, (uint64_t)1 << 20);
    uint64_t ticket = 0;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, MR_NULL_BLOCK, host, &ticket, &err),
                     MR_INVALID_ARGUMENT);
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, f.session.options.n_blocks, host, &ticket, &err),
                     MR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < MR_CUDA_TRANSFERS; i++) {
        assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_OK);
    }
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_RESOURCE_EXHAUSTED);
    fake.transferred = 1;
    assert_int_equal(transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err), MR_OK);
    assert_int_equal(ticket, MR_CUDA_TRANSFERS + 1);
    fake.fail = "alloc_host";
    assert_null(exec->vt->host_alloc(exec, 1));
    exec->vt->host_free(exec, host, (uint64_t)1 << 20);
    cuda_fixture_close(&f);
}

/* A transfer that fails is the device's failure: no step runs after it. */
static void test_a_failing_transfer_is_sticky(void **state)
{
    (void)state;
    static const char *const calls[] = {"transfer_begin", "transfer_block", "transfer_end",
                                        "transfer_is_over"};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
        cuda_fixture f;
        mr_error err = {0};
        fake_reset();
        cuda_fixture_open_heads(&f, 64);
        mr_exec *exec = f.session.exec;
        uint8_t *host = exec->vt->host_alloc(exec, (uint64_t)1 << 20);
        uint64_t ticket = 0;
        fake.fail = calls[i];
        fake.fail_at = 1;
        const mr_status status = transfer(&f, MR_TRANSFER_OUT, 1, host, &ticket, &err);
        assert_int_equal(status, i < 3 ? MR_INTERNAL : MR_OK);
        if (status == MR_OK) {
            assert_int_equal(exec->vt->transfer_poll(exec, ticket), MR_TRANSFER_FAILED);
        }
        fake.fail = NULL;
        mr_batch_reset(f.session.storage);
        tiny_feed(&f.session, 0, cuda_prompt, 0, 1, false);
        assert_int_equal(exec->vt->submit(exec, mr_batch_get(f.session.storage), &err),
                         MR_INTERNAL);
        exec->vt->host_free(exec, host, (uint64_t)1 << 20);
        cuda_fixture_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_transfers_go_beside_the_steps, cuda_setup),
        cmocka_unit_test_setup(test_transfers_that_cannot_be, cuda_setup),
        cmocka_unit_test_setup(test_a_failing_transfer_is_sticky, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
