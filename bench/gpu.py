#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measures a bundle (scripts/bundle) on a machine with a GPU, and writes one JSON.

    gpu.py BUNDLE_DIR OUT.json [--model MODEL.gguf] [--parts tests,model,8b,smollm2]

BUNDLE_DIR has bin/millrace and, for the tests, bin/test_gpu_*. The large models have random weights
(load_format: random). Ceilings are measured with PyTorch where it is there, and profiles are Nsight
Compute's. Parts: tests, model, serve, ceilings, 8b, smollm2, profile, and those of gpu_checks.py and
gpu_fp8.py.
"""
import argparse
import csv
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

import gpu_checks
import gpu_fp8
from gpu_tools import run, say, settings, shape_dir

HERE = pathlib.Path(__file__).resolve().parent
PROMPTS = [[1, 300, 41, 5, 900], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], list(range(100, 420))]


def tests(bundle):
    found = {}
    for program in sorted((bundle / "bin").glob("test_gpu_*")):
        r = run([program], 150)
        text = r["out"] + r["err"]
        cases = dict(reversed(c) for c in re.findall(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\S+)$", text, re.M))
        found[program.name] = {"rc": r["rc"], "s": r["s"], "cases": cases}
        say(program.name, found[program.name])
        if r["rc"] != 0:
            say(text[-3000:])
    return found


def greedy(binary, model, pairs, n):
    rows = "".join(json.dumps({"id": str(i), "prompt_ids": p, "temperature": 0, "max_tokens": n,
                               "ignore_eos": True}) + "\n" for i, p in enumerate(PROMPTS))
    r = run([binary, "generate", "--model", model, "--jsonl", *settings(pairs)], 120, rows)
    if r["rc"] != 0:
        return {"error": r["err"][-600:]}
    return {"ids": [json.loads(line).get("token_ids") for line in r["out"].splitlines()], "s": r["s"]}


def golden(binary, model, pairs):
    """Rows of tests/data/greedy.json (SmolLM2, float32) that agree up to their marked near-tie, and wholly."""
    rows = json.loads((HERE.parent / "tests" / "data" / "greedy.json").read_text())
    asked = "".join(json.dumps({"id": str(i), "prompt_ids": row["prompt_ids"], "temperature": 0,
                                "max_tokens": len(row["output_ids"])}) + "\n" for i, row in enumerate(rows))
    r = run([binary, "generate", "--model", model, "--jsonl", *settings(pairs)], 120, asked)
    if r["rc"] != 0:
        return {"error": r["err"][-600:]}
    near = whole = 0
    for row, line in zip(rows, r["out"].splitlines()):
        ids, certain = json.loads(line)["token_ids"], row["first_gap_below_0.05"]
        certain = len(row["output_ids"]) if certain is None else certain
        near += ids[:certain] == row["output_ids"][:certain]
        whole += ids == row["output_ids"]
    return {"rows": len(rows), "to_near_tie": near, "wholly": whole}


def serve(bundle, model):
    """The server on the GPU, loaded by the program's own client."""
    binary = bundle / "bin" / "millrace"
    log = tempfile.NamedTemporaryFile("w+", suffix=".log")
    server = subprocess.Popen([binary, "serve", "--model", model, "--listen", "127.0.0.1:18001", "--set",
                               "backend=cuda"], stdout=subprocess.DEVNULL, stderr=log)
    try:
        until = time.time() + 60
        while 'msg="ready"' not in pathlib.Path(log.name).read_text() and time.time() < until:
            time.sleep(0.1)
        r = run([binary, "bench", "serve", "--server", "127.0.0.1:18001", "--concurrency", "64", "--requests", "512",
                 "--json"], 120)
        say(r["out"][-1500:], r["err"][-500:])
    finally:
        server.terminate()
        server.wait(timeout=60)
    return {"rc": r["rc"], "exit": server.returncode, "out": r["out"]}


def model_checks(bundle, model, reference):
    binary = bundle / "bin" / "millrace"
    ways = {"cpu f32": ["backend=cpu", "compute=f32"], "gpu f32": ["backend=cuda", "compute=f32"],
            "gpu f16": ["backend=cuda", "compute=f16"], "gpu bf16": ["backend=cuda", "compute=bf16"]}
    ids = HERE.parent / "tests" / "data" / "perplexity_persuasion.json"
    result = {}
    for name, pairs in ways.items():
        score = run([binary, "score", "--model", model, "--ids", ids, "--json", *settings(pairs)], 200)
        if name == "cpu f32" and not reference:
            continue
        result[name] = {"score": json.loads(score["out"]) if score["rc"] == 0 else score["err"][-600:],
                        "greedy": greedy(binary, model, pairs, 100)}
        if not reference:
            result[name]["golden"] = golden(binary, model, pairs)
    exact = result["cpu f32" if reference else "gpu f32"]
    want = exact["greedy"].get("ids")
    for name, r in result.items():
        if isinstance(r["score"], dict) and isinstance(exact["score"], dict):
            r["score"]["of_f32"] = round(r["score"]["perplexity"] / exact["score"]["perplexity"], 5)
        ids = r["greedy"].get("ids")
        if ids and want:
            r["equal_tokens"] = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(y))
                                 for x, y in zip(ids, want)]
        say(name, r.get("score"), r.get("equal_tokens"), r.get("golden"), r["greedy"].get("error"))
    result["two_runs_equal"] = gpu_checks.equal(bundle, model, [])
    return result


