#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/rope.json: rotary frequencies by the published formulas, in float64.

Each case has what a config.json says, the frequencies, what sines and cosines are multiplied by, and
for the kinds that follow the length of a sequence the frequencies at some lengths. Sources: RoFormer
(2104.09864), position interpolation (2306.15595), NTK-aware scaling with a base that follows the
length, Llama 3.1's published scaling, YaRN (2309.00071), LongRoPE (2402.13753).
Usage: make_rope_golden.py OUT.json
"""
import json
import math
import sys


def plain(dim, base):
    return [1.0 / base ** (2 * i / dim) for i in range(dim // 2)]


def dynamic(dim, base, factor, trained, length):
    length = max(length, trained)
    base = base * ((factor * length / trained) - (factor - 1)) ** (dim / (dim - 2))
    return plain(dim, base)


def llama3(dim, base, factor, low, high, trained):
    out = []
    for f in plain(dim, base):
        wavelength = 2 * math.pi / f
        if wavelength < trained / high:
            out.append(f)
        elif wavelength > trained / low:
            out.append(f / factor)
        else:
            smooth = (trained / wavelength - low) / (high - low)
            out.append((1 - smooth) * f / factor + smooth * f)
    return out


def yarn(dim, base, factor, trained, fast=32.0, slow=1.0, truncate=True):
    def correction(rotations):
        return (dim * math.log(trained / (rotations * 2 * math.pi))) / (2 * math.log(base))

    low, high = correction(fast), correction(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    out = []
    for i, f in enumerate(plain(dim, base)):
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        keep = 1.0 - ramp
        out.append(f / factor * (1 - keep) + f * keep)
    return out


def longrope(dim, base, factors):
    return [f / d for f, d in zip(plain(dim, base), factors)]


def case(name, head, positions, config, inv_freq, factor=1.0, lengths=None):
    row = {"name": name, "head_dim": head, "max_position_embeddings": positions, "config": config,
           "inv_freq": inv_freq, "attention_factor": factor}
    if lengths:
        row["lengths"] = lengths
    return row


def main():
    short = [1.0 + 0.03 * i for i in range(48)]
    long = [1.0 + 0.9 * i for i in range(48)]
    rows = [
        case("default", 128, 4096, {"rope_theta": 500000.0}, plain(128, 500000.0)),
        case("default by rope_parameters", 64, 4096,
             {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, plain(64, 1e6)),
        case("part of a head", 128, 4096, {"partial_rotary_factor": 0.75}, plain(96, 10000.0)),
        case("linear", 128, 4096, {"rope_scaling": {"type": "linear", "factor": 8.0}},
             [f / 8 for f in plain(128, 10000.0)]),
        case("dynamic", 128, 2048, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, plain(128, 10000.0),
             lengths={str(n): dynamic(128, 10000.0, 2.0, 2048, n) for n in (1, 2048, 2049, 3000, 4096)}),
        case("llama3", 128, 131072,
             {"rope_theta": 500000.0,
              "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 8192}},
             llama3(128, 500000.0, 8.0, 1.0, 4.0, 8192)),
        case("llama3 of 3.2", 64, 131072,
             {"rope_theta": 500000.0,
              "rope_scaling": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                               "original_max_position_embeddings": 8192}},
             llama3(64, 500000.0, 32.0, 1.0, 4.0, 8192)),
        case("yarn", 128, 32768,
             {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
             yarn(128, 1e6, 4.0, 32768), 0.1 * math.log(4.0) + 1),
        case("yarn with its parameters", 64, 163840,
             {"rope_scaling": {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096,
                               "beta_fast": 24, "beta_slow": 2, "mscale": 1.0, "mscale_all_dim": 0.5}},
             yarn(64, 10000.0, 40.0, 4096, 24.0, 2.0),
             (0.1 * math.log(40.0) + 1) / (0.1 * 0.5 * math.log(40.0) + 1)),
        case("yarn without whole pairs", 64, 131072,
             {"rope_theta": 150000.0,
              "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "truncate": False,
                                  "original_max_position_embeddings": 4096, "attention_factor": 1.25}},
             yarn(64, 150000.0, 32.0, 4096, truncate=False), 1.25),
        case("longrope", 96, 131072,
             {"original_max_position_embeddings": 4096,
              "rope_scaling": {"type": "longrope", "short_factor": short, "long_factor": long}},
             longrope(96, 10000.0, short), math.sqrt(1 + math.log(32) / math.log(4096)),
             {"4096": longrope(96, 10000.0, short), "4097": longrope(96, 10000.0, long)}),
        case("longrope by its first name", 96, 131072,
             {"original_max_position_embeddings": 4096,
              "rope_scaling": {"type": "su", "short_factor": short, "long_factor": long}},
             longrope(96, 10000.0, short), math.sqrt(1 + math.log(32) / math.log(4096))),
    ]
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(rows, out)
        out.write("\n")


main()
