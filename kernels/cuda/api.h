/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host code of the CUDA backend asks of a GPU: the whole interface of the module
 * libmillrace-cuda.so, and the table that tests replace by one that counts.
 *
 *   program: plan → layout of memory → steps → calls of this table      (C, always built, tested)
 *   module:  this table on the CUDA runtime, cuBLASLt and our kernels   (CUDA, built with -Dcuda)
 *
 * Every call works on one context, from one thread at a time, and is queued on the context's one
 * stream unless it says otherwise. A call gives 0, or a code that error_text() explains; after a
 * failure of the device every later call fails too. Nothing allocates but alloc…, open, capture
 * and the first product of a shape, which may also wait for the GPU and overwrite its `out` several
 * times.
 *
 * Shape letters: T tokens, R logit rows, H query heads, G key/value heads, D head width, N outputs,
 * K inputs, V vocabulary. Types are mr_dtype's F32, F16 and BF16, and where a field says so F8_E4M3
 * and I8.
 */
#ifndef MILLRACE_KERNELS_CUDA_API_H
#define MILLRACE_KERNELS_CUDA_API_H

#include "kernels/batch.h"
#include "kernels/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MR_CUDA_API_VERSION 4u
#define MR_CUDA_API_SYMBOL  "millrace_cuda_api" /* const mr_cuda_api *(void) */

/* Keys of one work item of split attention. Fixed, so that a row's sums do not depend on others. */
#define MR_CUDA_SPLIT_KEYS 256u
/* Query rows of one tile of prompt attention. */
#define MR_CUDA_TILE_ROWS 128u
/* Rows up to which our own product is used instead of cuBLASLt's, of weights of `type`, unless it
 * is invariant; rows of F8_E4M3 weights that come without codes are at most so many. */
#define MR_CUDA_FEW_ROWS 8u
/* Rows up to which scales are better applied by whoever reads a product of codes: cuBLASLt has one
 * algorithm that applies them, which suits many rows, and many that do not. */
#define MR_CUDA_RAW_ROWS 512u

typedef uint64_t mr_cuda_ptr; /* a device address; 0: none */
typedef struct mr_cuda_context mr_cuda_context;
typedef struct mr_cuda_graph mr_cuda_graph;

typedef struct mr_cuda_properties {
    char name[128];
    uint32_t major; /* compute capability */
    uint32_t minor;
    uint32_t processors;
    uint64_t memory_bytes;
} mr_cuda_properties;

/* ---- data of a step, in device memory ---- */

/* First in the area that a step's arrays are copied to. */
typedef struct mr_cuda_step_header {
    uint32_t n_tokens;
    uint32_t n_rows;
    uint32_t n_items; /* of split attention */
    uint32_t n_block_deltas;
    uint32_t n_history_deltas;
    uint32_t reserved[3];
} mr_cuda_step_header;

/* One entry of the flat resident tables: block_tables[index] = block. */
typedef struct mr_cuda_block_entry {
    uint32_t index;
    uint32_t block;
} mr_cuda_block_entry;

/* Split `split` (absolute: keys from split · MR_CUDA_SPLIT_KEYS on) of one token's attention. */
typedef struct mr_cuda_item {
    uint32_t token;
    uint32_t split;
    uint32_t base; /* index of the token's split 0 among the items, modulo 2^32 */
} mr_cuda_item;

/* Consecutive tokens of one sequence, at consecutive positions. */
typedef struct mr_cuda_tile {
    uint32_t token; /* the first */
    uint32_t count; /* at most MR_CUDA_TILE_ROWS */
} mr_cuda_tile;

typedef struct mr_cuda_row {
    mr_row_params params;
    uint32_t slot;      /* whose history */
    float min_p_cut;    /* smallest scaled logit that min_p keeps */
    uint32_t penalties; /* nonzero: history counts */
    uint32_t reserved;
} mr_cuda_row;

/* ---- launches ---- */

