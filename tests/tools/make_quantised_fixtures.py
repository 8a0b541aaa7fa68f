#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/quantised: matrices and small models in the layouts of quantised checkpoints.

Made with NumPy 2.4.6, seed 7. Packs and dequantises on its own: codes are taken to bits and words
are put together from those, as the formats have them (docs/models.md names them).

    cases.safetensors, cases.json   matrices of 32 outputs, one a case: its inputs, its
                                    quantization_config, and the SHA-256 of the dequantised float32
                                    elements, little-endian, row after row
    models/NAME                     Llamas of one layer, and logits.f32 of float64 arithmetic on the
                                    dequantised weights: [tokens of PROMPT][vocabulary]

Usage: make_quantised_fixtures.py OUT_DIRECTORY
"""
import hashlib
import json
import pathlib
import struct
import sys

import numpy as np

SEED = 7
ROWS = 32
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
PROMPT = [1, 17, 3, 42, 42, 0, 63, 8, 29, 5]

# ---- safetensors ----

NAMES = {"<f4": "F32", "<f2": "F16", "<i4": "I32", "<i8": "I64", "|i1": "I8"}


class Stored:
    """An array under the name of a type that NumPy lacks."""

    def __init__(self, dtype, array):
        self.dtype, self.array = dtype, array


def write_safetensors(path, tensors):
    header, body = {}, b""
    for name in sorted(tensors):
        tensor = tensors[name]
        if isinstance(tensor, Stored):
            dtype, array = tensor.dtype, tensor.array
        else:
            dtype, array = NAMES[tensor.dtype.str], tensor
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + body)


# ---- numbers ----


def to_bf16(values):
    """Rounded to nearest even, as uint16."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(halves):
    return (halves.astype(np.uint32) << 16).view(np.float32)


def e4m3_table():
    table = np.zeros(256, np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 127 == 127:
            value = np.nan
        elif exponent == 0:
            value = mantissa / 8 * 2.0**-6
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        table[code] = -value if code & 128 else value
    return table


E4M3 = e4m3_table()


def to_e4m3(values):
    """The nearest of the finite codes."""
    finite = np.array([c for c in range(256) if c & 127 != 127 and c != 128])
    at = np.abs(values[..., None].astype(np.float64) - E4M3[finite]).argmin(-1)
    return finite[at].astype(np.uint8)


def scales_as(dtype, values):
    """What is stored, and what it is as float32."""
    if dtype == "F16":
        return values.astype("<f2"), values.astype("<f2").astype(np.float32)
    if dtype == "BF16":
        halves = to_bf16(values)
        return Stored("BF16", halves), from_bf16(halves)
    return values.astype("<f4"), values.astype(np.float32)


# ---- packing: codes [lines][places] to words [lines][places * bits / 32] ----


def pack(codes, bits):
    stream = (codes[..., None].astype(np.int64) >> np.arange(bits)) & 1
    stream = stream.reshape(codes.shape[0], -1, 32)
    words = (stream << np.arange(32)).sum(-1)
    return words.astype(np.uint32).view("<i4")


def pack_awq(codes):
    shuffled = codes.reshape(codes.shape[0], -1, 8)[:, :, AWQ_ORDER]
    return pack(shuffled.reshape(codes.shape), 4)


# ---- matrices: (tensors by suffix, float32 elements) of weights [N][K] ----


def dequantise(codes, zeros, scales, groups):
    """codes [N][K]; zeros, scales [N][G]; groups [K]."""
    return scales[:, groups] * (codes.astype(np.int32) - zeros[:, groups]).astype(np.float32)


def quantise(weights, bits, groups, symmetric, dtype):
    """Codes, zeros and scales of rows: the range of each group, cut into 2^bits levels."""
    count, top = groups.max() + 1, 2**bits - 1
    low = np.stack([weights[:, groups == g].min(1) for g in range(count)], 1)
    high = np.stack([weights[:, groups == g].max(1) for g in range(count)], 1)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    stored, scales = scales_as(dtype, np.maximum(high - low, 1e-6) / top)
    zeros = np.full(low.shape, 2 ** (bits - 1), np.int32)
    if not symmetric:
        zeros = np.clip(np.rint(-low / scales), 0, top).astype(np.int32)
    codes = np.rint(weights / scales[:, groups]) + zeros[:, groups]
    return np.clip(codes, 0, top).astype(np.int32), zeros, stored, scales


def transposed(stored):
    return Stored(stored.dtype, stored.array.T) if isinstance(stored, Stored) else stored.T


def make_groups(inputs, group, draw=None):
    """Which group each input is in; shuffled for act-order."""
    groups = np.arange(inputs) // (inputs if group == -1 else group)
    return draw.permutation(groups) if draw is not None else groups


def gptq(weights, bits, group, sym, order, v2, draw, dtype="F16"):
    groups = make_groups(weights.shape[1], group, draw if order else None)
    codes, zeros, stored, scales = quantise(weights, bits, groups, sym, dtype)
    if not sym:
        zeros[0, 0], zeros[1, 0] = 0, 2**bits - 1
    kept = zeros if v2 else (zeros - 1) & (2**bits - 1)
    tensors = {
        "qweight": pack(codes, bits).T,
        "qzeros": pack(kept.T, bits),
        "scales": transposed(stored),
        "g_idx": groups.astype("<i4"),
    }
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym}
    config |= {"desc_act": order, "checkpoint_format": "gptq_v2" if v2 else "gptq"}
    return config, tensors, dequantise(codes, zeros, scales, groups)


