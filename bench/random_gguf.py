#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a Llama of a given shape with random bf16 weights, for measuring: no tokenizer, no sense.

    random_gguf.py 8b | smollm2 OUT.gguf

Needs numpy. Weights are normal with deviation 0.02; one stretch of 32 Mi values is drawn and used
over and over.
"""
import struct
import sys

import numpy

U32, F32, STRING = 4, 6, 8
T_F32, T_BF16 = 0, 30
ALIGN = 32
SHAPES = {
    "8b": dict(layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, head_width=128, vocab=128256,
               context=8192, theta=500000.0, tied=False),
    "smollm2": dict(layers=30, width=576, ffn=1536, heads=9, kv_heads=3, head_width=64, vocab=49152,
                    context=8192, theta=100000.0, tied=True),
}


def string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def metadata(name, s):
    keys = [("general.architecture", STRING, "llama"), ("general.name", STRING, f"random {name}"),
            ("llama.block_count", U32, s["layers"]), ("llama.context_length", U32, s["context"]),
            ("llama.embedding_length", U32, s["width"]), ("llama.feed_forward_length", U32, s["ffn"]),
            ("llama.attention.head_count", U32, s["heads"]),
            ("llama.attention.head_count_kv", U32, s["kv_heads"]),
            ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
            ("llama.rope.freq_base", F32, s["theta"]), ("llama.vocab_size", U32, s["vocab"])]
    out = b""
    for key, kind, value in keys:
        out += string(key) + struct.pack("<I", kind)
        out += string(value) if kind == STRING else struct.pack("<I" if kind == U32 else "<f", value)
    return len(keys), out


def tensors(s):
    """Name, dimensions (innermost first), type."""
    w, q, kv = s["width"], s["heads"] * s["head_width"], s["kv_heads"] * s["head_width"]
    yield "token_embd.weight", (w, s["vocab"]), T_BF16
    for i in range(s["layers"]):
        for part, dims in (("attn_q", (w, q)), ("attn_k", (w, kv)), ("attn_v", (w, kv)),
                           ("attn_output", (q, w)), ("ffn_gate", (w, s["ffn"])),
                           ("ffn_up", (w, s["ffn"])), ("ffn_down", (s["ffn"], w))):
            yield f"blk.{i}.{part}.weight", dims, T_BF16
        yield f"blk.{i}.attn_norm.weight", (w,), T_F32
        yield f"blk.{i}.ffn_norm.weight", (w,), T_F32
    yield "output_norm.weight", (w,), T_F32
    if not s["tied"]:
        yield "output.weight", (w, s["vocab"]), T_BF16


def elements(dims):
    count = 1
    for d in dims:
        count *= d
    return count


def main():
    name, path = sys.argv[1], sys.argv[2]
    shape = SHAPES[name]
    listed = list(tensors(shape))
    n_keys, keys = metadata(name, shape)
    records, offset = b"", 0
    for tensor, dims, kind in listed:
        records += string(tensor) + struct.pack("<I", len(dims))
        records += b"".join(struct.pack("<Q", d) for d in dims) + struct.pack("<IQ", kind, offset)
        offset += -(-elements(dims) * (4 if kind == T_F32 else 2) // ALIGN) * ALIGN
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), n_keys) + keys + records
    values = numpy.random.default_rng(1).standard_normal(32 << 20, dtype=numpy.float32) * 0.02
    stretch = memoryview((values.view(numpy.uint32) >> 16).astype(numpy.uint16)).cast("B")
    with open(path, "wb", buffering=0) as f:
        f.write(head + b"\0" * (-len(head) % ALIGN))
        at = 0
        for _, dims, kind in listed:
            count = elements(dims)
            if kind == T_F32:
                f.write(numpy.ones(count, dtype=numpy.float32).tobytes() + b"\0" * (-count * 4 % ALIGN))
                continue
            left = count * 2
            while left > 0:
                at = at if at < len(stretch) else 0
                piece = stretch[at:at + left]
                left -= f.write(piece)
                at += len(piece)
            f.write(b"\0" * (-count * 2 % ALIGN))


if __name__ == "__main__":
    main()