/* A weight that is made of nothing, as kernels/random_weight.h says. */
typedef struct mr_cuda_random {
    mr_cuda_ptr table; /* [MR_RANDOM_PATTERNS] elements of `bytes`: what 16 bits stand for */
    mr_cuda_ptr out;   /* [count] elements, at a multiple of 8 bytes */
    uint64_t count;
    uint64_t seed;
    uint32_t stream;
    uint32_t bytes; /* 1, 2 or 4 */
} mr_cuda_random;

/* Rows rounded to F8_E4M3: an element is its code times the scale of its row. */
typedef struct mr_cuda_coded_rows {
    mr_cuda_ptr codes; /* [rows][width]; 0: there are none */
    mr_cuda_ptr scale; /* f32 [rows] */
    float fixed;       /* the scale of every row; 0: a row's largest magnitude / 448 */
} mr_cuda_coded_rows;

/* What the elements of a raw product (mr_cuda_linear) are times, for those who read it. */
typedef struct mr_cuda_raw_scales {
    mr_cuda_ptr row; /* f32 [rows]; 0: the product is not raw */
    mr_cuda_ptr column;
} mr_cuda_raw_scales;

/* Applies deltas to the resident tables and resolves token sources. */
typedef struct mr_cuda_prepare {
    mr_cuda_ptr header;         /* mr_cuda_step_header */
    mr_cuda_ptr block_deltas;   /* mr_cuda_block_entry[], no index twice */
    mr_cuda_ptr history_deltas; /* mr_history_delta[], applied in order */
    mr_cuda_ptr history_tokens;
    mr_cuda_ptr block_tables; /* u32 [groups][slots][max_blocks], flat */
    mr_cuda_ptr history;      /* u32 [slots][max_context] */
    uint32_t max_context;
    uint32_t tokens;       /* T, or the bucket's */
    mr_cuda_ptr token_src; /* i32 [tokens] */
    mr_cuda_ptr drawn;     /* u32, of the step before */
    mr_cuda_ptr ids;       /* out: u32 [tokens] */
} mr_cuda_prepare;

typedef struct mr_cuda_embed {
    mr_cuda_ptr table;     /* [V][width] of `type` */
    mr_cuda_ptr ids;       /* u32 [rows] */
    mr_cuda_ptr out;       /* [rows][width] of out_type */
    mr_cuda_ptr learned;   /* [offset + positions][width] of `type`, added; 0: none */
    mr_cuda_ptr positions; /* u32 [rows] */
    uint32_t offset;
    mr_dtype type;
    mr_dtype out_type;
    uint32_t rows;
    uint32_t width;
    float scale;
} mr_cuda_embed;

typedef struct mr_cuda_norm {
    mr_cuda_ptr stream;       /* f32 [rows][width] */
    mr_cuda_ptr in;           /* [rows][width] of `type`, added into stream first; 0: none */
    mr_cuda_ptr out;          /* [rows][width] of `type` */
    mr_cuda_ptr gain;         /* f32 [width] */
    mr_cuda_ptr bias;         /* f32 [width] or 0 */
    mr_cuda_coded_rows coded; /* out, in place of `out`, if it has codes; RMS without bias only */
    mr_cuda_raw_scales raw;   /* of `in` */
    mr_dtype type;
    mr_norm_kind kind;
    uint32_t rows;
    uint32_t width;
    float epsilon;
} mr_cuda_norm;

typedef struct mr_cuda_linear {
    mr_cuda_ptr weight;       /* [n][k] of weight_type */
    mr_cuda_ptr weight_scale; /* f32 [n]: what an output's F8_E4M3 codes are times; else 0 */
    mr_cuda_ptr in;           /* [rows][k] of `type` */
    mr_cuda_coded_rows coded; /* [rows][k], in place of `in`, if it has codes; F8_E4M3 weights */
    mr_cuda_ptr out;          /* [rows][out_stride] of out_type, at the first of n columns */
    mr_cuda_ptr bias;         /* f32 [n] or 0 */
    mr_dtype type;
    mr_dtype weight_type; /* `type` or F8_E4M3 */
    mr_dtype out_type;    /* `type` or F32 */
    uint32_t rows;
    uint32_t n;
    uint32_t k;
    uint32_t out_stride;
    /* Weight is [gate n/2 | up n/2], out [rows][n/2] = act(gate) · up. Few rows, no bias only. */
    bool gated;
    mr_activation activation;
    bool raw; /* BF16, coded rows, no bias: out is without the scales */
    /* Sums in an order that depends on k and n only: one way for all row counts. */
    bool invariant;
} mr_cuda_linear;

