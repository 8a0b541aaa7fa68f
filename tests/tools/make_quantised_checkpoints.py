#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes small checkpoints with the packing code of the packages that define the formats.

Made with auto-gptq 0.7.1, autoawq 0.2.9, compressed-tensors 0.20.1 and torch 2.11.0, seed 11. The
weights and the network are those of make_quantised_fixtures.py; so is the float64 arithmetic behind
logits.f32, on what NumPy reads from the packed tensors. Before a checkpoint is written that is held
against what the package itself makes of them.

Needs torch, transformers and compressed-tensors. auto-gptq and autoawq no longer install beside
current ones, so they are taken from where their wheel or source archive was unpacked, and only the
modules that pack are imported.

Usage: make_quantised_checkpoints.py OUT_DIRECTORY AUTO_GPTQ_ROOT AUTOAWQ_ROOT
"""
import json
import pathlib
import sys
import traceback
import types

import numpy as np
import torch
from make_quantised_fixtures import (
    AWQ_ORDER,
    E4M3,
    LAYER,
    Stored,
    dequantise,
    from_bf16,
    linear_weights,
    make_groups,
    plain_parts,
    quantise,
    write_model,
)

SEED = 11


def stub(name, root):
    """A package whose own __init__ is not run."""
    package = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(root, *name.split(".")))]
    sys.modules[name] = package


def linear_of(weights, dtype):
    linear = torch.nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    linear.weight.data = torch.from_numpy(weights).to(dtype)
    return linear


def stored(tensor):
    """A torch tensor for write_safetensors."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return Stored("BF16", tensor.view(torch.uint16).numpy())
    if tensor.dtype == torch.float8_e4m3fn:
        return Stored("F8_E4M3", tensor.view(torch.uint8).numpy())
    return tensor.numpy()


# ---- reading back, with NumPy alone ----


def unpack(words, bits):
    """[lines][words] to codes [lines][places]."""
    words = np.ascontiguousarray(words).view(np.uint32).astype(np.int64)
    stream = (words[..., None] >> np.arange(32)) & 1
    return (stream.reshape(len(words), -1, bits) << np.arange(bits)).sum(-1)


def unpack_awq(words):
    shuffled = unpack(words, 4).reshape(len(words), -1, 8)
    codes = np.empty_like(shuffled)
    codes[:, :, AWQ_ORDER] = shuffled
    return codes.reshape(len(words), -1)


def check(own, package, scale):
    """The package computes in the type of the scales."""
    worst = np.abs(own - package.detach().float().cpu().numpy()).max()
    if not worst <= scale * np.abs(own).max():
        raise ValueError(f"the package has other numbers: {worst} of {np.abs(own).max()}")


# ---- a matrix each: (configuration, tensors, float32 elements) ----


def auto_gptq(weights, bits, group, order, draw):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    groups = make_groups(weights.shape[1], group, draw if order else None)
    codes, zeros, _, scales = quantise(weights, bits, groups, order, "F16")
    zeros = np.maximum(zeros, 1)  # 0 less 1 spills over into the zeros beside it there
    layer = QuantLinear(bits, group, weights.shape[1], weights.shape[0], False)
    layer.pack(  # takes weights that are rounded already
        linear_of(dequantise(codes, zeros, scales, groups), torch.float32),
        torch.from_numpy(scales),
        torch.from_numpy(zeros.astype(np.float32)),
        torch.from_numpy(groups.astype(np.int32)),
    )
    tensors = {name: stored(getattr(layer, name)) for name in ("qweight", "qzeros", "g_idx")}
    tensors["scales"] = stored(layer.scales.half())
    own = dequantise(
        unpack(tensors["qweight"].T, bits),
        (unpack(tensors["qzeros"], bits) + 1).T,
        tensors["scales"].T.astype(np.float32),
        tensors["g_idx"],
    )
    layer.scales = layer.scales.float()
    check(own, layer(torch.eye(weights.shape[1])).T, 1e-5)
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": order}
    return config | {"desc_act": order, "static_groups": False, "true_sequential": True}, tensors, own


