/* SPDX-License-Identifier: Apache-2.0 */
/* Memory on the host side of the CUDA backend: what is taken of a GPU, who gets it, and what is
 * refused. */
#include "cuda_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

/* A small model whose weights are on the GPU, and what is said when it cannot be run. */
typedef struct loaded {
    tiny_plan tiny;
    mr_backend *backend;
    mr_weights *weights;
    mr_exec *exec; /* what compile() gave last */
    mr_error err;
} loaded;

static void upload(loaded *m, mr_backend *backend)
{
    m->backend = backend;
    if (backend->vt->upload(backend, m->tiny.plan, NULL, NULL, &m->weights, &m->err) != MR_OK) {
        fail_msg("%s", m->err.message);
    }
}

static mr_status compile(loaded *m, const mr_exec_options *options)
{
    return m->backend->vt->compile(m->backend, m->tiny.plan, m->weights, options, &m->exec,
                                   &m->err);
}

static mr_status kv_room(loaded *m, const mr_exec_options *options, uint64_t *bytes)
{
    return m->backend->vt->kv_room(m->backend, m->tiny.plan, options, bytes, &m->err);
}

static void unload(loaded *m)
{
    m->backend->vt->weights_destroy(m->backend, m->weights);
    m->backend->vt->destroy(m->backend);
    tiny_plan_destroy(&m->tiny);
    cuda_assert_clean();
}

static void test_no_gpu_is_a_plain_answer(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    fake.devices = 0;
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    cuda_assert_says(&err, "no GPU");
    fake.devices = 1;
    fake.fail = "device_count";
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    cuda_assert_says(&err, "an illegal access, says the fake");
    fake.fail = NULL;
    fake.major = 7;
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_FAILED_PRECONDITION);
    cuda_assert_says(&err, "compute capability 7.0");
    cuda_assert_clean();
}

static void test_the_share_is_taken_at_once_or_not_at_all(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    fake.total_bytes = (uint64_t)1000 << 20;
    fake.others = (uint64_t)100 << 20;
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_OK);
    /* 0.9 of 1000 MiB, less what others have: 800 MiB. */
    assert_int_equal(fake.allocated, (uint64_t)800 << 20);
    backend->vt->destroy(backend);
    cuda_assert_clean();

    fake.others = (uint64_t)950 << 20;
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_RESOURCE_EXHAUSTED);
    assert_string_equal(err.field, "gpu_memory_utilization");
    cuda_assert_says(&err, "50 are free");
    fake.others = 0;
    fake.fail = "alloc";
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, 0, &backend, &err), MR_RESOURCE_EXHAUSTED);
    cuda_assert_clean();
}

static void test_slab_gives_aligned_pieces_and_takes_them_back(void **state)
{
    (void)state;
    mr_cuda_slab slab = {.base = 0x10000, .bytes = 1024};
    mr_cuda_ptr a = 0;
    mr_cuda_ptr b = 0;
    assert_true(mr_cuda_slab_take(&slab, 1, &a));
    const uint64_t mark = slab.used;
    assert_true(mr_cuda_slab_take(&slab, 257, &b));
    assert_int_equal(a, 0x10000);
    assert_int_equal(b, 0x10100);
    assert_int_equal(mr_cuda_slab_left(&slab), 256);
    assert_false(mr_cuda_slab_take(&slab, 257, &a));
    assert_false(mr_cuda_slab_take(&slab, UINT64_MAX, &a));
    const uint64_t end = slab.used;
    assert_true(mr_cuda_slab_take(&slab, 256, &a));
    mr_cuda_slab_reset(&slab, mark, end); /* not on top */
    assert_int_equal(slab.used, 1024);
    mr_cuda_slab_reset(&slab, end, slab.used);
    mr_cuda_slab_reset(&slab, mark, end);
    assert_int_equal(slab.used, 256);
}

static void test_weights_that_do_not_fit_say_what_would(void **state)
{
    (void)state;
    mr_backend *backend = NULL;
    mr_error err = {0};
    tiny_dims dims = tiny_dims_default();
    dims.vocab = 20000; /* 2 · 20000 · 64 floats, 2 · 30,720 of the layers, 5 gains: 10.001 MiB */
    tiny_plan tiny;
    tiny_plan_create(&dims, &tiny);
    assert_int_equal(cuda_try_open(MR_DTYPE_F32, (uint64_t)4 << 20, &backend, &err), MR_OK);
    mr_weights *weights = NULL;
    assert_int_equal(backend->vt->upload(backend, tiny.plan, NULL, NULL, &weights, &err),
                     MR_RESOURCE_EXHAUSTED);
    cuda_assert_says(&err, "10 MiB are needed, and 4 MiB");
    backend->vt->destroy(backend);
    tiny_plan_destroy(&tiny);
    cuda_assert_clean();
}