/* RMS norm of query and key heads, in place. */
typedef struct mr_cuda_head_norm {
    mr_cuda_ptr qkv;    /* [tokens][(H + 2G) · D] of `type` */
    mr_cuda_ptr q_gain; /* f32 [D] */
    mr_cuda_ptr k_gain;
    mr_dtype type;
    uint32_t heads;    /* H */
    uint32_t kv_heads; /* G */
    uint32_t width;    /* D */
    uint32_t tokens;
    float epsilon;
} mr_cuda_head_norm;

/* cos and sin of position p and pair i, in double and then rounded, times `factor`. */
typedef struct mr_cuda_rope_table {
    mr_cuda_ptr inv_freq; /* f32 [pairs] */
    mr_cuda_ptr out;      /* f32 [positions][pairs][cos, sin] */
    uint32_t positions;
    uint32_t pairs;
    float factor;
} mr_cuda_rope_table;

/* Where the K/V of one layer lie: [block][G] pieces (kernels/kv_layout.h), [block_size][D] of
 * `type`; of I8 with f32 [block_size] scales before it. */
typedef struct mr_cuda_kv {
    mr_cuda_ptr keys;
    mr_cuda_ptr values;
    mr_dtype type;     /* F32, F16, BF16, F8_E4M3, I8 */
    float key_scale;   /* an element is its F8_E4M3 code times this */
    float value_scale; /* likewise */
    uint32_t heads;    /* G */
    uint32_t width;    /* D */
    uint32_t block_size;
} mr_cuda_kv;

/* Whether attention on matrix units takes such a cache, in heads of `width`. */
static inline bool mr_cuda_is_for_matrices(mr_dtype compute, mr_dtype kv, uint32_t block_size,
                                           uint32_t width)
{
    /* Rows of a piece with scales lie at multiples of 16 bytes only with such blocks. */
    const bool codes = kv == MR_DTYPE_F8_E4M3 || (kv == MR_DTYPE_I8 && block_size % 4 == 0);
    return compute != MR_DTYPE_F32 && (kv == compute || codes) && (width == 64 || width == 128);
}

typedef struct mr_cuda_rope_kv {
    mr_cuda_ptr qkv;       /* [tokens][(H + 2G) · D] of `type`; the queries are rotated in place */
    mr_cuda_ptr table;     /* of mr_cuda_rope_table; 0: no rotation */
    mr_cuda_ptr positions; /* u32 [tokens] */
    mr_cuda_ptr kv_slot;   /* u32 [tokens]; slots of block 0 are not written */
    mr_cuda_kv kv;
    mr_cuda_raw_scales raw; /* of qkv: applied to what is read, and to all queries in place */
    mr_dtype type;
    mr_rope_pairing pairing;
    uint32_t pairs; /* rotated pairs a head */
    uint32_t heads; /* H */
    uint32_t tokens;
} mr_cuda_rope_kv;

typedef struct mr_cuda_attention {
    mr_cuda_ptr qkv; /* as above */
    mr_cuda_ptr out; /* [tokens][H · D] of `type` */
    mr_cuda_ptr positions;
    mr_cuda_ptr token_slot;   /* u32 [tokens] */
    mr_cuda_ptr block_tables; /* u32 [slots][max_blocks] of the layer's group */
    mr_cuda_kv kv;
    mr_dtype type;
    uint32_t heads;
    uint32_t tokens; /* of the step, or the bucket's */
    uint32_t max_blocks;
    uint32_t window; /* 0: all */
    float scale;
    float soft_cap; /* 0: none */
    /* A row's sums in an order that depends on its own keys only. */
    bool invariant;
    /* Split attention: items [first, first + count) of those in `items`. With count 0 it is
     * header->n_items, for graphs. */
    mr_cuda_ptr header;
    mr_cuda_ptr items;
    mr_cuda_ptr partials; /* f32 [items of a launch][H][D + 2] */
    mr_cuda_ptr counters; /* u32 [tokens][H], zero between launches */
    uint32_t first;
    uint32_t count;
    /* Prompt attention; it uses the counters too. */
    mr_cuda_ptr tiles;
    uint32_t n_tiles;
} mr_cuda_attention;

