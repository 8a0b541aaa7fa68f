# SPDX-License-Identifier: Apache-2.0
"""millrace bench offline: the contract of its JSON, and a profile that adds up."""
import json

from commands import output, run

LAYERS, HIDDEN, KV_HEADS, HEAD, FEED_FORWARD, VOCABULARY = 30, 576, 3, 64, 1536, 49152
KV_TYPE_BYTES = 2


def bench(binary, model, *arguments):
    return json.loads(output(binary, "bench", "offline", "--model", model, "--json", "--repeat", "1", *arguments))


def test_rates_and_memory(millrace_bin, model_path):
    report = bench(millrace_bin, model_path, "--prefill", "32", "--decode", "1,3", "--prompt", "8", "--generate", "4")
    assert [row["tokens"] for row in report["prefill"]] == [32]
    assert [row["batch"] for row in report["decode"]] == [1, 3]
    assert all(row["tokens_per_s"] > 0 for row in report["prefill"] + report["decode"])
    assert report["load_s"] > 0 and report["peak_rss_bytes"] > report["memory_bytes"]["weights"]
    assert report["backend"].startswith("cpu-") and report["threads"] >= 1
    assert "ceilings" not in report and "profile" not in report["prefill"][0]


def test_whole_requests(millrace_bin, model_path):
    report = bench(millrace_bin, model_path, "--requests", "5", "--prompt", "20", "--generate", "6", "--set",
                   "max_batch_size=2")
    found = report["requests"]
    assert found["requests"] == 5 and found["seconds"] > 0
    # as many tokens as came: every request generates all of its own, whatever it draws
    assert abs(found["output_tokens_per_s"] * found["seconds"] - 5 * 6) < 1e-3
    assert abs(found["total_tokens_per_s"] * found["seconds"] - 5 * 26) < 1e-3
    assert report["prefill"] == [] and report["decode"] == []


def test_requests_and_steps_are_not_measured_at_once(millrace_bin, model_path):
    done = run(millrace_bin, "bench", "offline", "--model", model_path, "--requests", "2", "--decode", "1")
    assert done.returncode == 2 and "--requests" in done.stderr and "--decode" in done.stderr


def test_profile_counts_what_a_step_must_read_and_multiply(millrace_bin, model_path):
    report = bench(millrace_bin, model_path, "--prefill", "32", "--decode", "2", "--prompt", "8", "--generate", "4",
                   "--profile")
    assert report["ceilings"]["read_bytes_per_s"] > 0
    kv_width = KV_HEADS * HEAD
    multiply_adds = LAYERS * (HIDDEN * (2 * HIDDEN + 2 * kv_width) + 3 * HIDDEN * FEED_FORWARD)
    head = HIDDEN * VOCABULARY
    # the last layer computes what follows attention for the one token whose logits are asked for
    after_attention = HIDDEN * HIDDEN + 3 * HIDDEN * FEED_FORWARD

    prefill = report["prefill"][0]["profile"]
    ops = {op["op"]: op for op in prefill["ops"]}
    assert prefill["steps"] == 1
    assert ops["linear"]["operations"] == 2 * (32 * multiply_adds - 31 * after_attention + head)
    # token t sees t + 1 keys; the keys and values of 32 tokens are read once
    assert ops["attention"]["operations"] == LAYERS * 4 * HIDDEN * (32 * 33 // 2)
    assert ops["attention"]["bytes"] == LAYERS * 2 * 32 * kv_width * KV_TYPE_BYTES
    assert abs(sum(op["share"] for op in prefill["ops"]) - 1) < 1e-6

    decode = report["decode"][0]["profile"]
    ops = {op["op"]: op for op in decode["ops"]}
    assert decode["steps"] == 4
    assert ops["linear"]["operations"] == 4 * 2 * 2 * (multiply_adds + head)
    keys = sum(position + 1 for position in range(8, 12))
    assert ops["attention"]["bytes"] == 2 * LAYERS * 2 * keys * kv_width * KV_TYPE_BYTES
    # a step reads every packed weight once, but the gains of the norms
    assert 0.99 < ops["linear"]["bytes"] / 4 / report["memory_bytes"]["weights"] <= 1
