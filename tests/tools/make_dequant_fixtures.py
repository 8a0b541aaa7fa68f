#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/dequant: blocks of every quantised type and what they stand for.

Made with gguf 0.19.0 and NumPy 2.4.6, seed 1: random codes and block scales, as that package cannot
quantise to all of the types. A file is ROWS rows of 256 elements as stored, then the same as
float32, little-endian. The rows are of
    0, 1  scales as models have them
    2     scales among the subnormals of f16 and its largest numbers
    3     codes and block scales with all bits set, then with none
    4     infinite and NaN scales
Usage: make_dequant_fixtures.py OUT_DIRECTORY
"""
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

SEED = 1
WIDTH = 256
ROWS = 5
# Where a block has f16 numbers.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0],
}  # fmt: skip


def row_halves(row, count, draw):
    if row <= 1:
        return draw.uniform(-0.02, 0.02, count).astype(np.float16)
    if row == 2:
        return draw.choice(np.array([2**-24, -3 * 2**-24, 2**-15, 65504, -60000], np.float16), count)
    if row == 3:
        return np.full(count, 0.0123, np.float16)
    return draw.choice(np.array([np.inf, -np.inf, np.nan, 0.5], np.float16), count)


def make(name, draw):
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = draw.integers(0, 256, (ROWS, WIDTH // elements, size), dtype=np.uint8)
    blocks[3] = 255
    blocks[3, (WIDTH // elements + 1) // 2 :] = 0
    if elements == WIDTH:
        blocks[3, :, size // 2 :] = 0
    for row in range(ROWS):
        for at in HALVES[name]:
            halves = row_halves(row, len(blocks[row]), draw)
            blocks[row, :, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    stored = blocks.reshape(ROWS, -1)
    with np.errstate(invalid="ignore", over="ignore"):
        return stored.tobytes() + dequantize(stored, kind).astype("<f4").tobytes()


def main():
    out = pathlib.Path(sys.argv[1])
    draw = np.random.default_rng(SEED)
    for name in HALVES:
        (out / (name.lower() + ".bin")).write_bytes(make(name, draw))


if __name__ == "__main__":
    main()
