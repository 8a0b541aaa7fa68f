/* SPDX-License-Identifier: Apache-2.0 */
#include "service/rpc_methods.h"

const mr_rpc_method *const mr_rpc_methods[MR_RPC_METHODS] = {
    &mr_rpc_generate,     &mr_rpc_generate_unary,
    &mr_rpc_abort,        &mr_rpc_tokenize,
    &mr_rpc_detokenize,   &mr_rpc_get_model,
    &mr_rpc_health_check, &mr_rpc_health_watch,
    &mr_rpc_reflection,   &mr_rpc_reflection_alpha,
    &mr_rpc_get_load,     &mr_rpc_reset_prefix_cache,
    &mr_rpc_drain,        &mr_rpc_other,
    &mr_rpc_probe_check,  &mr_rpc_probe_watch,
    &mr_rpc_probe_other,
};
