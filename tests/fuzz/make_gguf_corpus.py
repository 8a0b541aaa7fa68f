#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_gguf: small GGUF models that open, one a feature, and some that almost
do. Standard library only, and the same bytes every time.

    make_gguf_corpus.py OUT_DIR
"""
import pathlib
import struct
import sys

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
SCALARS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?",
           U64: "Q", I64: "q", F64: "d"}
# Tensor types: number, elements a block, bytes a block.
T_F32, T_F16, T_Q4_0, T_Q4_1, T_Q8_0, T_BF16 = (0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), \
    (8, 32, 34), (30, 1, 2)
T_Q5_1, T_IQ4_NL = (7, 32, 24), (20, 32, 18)


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value(kind, x):
    if kind == STRING:
        return string(x)
    if kind == ARRAY:
        element, items = x
        return struct.pack("<IQ", element, len(items)) + b"".join(value(element, i) for i in items)
    return struct.pack("<" + SCALARS[kind], x)


class Gguf:
    def __init__(self, version=3, alignment=32):
        self.version, self.alignment = version, alignment
        self.keys, self.tensors = [], []
        if alignment != 32:
            self.key("general.alignment", U32, alignment)

    def key(self, name, kind, x):
        self.keys.append(string(name) + struct.pack("<I", kind) + value(kind, x))

    def tensor(self, name, dims, kind, data=None):
        """dims innermost first"""
        count = 1
        for d in dims:
            count *= d
        size = count // kind[1] * kind[2]
        self.tensors.append((name, dims, kind[0], data or bytes(i * 7 % 251 for i in range(size))))

    def bytes(self):
        pad = lambda data: data + b"\0" * (-len(data) % self.alignment)
        records, data = b"", b""
        for name, dims, number, content in self.tensors:
            data = pad(data)
            records += string(name) + struct.pack("<I", len(dims))
            records += b"".join(struct.pack("<Q", d) for d in dims)
            records += struct.pack("<IQ", number, len(data))
            data += content
        head = b"GGUF" + struct.pack("<IQQ", self.version, len(self.tensors), len(self.keys))
        return pad(head + b"".join(self.keys) + records) + data


def llama(width=8, heads=2, kv_heads=1, ffn=8, vocab=6, layers=1, kind=T_F32, tied=True,
          bias=False, **file):
    g = Gguf(**file)
    head = width // heads
    g.key("general.architecture", STRING, "llama")
    g.key("general.name", STRING, "seed")
    for name, x in [("block_count", layers), ("context_length", 32), ("embedding_length", width),
                    ("feed_forward_length", ffn), ("attention.head_count", heads),
                    ("attention.head_count_kv", kv_heads)]:
        g.key("llama." + name, U32, x)
    g.key("llama.attention.layer_norm_rms_epsilon", F32, 1e-5)
    g.tensor("token_embd.weight", [width, vocab], kind)
    if not tied:
        g.tensor("output.weight", [width, vocab], kind)
    for layer in range(layers):
        for name, k, n in [("attn_q", width, heads * head), ("attn_k", width, kv_heads * head),
                           ("attn_v", width, kv_heads * head), ("attn_output", heads * head, width),
                           ("ffn_gate", width, ffn), ("ffn_up", width, ffn),
                           ("ffn_down", ffn, width)]:
            g.tensor(f"blk.{layer}.{name}.weight", [k, n], kind)
            if bias:
                g.tensor(f"blk.{layer}.{name}.bias", [n], T_F32)
        for name in ["attn_norm", "ffn_norm"]:
            g.tensor(f"blk.{layer}.{name}.weight", [width], T_F32)
    g.tensor("output_norm.weight", [width], T_F32)
    return g


def with_tokenizer(model="gpt2", pre="smollm"):
    tokens = ["<|end|>", "<|user|>", "a", "b", "c", "ab", "\u0120", "\u0120a", "\u0120ab", "!"]
    g = llama(vocab=len(tokens))
    g.key("tokenizer.ggml.model", STRING, model)
    g.key("tokenizer.ggml.pre", STRING, pre)
    g.key("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))
    g.key("tokenizer.ggml.token_type", ARRAY, (I32, [3, 4] + [1] * (len(tokens) - 2)))
    g.key("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "\u0120 a", "\u0120a b"]))
    g.key("tokenizer.ggml.bos_token_id", U32, 1)
    g.key("tokenizer.ggml.eos_token_id", U32, 0)
    g.key("tokenizer.ggml.eot_token_id", U32, 1)
    g.key("tokenizer.ggml.add_bos_token", BOOL, True)
    g.key("tokenizer.chat_template", STRING, "{{ messages[0]['content'] }}")
    return g


def seeds():
    yield "f32-tied", llama().bytes()
    yield "f16-untied-two-layers", llama(kind=T_F16, tied=False, layers=2).bytes()
    yield "bf16-v2", llama(kind=T_BF16, version=2).bytes()
    for name, kind in [("q4_0", T_Q4_0), ("q4_1", T_Q4_1), ("q8_0", T_Q8_0), ("q5_1", T_Q5_1),
                       ("iq4_nl", T_IQ4_NL)]:
        yield name, llama(width=32, ffn=32, kind=kind).bytes()
    yield "biases-aligned-64", llama(bias=True, alignment=64).bytes()

    linear = llama()
    linear.key("llama.rope.freq_base", F32, 1e5)
    linear.key("llama.rope.dimension_count", U32, 2)
    linear.key("llama.rope.scaling.type", STRING, "linear")
    linear.key("llama.rope.scaling.factor", F32, 2.0)
    yield "rope-linear", linear.bytes()

    factors = llama()
    factors.tensor("rope_freqs.weight", [2], T_F32, struct.pack("<2f", 1.0, 8.0))
    factors.tensor("blk.0.attn_k.scale", [1], T_F32)
    yield "rope-factors-unused-tensor", factors.bytes()

    yield "tokenizer", with_tokenizer().bytes()
    yield "tokenizer-llama3", with_tokenizer(pre="llama-bpe").bytes()

    values = Gguf()
    for kind, x in [(U8, 1), (I8, -1), (U16, 2), (I16, -2), (U32, 3), (I32, -3), (F32, 0.5),
                    (BOOL, True), (STRING, "text"), (U64, 4), (I64, -4), (F64, 0.25),
                    (ARRAY, (U16, [1, 2, 3])), (ARRAY, (STRING, ["", "x"])),
                    (ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["y"])]))]:
        values.key(f"value.{kind}.{len(values.keys)}", kind, x)
    yield "every-value-type", values.bytes()

    shapes = Gguf()
    shapes.tensor("four", [2, 3, 1, 2], T_F32)
    shapes.tensor("one", [5], T_F16)
    yield "four-dimensions", shapes.bytes()

    truncated = llama().bytes()
    yield "truncated", truncated[:len(truncated) - 16]


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, data in seeds():
        (out / (name + ".gguf")).write_bytes(data)


if __name__ == "__main__":
    main()
