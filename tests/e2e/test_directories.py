# SPDX-License-Identifier: Apache-2.0
"""Hugging Face model directories on the command line and over gRPC: ids in, ids out."""
import array
import concurrent.futures
import json
import math
import os
import pathlib
import shutil

import grpc
import pytest

from commands import output, run
from metrics import Scrape
from serving import CALL_S, Server, choices, failure, generate, greedy
from stubs import REPOSITORY, pb

DATA = REPOSITORY / "tests" / "data"
REFERENCE = pathlib.Path(os.environ.get("MILLRACE_REFERENCE", REPOSITORY.parent / "shared" / "reference"))
SMALL = ["mistral-window", "opt", "phi3-longrope", "qwen3"]  # in tests/data
REFUSED = {"cohere": "cohere", "gemma2": "gemma2", "gemma3": "gemma3_text", "gpt-neox": "gpt_neox", "gpt2": "gpt2",
           "mixtral": "mixtral", "qwen3-moe": "qwen3_moe", "stablelm": "stablelm", "starcoder2": "starcoder2"}


def bare_copy(name, to):
    """A model of tests/data without what is no part of it."""
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(DATA / "architectures" / name / file, to)
    return to


@pytest.mark.parametrize("name", SMALL)
def test_greedy_tokens_of_a_directory(millrace_bin, name):
    expected = json.loads((DATA / "architectures" / name / "expected.json").read_text())
    asked = json.dumps({"prompt_ids": expected["prompt_ids"], "temperature": 0, "max_tokens": 24, "ignore_eos": True})
    got = json.loads(output(millrace_bin, "generate", "--model", DATA / "architectures" / name, "--set", "compute=f32",
                            "--jsonl", stdin=asked))
    certain = expected["first_gap_below_0.02"] or 24
    assert got["token_ids"][:certain] == expected["greedy_ids"][:certain]
    assert got["text"] == "" and got["finish_reason"] == "length" and got["completion_tokens"] == 24


