/* SPDX-License-Identifier: Apache-2.0 */
#include "model/arch.h"

#include "model/llama.h"

#include <stdio.h>
#include <string.h>

static const mr_tensor_names gguf_names = {{
    [MR_ROLE_EMBEDDING] = "token_embd",
    [MR_ROLE_FINAL_NORM] = "output_norm",
    [MR_ROLE_HEAD] = "output",
    [MR_ROLE_ATTENTION_NORM] = "blk.%u.attn_norm",
    [MR_ROLE_Q] = "blk.%u.attn_q",
    [MR_ROLE_K] = "blk.%u.attn_k",
    [MR_ROLE_V] = "blk.%u.attn_v",
    [MR_ROLE_O] = "blk.%u.attn_output",
    [MR_ROLE_FFN_NORM] = "blk.%u.ffn_norm",
    [MR_ROLE_GATE] = "blk.%u.ffn_gate",
    [MR_ROLE_UP] = "blk.%u.ffn_up",
    [MR_ROLE_DOWN] = "blk.%u.ffn_down",
}};

#define HF_LAYER "model.layers.%u."

/* What Llama and its kin share; q_norm and k_norm are there where the traits say so. */
#define HF_COMMON                                                                                  \
    [MR_ROLE_EMBEDDING] = "model.embed_tokens", [MR_ROLE_FINAL_NORM] = "model.norm",               \
    [MR_ROLE_HEAD] = "lm_head", [MR_ROLE_ATTENTION_NORM] = HF_LAYER "input_layernorm",             \
    [MR_ROLE_Q_NORM] = HF_LAYER "self_attn.q_norm",                                                \
    [MR_ROLE_K_NORM] = HF_LAYER "self_attn.k_norm", [MR_ROLE_O] = HF_LAYER "self_attn.o_proj",     \
    [MR_ROLE_FFN_NORM] = HF_LAYER "post_attention_layernorm",                                      \
    [MR_ROLE_DOWN] = HF_LAYER "mlp.down_proj"

static const mr_tensor_names hf_names = {{
    HF_COMMON,
    [MR_ROLE_Q] = HF_LAYER "self_attn.q_proj",
    [MR_ROLE_K] = HF_LAYER "self_attn.k_proj",
    [MR_ROLE_V] = HF_LAYER "self_attn.v_proj",
    [MR_ROLE_GATE] = HF_LAYER "mlp.gate_proj",
    [MR_ROLE_UP] = HF_LAYER "mlp.up_proj",
}};

static const mr_tensor_names hf_fused_names = {{
    HF_COMMON,
    [MR_ROLE_QKV] = HF_LAYER "self_attn.qkv_proj",
    [MR_ROLE_GATE_UP] = HF_LAYER "mlp.gate_up_proj",
}};

#define OPT_LAYER "model.decoder.layers.%u."

static const mr_tensor_names opt_names = {{
    [MR_ROLE_EMBEDDING] = "model.decoder.embed_tokens",
    [MR_ROLE_POSITIONS] = "model.decoder.embed_positions",
    [MR_ROLE_FINAL_NORM] = "model.decoder.final_layer_norm",
    [MR_ROLE_HEAD] = "lm_head",
    [MR_ROLE_ATTENTION_NORM] = OPT_LAYER "self_attn_layer_norm",
    [MR_ROLE_Q] = OPT_LAYER "self_attn.q_proj",
    [MR_ROLE_K] = OPT_LAYER "self_attn.k_proj",
    [MR_ROLE_V] = OPT_LAYER "self_attn.v_proj",
    [MR_ROLE_O] = OPT_LAYER "self_attn.out_proj",
    [MR_ROLE_FFN_NORM] = OPT_LAYER "final_layer_norm",
    [MR_ROLE_UP] = OPT_LAYER "fc1",
    [MR_ROLE_DOWN] = OPT_LAYER "fc2",
}};

/* Defaults are those of the configuration classes, for keys that config.json leaves out. */
static const mr_hf_traits llama_traits = {
    .class_name = "LlamaForCausalLM",
    .read = mr_hf_read_rotary,
    .qkv_bias = MR_HF_BIAS_BY_KEY,
    .o_bias = MR_HF_BIAS_BY_KEY,
    .ffn_bias = MR_HF_BIAS_BY_KEY,
    .epsilon = 1e-6,
};