typedef struct mr_cuda_gated {
    mr_cuda_ptr in;           /* [rows][2 · width] of `type` */
    mr_cuda_ptr out;          /* [rows][width] */
    mr_cuda_coded_rows coded; /* in place of `out`, if it has codes */
    mr_cuda_raw_scales raw;   /* of `in`; with coded only */
    mr_dtype type;
    mr_activation activation;
    uint32_t rows;
    uint32_t width;
} mr_cuda_gated;

/* Rounds rows for a product. */
typedef struct mr_cuda_quantize {
    mr_cuda_ptr in; /* [rows][width] of `type` */
    mr_cuda_coded_rows coded;
    mr_dtype type;
    uint32_t rows;
    uint32_t width;
} mr_cuda_quantize;

typedef struct mr_cuda_activate {
    mr_cuda_ptr in; /* `count` elements of `type` */
    mr_cuda_ptr out;
    mr_dtype type;
    mr_activation activation;
    uint64_t count;
} mr_cuda_activate;

typedef struct mr_cuda_gather {
    mr_cuda_ptr in;
    mr_cuda_ptr out;
    mr_cuda_ptr index; /* u32 [rows] */
    uint32_t rows;
    uint32_t row_bytes;
} mr_cuda_gather;

typedef struct mr_cuda_sample {
    mr_cuda_ptr header; /* its n_rows rows are sampled */
    mr_cuda_ptr logits; /* f32 [rows][V], left as they are */
    mr_cuda_ptr rows;   /* mr_cuda_row [rows] */
    mr_cuda_ptr bias_tokens;
    mr_cuda_ptr bias_values;
    mr_cuda_ptr history; /* u32 [slots][max_context] */
    mr_cuda_ptr scaled;  /* scratch: f32 [workers][V] */
    mr_cuda_ptr counts;  /* scratch: u32 [workers][V], zero between launches */
    mr_cuda_ptr tokens;  /* out: u32 [rows] */
    mr_cuda_ptr logprobs;
    mr_cuda_ptr n_top;   /* u8 */
    mr_cuda_ptr corrupt; /* u8 */
    mr_cuda_ptr top;     /* mr_alternative [rows][MR_MAX_TOP] */
    uint32_t vocab;
    uint32_t max_context;
    uint32_t max_rows; /* of this launch: header->n_rows or the bucket's */
    uint32_t workers;
} mr_cuda_sample;

#define MR_CUDA_DECODE_MAPS 4u

/* One layer of mr_cuda_decode, in device memory. Weights as mr_cuda_linear has them. */
typedef struct mr_cuda_decode_layer {
    uint64_t maps[MR_CUDA_DECODE_MAPS][16];  /* of decode_maps: how the four weights are copied */
    mr_cuda_ptr scales[MR_CUDA_DECODE_MAPS]; /* of their outputs, as weight_scale; 0: none */
    mr_cuda_ptr qkv;                         /* [(H + 2G) · D][W] */
    mr_cuda_ptr out;                         /* [W][H · D] */
    mr_cuda_ptr gate_up;                     /* [gate F | up F][W] */
    mr_cuda_ptr down;                        /* [W][F] */
    mr_cuda_ptr attention_gain;              /* f32 [W], of the norm in front */
    mr_cuda_ptr gated_gain;                  /* f32 [W] */
    mr_cuda_ptr q_gain;                      /* f32 [D]: RMS norm of query and key heads; 0: none */
    mr_cuda_ptr k_gain;
    mr_cuda_ptr keys; /* as mr_cuda_kv has them */
    mr_cuda_ptr values;
    uint64_t reserved[2]; /* maps are aligned to 64 bytes */
} mr_cuda_decode_layer;