@pytest.mark.parametrize("name", SMALL)
def test_score_of_a_directory_is_that_of_its_logits(millrace_bin, name, tmp_path):
    model = DATA / "architectures" / name
    ids = json.loads((model / "expected.json").read_text())["prompt_ids"]
    (tmp_path / "ids.json").write_text(json.dumps({"ids": ids}))
    logits = array.array("f", (model / "logits.f32").read_bytes())
    vocabulary = len(logits) // len(ids)
    nll = 0.0
    for i, target in enumerate(ids[1:]):
        row = logits[i * vocabulary:(i + 1) * vocabulary]
        top = max(row)
        nll += top + math.log(sum(math.exp(x - top) for x in row)) - row[target]
    got = json.loads(output(millrace_bin, "score", "--model", model, "--ids", tmp_path / "ids.json", "--json", "--set",
                            "compute=f32", "--set", "max_batch_tokens=16"))
    assert got["mean_nll"] == pytest.approx(nll / (len(ids) - 1), rel=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_other_architectures_are_refused_by_name(millrace_bin, name):
    if not (REFERENCE / "architectures" / name).exists():
        pytest.skip("MILLRACE_REFERENCE has no such model")
    done = run(millrace_bin, "inspect", REFERENCE / "architectures" / name)
    assert done.returncode == 1
    assert f"architecture '{REFUSED[name]}' (model_type) is not supported" in done.stderr


@pytest.mark.parametrize("settings, tolerance", [(["compute=f32"], 1e-5), ([], 1e-3)])
def test_score_of_a_real_model_in_bf16(millrace_bin, settings, tolerance):
    model = REFERENCE / "smollm2-draft-16m-bf16"
    if not model.exists():
        pytest.skip("MILLRACE_REFERENCE has no smollm2-draft-16m-bf16")
    options = [word for setting in settings for word in ("--set", setting)]
    got = json.loads(output(millrace_bin, "score", "--model", model, "--ids", DATA / "perplexity_persuasion.json",
                            "--json", *options))
    assert got["perplexity"] == pytest.approx(116.508, rel=tolerance)


def test_inspect_tells_the_rope_in_effect_R1(millrace_bin):
    got = json.loads(output(millrace_bin, "inspect", DATA / "architectures" / "phi3-longrope", "--json"))
    assert got["format"] == "safetensors" and got["architecture"] == "phi3" and got["quantization"] == "BF16"
    assert got["rope"]["type"] == "longrope" and len(got["rope"]["inv_freq"]) == 8
    assert got["rope"]["in_effect"] == "longrope of 32 tokens, attention factor 1.26491"
    assert got["rope"]["follows_length"] == {"rule": "prompt above", "tokens": 32}
    assert got["rope"]["attention_factor"] == pytest.approx(1.2649110640673518)  # sqrt(1 + ln 8 / ln 32)
    assert {"name": "lm_head.weight", "type": "BF16", "shape": [384, 64], "bytes": 49152, "used": True} in got["tensors"]


def test_every_tensor_Q5_is_used_or_named(millrace_bin, tmp_path):
    bare_copy("opt", tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, body = json.loads(raw[8:8 + length]), raw[8 + length:]
    header["model.decoder.layers.0.self_attn.k_scale"] = {"dtype": "F32", "shape": [1],
                                                          "data_offsets": [len(body), len(body) + 4]}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body + bytes(4))
    done = run(millrace_bin, "inspect", tmp_path, "--json")
    assert done.returncode == 0 and "does not use" in done.stderr
    assert "model.decoder.layers.0.self_attn.k_scale" in done.stderr
    unused = [tensor["name"] for tensor in json.loads(done.stdout)["tensors"] if not tensor["used"]]
    assert unused == ["model.decoder.layers.0.self_attn.k_scale"]


def test_rotary_positions_go_by_the_prompt_however_it_is_cut(millrace_bin):
    """Chunks of 8 begin below the 32 tokens above which longrope takes its other list."""
    model = DATA / "architectures" / "phi3-longrope"
    expected = json.loads((model / "expected.json").read_text())
    rows = [{"prompt_ids": expected["prompt_ids"]}, {"prompt_ids": expected["prompt_ids"][:30]}]
    asked = "".join(json.dumps({**row, "temperature": 0, "max_tokens": 16, "logprobs": 1}) + "\n" for row in rows)
    got = [output(millrace_bin, "generate", "--model", model, "--set", "compute=f32", "--jsonl", *options, stdin=asked)
           for options in ([], ["--set", "max_batch_tokens=8"], ["--set", "max_batch_size=1"])]
    results = [[json.loads(line) for line in text.splitlines()] for text in got]
    assert results[0][0]["token_ids"] == expected["greedy_ids"][:16]
    for other in results[1:]:
        for first, second in zip(results[0], other):
            assert first["token_ids"] == second["token_ids"] and first["logprobs"] == second["logprobs"]


def test_prefixes_are_shared_between_prompts_of_the_same_rotary_positions(millrace_bin):
    """Blocks of 8: 24 tokens in common, but longrope has other frequencies above 32 tokens."""
    model = DATA / "architectures" / "phi3-longrope"
    ids = json.loads((model / "expected.json").read_text())["prompt_ids"]
    rows = [ids[:26], ids[:30], ids[:40], ids[:34]]
    asked = [json.dumps({"prompt_ids": row, "temperature": 0, "max_tokens": 4, "logprobs": 1}) + "\n" for row in rows]
    settings = ["--set", "compute=f32", "--set", "block_size=8", "--set", "max_batch_size=1"]
    got = [json.loads(line) for line in
           output(millrace_bin, "generate", "--model", model, "--jsonl", *settings, stdin="".join(asked)).splitlines()]
    assert [row["cached_tokens"] for row in got] == [0, 24, 0, 32]
    for row, line in zip(got, asked):
        alone = json.loads(output(millrace_bin, "generate", "--model", model, "--jsonl", *settings, stdin=line))
        assert alone["logprobs"] == row["logprobs"]


def test_prefixes_with_dynamic_rotary_positions_belong_to_a_length(millrace_bin, tmp_path):
    """Blocks of 8: above the trained 32 tokens a prompt's frequencies are those of its own length."""
    config = {**CONFIG, "max_position_embeddings": 32, "rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ids = [7 + 11 * i % 500 for i in range(48)]
    asked = [json.dumps({"prompt_ids": ids[:length], "temperature": 0, "max_tokens": 4, "logprobs": 1}) + "\n"
             for length in (26, 32, 33, 40, 40, 34)]
    settings = ["--set", "load_format=random", "--set", "compute=f32", "--set", "block_size=8", "--set", "max_batch_size=1"]
    got = [json.loads(line) for line in
           output(millrace_bin, "generate", "--model", tmp_path, "--jsonl", *settings, stdin="".join(asked)).splitlines()]
    assert [row["cached_tokens"] for row in got] == [0, 24, 0, 0, 32, 0]
    for row, line in zip(got, asked):
        alone = json.loads(output(millrace_bin, "generate", "--model", tmp_path, "--jsonl", *settings, "--set",
                                  "enable_prefix_caching=false", stdin=line))
        assert alone["logprobs"] == row["logprobs"]


# Bytes of a token's keys and values in 3 layers, by type.
TOGETHER = {"mistral-window": {"bf16": 3 * 2 * 2 * 32, "int8": 3 * 2 * 2 * 18},
            "phi3-longrope": {"bf16": 3 * 2 * 2 * 32, "int8": 3 * 2 * 2 * 18},
            "qwen3": {"bf16": 3 * 2 * 2 * 64, "int8": 3 * 2 * 2 * 34}, "opt": {"bf16": 3 * 2 * 4 * 32, "int8": 3 * 2 * 4 * 18}}


@pytest.mark.parametrize("dtype, caching", [("bf16", "false"), ("int8", "true")])
@pytest.mark.parametrize("name", SMALL)
def test_small_models_give_in_company_what_they_give_alone(millrace_bin, tmp_path, name, dtype, caching):
    """Greedy, drawn, several choices and beams, past windows and trained contexts, with too few blocks for all."""
    ids = json.loads((DATA / "architectures" / name / "expected.json").read_text())["prompt_ids"]
    samplings = [{"temperature": 0}, {"temperature": 0.9, "seed": "3", "n": 3}, {"beamWidth": 3, "n": 2},
                 {"temperature": 1, "seed": "4"}]
    asked = [greedy(50, tokens={"ids": ids[:length]}, sampling=samplings[i % 4],
                    output={"logprobs": True}) for i, length in enumerate([16, 24, 30, 31, 32, 33, 34, 40])]

    def answer(stub, one):
        return [(choice.ids, [token.SerializeToString() for token in choice.tokens])
                for choice in choices(generate(stub, one))]
    block = 8 * TOGETHER[name][dtype]
    settings = ["block_size=8", "threads=1", "max_seq_length=128", "max_batch_tokens=24", f"kv_cache_dtype={dtype}",
                f"kv_cache_memory={41 * block}", f"kv_host_memory={60 * block}", f"enable_prefix_caching={caching}"]
    with Server(millrace_bin, bare_copy(name, tmp_path), *settings, metrics=True) as server:
        alone = [answer(server.stub, one) for one in asked]
        assert Scrape(server.metrics).value("millrace_preemptions_total") == 0
        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            together = list(pool.map(lambda one: answer(server.stub, one), asked))
        assert Scrape(server.metrics).value("millrace_preemptions_total") > 0
    assert together == alone


def test_text_without_a_tokenizer_says_what_is_missing(millrace_bin, tmp_path):
    model = bare_copy("opt", tmp_path)
    done = run(millrace_bin, "generate", "--model", model, "--jsonl", stdin='{"prompt": "Hello"}')
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "FAILED_PRECONDITION" and "no tokenizer" in error["message"]
    done = run(millrace_bin, "tokenize", "--model", model, "--jsonl", stdin='{"text": "Hello"}')
    assert done.returncode == 1 and "no tokenizer" in done.stderr


def test_ids_over_grpc(millrace_bin, tmp_path):
    expected = json.loads((DATA / "architectures" / "qwen3" / "expected.json").read_text())
    with Server(millrace_bin, bare_copy("qwen3", tmp_path), "compute=f32") as server:
        got = generate(server.stub, greedy(24, tokens={"ids": expected["prompt_ids"]}))
        assert got.ids == expected["greedy_ids"] and got.text == ""
        model = server.stub.GetModel(pb.GetModelRequest(), timeout=CALL_S).model
        assert model.architecture == "qwen3" and model.rope == "default" and list(model.eos_token_ids) == [2]
        error = failure(server.stub.Generate, greedy(text="Hello"))
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and "no tokenizer" in error.details()


CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
          "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512, "max_position_embeddings": 128,
          "torch_dtype": "float16"}


def draw(binary, model, *settings):
    options = [word for setting in settings for word in ("--set", setting)]
    asked = json.dumps({"prompt_ids": [5, 6, 7], "temperature": 0, "max_tokens": 16})
    return json.loads(output(binary, "generate", "--model", model, "--jsonl", *options, stdin=asked))["token_ids"]


def test_random_weights_are_their_seed(millrace_bin, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    first = draw(millrace_bin, tmp_path, "load_format=random", "random_seed=9007199254740991", "threads=1")
    assert len(first) == 16
    assert draw(millrace_bin, tmp_path, "load_format=random", "random_seed=9007199254740991", "threads=3") == first
    assert draw(millrace_bin, tmp_path, "load_format=random") != first
    about = json.loads(output(millrace_bin, "inspect", tmp_path, "--json", "--set", "load_format=random"))
    assert about["format"] == "random" and about["quantization"] == "F16" and about["tensors"] == []


def test_what_a_request_leaves_out_is_the_models_own(millrace_bin, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.7, "top_k": 3, "top_p": 0.9}))
    rows = [{}, {"temperature": 0.7, "top_k": 3, "top_p": 0.9, "min_p": 0}, {"temperature": 1, "top_k": 0, "top_p": 1}]
    asked = "".join(json.dumps({"prompt_ids": [5, 6, 7], "max_tokens": 24, "seed": 1, **row}) + "\n" for row in rows)
    got = output(millrace_bin, "generate", "--model", tmp_path, "--set", "load_format=random", "--jsonl", stdin=asked)
    drawn = [json.loads(line)["token_ids"] for line in got.splitlines()]
    assert drawn[0] == drawn[1] and drawn[0] != drawn[2]


