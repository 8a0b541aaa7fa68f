/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of quant_weights: a search for the tensors that a module's weight is in, and how each kind
 * of checkpoint is read. Errors are as mr_quant_find has them. */
#ifndef MILLRACE_MODEL_QUANT_TENSORS_H
#define MILLRACE_MODEL_QUANT_TENSORS_H

#include "model/quant_weights.h"

/* All but `out` and `err` is borrowed for the search. */
typedef struct mr_quant_finder {
    const mr_quant_config *config;
    const mr_tensor_table *tensors;
    const mr_quant_module *module;
    mr_quant_scheme scheme; /* of this module */
    uint32_t groups;        /* of its inputs, once they are set */
    mr_weight_codes *out;
    mr_error *err;
} mr_quant_finder;

/* "MODULE.SUFFIX"; NULL if there is none. */
const mr_model_tensor *mr_quant_look_up(const mr_tensor_table *tensors, const char *module,
                                        const char *suffix);
/* That of the finder's module, noted as used; NULL if there is none. */
const mr_model_tensor *mr_quant_take(const mr_quant_finder *f, const char *suffix);
/* DATA_LOSS: there is none. */
MR_MUST_USE mr_status mr_quant_missing(const mr_quant_finder *f, const char *suffix);

/* DATA_LOSS unless the tensor is [rows][columns] of `type`. */
MR_MUST_USE mr_status mr_quant_check_tensor(const mr_quant_finder *f, const mr_model_tensor *tensor,
                                            uint64_t rows, uint64_t columns, mr_dtype type);
/* DATA_LOSS unless `size`, which are `what`, is a multiple of `of`, which is `why` (Q3). */
MR_MUST_USE mr_status mr_quant_check_multiple(const mr_quant_finder *f, const char *what,
                                              uint32_t size, uint32_t of, const char *why);
/* Codes in a word, or what fills words where codes lie across them. */
uint32_t mr_quant_pack_unit(uint32_t bits);
/* The scheme's groups of this module's inputs. */
MR_MUST_USE mr_status mr_quant_set_groups(mr_quant_finder *f);

/* Codes in words of 32 bits; then which way its lines go: down the columns, or along the rows, of a
 * tensor of so many columns. */
void mr_quant_set_words(mr_code_matrix *m, const mr_model_tensor *tensor, uint32_t bits,
                        bool packs_rows);
void mr_quant_lines_down(mr_code_matrix *m, uint64_t columns);
void mr_quant_lines_along(mr_code_matrix *m, uint64_t columns);

/* The tensor's numbers as scales. UNIMPLEMENTED for types that are none. */
MR_MUST_USE mr_status mr_quant_take_scale_type(const mr_quant_finder *f,
                                               const mr_model_tensor *scales);
/* Which group each input is in; NULL if they are in order. */
MR_MUST_USE mr_status mr_quant_take_order(const mr_quant_finder *f, const mr_model_tensor *order);

/* One kind of checkpoint: all that goes with `codes` into f->out. */
typedef mr_status (*mr_quant_find_fn)(mr_quant_finder *f, const mr_model_tensor *codes);

/* quant_gptq.c */
MR_MUST_USE mr_status mr_quant_find_gptq(mr_quant_finder *f, const mr_model_tensor *codes);
MR_MUST_USE mr_status mr_quant_find_awq(mr_quant_finder *f, const mr_model_tensor *codes);
/* Symmetric zeros tell the two formats of GPTQ apart: the first stores them less 1 (Q1). */
MR_MUST_USE mr_status mr_quant_check_symmetric(const mr_quant_finder *f, uint32_t zero);

/* quant_compressed.c: codes in words; in bytes. */
MR_MUST_USE mr_status mr_quant_find_packed(mr_quant_finder *f, const mr_model_tensor *codes);
MR_MUST_USE mr_status mr_quant_find_bytes(mr_quant_finder *f, const mr_model_tensor *codes);

#endif