def awq(weights, group, dtype="F16"):
    groups = make_groups(weights.shape[1], group)
    codes, zeros, stored, scales = quantise(weights, 4, groups, False, dtype)
    tensors = {
        "qweight": pack_awq(codes.T),
        "qzeros": pack_awq(zeros.T),
        "scales": transposed(stored),
    }
    config = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True}
    return config | {"version": "gemm"}, tensors, dequantise(codes, zeros, scales, groups)


def compressed_config(form, weights):
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None} | weights
    group = {"weights": weights, "input_activations": None, "targets": ["Linear"]}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def packed(weights, bits, group, sym, draw=None, dtype="BF16"):
    groups = make_groups(weights.shape[1], group, draw)
    codes, zeros, stored, scales = quantise(weights, bits, groups, sym, dtype)
    tensors = {
        "weight_packed": pack(codes, bits),
        "weight_scale": stored,
        "weight_shape": np.array(weights.shape, "<i8"),
    }
    if not sym:
        tensors["weight_zero_point"] = pack(zeros.T, bits).T
    if draw is not None:
        tensors["weight_g_idx"] = groups.astype("<i4")
    strategy = "channel" if group == -1 else "group"
    about = {"num_bits": bits, "symmetric": sym, "strategy": strategy}
    about |= {"group_size": None if group == -1 else group}
    config = compressed_config("pack-quantized", about)
    return config, tensors, dequantise(codes, zeros, scales, groups)


def int8(weights, strategy, sym, dtype="BF16"):
    groups = make_groups(weights.shape[1], -1)
    shown = weights if strategy == "channel" else np.full_like(weights, np.abs(weights).max())
    _, zeros, stored, scales = quantise(shown, 8, groups, sym, dtype)
    codes = np.clip(np.rint(weights / scales[:, groups]) + zeros[:, groups], 0, 255).astype(int)
    if strategy == "tensor":
        stored = Stored("BF16", stored.array[:1, 0])
    tensors = {"weight": (codes - 128).astype(np.int8), "weight_scale": stored}
    if not sym:
        tensors["weight_zero_point"] = (zeros - 128).astype(np.int8)
    config = compressed_config("int-quantized", {"symmetric": sym, "strategy": strategy})
    return config, tensors, dequantise(codes, zeros, scales, groups)


