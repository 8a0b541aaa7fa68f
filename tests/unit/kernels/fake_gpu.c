/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_gpu.h"

#include "base/philox.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_gpu fake;

struct mr_cuda_context {
    int unused;
};

struct mr_cuda_graph {
    int unused;
};

static struct mr_cuda_context the_context;

void fake_reset(void)
{
    free(fake.memory);
    fake = (fake_gpu){
        .total_bytes = (uint64_t)8 << 30, .devices = 1, .major = 9, .decode_pieces = UINT32_MAX};
}

void fake_clear_trace(void)
{
    fake.n_trace = 0;
    fake.n_linears = 0;
    fake.n_norms = 0;
    fake.n_attentions = 0;
}

uint32_t fake_count(const char *name)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fake.n_trace; i++) {
        count += strcmp(fake.trace[i], name) == 0;
    }
    return count;
}

/* 0, or the code of a failure that was asked for. */
static int call(const char *name)
{
    if (fake.fail == NULL || strcmp(fake.fail, name) != 0) {
        return 0;
    }
    return ++fake.fail_seen >= fake.fail_at ? 700 : 0;
}

static int launch(const char *name)
{
    if (fake.n_trace < FAKE_TRACE) {
        fake.trace[fake.n_trace++] = name;
    }
    return call(name);
}

static int device_count(int *count)
{
    *count = fake.devices;
    return call("device_count");
}

static const char *error_text(int code)
{
    return code == 700 ? "an illegal access, says the fake" : "unknown";
}

static int open_context(int device, mr_cuda_context **out)
{
    (void)device;
    *out = &the_context;
    const int code = call("open");
    fake.contexts += code == 0;
    return code;
}

static void close_context(mr_cuda_context *context)
{
    (void)context;
    fake.contexts--;
}

static void properties(mr_cuda_context *context, mr_cuda_properties *out)
{
    (void)context;
    *out = (mr_cuda_properties){
        .major = fake.major, .processors = 4, .memory_bytes = fake.total_bytes};
    (void)snprintf(out->name, sizeof(out->name), "fake");
}

static int memory(mr_cuda_context *context, uint64_t *free_bytes, uint64_t *total_bytes)
{
    (void)context;
    *total_bytes = fake.total_bytes;
    *free_bytes = fake.total_bytes - fake.others - fake.allocated;
    return call("memory");
}

/* Pages are there once they are touched: a slab of gigabytes costs nothing. */
static int alloc(mr_cuda_context *context, uint64_t bytes, mr_cuda_ptr *out)
{
    (void)context;
    if (call("alloc") != 0 || fake.memory != NULL) {
        return 2;
    }
    fake.memory = malloc(bytes);
    fake.allocated = bytes;
    *out = (mr_cuda_ptr)(uintptr_t)fake.memory;
    return fake.memory == NULL ? 2 : 0;
}

static void release(mr_cuda_context *context, mr_cuda_ptr ptr)
{
    (void)context;
    free((void *)(uintptr_t)ptr);
    fake.memory = NULL;
    fake.allocated = 0;
}

static int alloc_host(mr_cuda_context *context, uint64_t bytes, void **out)
{
    (void)context;
    if (call("alloc_host") != 0) {
        return 2;
    }
    *out = malloc(bytes);
    fake.host_areas++;
    return 0;
}

static void release_host(mr_cuda_context *context, void *ptr)
{
    (void)context;
    free(ptr);
    fake.host_areas--;
}

static int to_device(mr_cuda_context *context, mr_cuda_ptr to, const void *from, uint64_t bytes)
{
    (void)context;
    memcpy((void *)(uintptr_t)to, from, bytes);
    return call("to_device");
}

static int to_host(mr_cuda_context *context, void *to, mr_cuda_ptr from, uint64_t bytes)
{
    (void)context;
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return call("to_host");
}

static int fill(mr_cuda_context *context, mr_cuda_ptr to, uint8_t value, uint64_t bytes)
{
    (void)context;
    memset((void *)(uintptr_t)to, value, bytes);
    return call("fill");
}

static int record(mr_cuda_context *context, uint32_t event)
{
    (void)context;
    return event < MR_CUDA_EVENTS ? call("record") : 1;
}

static int await(mr_cuda_context *context, uint32_t event)
{
    (void)context;
    return event < MR_CUDA_EVENTS ? call("await") : 1;
}

static int synchronize(mr_cuda_context *context)
{
    (void)context;
    return call("synchronize");
}

static int capture_begin(mr_cuda_context *context)
{
    (void)context;
    fake.capturing = true;
    return call("capture_begin");
}

static int capture_end(mr_cuda_context *context, mr_cuda_graph **out, uint32_t *launches)
{
    (void)context;
    fake.capturing = false;
    if (call("capture_end") != 0) {
        return 700;
    }
    *out = calloc(1, sizeof(**out));
    *launches = fake.n_trace;
    fake.graphs++;
    return 0;
}

static int graph_launch(mr_cuda_context *context, mr_cuda_graph *graph)
{
    (void)context;
    fake.graph_launches++;
    return graph != NULL ? call("graph_launch") : 1;
}

static void graph_destroy(mr_cuda_context *context, mr_cuda_graph *graph)
{
    (void)context;
    free(graph);
    fake.graphs--;
}

static int linear(mr_cuda_context *context, const mr_cuda_linear *p)
{
    (void)context;
    if (fake.n_linears < FAKE_TRACE) {
        fake.linears[fake.n_linears++] = *p;
    }
    return launch("linear");
}

