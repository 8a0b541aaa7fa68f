/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of split attention: a cache and a step's arrays of any shape, on the GPU, and the same in
 * double. What no row may see is NaN or infinite: the null block, what lies behind a sequence's
 * last token in a block, keys and values of the step's own rows that the cache has not got. */
#ifndef MILLRACE_TESTS_ATTENTION_SCENE_H
#define MILLRACE_TESTS_ATTENTION_SCENE_H

#include "gpu.h"

enum { SCENE_ROWS = 256 };

typedef struct scene_shape {
    mr_dtype type;
    mr_dtype kv;
    uint32_t width;
    uint32_t kv_heads;
    uint32_t share; /* query heads a key/value head */
    uint32_t block_size;
    uint32_t window;
    float soft_cap;
    /* If not 0: the first key has all but a hundredth of the weight and next to no value, the
     * others values of about this size. */
    float behind_sink;
} scene_shape;

/* The tokens of a step. */
typedef struct scene_rows {
    uint32_t count;
    uint32_t slots;
    uint32_t slot[SCENE_ROWS];
    uint32_t position[SCENE_ROWS];
} scene_rows;

typedef struct scene {
    scene_shape s;
    const scene_rows *rows;
    uint32_t first[SCENE_ROWS + 1]; /* a slot's tokens among those of all */
    uint32_t n_blocks;
    uint32_t max_blocks;
    uint8_t *loud;    /* [tokens]: its key stands out */
    uint32_t *tables; /* [slots][max_blocks] */
    float *q;         /* [rows][H][D], as stored */
    float *keys;      /* [tokens][G][D], as stored */
    float *values;
    uint8_t *planes[2];
    double *want; /* [rows][H][D], or NULL: not computed yet */
    double *size; /* what the magnitudes of its terms sum to */
    mr_cuda_item *items;
    uint32_t n_items;
    uint64_t out_bytes;
    uint64_t partial_bytes;
    mr_cuda_attention p;
} scene;

/* A row; a slot's cache reaches to the last position of its rows. */
void scene_add_row(scene_rows *r, uint32_t slot, uint32_t position);
/* `r` outlives the scene. What the bench had given out before is given out anew. */
void scene_make(gpu_bench *b, const scene_shape *s, const scene_rows *r, scene *c);
void scene_free(scene *c);
/* Bytes of one head in one block (kernels/kv_layout.h). */
size_t scene_piece_bytes(const scene_shape *s);
uint32_t scene_heads(const scene *c);
/* One launch, as graphs have it (`most` 0), or launches of whole tokens of about `most` items,
 * whose output goes into `out`, [tokens][H · D]. Fails unless the counters are zero afterwards, and
 * where something was written behind an array. */
void scene_run(gpu_bench *b, scene *c, uint32_t most, uint8_t *out, const char *what);
/* Fails where an element is further from the sums in double than rounding explains. */
void scene_compare(scene *c, const uint8_t *out, const char *what);
/* Element `index` of an array of F32, F16 or BF16. */
double scene_number(mr_dtype type, const uint8_t *from, size_t index);

#endif
