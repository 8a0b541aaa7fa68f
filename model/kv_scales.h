/* SPDX-License-Identifier: Apache-2.0 */
/* Scales that a checkpoint has for a cache of F8_E4M3, under the names that tools give them. An
 * int8 cache has scales of its own (kernels/kv_layout.h). */
#ifndef MILLRACE_MODEL_KV_SCALES_H
#define MILLRACE_MODEL_KV_SCALES_H

#include "model/tensor_table.h"

#include <stdbool.h>
#include <stdint.h>

/* The scale of a layer's keys (or values), by the name of their projection
 * ("model.layers.0.self_attn.k_proj"); false without one that is a positive number. Marks its
 * tensor as used. */
bool mr_kv_scale_find(const mr_tensor_table *tensors, const char *projection, bool key,
                      float *scale);
/* Layers that have such. */
uint32_t mr_kv_scale_layers(const mr_tensor_table *tensors);

#endif
