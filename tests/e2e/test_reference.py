# SPDX-License-Identifier: Apache-2.0
"""The command line against the reference data: tokens, greedy output, perplexity."""
import json
import pathlib

import pytest

from commands import output, run

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_tokenize_equals_the_reference_and_back(millrace_bin, model_path):
    rows = json_lines((DATA / "tokenize.jsonl").read_text())
    asked = "".join(json.dumps({"text": row["text"]}) + "\n" for row in rows)
    got = json_lines(output(millrace_bin, "tokenize", "--model", model_path, "--jsonl", stdin=asked))
    assert [row["ids"] for row in got] == [row["ids"] for row in rows]
    asked = "".join(json.dumps({"ids": row["ids"]}) + "\n" for row in rows)
    back = json_lines(output(millrace_bin, "tokenize", "--model", model_path, "--jsonl", "--decode", stdin=asked))
    assert [row["text"] for row in back] == [row["text"] for row in rows]


def score_arguments(model, *settings):
    arguments = ["score", "--model", model, "--ids", DATA / "perplexity_persuasion.json", "--json"]
    for setting in settings:
        arguments += ["--set", setting]
    return arguments


def score(binary, model, *settings):
    return json.loads(output(binary, *score_arguments(model, *settings)))


def test_perplexity_of_the_reference_mode(millrace_bin, model_path):
    want = json.loads((DATA / "perplexity_persuasion.json").read_text())
    got = score(millrace_bin, model_path, "compute=f32")
    assert got["tokens"] == want["tokens"] - 1
    assert got["perplexity"] == pytest.approx(want["perplexity"], rel=1e-4)


def test_perplexity_of_the_default_mode(millrace_bin, model_path):
    want = json.loads((DATA / "perplexity_persuasion.json").read_text())
    got = score(millrace_bin, model_path)
    assert got["perplexity"] == pytest.approx(want["perplexity"], rel=5e-3)


@pytest.mark.parametrize("cpu_path", ["avx2", "avx512vnni", "avx512bf16", "amx"])
def test_perplexity_of_cpu_paths(millrace_bin, model_path, cpu_path):
    arguments = score_arguments(model_path, f"cpu_path={cpu_path}")
    done = run(millrace_bin, *arguments)
    if f"the {cpu_path} path is not in this build or not supported by this CPU" in done.stderr:
        assert done.returncode != 0 and not done.stdout  # refused by name; unit tests run it emulated
        return
    assert done.returncode == 0, done.stderr
    want = json.loads((DATA / "perplexity_persuasion.json").read_text())
    got = json.loads(done.stdout)
    print(f"perplexity on {cpu_path}: {got['perplexity']:.4f}, the reference {want['perplexity']:.4f}")
    assert got["perplexity"] == pytest.approx(want["perplexity"], rel=5e-3)


@pytest.mark.parametrize("kv_cache_dtype,bound", [("f32", 5e-3), ("f16", 5e-3), ("int8", 1e-2)])
def test_perplexity_of_kv_types(millrace_bin, model_path, kv_cache_dtype, bound):
    want = json.loads((DATA / "perplexity_persuasion.json").read_text())
    got = score(millrace_bin, model_path, f"kv_cache_dtype={kv_cache_dtype}")
    print(f"perplexity with a KV cache of {kv_cache_dtype}: {got['perplexity']:.4f}, the reference {want['perplexity']:.4f}")
    assert got["perplexity"] == pytest.approx(want["perplexity"], rel=bound)


def test_inspect_tells_kv_bytes_of_each_type(millrace_bin, model_path):
    # 30 layers, keys and values of 3 heads of 64; int8 has a float scale a token and head
    memory = json.loads(output(millrace_bin, "inspect", model_path, "--json"))["memory"]
    heads = 30 * 2 * 3
    assert memory["kv_cache_bytes_per_token_by_dtype"] == {
        "f32": heads * 256, "f16": heads * 128, "bf16": heads * 128, "int8": heads * (64 + 4), "fp8": heads * 64}
    assert memory["kv_cache_bytes_per_token"] == heads * 128


def test_greedy_output_of_the_reference_mode(millrace_bin, model_path):
    rows = json.loads((DATA / "greedy.json").read_text())
    asked = "".join(json.dumps({"id": str(i), "prompt_ids": row["prompt_ids"], "temperature": 0,
                                "max_tokens": len(row["output_ids"])}) + "\n" for i, row in enumerate(rows))
    got = json_lines(output(millrace_bin, "generate", "--model", model_path, "--set", "compute=f32", "--jsonl",
                            stdin=asked))
    assert [row["id"] for row in got] == [str(i) for i in range(len(rows))]
    for row, result in zip(rows, got):
        certain = row["first_gap_below_0.05"]
        certain = len(row["output_ids"]) if certain is None else certain
        assert result["token_ids"][:certain] == row["output_ids"][:certain], row["prompt"]


def test_chat_is_rendered_as_the_template_does(millrace_bin, model_path):
    rows = [row for row in json.loads((DATA / "greedy.json").read_text()) if row["kind"] == "chat"]
    asked = "".join(json.dumps({"messages": [{"role": "user", "content": row["user"]}]}) + "\n" for row in rows)
    got = json_lines(output(millrace_bin, "tokenize", "--model", model_path, "--jsonl", "--chat", stdin=asked))
    assert [row["ids"] for row in got] == [row["prompt_ids"] for row in rows]
