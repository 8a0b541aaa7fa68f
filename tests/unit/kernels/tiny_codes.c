/* SPDX-License-Identifier: Apache-2.0 */
#include "tiny_codes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

uint8_t tiny_e4m3(float x)
{
    uint8_t best = 0;
    const double magnitude = fabs((double)x);
    for (uint8_t code = 1; code < 0x7f; code++) {
        const double far = fabs(magnitude - (double)mr_f8_e4m3_to_f32(best));
        const double distance = fabs(magnitude - (double)mr_f8_e4m3_to_f32(code));
        best = distance < far || (distance == far && code % 2 == 0) ? code : best;
    }
    return (uint8_t)(best | (signbit(x) ? 0x80 : 0));
}

/* The matrix becomes codes of F8_E4M3 with a scale an output. */
static void code_matrix(const tiny_plan *tiny, mr_weight_id id, tiny_codes *own)
{
    mr_plan_weight *weight = &tiny->plan->weights[id];
    const float *from = weight->data;
    uint8_t *codes = malloc((size_t)weight->n * weight->k);
    float *scales = malloc(weight->n * sizeof(*scales));
    mr_weight_codes *made = calloc(1, sizeof(*made));
    assert_true(codes != NULL && scales != NULL && made != NULL && own->count < TINY_CODES);
    for (uint32_t n = 0; n < weight->n; n++) {
        float largest = 1e-9f;
        for (uint32_t i = 0; i < weight->k; i++) {
            largest = fmaxf(largest, fabsf(from[(size_t)n * weight->k + i]));
        }
        scales[n] = largest / 448.0f;
        for (uint32_t i = 0; i < weight->k; i++) {
            codes[(size_t)n * weight->k + i] =
                tiny_e4m3(from[(size_t)n * weight->k + i] / scales[n]);
        }
    }
    *made = (mr_weight_codes){
        .codes = {.data = codes,
                  .bytes = (uint64_t)weight->n * weight->k,
                  .form = MR_CODES_E4M3,
                  .bits = 8,
                  .next = 1,
                  .line = weight->k},
        .scales = (const uint8_t *)scales,
        .scale_bytes = weight->n * sizeof(*scales),
        .scale_dtype = MR_DTYPE_F32,
        .scale_row = 1,
        .scale_group = 1,
        .scale_rows = 1,
        .group = weight->k,
    };
    weight->data = NULL;
    weight->codes = made;
    weight->dtype = mr_weight_codes_dtype(made, weight->k);
    assert_int_equal(weight->dtype, MR_DTYPE_CODES_F8);
    assert_true(mr_dtype_row_bytes(weight->dtype, weight->k, &weight->bytes));
    weight->bytes *= weight->n;
    own->codes[own->count] = codes;
    own->scales[own->count++] = scales;
}

void tiny_codes_create(const tiny_plan *tiny, tiny_codes *out)
{
    out->count = 0;
    for (uint32_t i = 0; i < tiny->dims.layers; i++) {
        const tiny_layer *l = &tiny->layers[i];
        const mr_weight_id ids[] = {l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (size_t m = 0; m < sizeof(ids) / sizeof(ids[0]); m++) {
            code_matrix(tiny, ids[m], out);
        }
    }
}

void tiny_codes_destroy(tiny_codes *codes)
{
    for (uint32_t i = 0; i < codes->count; i++) {
        free(codes->codes[i]);
        free(codes->scales[i]);
    }
}