static void test_an_executor_that_does_not_fit_leaves_the_memory(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    loaded m = {0};
    mr_backend *backend = NULL;
    mr_backend_info before;
    mr_backend_info after;
    tiny_plan_create(&dims, &m.tiny);
    assert_int_equal(cuda_try_open(MR_DTYPE_BF16, (uint64_t)4 << 20, &backend, NULL), MR_OK);
    upload(&m, backend);
    backend->vt->info(backend, &before);
    mr_exec_options options = cuda_exec_options();
    options.n_blocks = 100000;
    assert_int_equal(compile(&m, &options), MR_RESOURCE_EXHAUSTED);
    cuda_assert_says(&m.err, "KV cache");
    backend->vt->info(backend, &after);
    assert_int_equal(before.memory_bytes, after.memory_bytes);
    unload(&m);
}

/* What kv_room promises, compile takes; a block more it does not. */
static void test_kv_room_is_exact(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    loaded m = {0};
    tiny_plan_create(&dims, &m.tiny);
    upload(&m, cuda_open(MR_DTYPE_BF16));
    mr_exec_options options = cuda_exec_options();
    uint64_t room = 0;
    assert_int_equal(kv_room(&m, &options, &room), MR_OK);
    const uint64_t block =
        mr_kv_block_bytes(&m.tiny.plan->kv, options.kv_dtype, options.block_size);
    options.n_blocks = (uint32_t)(room / block) + 1;
    assert_int_equal(compile(&m, &options), MR_RESOURCE_EXHAUSTED);
    options.n_blocks -= 1;
    assert_int_equal(compile(&m, &options), MR_OK);
    mr_exec_memory memory;
    m.exec->vt->memory(m.exec, &memory);
    assert_true(memory.kv_bytes >= options.n_blocks * block);
    m.exec->vt->destroy(m.exec);
    unload(&m);
}

/* What there is no kernel for is refused by name. */
static void test_unknown_shapes_are_refused(void **state)
{
    (void)state;
    tiny_dims dims = tiny_dims_default();
    dims.head_width = 272;
    loaded m = {0};
    tiny_plan_create(&dims, &m.tiny);
    upload(&m, cuda_open(MR_DTYPE_BF16));
    mr_exec_options options = cuda_exec_options();
    assert_int_equal(compile(&m, &options), MR_UNIMPLEMENTED);
    cuda_assert_says(&m.err, "attention");
    cuda_assert_says(&m.err, "256");
    options.kv_dtype = MR_DTYPE_U8;
    assert_int_equal(compile(&m, &options), MR_UNIMPLEMENTED);
    assert_string_equal(m.err.field, "kv_cache_dtype");
    unload(&m);
}

/* The GPU would read rows behind the table of learned positions. */
static void test_more_positions_than_were_learned_are_refused(void **state)
{
    (void)state;
    const tiny_dims dims = tiny_dims_default();
    loaded m = {0};
    tiny_plan_create(&dims, &m.tiny);
    mr_op_embed *embed = &m.tiny.plan->ops[0].embed;
    assert_int_equal(m.tiny.plan->ops[0].kind, MR_OP_EMBED);
    embed->learned_positions = true;
    embed->positions = embed->table;
    embed->offset = dims.vocab - 10;
    upload(&m, cuda_open(MR_DTYPE_BF16));
    mr_exec_options options = cuda_exec_options();
    options.max_context = 11;
    uint64_t room = 0;
    assert_int_equal(kv_room(&m, &options, &room), MR_INVALID_ARGUMENT);
    assert_int_equal(compile(&m, &options), MR_INVALID_ARGUMENT);
    assert_string_equal(m.err.field, "max_seq_length");
    options.max_context = 10;
    assert_int_equal(kv_room(&m, &options, &room), MR_OK);
    unload(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_no_gpu_is_a_plain_answer, cuda_setup),
        cmocka_unit_test_setup(test_the_share_is_taken_at_once_or_not_at_all, cuda_setup),
        cmocka_unit_test_setup(test_slab_gives_aligned_pieces_and_takes_them_back, cuda_setup),
        cmocka_unit_test_setup(test_weights_that_do_not_fit_say_what_would, cuda_setup),
        cmocka_unit_test_setup(test_an_executor_that_does_not_fit_leaves_the_memory, cuda_setup),
        cmocka_unit_test_setup(test_kv_room_is_exact, cuda_setup),
        cmocka_unit_test_setup(test_unknown_shapes_are_refused, cuda_setup),
        cmocka_unit_test_setup(test_more_positions_than_were_learned_are_refused, cuda_setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
