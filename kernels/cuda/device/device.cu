/* SPDX-License-Identifier: Apache-2.0 */
/* The device itself: memory, the stream, events, graphs; and the table that the module exports. */
#include "kernels/cuda/device/common.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>

struct mr_cuda_graph {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

static int device_count(int *count)
{
    *count = 0;
    const cudaError_t code = cudaGetDeviceCount(count);
    if (code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice) {
        *count = 0; /* no driver at all looks like an old one */
        return 0;
    }
    return code;
}

static const char *error_text(int code)
{
    return cudaGetErrorString(static_cast<cudaError_t>(code));
}

static void destroy_event(cudaEvent_t event)
{
    if (event != nullptr) {
        cudaEventDestroy(event);
    }
}

static void destroy_stream(cudaStream_t stream)
{
    if (stream != nullptr) {
        cudaStreamDestroy(stream);
    }
}

static void close_context(mr_cuda_context *context)
{
    if (context == nullptr) {
        return;
    }
    mr_cuda_gemm_close(context);
    for (uint32_t i = 0; i < MR_CUDA_EVENTS; i++) {
        destroy_event(context->events[i]);
    }
    for (uint32_t i = 0; i < MR_CUDA_TRANSFERS; i++) {
        destroy_event(context->transfers[i]);
    }
    destroy_event(context->transfer_start);
    destroy_stream(context->transfer_stream);
    destroy_stream(context->stream);
    free(context);
}

static int init_context(mr_cuda_context *context)
{
    int code = cudaSetDevice(context->device);
    if (code == 0) {
        code = cudaGetDeviceProperties(&context->properties, context->device);
    }
    if (code == 0) {
        code = cudaStreamCreateWithFlags(&context->stream, cudaStreamNonBlocking);
    }
    if (code == 0) {
        code = cudaStreamCreateWithFlags(&context->transfer_stream, cudaStreamNonBlocking);
    }
    if (code == 0) {
        code = cudaEventCreateWithFlags(&context->transfer_start, cudaEventDisableTiming);
    }
    for (uint32_t i = 0; code == 0 && i < MR_CUDA_EVENTS; i++) {
        code = cudaEventCreateWithFlags(&context->events[i], cudaEventDisableTiming);
    }
    for (uint32_t i = 0; code == 0 && i < MR_CUDA_TRANSFERS; i++) {
        code = cudaEventCreateWithFlags(&context->transfers[i], cudaEventDisableTiming);
    }
    if (code == 0) {
        code = mr_cuda_attention_open(context);
    }
    return code == 0 ? mr_cuda_gemm_open(context) : code;
}

static int open_context(int device, mr_cuda_context **out)
{
    mr_cuda_context *context = static_cast<mr_cuda_context *>(calloc(1, sizeof(mr_cuda_context)));
    if (context == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    context->device = device;
    const int code = init_context(context);
    if (code != 0) {
        close_context(context);
        return code;
    }
    *out = context;
    return 0;
}

static void properties(mr_cuda_context *context, mr_cuda_properties *out)
{
    *out = {};
    snprintf(out->name, sizeof(out->name), "%.127s", context->properties.name);
    out->major = static_cast<uint32_t>(context->properties.major);
    out->minor = static_cast<uint32_t>(context->properties.minor);
    out->processors = static_cast<uint32_t>(context->properties.multiProcessorCount);
    out->memory_bytes = context->properties.totalGlobalMem;
}

/* The engine's thread is not the one that loaded: the device is chosen a thread. */
static int here(mr_cuda_context *context)
{
    return cudaSetDevice(context->device);
}

static int memory(mr_cuda_context *context, uint64_t *free_bytes, uint64_t *total_bytes)
{
    size_t free_size = 0;
    size_t total_size = 0;
    int code = here(context);
    if (code == 0) {
        code = cudaMemGetInfo(&free_size, &total_size);
    }
    *free_bytes = free_size;
    *total_bytes = total_size;
    return code;
}

static int alloc(mr_cuda_context *context, uint64_t bytes, mr_cuda_ptr *out)
{
    void *ptr = nullptr;
    int code = here(context);
    if (code == 0) {
        code = cudaMalloc(&ptr, bytes);
        if (code == cudaErrorMemoryAllocation) {
            (void)cudaGetLastError(); /* not a failure of the device */
        }
    }
    *out = reinterpret_cast<uintptr_t>(ptr);
    return code;
}

static void release(mr_cuda_context *context, mr_cuda_ptr ptr)
{
    (void)here(context);
    (void)cudaFree(mr_at<void>(ptr));
}

static int alloc_host(mr_cuda_context *context, uint64_t bytes, void **out)
{
    const int code = here(context);
    return code == 0 ? cudaHostAlloc(out, bytes, cudaHostAllocPortable) : code;
}

static void release_host(mr_cuda_context *context, void *ptr)
{
    (void)here(context);
    (void)cudaFreeHost(ptr);
}

static int to_device(mr_cuda_context *context, mr_cuda_ptr to, const void *from, uint64_t bytes)
{
    const int code = here(context);
    return code == 0 ? cudaMemcpyAsync(mr_at<void>(to), from, bytes, cudaMemcpyHostToDevice,
                                       context->stream)
                     : code;
}

static int to_host(mr_cuda_context *context, void *to, mr_cuda_ptr from, uint64_t bytes)
{
    const int code = here(context);
    return code == 0 ? cudaMemcpyAsync(to, mr_at<const void>(from), bytes, cudaMemcpyDeviceToHost,
                                       context->stream)
                     : code;
}

static int fill(mr_cuda_context *context, mr_cuda_ptr to, uint8_t value, uint64_t bytes)
{
    const int code = here(context);
    return code == 0 ? cudaMemsetAsync(mr_at<void>(to), value, bytes, context->stream) : code;
}

static int record(mr_cuda_context *context, uint32_t event)
{
    return cudaEventRecord(context->events[event], context->stream);
}

static int await(mr_cuda_context *context, uint32_t event)
{
    return cudaEventSynchronize(context->events[event]);
}

static int synchronize(mr_cuda_context *context)
{
    int code = here(context);
    code = code == 0 ? cudaStreamSynchronize(context->stream) : code;
    return code == 0 ? cudaStreamSynchronize(context->transfer_stream) : code;
}

static int capture_begin(mr_cuda_context *context)
{
    return cudaStreamBeginCapture(context->stream, cudaStreamCaptureModeThreadLocal);
}

static int capture_end(mr_cuda_context *context, mr_cuda_graph **out, uint32_t *launches)
{
    cudaGraph_t graph = nullptr;
    size_t nodes = 0;
    int code = cudaStreamEndCapture(context->stream, &graph);
    if (code != 0) {
        return code;
    }
    (void)cudaGraphGetNodes(graph, nullptr, &nodes);
    *launches = static_cast<uint32_t>(nodes);
    mr_cuda_graph *made = static_cast<mr_cuda_graph *>(calloc(1, sizeof(mr_cuda_graph)));
    code =
        made == nullptr ? cudaErrorMemoryAllocation : cudaGraphInstantiate(&made->exec, graph, 0);
    if (code != 0) {
        cudaGraphDestroy(graph);
        free(made);
        return code;
    }
    made->graph = graph;
    *out = made;
    return 0;
}

static int graph_launch(mr_cuda_context *context, mr_cuda_graph *graph)
{
    return cudaGraphLaunch(graph->exec, context->stream);
}

static void graph_destroy(mr_cuda_context *context, mr_cuda_graph *graph)
{
    (void)context;
    if (graph != nullptr) {
        cudaGraphExecDestroy(graph->exec);
        cudaGraphDestroy(graph->graph);
        free(graph);
    }
}

static int transfer_begin(mr_cuda_context *context)
{
    const int code = cudaEventRecord(context->transfer_start, context->stream);
    return code == 0 ? cudaStreamWaitEvent(context->transfer_stream, context->transfer_start, 0)
                     : code;
}

static int transfer_block(mr_cuda_context *context, const mr_cuda_block_transfer *p)
{
    void *block = mr_at<void>(p->kv + p->block * p->bytes);
    return p->to_host
               ? cudaMemcpy2DAsync(p->host, p->bytes, block, p->plane_bytes, p->bytes, p->planes,
                                   cudaMemcpyDeviceToHost, context->transfer_stream)
               : cudaMemcpy2DAsync(block, p->plane_bytes, p->host, p->bytes, p->bytes, p->planes,
                                   cudaMemcpyHostToDevice, context->transfer_stream);
}

static int transfer_end(mr_cuda_context *context, uint32_t event)
{
    return cudaEventRecord(context->transfers[event], context->transfer_stream);
}

static int transfer_is_over(mr_cuda_context *context, uint32_t event, bool *over)
{
    const cudaError_t code = cudaEventQuery(context->transfers[event]);
    *over = code == cudaSuccess;
    return code == cudaErrorNotReady ? 0 : code;
}

static mr_cuda_api make_api()
{
    mr_cuda_api api = {};
    api.version = MR_CUDA_API_VERSION;
    api.bytes = sizeof(mr_cuda_api);
    api.device_count = device_count;
    api.error_text = error_text;
    api.open = open_context;
    api.close = close_context;
    api.properties = properties;
    api.memory = memory;
    api.alloc = alloc;
    api.release = release;
    api.alloc_host = alloc_host;
    api.release_host = release_host;
    api.to_device = to_device;
    api.to_host = to_host;
    api.fill = fill;
    api.record = record;
    api.await = await;
    api.synchronize = synchronize;
    api.capture_begin = capture_begin;
    api.capture_end = capture_end;
    api.graph_launch = graph_launch;
    api.graph_destroy = graph_destroy;
    mr_cuda_put_kernels(api);
    api.decode_most = mr_cuda_decode_takes;
    api.decode_maps = mr_cuda_decode_make_maps;
    api.decode = mr_cuda_decode_run;
    api.transfer_begin = transfer_begin;
    api.transfer_block = transfer_block;
    api.transfer_end = transfer_end;
    api.transfer_is_over = transfer_is_over;
    return api;
}

extern "C" __attribute__((visibility("default"))) const mr_cuda_api *millrace_cuda_api(void)
{
    static const mr_cuda_api api = make_api();
    return &api;
}
