/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

int cuda_setup(void **state)
{
    (void)state;
    fake_reset();
    return 0;
}

static mr_cuda_options options_of(mr_dtype compute, uint64_t bytes)
{
    return (mr_cuda_options){
        .compute = compute,
        .threads = 1,
        .memory_fraction = 0.9,
        .memory_bytes = bytes,
        .api = fake_api(),
    };
}

mr_status cuda_try_open(mr_dtype compute, uint64_t bytes, mr_backend **out, mr_error *err)
{
    const mr_cuda_options options = options_of(compute, bytes);
    return mr_cuda_backend_create(&options, out, err);
}

mr_backend *cuda_open(mr_dtype compute)
{
    mr_backend *backend = NULL;
    mr_error err = {0};
    if (cuda_try_open(compute, (uint64_t)64 << 20, &backend, &err) != MR_OK) {
        fail_msg("%s", err.message);
    }
    return backend;
}

mr_exec_options cuda_exec_options(void)
{
    mr_exec_options options = tiny_options();
    options.kv_dtype = MR_DTYPE_BF16;
    options.keep_logits = false;
    return options;
}

void cuda_fixture_open(cuda_fixture *f, const tiny_dims *dims, bool batch_invariant)
{
    const mr_exec_options options = cuda_exec_options();
    mr_cuda_options cuda = options_of(MR_DTYPE_BF16, (uint64_t)64 << 20);
    cuda.batch_invariant = batch_invariant;
    tiny_plan_create(dims, &f->tiny);
    assert_int_equal(mr_cuda_backend_create(&cuda, &f->backend, NULL), MR_OK);
    tiny_session_create(&f->tiny, f->backend, &options, &f->session);
    fake_clear_trace();
}

void cuda_fixture_open_heads(cuda_fixture *f, uint32_t head_width)
{
    tiny_dims dims = tiny_dims_default();
    dims.head_width = head_width;
    cuda_fixture_open(f, &dims, false);
}

void cuda_fixture_close(cuda_fixture *f)
{
    tiny_session_destroy(&f->session);
    f->backend->vt->destroy(f->backend);
    tiny_plan_destroy(&f->tiny);
    cuda_assert_clean();
}

const int32_t cuda_prompt[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};

void cuda_decode(cuda_fixture *f, uint32_t slots, uint32_t position)
{
    mr_step_output out;
    mr_batch_reset(f->session.storage);
    for (uint32_t slot = 0; slot < slots; slot++) {
        tiny_feed(&f->session, slot, cuda_prompt, position, 1, false);
    }
    fake_clear_trace();
    tiny_run(&f->session, &out);
    assert_int_equal(out.n_rows, slots);
}

void cuda_assert_says(const mr_error *err, const char *what)
{
    if (strstr(err->message, what) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", err->message, what);
    }
}

void cuda_assert_clean(void)
{
    assert_int_equal(fake.contexts, 0);
    assert_int_equal(fake.host_areas, 0);
    assert_int_equal(fake.graphs, 0);
    assert_int_equal(fake.allocated, 0);
}

void cuda_assert_trace(const char *const *want, uint32_t count)
{
    assert_int_equal(fake.n_trace, count);
    for (uint32_t i = 0; i < count; i++) {
        assert_string_equal(fake.trace[i], want[i]);
    }
}
