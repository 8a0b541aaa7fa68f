#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/quant: a small matrix of each format, as a safetensors file.

Made with NumPy 2.4.6, seed 3. Usage: make_quant_corpus.py OUT_DIRECTORY
"""
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tools"))
import make_quantised_fixtures as fixtures  # noqa: E402


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(3)
    small = draw.standard_normal((32, 64)).astype(np.float32)
    blocks = draw.standard_normal((32, 48)).astype(np.float32)
    made = {
        "gptq4": fixtures.gptq(small, 4, 32, True, False, False, draw),
        "gptq3": fixtures.gptq(small, 3, -1, False, True, True, draw),
        "awq": fixtures.awq(small, 16),
        "packed4": fixtures.packed(small, 4, 32, True),
        "packed8": fixtures.packed(small, 8, -1, False),
        "int8": fixtures.int8(small, "channel", False),
        "float": fixtures.fp8(small, "tensor", "BF16", "compressed-tensors"),
        "block": fixtures.fp8(blocks, (16, 24), "F32", "fp8"),
    }
    for name, (_, tensors, _) in made.items():
        named = {f"m.{suffix}": tensor for suffix, tensor in tensors.items()}
        fixtures.write_safetensors(out / name, named)


if __name__ == "__main__":
    main()