/* All layers of a step in which every token is another sequence's:
 *
 *   per layer  norm, product qkv, rotation, KV write, attention, product out, added to the stream,
 *              norm, products gate and up, activation, product down, added to the stream
 *
 * In the last layer the rows behind attention may be others (logit_rows), whose stream is
 * last_stream; and what its last product gives is not added but stored in `last`, for the norm that
 * follows. Norms are divided: rows times gains are rounded to `type`, and their scale is applied to
 * the product's sums. A row does not depend on its neighbours, nor on how many there are. A fault
 * of ours leaves NaN in `last`. */
typedef struct mr_cuda_decode {
    mr_cuda_ptr layers;      /* mr_cuda_decode_layer [n_layers] */
    mr_cuda_ptr stream;      /* f32 [rows][W]; left as it is before the last layer's last product */
    mr_cuda_ptr logit_rows;  /* u32 [rows]; 0: the same rows, and no last_stream */
    mr_cuda_ptr last_stream; /* out: f32 [rows][W] */
    mr_cuda_ptr last;        /* out: [rows][W] of `type` */
    mr_cuda_ptr normed;      /* scratch: [rows][W] */
    mr_cuda_ptr squares;     /* scratch: f32 [rows][W / 16] */
    mr_cuda_ptr qkv;         /* scratch: [rows][(H + 2G) · D] */
    mr_cuda_ptr att;         /* scratch: [rows][H · D] */
    mr_cuda_ptr act;         /* scratch: [rows][F] */
    mr_cuda_ptr table;       /* of mr_cuda_rope_table; 0: no rotation */
    mr_cuda_ptr positions;
    mr_cuda_ptr kv_slot;
    mr_cuda_ptr token_slot;
    mr_cuda_ptr block_tables;
    mr_cuda_ptr header;   /* its n_items items are run */
    mr_cuda_ptr items;    /* as in mr_cuda_attention, as the next two */
    mr_cuda_ptr partials; /* f32 [items][H][D + 2] */
    mr_cuda_ptr counters;
    mr_cuda_ptr sync; /* u32 [MR_CUDA_DECODE_SYNC], zero between launches */
    mr_dtype type;
    mr_dtype weight_type; /* `type` or F8_E4M3 */
    mr_dtype kv_type;
    mr_activation activation;
    mr_rope_pairing pairing;
    uint32_t pairs; /* rotated a head */
    uint32_t n_layers;
    uint32_t rows;
    uint32_t width;      /* W */
    uint32_t heads;      /* H */
    uint32_t kv_heads;   /* G */
    uint32_t head_width; /* D */
    uint32_t ffn;        /* F */
    uint32_t block_size;
    uint32_t max_blocks;
    float epsilon;      /* of the norms of the stream */
    float head_epsilon; /* of those of heads */
    float scale;
    float soft_cap; /* 0: none */
} mr_cuda_decode;

typedef struct mr_cuda_decode_most {
    uint32_t rows;   /* 0: it does not take the shape */
    uint32_t pieces; /* items times key/value heads; with more the separate operators are faster */
} mr_cuda_decode_most;

#define MR_CUDA_DECODE_SYNC 192u

/* One block of every plane: copies `bytes` from each plane + from · bytes to plane + to · bytes. */
typedef struct mr_cuda_block_move {
    mr_cuda_ptr kv;
    uint64_t plane_bytes;
    uint64_t bytes;
    uint32_t planes;
    uint32_t from;
    uint32_t to;
} mr_cuda_block_move;

/* One block of every plane, to or from `planes` · bytes of pinned host memory, plane by plane. */
typedef struct mr_cuda_block_transfer {
    mr_cuda_ptr kv;
    void *host;
    uint64_t plane_bytes;
    uint64_t bytes;
    uint32_t planes;
    uint32_t block;
    bool to_host;
} mr_cuda_block_transfer;