def fp8(weights, strategy, dtype, method):
    """`strategy`: tensor, scalar, channel, or the rows and columns of a block."""
    rows, inputs = weights.shape
    block = {"tensor": (rows, inputs), "scalar": (rows, inputs), "channel": (1, inputs)}
    high, wide = block.get(strategy, strategy)
    peaks = np.abs(weights).reshape(rows // high, high, inputs // wide, wide).max((1, 3))
    stored, scales = scales_as(dtype, peaks / 448)
    spread = scales.repeat(high, 0).repeat(wide, 1)
    codes = to_e4m3(weights / spread)
    if strategy == "scalar":
        stored = scales.reshape(()).astype("<f4")
    name = "weight_scale" if isinstance(strategy, str) else "weight_scale_inv"
    tensors = {"weight": Stored("F8_E4M3", codes), name: stored}
    if method == "fp8":
        config = {"quant_method": "fp8", "activation_scheme": "dynamic"}
        config |= {} if isinstance(strategy, str) else {"weight_block_size": list(strategy)}
    else:
        about = {"type": "float", "strategy": strategy}
        config = compressed_config("float-quantized", about)
    return config, tensors, spread * E4M3[codes]


# ---- cases ----


def gptq_cases(draw):
    for bits in (2, 3, 4, 8):
        for sym in (True, False):
            for group in (-1, 32, 64, 128):
                for order in (False, True):
                    kind = ("sym" if sym else "asym") + ("-order" if order else "")
                    name = f"gptq-{bits}-g{group}-{kind}".replace("g-1", "row")
                    yield name, gptq(random(draw, group), bits, group, sym, order, False, draw)
            name = f"gptq-{bits}-g64-{'sym' if sym else 'asym'}-v2"
            yield name, gptq(random(draw), bits, 64, sym, False, True, draw, "BF16")


def other_cases(draw):
    for group in (-1, 32, 64, 128):
        yield f"awq-g{group}".replace("g-1", "row"), awq(random(draw, group), group)
    for bits in (4, 8):
        for sym in (True, False):
            for group in (-1, 32, 128):
                kind = "sym" if sym else "asym"
                name = f"packed-{bits}-g{group}-{kind}".replace("g-1", "channel")
                yield name, packed(random(draw, group), bits, group, sym)
    yield "packed-4-g64-sym-order", packed(random(draw), 4, 64, True, draw)
    yield "int8-channel-sym", int8(random(draw), "channel", True)
    yield "int8-channel-asym", int8(random(draw), "channel", False)
    yield "int8-tensor-sym", int8(random(draw), "tensor", True)
    for strategy in ("tensor", "channel"):
        yield f"float-{strategy}", fp8(random(draw), strategy, "BF16", "compressed-tensors")
    yield "fp8-scalar", fp8(random(draw), "scalar", "F32", "fp8")
    yield "fp8-channel", fp8(random(draw), "channel", "F32", "fp8")
    yield "fp8-block", fp8(random(draw, 128), (16, 128), "F32", "fp8")


def random(draw, group=-1):
    """Two groups at least, where they are no whole rows."""
    shape = (ROWS, max(128, 2 * group))
    scale = draw.uniform(0.5, 2.0, (shape[0], 1))
    return (draw.standard_normal(shape) * 0.02 * scale).astype(np.float32)


def write_cases(out, draw):
    tensors, rows = {}, []
    for name, (config, parts, expected) in [*gptq_cases(draw), *other_cases(draw)]:
        tensors |= {f"{name}.{suffix}": part for suffix, part in parts.items()}
        digest = hashlib.sha256(expected.astype("<f4").tobytes()).hexdigest()
        rows.append({"name": name, "inputs": expected.shape[1], "config": config, "sha256": digest})
    write_safetensors(out / "cases.safetensors", tensors)
    text = ",\n".join(json.dumps(row) for row in rows)
    (out / "cases.json").write_text(f"[\n{text}\n]\n")


# ---- models ----

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
LAYER = "model.layers.0."
LINEARS = {
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (32, 64),
    "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (128, 64),
    "mlp.up_proj": (128, 64),
    "mlp.down_proj": (64, 128),
}


def norm(x, gain):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + SHAPE["rms_norm_eps"]) * gain