def bench(bundle, shape, decode, prefill, pairs, copy=None):
    r = run([bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir(shape), "--decode",
             ",".join(map(str, decode)), "--prefill", ",".join(map(str, prefill)), "--prompt", "128",
             "--generate", "128", "--json", *settings(["backend=cuda", "load_format=random", "log.level=debug", *pairs])], 190)
    say(r["err"][-2500:])
    if r["rc"] != 0:
        say("bench failed", r["rc"], r["out"][-500:])
        return {"rc": r["rc"], "err": r["err"][-2000:]}
    result = json.loads(r["out"])
    graphs = gpu_checks.launches(r["err"])
    for row in result["decode"]:
        gpu_checks.judge_decode(shape, row, copy)
        row["launches"] = graphs.get(row["batch"])
        say(shape, "decode", row)
    for row in result["prefill"]:
        if shape == "8b" and row["tokens"] == 8192:
            row["to_vllm"] = round(row["tokens_per_s"] / gpu_checks.VLLM_PREFILL["1 x 8192"], 3)
        say(shape, "prefill", row)
    say("load_s", result["load_s"])
    return result


def profile(bundle, shape, pairs):
    """Where the time of a step goes, kernel by kernel, as Nsight Compute sees each alone."""
    cases = {"decode 1": ("1", "1", 380, 300), "decode 128": ("128", "1", 42400, 330),
             "prefill 8192": ("1", "8192", 330, 330)}
    result = {}
    for name, (decode, prefill, skip, count) in cases.items():
        r = run(["ncu", "--clock-control", "none", "--cache-control", "none", "--csv", "--graph-profiling",
                 "node", "--metrics", "gpu__time_duration.sum", "--launch-skip", skip, "--launch-count", count,
                 bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir(shape), "--decode", decode,
                 "--prefill", prefill, "--prompt", "128", "--generate", "4", "--repeat", "1", "--json",
                 *settings(["backend=cuda", "load_format=random", *pairs])], 150)
        rows = list(csv.reader(x for x in r["out"].splitlines() if x.startswith('"')))
        if not rows:
            say("profile failed", r["err"][-400:], r["out"][-400:])
            continue
        head, sums = rows[0], {}
        kernel, grid, value = (head.index(x) for x in ("Kernel Name", "Grid Size", "Metric Value"))
        unit = head.index("Metric Unit")
        for row in rows[1:]:
            us = float(row[value].replace(",", "")) / (1000 if row[unit].startswith("ns") else 1)
            sums.setdefault(row[kernel][:60] + row[grid], []).append(us)
        result[name] = {k: {"n": len(v), "mean_us": sum(v) / len(v)} for k, v in sums.items()}
        say("==", name, "total us", round(sum(map(sum, sums.values()))))
        for k, v in sorted(sums.items(), key=lambda x: -sum(x[1]))[:14]:
            say(f"{k:90} n {len(v):4} mean {sum(v) / len(v):9.2f} us")
    return result


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--golden", action="store_true",
                        help="the model is SmolLM2-135M-Instruct Q4_1: hold it to tests/data")
    parser.add_argument("--parts", default="tests,model,8b,smollm2")
    parser.add_argument("--concurrency", type=int, default=gpu_fp8.LOAD["concurrency"],
                        help="requests at a time in the parts trtllm")
    parser.add_argument("--waves", type=int, default=gpu_fp8.LOAD["waves"], help="and how often so many")
    parser.add_argument("--set", action="append", default=[])
    a = parser.parse_args()
    parts = [part for name in a.parts.split(",") for part in gpu_fp8.GROUPS.get(name, [name])]
    gpu_fp8.LOAD.update(concurrency=a.concurrency, waves=a.waves)
    result = {"host": os.uname().release, "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    say(run(["nvidia-smi", "--query-gpu=name,driver_version,memory.used", "--format=csv,noheader"], 30)["out"])

    def save():
        a.out.write_text(json.dumps(result, indent=1))

    if "tests" in parts:
        result["tests"] = tests(a.bundle)
        save()
    if "model" in parts and a.model:
        result["model"] = model_checks(a.bundle, a.model, not a.golden)
        save()
    if "serve" in parts and a.model:
        result["serve"] = serve(a.bundle, a.model)
        save()
    copy = None
    if "ceilings" in parts or "8b" in parts:
        result["ceilings"] = gpu_checks.ceilings(a.bundle, a.set)
        copy = result["ceilings"].get("copy_gb_s")
        save()
    for shape, decode in (("8b", [1, 8, 32, 128, 256]), ("smollm2", [1, 32, 256])):
        if shape in parts:
            result[shape] = bench(a.bundle, shape, decode, [1024, 8192], a.set, copy)
            save()
    if "profile" in parts:
        result["profile"] = profile(a.bundle, "8b", a.set)
        save()
    for name, part in {**gpu_checks.PARTS, **gpu_fp8.PARTS}.items():
        if name in parts and name not in result:
            begin = time.time()
            result[name] = part(a.bundle, a.set)
            say(f"-- {name} took {time.time() - begin:.1f} s")
            save()
    save()


if __name__ == "__main__":
    main()
