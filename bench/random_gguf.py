#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF file of a Llama-shaped model with random weights, for speed and nothing else.

Codes are uniform and scales as large as those of a real model, so that nothing overflows. The
vocabulary, with its tokenizer, is that of an existing file: both programs of a comparison read it.

needs: pip install gguf numpy
usage: random_gguf.py --vocabulary M.gguf --type Q4_0 --out R.gguf [--layers 24] [--hidden 2048]
           [--heads 32] [--kv-heads 8] [--feed-forward 8192] [--context 8192] [--seed 1]
"""
import argparse

import gguf
import numpy as np

BLOCK = 32
TYPES = {"Q4_0": gguf.GGMLQuantizationType.Q4_0, "Q4_1": gguf.GGMLQuantizationType.Q4_1}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", required=True, help="a GGUF file with a tokenizer")
    parser.add_argument("--type", choices=TYPES, required=True)
    parser.add_argument("--out", required=True)
    for name, value in (("layers", 24), ("hidden", 2048), ("heads", 32), ("kv-heads", 8),
                        ("feed-forward", 8192), ("context", 8192), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args()


def random_blocks(rng, kind, rows, columns):
    """Quantised rows as bytes, [rows][columns / 32 · bytes of a block]."""
    count = rows * columns // BLOCK
    scale = (0.02 / 4.6 * rng.uniform(0.5, 1.5, count)).astype(np.float16)  # 4.6: deviation of 0 … 15
    parts = [scale.view(np.uint8).reshape(count, 2)]
    if kind == "Q4_1":
        parts.append((-7.5 * scale).astype(np.float16).view(np.uint8).reshape(count, 2))
    parts.append(rng.integers(0, 256, (count, BLOCK // 2), dtype=np.uint8))
    return np.concatenate(parts, axis=1).reshape(rows, -1)


def copy_vocabulary(writer, path):
    """Takes every tokenizer.* field over; returns how many tokens there are."""
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if not key.startswith("tokenizer."):
            continue
        sub_type = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    return len(reader.fields["tokenizer.ggml.tokens"].data)


def shapes(args, vocabulary):
    """Every tensor: name → (rows, columns); columns 0 for a gain."""
    kv = args.hidden // args.heads * args.kv_heads
    yield "token_embd.weight", (vocabulary, args.hidden)
    for layer in range(args.layers):
        for name, rows, columns in (
                ("attn_norm", args.hidden, 0), ("attn_q", args.hidden, args.hidden), ("attn_k", kv, args.hidden),
                ("attn_v", kv, args.hidden), ("attn_output", args.hidden, args.hidden), ("ffn_norm", args.hidden, 0),
                ("ffn_gate", args.feed_forward, args.hidden), ("ffn_up", args.feed_forward, args.hidden),
                ("ffn_down", args.hidden, args.feed_forward)):
            yield f"blk.{layer}.{name}.weight", (rows, columns)
    yield "output_norm.weight", (args.hidden, 0)


def main():
    args = arguments()
    rng = np.random.default_rng(args.seed)
    writer = gguf.GGUFWriter(args.out, "llama")
    vocabulary = copy_vocabulary(writer, args.vocabulary)
    writer.add_name(f"random {args.type}")
    writer.add_block_count(args.layers)
    writer.add_context_length(args.context)
    writer.add_embedding_length(args.hidden)
    writer.add_feed_forward_length(args.feed_forward)
    writer.add_head_count(args.heads)
    writer.add_head_count_kv(args.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(args.hidden // args.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(vocabulary)
    for name, (rows, columns) in shapes(args, vocabulary):
        if columns == 0:
            writer.add_tensor(name, np.ones(rows, dtype=np.float32))
        else:
            writer.add_tensor(name, random_blocks(rng, args.type, rows, columns), raw_dtype=TYPES[args.type])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


if __name__ == "__main__":
    main()