def test_beams_with_the_models_own_penalty_give_no_raw_logprobs_L1(millrace_bin, tmp_path):
    """As with a penalty of the caller's: a search knows the distribution that it ran on, and no other."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "generation_config.json").write_text(json.dumps({"repetition_penalty": 1.3}))
    base = {"prompt_ids": [5, 6, 7], "max_tokens": 4, "beam_width": 2}
    rows = [{"logprobs": 0}, {"logprobs": 0, "logprobs_mode": "processed"}, {"logprobs": 0, "repetition_penalty": 1}, {}]
    asked = "".join(json.dumps({**base, **row}) + "\n" for row in rows)
    done = run(millrace_bin, "generate", "--model", tmp_path, "--set", "load_format=random", "--jsonl", stdin=asked)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in answer for answer in answers] == [True, False, False, False]
    assert "ask for PROCESSED" in done.stdout


def test_a_load_that_cannot_fit_fails_first(millrace_bin, tmp_path):
    huge = {**CONFIG, "hidden_size": 65536, "intermediate_size": 262144, "num_hidden_layers": 200,
            "num_attention_heads": 512, "num_key_value_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps(huge))
    done = run(millrace_bin, "score", "--model", tmp_path, "--set", "load_format=random", "--ids",
               DATA / "perplexity_persuasion.json")
    assert done.returncode == 1
    assert "MiB are needed" in done.stderr and "smaller or more quantised model" in done.stderr
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "max_position_embeddings": 1 << 29}))
    done = run(millrace_bin, "score", "--model", tmp_path, "--set", "load_format=random", "--ids",
               DATA / "perplexity_persuasion.json", "--set", "kv_cache_memory=65536GiB", "--set", "max_seq_length=1048576",
               "--set", "max_batch_size=4096")
    assert done.returncode == 1 and "kv_cache_memory" in done.stderr and "loading" not in done.stderr


def test_mistakes_with_directories_name_the_way_out(millrace_bin, tmp_path):
    done = run(millrace_bin, "inspect", tmp_path)
    assert done.returncode == 1 and "no config.json" in done.stderr
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = run(millrace_bin, "inspect", tmp_path)
    assert done.returncode == 1 and "load_format" in done.stderr and "model.safetensors" in done.stderr
    done = run(millrace_bin, "inspect", tmp_path, "--set", "random_seed=1")
    assert done.returncode == 2 and "random_seed cannot act" in done.stderr
