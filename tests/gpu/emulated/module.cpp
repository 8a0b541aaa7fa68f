/* SPDX-License-Identifier: Apache-2.0 */
/* The module of an emulated GPU: memory, copies, graphs, the kernels that are sm_80's, and plain
 * loops in the place of cuBLASLt. MILLRACE_EMULATED_PROCESSORS says how many processors it has. */
#include "mma.h"

#include "kernels/cuda/attention/tiles.cuh"

#include <cstdio>
#include <cstdlib>

struct mr_cuda_graph {
    std::vector<emulated::grid_of> launches;
};

static void multiply(const mr_cuda_linear &p)
{
    const void *weight = mr_at<const void>(p.weight);
    const void *in = mr_at<const void>(p.in);
    for (size_t row = 0; row < p.rows; row++) {
        for (size_t n = 0; n < p.n; n++) {
            float sum = 0.0f;
            for (size_t i = 0; i < p.k; i++) {
                sum +=
                    mr_load_as(weight, p.type, n * p.k + i) * mr_load_as(in, p.type, row * p.k + i);
            }
            mr_store_as(mr_at<void>(p.out), p.out_type, row * p.out_stride + n, sum);
        }
    }
}

/* Of codes it takes none, as where cuBLASLt has nothing for a shape. */
int mr_cuda_gemm_run(mr_cuda_context *, const mr_cuda_linear *p, bool *done)
{
    *done = p->coded.codes == 0;
    if (!*done) {
        return 0;
    }
    const mr_cuda_linear product = *p;
    return emulated::launch({dim3(), emulated::LANES, 0, [product] {
                                 if (threadIdx.x == 0) {
                                     multiply(product);
                                 }
                             }});
}

/* sm_90's. */
int mr_cuda_attention_warpgroups_run(mr_cuda_context *, const mr_tiles_args *, bool *done)
{
    *done = false;
    return 0;
}

namespace
{

constexpr uint64_t MEMORY = static_cast<uint64_t>(4) << 30;

int device_count(int *count)
{
    *count = 1;
    return 0;
}

const char *error_text(int)
{
    return emulated::error_text();
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

int alloc_host(mr_cuda_context *, uint64_t bytes, void **out)
{
    *out = malloc(bytes);
    return *out != nullptr ? 0 : 2;
}

void release_host(mr_cuda_context *, void *ptr)
{
    free(ptr);
}

/* What was asked for is done when the call returns. */
int event(mr_cuda_context *, uint32_t)
{
    return 0;
}

int capture_begin(mr_cuda_context *)
{
    emulated::keep = new std::vector<emulated::grid_of>();
    return 0;
}

int capture_end(mr_cuda_context *, mr_cuda_graph **out, uint32_t *launches)
{
    *launches = static_cast<uint32_t>(emulated::keep->size());
    *out = new mr_cuda_graph{std::move(*emulated::keep)};
    delete emulated::keep;
    emulated::keep = nullptr;
    return 0;
}

int graph_launch(mr_cuda_context *, mr_cuda_graph *graph)
{
    int code = 0;
    for (size_t i = 0; code == 0 && i < graph->launches.size(); i++) {
        code = emulated::launch(graph->launches[i]);
    }
    return code;
}

void graph_destroy(mr_cuda_context *, mr_cuda_graph *graph)
{
    delete graph;
}

mr_cuda_decode_most decode_most(mr_cuda_context *, const mr_cuda_decode *)
{
    return {}; /* sm_90's */
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
    api.alloc_host = alloc_host;
    api.release_host = release_host;
    api.record = event;
    api.await = event;
    api.capture_begin = capture_begin;
    api.capture_end = capture_end;
    api.graph_launch = graph_launch;
    api.graph_destroy = graph_destroy;
    mr_cuda_put_kernels(api);
    api.decode_most = decode_most;
    return &api;
}
