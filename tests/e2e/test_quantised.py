# SPDX-License-Identifier: Apache-2.0
"""Quantised Hugging Face directories: their numbers, what is said of them, and what is refused."""
import array
import json
import math
import shutil
import struct

import pytest

from commands import output, run
from serving import CALL_S, Server
from stubs import REPOSITORY, pb

DATA = REPOSITORY / "tests" / "data" / "quantised"
PROMPT = [1, 17, 3, 42, 42, 0, 63, 8, 29, 5]  # tests/tools/make_quantised_fixtures.py
PACKAGES = sorted(path.name for path in (DATA / "packages").iterdir())
GPTQ = DATA / "packages" / "auto-gptq-4-g32-order"

SHAPE = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
         "torch_dtype": "float16"}
CHANNEL = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}
LAYOUTS = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True},
    "gptq-2": {"quant_method": "gptq", "bits": 2, "group_size": 64, "sym": False},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 64},
    "int8": {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": {"group_0": CHANNEL},
             "ignore": ["lm_head"]},
    "fp8": {"quant_method": "fp8"},
}


def edit_config(model, change):
    path = model / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"])
    path.write_text(json.dumps(config))
    return config


def add_tensor(model, name, value):
    """Puts a scalar F32 behind the tensors of a file."""
    path = model / "model.safetensors"
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8:8 + length]), data[8 + length:] + struct.pack("<f", value)
    header[name] = {"dtype": "F32", "shape": [], "data_offsets": [len(body) - 4, len(body)]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


@pytest.mark.parametrize("name", PACKAGES)
def test_score_of_what_the_packages_wrote(millrace_bin, name, tmp_path):
    model = DATA / "packages" / name
    (tmp_path / "ids.json").write_text(json.dumps({"ids": PROMPT}))
    logits = array.array("f", (model / "logits.f32").read_bytes())
    nll = 0.0
    for i, target in enumerate(PROMPT[1:]):
        row = logits[i * 64:(i + 1) * 64]
        top = max(row)
        nll += top + math.log(sum(math.exp(x - top) for x in row)) - row[target]
    got = json.loads(output(millrace_bin, "score", "--model", model, "--ids", tmp_path / "ids.json", "--json", "--set",
                            "compute=f32"))
    assert got["mean_nll"] == pytest.approx(nll / (len(PROMPT) - 1), rel=1e-4)


def test_inspect_says_how_a_directory_is_quantised(millrace_bin):
    got = json.loads(output(millrace_bin, "inspect", GPTQ, "--json"))
    assert got["quantization"] == "gptq int4 g32" and "kv_scales" not in got
    order = next(tensor for tensor in got["tensors"] if tensor["name"] == "model.layers.0.mlp.up_proj.g_idx")
    assert order["type"] == "I32" and order["shape"] == [64]


def test_the_other_gptq_format_is_refused_with_the_way_out_Q1(millrace_bin, tmp_path):
    model = shutil.copytree(GPTQ, tmp_path / "model")
    edit_config(model, lambda config: config.update(checkpoint_format="gptq_v2"))
    done = run(millrace_bin, "inspect", model)
    assert done.returncode == 1
    assert 'set "checkpoint_format": "gptq" in the quantization_config of config.json' in done.stderr


def test_an_older_directory_has_a_file_of_its_own(millrace_bin, tmp_path):
    model = shutil.copytree(GPTQ, tmp_path / "model")
    config = edit_config(model, lambda config: None)
    own = config.pop("quantization_config")
    del own["quant_method"]
    (model / "config.json").write_text(json.dumps(config))
    (model / "quantize_config.json").write_text(json.dumps(own))
    assert json.loads(output(millrace_bin, "inspect", model, "--json"))["quantization"] == "gptq int4 g32"


def test_scales_of_a_kv_cache_are_named_Q5(millrace_bin, tmp_path):
    model = shutil.copytree(DATA / "packages" / "compressed-float", tmp_path / "model")
    for name in ("k_scale", "v_scale"):
        add_tensor(model, f"model.layers.0.self_attn.{name}", 0.5)
    done = run(millrace_bin, "inspect", model, "--json")
    assert json.loads(done.stdout)["kv_scales"] == "checkpoint, 1 of 1 layers; used by fp8 caches"
    assert "does not use" not in done.stderr
    with Server(millrace_bin, model) as server:
        got = server.stub.GetModel(pb.GetModelRequest(), timeout=CALL_S).model
        assert got.quantization == "compressed fp8"
        assert got.kv_scales == "checkpoint, 1 of 1 layers; used by fp8 caches"


def test_scales_of_inputs_are_read_and_checked(millrace_bin, tmp_path):
    model = shutil.copytree(DATA / "packages" / "compressed-float", tmp_path / "model")
    add_tensor(model, "model.layers.0.mlp.down_proj.input_scale", 0.25)
    done = run(millrace_bin, "inspect", model, "--json")
    assert done.returncode == 0 and "does not use" not in done.stderr
    add_tensor(model, "model.layers.0.mlp.up_proj.input_scale", -1.0)
    done = run(millrace_bin, "inspect", model)
    assert done.returncode == 1 and "model.layers.0.mlp.up_proj.input_scale' is no positive number" in done.stderr


def test_fp8_caches_are_for_gpus(millrace_bin, tmp_path):
    done = run(millrace_bin, "generate", "--model", DATA / "packages" / "compressed-float", "--jsonl", "--set",
               "backend=cpu", "--set", "kv_cache_dtype=fp8", stdin='{"prompt_ids": [1]}')
    assert done.returncode == 1 and "kv_cache_dtype=fp8 is for GPUs" in done.stderr
    assert "auto, f32, f16, bf16 or int8" in done.stderr


def draw(binary, model, *settings):
    options = [word for setting in settings for word in ("--set", setting)]
    asked = json.dumps({"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 16, "logprobs": 0})
    got = json.loads(output(binary, "generate", "--model", model, "--jsonl", "--set", "load_format=random", *options,
                            stdin=asked))
    return got["token_ids"], got.get("logprobs")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_weights_in_a_quantised_layout(millrace_bin, layout, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**SHAPE, "quantization_config": LAYOUTS[layout]}))
    for compute in ("auto", "f32"):
        first = draw(millrace_bin, tmp_path, f"compute={compute}", "threads=1")
        assert len(first[0]) == 16
        assert draw(millrace_bin, tmp_path, f"compute={compute}", "threads=3") == first
        assert draw(millrace_bin, tmp_path, f"compute={compute}", "random_seed=5")[0] != first[0]


@pytest.mark.parametrize("value, listed", [(0.0, False), (0.5, True)])
def test_a_bias_that_adds_nothing_is_no_unused_tensor_Q5(millrace_bin, value, listed, tmp_path):
    """Older GPTQ files have biases of zeros where the architecture has none."""
    model = shutil.copytree(GPTQ, tmp_path / "model")
    add_tensor(model, "model.layers.0.self_attn.q_proj.bias", value)
    done = run(millrace_bin, "inspect", model, "--json")
    assert done.returncode == 0 and ("q_proj.bias" in done.stderr) == listed
