/* SPDX-License-Identifier: Apache-2.0 */
/* How the weights of a checkpoint are quantised: quantization_config of its config.json. */
#ifndef MILLRACE_MODEL_QUANT_CONFIG_H
#define MILLRACE_MODEL_QUANT_CONFIG_H

#include "base/status.h"
#include "model/quant_left.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define MR_QUANT_SCHEMES 8u

typedef enum mr_quant_method {
    MR_QUANT_NONE,
    MR_QUANT_GPTQ,
    MR_QUANT_AWQ,
    MR_QUANT_COMPRESSED, /* compressed-tensors */
    MR_QUANT_FP8,
} mr_quant_method;

/* What a matrix of codes is like. */
typedef struct mr_quant_scheme {
    bool e4m3; /* else integers */
    uint32_t bits;
    bool packed;    /* codes in words, else bytes */
    uint32_t group; /* inputs of a scale; 0: all of a row */
    uint32_t rows;  /* outputs of a scale: 1; above in blocks; 0: all of them */
    bool symmetric;
} mr_quant_scheme;

typedef struct mr_quant_config {
    mr_quant_method method;
    char label[32];                            /* "gptq int4 g128"; empty without a method */
    mr_quant_scheme schemes[MR_QUANT_SCHEMES]; /* those a matrix may have */
    uint32_t n_schemes;
    bool v2;             /* GPTQ: zeros are as they are, not less 1 */
    bool act_order;      /* GPTQ: inputs are in groups by g_idx */
    bool head;           /* GPTQ: the vocabulary projection has codes too */
    mr_quant_left *left; /* modules that are not quantised; owns, NULL: none */
} mr_quant_config;

/* Reads the object `found` (a quantization_config; NULL or JSON null: not quantised). UNIMPLEMENTED
 * names a method, format or variant that this build lacks, and says what it has; DATA_LOSS. Deinit
 * after a failure too. */
MR_MUST_USE mr_status mr_quant_config_read(const json_t *found, mr_quant_config *out,
                                           mr_error *err);
/* The same of dir/quantize_config.json, which older GPTQ directories have in its place. */
MR_MUST_USE mr_status mr_quant_config_open(const char *dir, mr_quant_config *out, mr_error *err);
void mr_quant_config_deinit(mr_quant_config *config);

/* Whether a linear module of this name is in the list of those left alone: itself, a module around
 * it, or "re:" patterns. For weights made of nothing; files say it by what they have.
 * Errors as mr_quant_left_has. */
MR_MUST_USE mr_status mr_quant_config_leaves(const mr_quant_config *config, const char *module,
                                             bool *leaves, mr_error *err);

/* For docs/models.md: row `index` of what is read, false past the last. */
bool mr_quant_method_at(size_t index, const char **method, const char **what);

#endif