def rotate(x):
    """[T][heads][D], pairs (i, i + D/2)."""
    half = x.shape[-1] // 2
    rates = SHAPE["rope_theta"] ** (-np.arange(half) / half)
    angles = np.arange(x.shape[0])[:, None, None] * rates
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1
    )


def forward(weights):
    """Logits of PROMPT in float64."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    linear = {name: w[f"{LAYER}{name}.weight"] for name in LINEARS}
    tokens, heads, shared = len(PROMPT), 4, 2
    x = w["model.embed_tokens.weight"][PROMPT]
    h = norm(x, w[LAYER + "input_layernorm.weight"])
    q = rotate((h @ linear["self_attn.q_proj"].T).reshape(tokens, heads, -1))
    k = rotate((h @ linear["self_attn.k_proj"].T).reshape(tokens, heads // shared, -1))
    v = (h @ linear["self_attn.v_proj"].T).reshape(tokens, heads // shared, -1)
    k, v = k.repeat(shared, 1), v.repeat(shared, 1)
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(q.shape[-1])
    scores[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    scores /= scores.sum(-1, keepdims=True)
    x = x + np.einsum("hts,shd->thd", scores, v).reshape(tokens, -1) @ linear["self_attn.o_proj"].T
    h = norm(x, w[LAYER + "post_attention_layernorm.weight"])
    gate, up = h @ linear["mlp.gate_proj"].T, h @ linear["mlp.up_proj"].T
    x = x + (gate / (1 + np.exp(-gate)) * up) @ linear["mlp.down_proj"].T
    return norm(x, w["model.norm.weight"]) @ w["lm_head.weight"].T


def plain_parts(draw):
    """What stays as it is: tensors, and the same as float32."""
    plain = {
        "model.embed_tokens.weight": draw.standard_normal((64, 64)),
        "lm_head.weight": draw.standard_normal((64, 64)) * 0.2,
        "model.norm.weight": draw.uniform(0.5, 1.5, 64),
        LAYER + "input_layernorm.weight": draw.uniform(0.5, 1.5, 64),
        LAYER + "post_attention_layernorm.weight": draw.uniform(0.5, 1.5, 64),
    }
    halves = {name: value.astype("<f2") for name, value in plain.items()}
    return halves, {name: value.astype(np.float32) for name, value in halves.items()}


def linear_weights(draw):
    return {name: (draw.standard_normal(shape) * 0.2).astype(np.float32)
            for name, shape in LINEARS.items()}  # fmt: skip


def write_model(out, config, tensors, dequantised):
    """`dequantised`: every weight as float32."""
    out.mkdir(parents=True, exist_ok=True)
    about = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float16"}
    about |= SHAPE | {"quantization_config": config}
    (out / "config.json").write_text(json.dumps(about, indent=1) + "\n")
    write_safetensors(out / "model.safetensors", tensors)
    (out / "logits.f32").write_bytes(forward(dequantised).astype("<f4").tobytes())


def write_models(out, draw):
    makers = {
        "gptq-3-g64-order": lambda w: gptq(w, 3, 64, False, True, False, draw),
        "packed-8-channel": lambda w: packed(w, 8, -1, False),
        "fp8-scalar": lambda w: fp8(w, "scalar", "F32", "fp8"),
    }
    more = {
        "gptq-3-g64-order": ["lm_head"],
        "packed-8-channel": ["lm_head", "model.embed_tokens"],
    }
    for name, make in makers.items():
        tensors, dequantised = plain_parts(draw)
        modules = {LAYER + module: weights for module, weights in linear_weights(draw).items()}
        for module in more.get(name, []):
            modules[module] = dequantised[f"{module}.weight"]
            del tensors[f"{module}.weight"]
        for module, weights in modules.items():
            config, parts, values = make(weights)
            tensors |= {f"{module}.{suffix}": part for suffix, part in parts.items()}
            dequantised[f"{module}.weight"] = values
        write_model(out / name, config, tensors, dequantised)


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(SEED)
    write_cases(out, draw)
    write_models(out / "models", draw)


if __name__ == "__main__":
    main()
