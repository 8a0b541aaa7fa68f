/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrices whose codes, scales and zeros are arrays of their own, as quantised checkpoints have
 * them (GPTQ, AWQ, compressed-tensors, FP8), and the same as rows of blocks, which is what backends
 * get. Element (n, k) of a matrix, N outputs by K inputs, with g = group of k, is
 *
 *   scale[n][g] · (code[n][k] − zero[n][g])    or, of F8_E4M3 codes,    scale[n][g] · code[n][k]
 *
 * the difference exact and the product rounded once to float32. Where lines of codes lie:
 *
 *   GPTQ                 int32 [K · bits / 32][N]   a word holds codes of one output
 *   its zeros            int32 [G][N · bits / 32]   a word holds zeros of one group
 *   AWQ                  int32 [K][N / 8]           a word holds codes of one input, shuffled
 *   its zeros            int32 [G][N / 8]           likewise
 *   compressed-tensors   int32 [N][K · bits / 32]   a word holds codes of one output
 *   its zeros            int32 [N · bits / 32][G]   a word holds zeros of one group
 *   bytes                [N][K]
 *
 * Blocks of 32 elements of a row, without padding:
 *
 *   CODES4  f32 scale | u8 zero | 16 bytes: code i in the low, code 16 + i in the high nibble
 *   CODES8  f32 scale | u8 zero | 32 codes
 *   CODES_F8  f32 scale | 32 codes, F8_E4M3
 *
 * Codes of 2 and 3 bits go into CODES4 with 8 − 2^(bits − 1) added to code and zero, so that the
 * zero of a symmetric matrix is 8, whatever its bits; int8 is u8 less 128.
 */
#ifndef MILLRACE_KERNELS_WEIGHT_CODES_H
#define MILLRACE_KERNELS_WEIGHT_CODES_H

#include "kernels/dtype.h"
#include "kernels/quant_block.h"

#include <stdbool.h>
#include <stdint.h>

#define MR_CODES_BLOCK   32u /* elements of a block */
#define MR_CODES_NO_ZERO UINT32_MAX

typedef enum mr_code_form {
    MR_CODES_WORDS,    /* little-endian words, the first code in the lowest bits; a code may have
                          its low bits in one word and its high ones in the next */
    MR_CODES_SHUFFLED, /* AWQ: eight of 4 bits a word, from the lowest on 0, 2, 4, 6, 1, 3, 5, 7 */
    MR_CODES_INT8,     /* bytes, −128 … 127; read as codes 0 … 255 */
    MR_CODES_E4M3,     /* bytes */
} mr_code_form;

/* A matrix of codes, or of zeros: [N][K] or [N][G], in lines of words (or of bytes). */
typedef struct mr_code_matrix {
    const uint8_t *data; /* borrowed, any alignment; NULL: there is none */
    uint64_t bytes;
    mr_code_form form;
    uint32_t bits;   /* 2, 3, 4, 8 */
    bool packs_rows; /* a line goes along N, else along K or G */
    uint64_t next;   /* bytes from a word of a line to its next */
    uint64_t line;   /* bytes from a line to the next */
} mr_code_matrix;

typedef struct mr_weight_codes {
    mr_code_matrix codes;
    mr_code_matrix zeros;  /* data NULL: every zero is 2^(bits − 1) */
    uint32_t zero_add;     /* to zeros as they are stored, modulo 2^bits: 1 in GPTQ's first form */
    const uint8_t *scales; /* borrowed; NULL: weights made of nothing */
    uint64_t scale_bytes;
    mr_dtype scale_dtype;    /* F32, F16, BF16 */
    uint64_t scale_row;      /* elements from an output's scale to the next one's; 0: shared */
    uint64_t scale_group;    /* from a group's to the next one's */
    uint32_t scale_rows;     /* outputs that share a scale: 1, but in FP8 of blocks */
    uint32_t group;          /* inputs that share a scale, K at most */
    float input_scale;       /* F8_E4M3: what the checkpoint rounds inputs by; 0: nothing */
    const uint8_t *group_of; /* int32 [K], each below the groups; NULL: k / group. Borrowed */
    uint32_t first;          /* line or place of the arrays that is the matrix's output 0 */
    bool centred;            /* every zero is 2^(bits − 1) */
    bool halves; /* scales, and scales times zeros, are in the range of f16, where it has
                    eight digits or the scale is an f16 number itself */
} mr_weight_codes;

/* Code (row, column) of a matrix; of the E4M3 form its byte. */
uint32_t mr_code_at(const mr_code_matrix *matrix, uint64_t row, uint64_t column);

/* The zero and the scale of a row in a group. */
uint32_t mr_weight_codes_zero(const mr_weight_codes *codes, uint64_t row, uint64_t group);
float mr_weight_codes_scale(const mr_weight_codes *codes, uint64_t row, uint64_t group);

/* The zero that rows [0, rows) have in all groups; MR_CODES_NO_ZERO if they differ. */
uint32_t mr_weight_codes_common_zero(const mr_weight_codes *codes, uint64_t rows, uint64_t groups);
/* What `halves` says; `centred` is set before. */
bool mr_weight_codes_fit_halves(const mr_weight_codes *codes, uint64_t rows, uint64_t groups);

/* The type of the blocks that `k` inputs go into: a CODES type, or F32 where groups and blocks do
 * not fit each other (act-order, groups that are no multiple of 32). */
mr_dtype mr_weight_codes_dtype(const mr_weight_codes *codes, uint32_t k);

/* Writes rows [first, first + count) to out, which needs no alignment, as rows of that type. Any
 * thread. */
void mr_weight_codes_fill(const mr_weight_codes *codes, uint32_t k, uint64_t first, uint64_t count,
                          void *out);

/* Of F8_E4M3 codes: those of a row, which lie one after the other. */
const uint8_t *mr_weight_codes_row(const mr_weight_codes *codes, uint64_t row);

/* What the elements of a block share. */
typedef struct mr_codes_values {
    uint32_t zero;
    float scale;
} mr_codes_values;

/* Writes a block of a CODES type; codes and zero are of `bits` bits. */
void mr_codes_write(mr_dtype dtype, uint32_t bits, const uint8_t codes[MR_CODES_BLOCK],
                    const mr_codes_values *values, uint8_t *out);

/* Of the CODES types, as mr_dequantize. */
void mr_dequantize_codes(mr_dtype dtype, const uint8_t *src, float *dst, uint64_t elements);

/* The block of a CODES4 or CODES8 row for layouts of scale · code − min: where `centred`, codes are
 * less 8 or 128 and there is no min, which is exact; else min is zero · scale, and codes of CODES8
 * above 127 are those less 256. */
void mr_codes_unpack(mr_dtype dtype, bool centred, const uint8_t *block, mr_quant_group *group);

float mr_f8_e4m3_to_f32(uint8_t bits);

#endif