typedef struct mr_cuda_api {
    uint32_t version; /* MR_CUDA_API_VERSION; the program takes no other */
    uint32_t bytes;   /* sizeof(mr_cuda_api) */

    /* No context. `count` is 0 without a GPU or a driver. */
    int (*device_count)(int *count);
    const char *(*error_text)(int code);
    int (*open)(int device, mr_cuda_context **out);
    void (*close)(mr_cuda_context *context);

    void (*properties)(mr_cuda_context *context, mr_cuda_properties *out);
    int (*memory)(mr_cuda_context *context, uint64_t *free_bytes, uint64_t *total_bytes);
    int (*alloc)(mr_cuda_context *context, uint64_t bytes, mr_cuda_ptr *out);
    void (*release)(mr_cuda_context *context, mr_cuda_ptr ptr);
    int (*alloc_host)(mr_cuda_context *context, uint64_t bytes, void **out); /* pinned */
    void (*release_host)(mr_cuda_context *context, void *ptr);

    int (*to_device)(mr_cuda_context *context, mr_cuda_ptr to, const void *from, uint64_t bytes);
    int (*to_host)(mr_cuda_context *context, void *to, mr_cuda_ptr from, uint64_t bytes);
    int (*fill)(mr_cuda_context *context, mr_cuda_ptr to, uint8_t value, uint64_t bytes);
    int (*record)(mr_cuda_context *context, uint32_t event); /* 0 … MR_CUDA_EVENTS − 1 */
    int (*await)(mr_cuda_context *context, uint32_t event);  /* the host waits */
    int (*synchronize)(mr_cuda_context *context);

    int (*capture_begin)(mr_cuda_context *context);
    int (*capture_end)(mr_cuda_context *context, mr_cuda_graph **out, uint32_t *launches);
    int (*graph_launch)(mr_cuda_context *context, mr_cuda_graph *graph);
    void (*graph_destroy)(mr_cuda_context *context, mr_cuda_graph *graph);

    int (*random)(mr_cuda_context *context, const mr_cuda_random *p);
    int (*prepare)(mr_cuda_context *context, const mr_cuda_prepare *p);
    int (*embed)(mr_cuda_context *context, const mr_cuda_embed *p);
    int (*norm)(mr_cuda_context *context, const mr_cuda_norm *p);
    int (*linear)(mr_cuda_context *context, const mr_cuda_linear *p);
    int (*rope_table)(mr_cuda_context *context, const mr_cuda_rope_table *p);
    int (*head_norm)(mr_cuda_context *context, const mr_cuda_head_norm *p);
    int (*rope_kv)(mr_cuda_context *context, const mr_cuda_rope_kv *p);
    int (*attention_split)(mr_cuda_context *context, const mr_cuda_attention *p);
    int (*attention_tiles)(mr_cuda_context *context, const mr_cuda_attention *p);
    int (*gated)(mr_cuda_context *context, const mr_cuda_gated *p);
    int (*quantize)(mr_cuda_context *context, const mr_cuda_quantize *p);
    int (*activate)(mr_cuda_context *context, const mr_cuda_activate *p);
    int (*gather)(mr_cuda_context *context, const mr_cuda_gather *p);
    int (*sample)(mr_cuda_context *context, const mr_cuda_sample *p);
    int (*block_move)(mr_cuda_context *context, const mr_cuda_block_move *p);
    /* What decode takes of this shape (p->rows and pointers do not count). */
    mr_cuda_decode_most (*decode_most)(mr_cuda_context *context, const mr_cuda_decode *p);
    /* Fills in the layers' maps; in host memory. */
    int (*decode_maps)(mr_cuda_context *context, const mr_cuda_decode *p,
                       mr_cuda_decode_layer *layers);
    int (*decode)(mr_cuda_context *context, const mr_cuda_decode *p);

    /* Transfers have a stream of their own, in order among themselves. begin: it waits for what is
     * queued now. end: records `event`, below MR_CUDA_TRANSFERS. is_over: without waiting. */
    int (*transfer_begin)(mr_cuda_context *context);
    int (*transfer_block)(mr_cuda_context *context, const mr_cuda_block_transfer *p);
    int (*transfer_end)(mr_cuda_context *context, uint32_t event);
    int (*transfer_is_over)(mr_cuda_context *context, uint32_t event, bool *over);
} mr_cuda_api;

#define MR_CUDA_EVENTS    8u
#define MR_CUDA_TRANSFERS 64u /* that may be unfinished */

#ifdef __cplusplus
}
#endif

#endif