static const mr_hf_traits mistral_traits = {
    .class_name = "MistralForCausalLM",
    .read = mr_hf_read_rotary,
    .window = MR_HF_WINDOW_ALL,
    .default_window = 4096,
    .epsilon = 1e-6,
};

static const mr_hf_traits qwen2_traits = {
    .class_name = "Qwen2ForCausalLM",
    .read = mr_hf_read_rotary,
    .qkv_bias = MR_HF_BIAS_ALWAYS,
    .window = MR_HF_WINDOW_UPPER,
    .epsilon = 1e-6,
};

static const mr_hf_traits qwen3_traits = {
    .class_name = "Qwen3ForCausalLM",
    .read = mr_hf_read_rotary,
    .qkv_bias = MR_HF_BIAS_BY_KEY,
    .o_bias = MR_HF_BIAS_BY_KEY,
    .window = MR_HF_WINDOW_UPPER,
    .qk_norm = true,
    .epsilon = 1e-6,
};

static const mr_hf_traits phi3_traits = {
    .class_name = "Phi3ForCausalLM",
    .read = mr_hf_read_rotary,
    .window = MR_HF_WINDOW_ALL,
    .epsilon = 1e-5,
};

static const mr_hf_traits opt_traits = {
    .class_name = "OPTForCausalLM",
    .read = mr_hf_read_opt,
    .tied = true,
};

static const mr_arch archs[] = {
    {.name = "llama",
     .about = "Llama 2, 3, 3.1, 3.2, SmolLM, SmolLM2: grouped-query attention, gated SiLU",
     .read_gguf = mr_llama_read_gguf,
     .gguf_names = &gguf_names,
     .hf = &llama_traits,
     .hf_names = &hf_names},
    {.name = "mistral",
     .about = "Mistral 7B: as Llama, with a sliding window where the configuration has one",
     .hf = &mistral_traits,
     .hf_names = &hf_names},
    {.name = "qwen2",
     .about = "Qwen2, Qwen2.5: as Llama, with biases of q, k and v",
     .hf = &qwen2_traits,
     .hf_names = &hf_names},
    {.name = "qwen3",
     .about = "Qwen3 (dense): as Llama, with norms of each query and key head",
     .hf = &qwen3_traits,
     .hf_names = &hf_names},
    {.name = "phi3",
     .about = "Phi-3, Phi-3.5, Phi-4 (text): as Llama, with fused matrices, longrope, and part of "
              "a head rotated in some",
     .hf = &phi3_traits,
     .hf_names = &hf_fused_names},
    {.name = "opt",
     .about = "OPT but for 350M: layer norm, learned positions, biases, an ungated network",
     .hf = &opt_traits,
     .hf_names = &opt_names},
};

#define N_ARCHS (sizeof(archs) / sizeof(archs[0]))

size_t mr_arch_count(void)
{
    return N_ARCHS;
}

const mr_arch *mr_arch_at(size_t index)
{
    return &archs[index];
}

static bool readable(const mr_arch *arch, bool gguf)
{
    return gguf ? arch->read_gguf != NULL : arch->hf != NULL;
}

static mr_status find(const char *name, bool gguf, const mr_arch **out, mr_error *err)
{
    char known[192] = "";
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (!readable(&archs[i], gguf)) {
            continue;
        }
        if (strcmp(archs[i].name, name) == 0) {
            *out = &archs[i];
            return MR_OK;
        }
        const int length = snprintf(known + used, sizeof(known) - used, "%s%s",
                                    used == 0 ? "" : ", ", archs[i].name);
        if (length > 0 && (size_t)length < sizeof(known) - used) {
            used += (size_t)length;
        }
    }
    return mr_fail(err, MR_UNIMPLEMENTED,
                   "architecture '%.64s' (%s) is not supported; this build has: %s", name,
                   gguf ? "general.architecture" : "model_type", known);
}

mr_status mr_arch_find_gguf(const char *name, const mr_arch **out, mr_error *err)
{
    return find(name, true, out, err);
}

mr_status mr_arch_find_hf(const char *name, const mr_arch **out, mr_error *err)
{
    return find(name, false, out, err);
}
