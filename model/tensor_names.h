/* SPDX-License-Identifier: Apache-2.0 */
/* What the tensors of a decoder are for, and what each family of files calls them. */
#ifndef MILLRACE_MODEL_TENSOR_NAMES_H
#define MILLRACE_MODEL_TENSOR_NAMES_H

typedef enum mr_tensor_role {
    MR_ROLE_EMBEDDING,
    MR_ROLE_POSITIONS, /* learned position embeddings */
    MR_ROLE_FINAL_NORM,
    MR_ROLE_HEAD, /* vocabulary projection, where it is no embedding */
    MR_ROLE_ATTENTION_NORM,
    MR_ROLE_Q,
    MR_ROLE_K,
    MR_ROLE_V,
    MR_ROLE_QKV, /* rows of q, k and v in one matrix; then there is no q, k, v */
    MR_ROLE_Q_NORM,
    MR_ROLE_K_NORM,
    MR_ROLE_O,
    MR_ROLE_FFN_NORM,
    MR_ROLE_GATE,
    MR_ROLE_UP,
    MR_ROLE_GATE_UP, /* rows of gate and up in one matrix; then there is no gate, up */
    MR_ROLE_DOWN,
    MR_ROLE_COUNT,
} mr_tensor_role;

/* Modules by role, NULL where the family has none; "%u" stands for the layer. A tensor's name is
 * the module's with ".weight" or ".bias". */
typedef struct mr_tensor_names {
    const char *module[MR_ROLE_COUNT];
} mr_tensor_names;

#endif
