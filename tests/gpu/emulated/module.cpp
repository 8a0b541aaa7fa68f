/* SPDX-License-Identifier: Apache-2.0 */
/* The module of an emulated GPU: memory, copies, split attention by the kernel on matrix units, and
 * sampling. MILLRACE_EMULATED_PROCESSORS says how many processors it has. */
#include "mma.h"

#include "codes.h"
#include "kernels/cuda/attention/split.cuh"

#include <cstdio>
#include <cstdlib>

namespace
{

constexpr uint64_t MEMORY = static_cast<uint64_t>(4) << 30;

int device_count(int *count)
{
    *count = 1;
    return 0;
}

const char *error_text(int code)
{
    return code == GPU_NOT_TAKEN ? "the emulated GPU does not take this shape"
                                 : emulated::error_text();
}

/* Compute capability 8.0, with the shared memory that it has. */
int open(int, mr_cuda_context **out)
{
    const char *processors = getenv("MILLRACE_EMULATED_PROCESSORS");
    mr_cuda_context *context = new mr_cuda_context();
    context->properties.major = 8;
    context->properties.multiProcessorCount = processors != nullptr ? atoi(processors) : 8;
    context->properties.sharedMemPerMultiprocessor = 164 * 1024;
    context->properties.sharedMemPerBlockOptin = 163 * 1024;
    *out = context;
    return 0;
}

void close(mr_cuda_context *context)
{
    delete context;
}

void properties(mr_cuda_context *context, mr_cuda_properties *out)
{
    *out = {};
    (void)snprintf(out->name, sizeof(out->name), "emulated");
    out->major = static_cast<uint32_t>(context->properties.major);
    out->minor = static_cast<uint32_t>(context->properties.minor);
    out->processors = static_cast<uint32_t>(context->properties.multiProcessorCount);
    out->memory_bytes = MEMORY;
}

int memory(mr_cuda_context *, uint64_t *free_bytes, uint64_t *total_bytes)
{
    *free_bytes = MEMORY;
    *total_bytes = MEMORY;
    return 0;
}

/* The system gives pages when they are written to. */
int alloc(mr_cuda_context *, uint64_t bytes, mr_cuda_ptr *out)
{
    void *made = aligned_alloc(256, (bytes + 255) / 256 * 256);
    *out = reinterpret_cast<uintptr_t>(made);
    return made != nullptr ? 0 : 2; /* cudaErrorMemoryAllocation */
}

void release(mr_cuda_context *, mr_cuda_ptr ptr)
{
    free(mr_at<void>(ptr));
}

int to_device(mr_cuda_context *, mr_cuda_ptr to, const void *from, uint64_t bytes)
{
    memcpy(mr_at<void>(to), from, bytes);
    return 0;
}

int to_host(mr_cuda_context *, void *to, mr_cuda_ptr from, uint64_t bytes)
{
    memcpy(to, mr_at<const void>(from), bytes);
    return 0;
}

int fill(mr_cuda_context *, mr_cuda_ptr to, uint8_t value, uint64_t bytes)
{
    memset(mr_at<void>(to), value, bytes);
    return 0;
}

int synchronize(mr_cuda_context *)
{
    return 0;
}

int attention_split(mr_cuda_context *context, const mr_cuda_attention *p)
{
    if (!mr_cuda_attention_takes_warp_splits(context, p)) {
        return GPU_NOT_TAKEN;
    }
    const mr_split_args a = mr_split_args_of(p);
    return mr_cuda_attention_warp_split_run(context, &a);
}

} // namespace

extern "C" __attribute__((visibility("default"))) const mr_cuda_api *millrace_cuda_api()
{
    static mr_cuda_api api = {};
    api.version = MR_CUDA_API_VERSION;
    api.bytes = sizeof(api);
    api.device_count = device_count;
    api.error_text = error_text;
    api.open = open;
    api.close = close;
    api.properties = properties;
    api.memory = memory;
    api.alloc = alloc;
    api.release = release;
    api.to_device = to_device;
    api.to_host = to_host;
    api.fill = fill;
    api.synchronize = synchronize;
    api.attention_split = attention_split;
    api.sample = mr_cuda_sample_run;
    return &api;
}