def auto_awq(weights, group):
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    groups = make_groups(weights.shape[1], group)
    codes, zeros, _, scales = quantise(weights, 4, groups, False, "F16")
    layer = WQLinear_GEMM.from_linear(  # likewise
        linear_of(dequantise(codes, zeros, scales, groups), torch.float16),
        4,
        group,
        scales=torch.from_numpy(scales.T.copy()),
        zeros=torch.from_numpy(zeros.T.astype(np.float32)),
    )
    tensors = {name: stored(getattr(layer, name)) for name in ("qweight", "qzeros", "scales")}
    own = dequantise(
        unpack_awq(tensors["qweight"]).T,
        unpack_awq(tensors["qzeros"]).T,
        tensors["scales"].T.astype(np.float32),
        groups,
    )
    made = [getattr(layer, name).cpu() for name in ("qweight", "qzeros", "scales")]
    check(own, dequantize_gemm(*made, 4, group).T, 1e-3)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return config | {"version": "gemm", "modules_to_not_convert": None}, tensors, own


def compressed(weights, form, about):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import (
        QuantizationArgs,
        QuantizationConfig,
        QuantizationScheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**about)
    dynamic = None
    if form != "pack-quantized":
        dynamic = QuantizationArgs(num_bits=8, type=about["type"], strategy="token", dynamic=True)
    scheme = QuantizationScheme(targets=["Linear"], weights=args, input_activations=dynamic)
    weight = torch.from_numpy(weights).to(torch.bfloat16)
    group = about.get("group_size") or weights.shape[1]
    pieces = weight.reshape(weights.shape[0], -1, group)
    scale, zero = calculate_qparams(pieces.amin(-1), pieces.amax(-1), args)
    state = {"weight": weight, "weight_scale": scale.to(torch.bfloat16)}
    if not about["symmetric"]:
        state["weight_zero_point"] = torch.round(zero.float()).to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(form)
    made = compressor.compress(state, scheme)
    tensors = {name: stored(value) for name, value in made.items()}
    config = QuantizationConfig(
        config_groups={"group_0": scheme},
        format=form,
        quantization_status="compressed",
        ignore=["lm_head"],
    )
    own = read_compressed(tensors, about, group)
    check(own, compressor.decompress(made, scheme)["weight"], 1e-2)
    return json.loads(config.model_dump_json()), tensors, own


def read_compressed(tensors, about, group):
    scales = from_bf16(tensors["weight_scale"].array)
    if about["type"] == "float":
        return scales * E4M3[tensors["weight"].array]
    bits = about["num_bits"]
    if "weight" in tensors:
        codes = tensors["weight"].astype(np.int32)
        zeros = np.zeros_like(scales, np.int32)
    else:
        codes = unpack(tensors["weight_packed"], bits)
        zeros = np.full(scales.shape, 2 ** (bits - 1), np.int32)
    if "weight_zero_point" in tensors:
        zeros = unpack(tensors["weight_zero_point"].T, bits).T
    return dequantise(codes, zeros, scales, make_groups(codes.shape[1], group))


# ---- all ----


def makers(draw):
    packed = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    bytes_of = {"num_bits": 8, "strategy": "channel", "symmetric": True}
    return {
        "auto-gptq-4-g32-order": lambda w: auto_gptq(w, 4, 32, True, draw),
        "auto-gptq-3-g64": lambda w: auto_gptq(w, 3, 64, False, draw),
        "autoawq-g32": lambda w: auto_awq(w, 32),
        "compressed-4-g32-sym": lambda w: compressed(
            w, "pack-quantized", packed | {"symmetric": True}
        ),
        "compressed-4-g32-asym": lambda w: compressed(
            w, "pack-quantized", packed | {"symmetric": False}
        ),
        "compressed-int8": lambda w: compressed(w, "int-quantized", bytes_of | {"type": "int"}),
        "compressed-float": lambda w: compressed(w, "float-quantized", bytes_of | {"type": "float"}),
    }


def write_one(out, make, draw):
    tensors, dequantised = plain_parts(draw)
    for module, weights in linear_weights(draw).items():
        config, parts, values = make(weights)
        tensors |= {f"{LAYER}{module}.{suffix}": part for suffix, part in parts.items()}
        dequantised[f"{LAYER}{module}.weight"] = values
    write_model(out, config, tensors, dequantised)


def main():
    out, gptq_root, awq_root = sys.argv[1:]
    stub("auto_gptq", gptq_root)
    stub("auto_gptq.nn_modules", gptq_root)
    for name in ("awq", "awq.modules", "awq.modules.linear"):
        stub(name, awq_root)
    sys.modules["awq.modules.triton"] = None  # packing needs no GPU
    draw = np.random.default_rng(SEED)
    failed = False
    for name, make in makers(draw).items():
        try:
            write_one(pathlib.Path(out, name), make, draw)
        except Exception:  # the others are written all the same
            failed = True
            print(name, file=sys.stderr)
            traceback.print_exc()
    sys.exit(failed)


if __name__ == "__main__":
    main()