static int norm(mr_cuda_context *context, const mr_cuda_norm *p)
{
    (void)context;
    if (fake.n_norms < FAKE_TRACE) {
        fake.norms[fake.n_norms++] = *p;
    }
    return launch("norm");
}

static int attention(const mr_cuda_attention *p, const char *name)
{
    if (fake.n_attentions < FAKE_TRACE) {
        fake.attentions[fake.n_attentions++] = *p;
    }
    return launch(name);
}

static int attention_split(mr_cuda_context *context, const mr_cuda_attention *p)
{
    (void)context;
    return attention(p, "attention_split");
}

static int attention_tiles(mr_cuda_context *context, const mr_cuda_attention *p)
{
    (void)context;
    return attention(p, "attention_tiles");
}

static mr_cuda_decode_most decode_most(mr_cuda_context *context, const mr_cuda_decode *p)
{
    (void)context;
    fake.asked = *p;
    return (mr_cuda_decode_most){.rows = fake.decode_rows, .pieces = fake.decode_pieces};
}

static int decode_maps(mr_cuda_context *context, const mr_cuda_decode *p,
                       mr_cuda_decode_layer *layers)
{
    (void)context;
    for (uint32_t i = 0; i < p->n_layers; i++) {
        layers[i].maps[0][0] = i + 1;
        fake.maps++;
    }
    return call("decode_maps");
}

static int decode(mr_cuda_context *context, const mr_cuda_decode *p)
{
    (void)context;
    fake.decoded = *p;
    return launch("decode");
}

/* As the header of kernels/random_weight.h says. */
static int make_random(mr_cuda_context *context, const mr_cuda_random *p)
{
    (void)context;
    const uint8_t *table = (const uint8_t *)(uintptr_t)p->table;
    const uint32_t key[2] = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)};
    for (uint64_t i = 0; i < p->count; i++) {
        const uint64_t draw = i / 8;
        const uint32_t counter[4] = {(uint32_t)draw, (uint32_t)(draw >> 32), MR_DRAW_WEIGHT,
                                     p->stream};
        uint32_t words[4];
        mr_philox4x32(counter, key, words);
        const uint32_t bits = words[i % 8 / 2] >> (i % 2 * 16) & 0xffffu;
        memcpy((uint8_t *)(uintptr_t)p->out + i * p->bytes, table + (size_t)bits * p->bytes,
               p->bytes);
    }
    return launch("random");
}

#define LAUNCH(name)                                                                               \
    static int name(mr_cuda_context *context, const mr_cuda_##name *p)                             \
    {                                                                                              \
        (void)context;                                                                             \
        (void)p;                                                                                   \
        return launch(#name);                                                                      \
    }

LAUNCH(prepare)
LAUNCH(embed)
LAUNCH(rope_table)
LAUNCH(head_norm)
LAUNCH(rope_kv)
LAUNCH(gated)
LAUNCH(quantize)
LAUNCH(activate)
LAUNCH(gather)
LAUNCH(sample)
LAUNCH(block_move)

/* ---- transfers: copied at once, over when the test says so ---- */

static int transfer_begin(mr_cuda_context *context)
{
    (void)context;
    return call("transfer_begin");
}

static int transfer_block(mr_cuda_context *context, const mr_cuda_block_transfer *p)
{
    (void)context;
    for (uint64_t plane = 0; plane < p->planes; plane++) {
        uint8_t *host = (uint8_t *)p->host + plane * p->bytes;
        uint8_t *block =
            (uint8_t *)(uintptr_t)(p->kv + plane * p->plane_bytes + p->block * p->bytes);
        memcpy(p->to_host ? host : block, p->to_host ? block : host, p->bytes);
    }
    return launch("transfer_block");
}

static int transfer_end(mr_cuda_context *context, uint32_t event)
{
    (void)context;
    fake.transfers++;
    fake.transfer_events[event % MR_CUDA_TRANSFERS] = fake.transfers;
    return event < MR_CUDA_TRANSFERS ? call("transfer_end") : 1;
}

static int transfer_is_over(mr_cuda_context *context, uint32_t event, bool *over)
{
    (void)context;
    *over = fake.transfer_events[event % MR_CUDA_TRANSFERS] <= fake.transferred;
    return call("transfer_is_over");
}

const mr_cuda_api *fake_api(void)
{
    static const mr_cuda_api api = {
        .version = MR_CUDA_API_VERSION,
        .bytes = sizeof(mr_cuda_api),
        .device_count = device_count,
        .error_text = error_text,
        .open = open_context,
        .close = close_context,
        .properties = properties,
        .memory = memory,
        .alloc = alloc,
        .release = release,
        .alloc_host = alloc_host,
        .release_host = release_host,
        .to_device = to_device,
        .to_host = to_host,
        .fill = fill,
        .record = record,
        .await = await,
        .synchronize = synchronize,
        .capture_begin = capture_begin,
        .capture_end = capture_end,
        .graph_launch = graph_launch,
        .graph_destroy = graph_destroy,
        .random = make_random,
        .prepare = prepare,
        .embed = embed,
        .norm = norm,
        .linear = linear,
        .rope_table = rope_table,
        .head_norm = head_norm,
        .rope_kv = rope_kv,
        .attention_split = attention_split,
        .attention_tiles = attention_tiles,
        .gated = gated,
        .quantize = quantize,
        .activate = activate,
        .gather = gather,
        .sample = sample,
        .block_move = block_move,
        .decode_most = decode_most,
        .decode_maps = decode_maps,
        .decode = decode,
        .transfer_begin = transfer_begin,
        .transfer_block = transfer_block,
        .transfer_end = transfer_end,
        .transfer_is_over = transfer_is_over,
    };
    return &api;
}
