/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Float products in register tiles: up to MR_TILE_ROWS rows times up to MR_TILE_VECS vectors of 16
 * columns, summed along the depth one step after the other. Included after fast_kernels_impl.h.
 */

typedef struct mr_tile {
    const float *a; /* [rows][a_stride] */
    size_t a_stride;
    const void *b; /* [depth][b_step] */
    size_t b_step;
    float *c; /* [rows][c_stride] */
    size_t c_stride;
    uint32_t depth;
    uint32_t cols; /* columns that exist, the last vector may be cut */
    const float *bias;
    bool accumulate;
} mr_tile;

MR_SIMD mr_vec mr_tile_load(mr_dtype dtype, const void *b, size_t element)
{
    if (dtype == MR_DTYPE_F16) {
        return mr_vec_load_f16((const uint16_t *)b + element);
    }
    if (dtype == MR_DTYPE_BF16) {
        return mr_vec_load_bf16((const uint16_t *)b + element);
    }
    return mr_vec_load((const float *)b + element);
}

/* Columns of vector `vec` that exist, 0 … 16. */
MR_SIMD uint32_t mr_tile_lanes(uint32_t cols, uint32_t vec)
{
    uint32_t left = cols > vec * MR_FAST_LANES ? cols - vec * MR_FAST_LANES : 0;
    return left < MR_FAST_LANES ? left : MR_FAST_LANES;
}

/* rows, vecs and dtype are constants at every place this is expanded. */
MR_SIMD void mr_tile_run(uint32_t rows, uint32_t vecs, mr_dtype dtype, const mr_tile *tile)
{
    mr_vec sum[MR_TILE_ROWS][MR_TILE_VECS];
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++) {
            const float *c = tile->c + r * tile->c_stride + v * MR_FAST_LANES;
            sum[r][v] = tile->accumulate ? mr_vec_load_part(c, mr_tile_lanes(tile->cols, v))
                                         : mr_vec_set(0.0f);
        }
    }
    for (uint32_t d = 0; d < tile->depth; d++) {
        mr_vec b[MR_TILE_VECS];
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++) {
            b[v] = mr_tile_load(dtype, tile->b, v * MR_FAST_LANES + d * tile->b_step);
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            mr_vec a = mr_vec_set(tile->a[r * tile->a_stride + d]);
#pragma GCC unroll 8
            for (uint32_t v = 0; v < vecs; v++) {
                sum[r][v] = mr_vec_fma(a, b[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++) {
            uint32_t lanes = mr_tile_lanes(tile->cols, v);
            mr_vec out = sum[r][v];
            if (tile->bias != NULL) {
                mr_vec bias = mr_vec_load_part(tile->bias + v * MR_FAST_LANES, lanes);
                out = mr_vec_add(out, bias);
            }
            mr_vec_store_part(tile->c + r * tile->c_stride + v * MR_FAST_LANES, out, lanes);
        }
    }
}

/* All rows of one group of vectors, a tile after the other. */
MR_SIMD void mr_tile_rows(uint32_t vecs, mr_dtype dtype, mr_tile tile, uint32_t rows)
{
    while (rows > 0) {
        uint32_t taken = rows < MR_TILE_ROWS ? rows : MR_TILE_ROWS;
        switch (taken) {
        case 1:
            mr_tile_run(1, vecs, dtype, &tile);
            break;
        case 2:
            mr_tile_run(2, vecs, dtype, &tile);
            break;
#if MR_TILE_ROWS > 3
        case 3:
            mr_tile_run(3, vecs, dtype, &tile);
            break;
#endif
#if MR_TILE_ROWS > 4
        case 4:
            mr_tile_run(4, vecs, dtype, &tile);
            break;
        case 5:
            mr_tile_run(5, vecs, dtype, &tile);
            break;
#endif
        default:
            mr_tile_run(MR_TILE_ROWS, vecs, dtype, &tile);
            break;
        }
        tile.a += taken * tile.a_stride;
        tile.c += taken * tile.c_stride;
        rows -= taken;
    }
}

static void mr_impl_product(const mr_fast_product *job)
{
    mr_tile tile = {.a = job->a,
                    .a_stride = job->a_stride,
                    .b_step = job->b_stride,
                    .c_stride = job->c_stride,
                    .depth = job->depth,
                    .accumulate = job->accumulate};
    for (uint32_t col = 0; col < job->cols;) {
        uint32_t vecs = (job->cols - col) / MR_FAST_LANES;
        tile.b = job->b + col;
        tile.c = job->c + col;
        if (vecs >= MR_TILE_VECS) {
            tile.cols = MR_TILE_VECS * MR_FAST_LANES;
            mr_tile_rows(MR_TILE_VECS, MR_DTYPE_F32, tile, job->rows);
        } else {
            tile.cols = MR_FAST_LANES;
            mr_tile_rows(1, MR_DTYPE_F32, tile, job->rows);
        }
        col += tile.cols;
    }
}

/* A strip of dtype: its outputs are the columns, its inputs the depth. */
MR_SIMD void mr_tile_linear(mr_dtype dtype, const mr_fast_linear *job)
{
    enum { VECS = MR_FAST_STRIP / MR_FAST_LANES };
    mr_tile tile = {.a = job->x,
                    .a_stride = job->k,
                    .b = job->strip,
                    .b_step = MR_FAST_STRIP,
                    .c = job->out,
                    .c_stride = job->out_stride,
                    .depth = job->k,
                    .cols = job->n,
                    .bias = job->bias};
    mr_tile_rows(VECS, dtype, tile, job->rows);
}

static void mr_impl_linear_float(const mr_fast_linear *job)
{
    if (job->layout == MR_FAST_F16) {
        mr_tile_linear(MR_DTYPE_F16, job);
    } else if (job->layout == MR_FAST_BF16) {
        mr_tile_linear(MR_DTYPE_BF16, job);
    } else {
        mr_tile_linear(MR_DTYPE_F32, job);
    }
}

/* What a table of this instruction set has in any case. */
#define MR_FAST_KERNELS_COMMON(linear_fn, burst_fn)                                                \
    .quantize = mr_impl_quantize, .linear = (linear_fn), .product = mr_impl_product,               \
    .softmax = mr_impl_softmax, .blend = mr_impl_blend, .scale = mr_impl_scale,                    \
    .add = mr_impl_add, .mean_square = mr_impl_mean_square, .mean = mr_impl_mean,                  \
    .normalize = mr_impl_normalize, .gated = mr_impl_gated, .rotate = mr_impl_rotate,              \
    .widen = mr_impl_widen, .narrow = mr_impl_narrow, .quantize_kv = mr_impl_quantize_kv,          \
    .burst = (burst_fn)

#define MR_FAST_KERNELS(linear_fn, burst_fn)                                                       \
    {                                                                                              \
        MR_FAST_KERNELS_COMMON(linear_fn, burst_fn)                                                \
    }
