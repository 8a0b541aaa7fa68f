#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests and measures a bundle (scripts/bundle) on a machine with a GPU, and writes one JSON.

    gpu.py BUNDLE_DIR OUT.json [--model MODEL.gguf] [--parts tests,model,8b,8b-fp8,mixed,trtllm,smollm2]

BUNDLE_DIR has bin/millrace and, for the tests, bin/test_gpu_*. The large models have random weights
(load_format: random). The copy bandwidth is measured with PyTorch where it is there, and profiles
are Nsight Compute's.
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

HERE = pathlib.Path(__file__).resolve().parent
SHAPES = {
    "8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
               num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192, rope_theta=500000.0,
               tie_word_embeddings=False),
    "smollm2": dict(hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                    num_key_value_heads=3, vocab_size=49152, max_position_embeddings=8192,
                    rope_theta=100000.0, tie_word_embeddings=True),
}
# Weights of F8_E4M3 with a scale an output, rows rounded token by token, the vocabulary left as it is.
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
# Measured on an H200: vLLM 0.25.1, milliseconds a step by concurrency, prompt tokens/s, and total tokens/s of
# 256 requests of 512 + 256 tokens. Published: TensorRT-LLM's output tokens/s, FP8 with an FP8 cache.
VLLM_FP8_STEP = {1: 3.51, 32: 4.56, 128: 5.93}
VLLM_FP8_PREFILL = {8192: 55400}
VLLM_MIXED = {"8b": 29545, "8b-fp8": 39653}
TRTLLM_FP8 = {(1000, 1000): 17744, (128, 2048): 26221}
PROMPTS = [[1, 300, 41, 5, 900], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11], list(range(100, 420))]


def run(command, timeout, stdin=None):
    begin = time.time()
    try:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout, input=stdin)
        code, out, err = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired as e:
        code, out, err = -1, (e.stdout or b"").decode(), (e.stderr or b"").decode() + "\ntimed out"
    return {"rc": code, "out": out, "err": err, "s": round(time.time() - begin, 2)}


def say(*what):
    print(*what, flush=True)


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


def copy_bandwidth():
    code = ("import torch\n"
            "a=torch.empty(1<<30,dtype=torch.float32,device='cuda').normal_();b=torch.empty_like(a)\n"
            "t=[]\n"
            "for i in range(20):\n"
            " s=torch.cuda.Event(enable_timing=True);e=torch.cuda.Event(enable_timing=True)\n"
            " s.record();b.copy_(a);e.record();torch.cuda.synchronize();t.append(s.elapsed_time(e))\n"
            "t.sort();print(2*a.numel()*4/(t[10]*1e-3)/1e9)\n")
    r = run(["python3", "-c", code], 120)
    return float(r["out"]) if r["rc"] == 0 else None


def settings(pairs):
    return [x for p in pairs for x in ("--set", p)]


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
    result["gpu bf16 again"] = {"greedy": greedy(binary, model, ways["gpu bf16"], 100)}
    want = result["cpu f32" if reference else "gpu f32"]["greedy"].get("ids")
    for name, r in result.items():
        ids = r["greedy"].get("ids")
        if ids and want:
            r["equal_tokens"] = [next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), len(y))
                                 for x, y in zip(ids, want)]
        say(name, r.get("score"), r.get("equal_tokens"), r.get("golden"), r["greedy"].get("error"))
    again = result["gpu bf16 again"]["greedy"].get("ids")
    result["two_runs_equal"] = again is not None and again == result["gpu bf16"]["greedy"].get("ids")
    say("two runs equal", result["two_runs_equal"])
    return result


def shape_dir(shape):
    """A directory with a config.json of the shape; "-fp8" behind its name: with F8_E4M3 weights."""
    path = pathlib.Path(tempfile.gettempdir()) / f"millrace-{shape}"
    path.mkdir(exist_ok=True)
    fp8 = shape.endswith("-fp8")
    config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", rms_norm_eps=1e-5,
                  torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2, **SHAPES[shape.removesuffix("-fp8")],
                  **({"quantization_config": FP8} if fp8 else {}))
    (path / "config.json").write_text(json.dumps(config))
    return path


def bench(bundle, shape, decode, prefill, pairs):
    r = run([bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir(shape), "--decode",
             ",".join(map(str, decode)), "--prefill", ",".join(map(str, prefill)), "--prompt", "128",
             "--generate", "128", "--json", *settings(["backend=cuda", "load_format=random", *pairs])], 280)
    say(r["err"][-2500:])
    if r["rc"] != 0:
        say("bench failed", r["rc"], r["out"][-500:])
        return {"rc": r["rc"], "err": r["err"][-2000:]}
    result = json.loads(r["out"])
    for row in result["decode"]:
        row["step_ms"] = round(1000 * row["batch"] / row["tokens_per_s"], 4)
        say(shape, "decode", row)
    for row in result["prefill"]:
        say(shape, "prefill", row)
    say("load_s", result["load_s"])
    return result


def fp8(bundle, pairs):
    result = bench(bundle, "8b-fp8", [1, 8, 32, 128, 256], [1024, 8192], pairs)
    for row in result.get("decode", []):
        peer = VLLM_FP8_STEP.get(row["batch"])
        if peer:
            row["times_vllm"] = round(peer / row["step_ms"], 3)
            say("8b-fp8 decode", row["batch"], row["step_ms"], "ms a step,", row["times_vllm"], "x vLLM")
    for row in result.get("prefill", []):
        peer = VLLM_FP8_PREFILL.get(row["tokens"])
        if peer:
            row["times_vllm"] = round(row["tokens_per_s"] / peer, 3)
            say("8b-fp8 prefill", row["tokens"], row["tokens_per_s"], row["times_vllm"], "x vLLM")
    return result


def closed_loop(bundle, shape, concurrency, waves, prompt, output, pairs):
    """The server with random weights under the program's own client: so many requests at a time."""
    binary = bundle / "bin" / "millrace"
    log = pathlib.Path(tempfile.gettempdir()) / f"millrace-{shape}.log"
    sets = ["backend=cuda", "load_format=random", f"max_batch_size={concurrency}",
            f"max_queue_requests={2 * concurrency}", f"max_seq_length={prompt + output + 16}", *pairs]
    with log.open("w") as out:
        server = subprocess.Popen([binary, "serve", "--model", shape_dir(shape), "--listen", "127.0.0.1:18002",
                                   *settings(sets)], stdout=subprocess.DEVNULL, stderr=out)
    try:
        until = time.time() + 90
        while 'msg="ready"' not in log.read_text() and server.poll() is None and time.time() < until:
            time.sleep(0.1)
        load = [binary, "bench", "serve", "--server", "127.0.0.1:18002", "--prompt-tokens", prompt,
                "--output-tokens", output, "--json", "--concurrency", concurrency, "--requests"]
        run([*load, concurrency, "--seed", 1], 200)  # graphs and products are made ready
        r = run([*load, waves * concurrency], 400)
    finally:
        server.terminate()
        server.wait(timeout=60)
    if r["rc"] != 0:
        say("load failed", r["rc"], r["err"][-500:], log.read_text()[-1500:])
        return {"rc": r["rc"], "err": r["err"][-2000:], "log": log.read_text()[-4000:]}
    result = json.loads(r["out"])
    out = result["output_tokens_per_s"]
    return {"concurrency": concurrency, "requests": waves * concurrency, "prompt": prompt, "output": output,
            "output_tokens_per_s": out, "total_tokens_per_s": out * (prompt + output) / output, "raw": result}


def mixed(bundle, pairs):
    result = {}
    for shape, peer in VLLM_MIXED.items():
        got = closed_loop(bundle, shape, 256, 1, 512, 256, pairs)
        if "rc" not in got:
            got["times_vllm"] = round(got["total_tokens_per_s"] / peer, 3)
            say(shape, "256 x 512/256: total tokens/s", round(got["total_tokens_per_s"]), got["times_vllm"], "x vLLM")
        result[shape] = got
    return result


def trtllm(bundle, pairs, concurrency=512, waves=2):
    result = {}
    for (prompt, output), peer in TRTLLM_FP8.items():
        got = closed_loop(bundle, "8b-fp8", concurrency, waves, prompt, output, ["kv_cache_dtype=fp8", *pairs])
        if "rc" not in got:
            got["times_trtllm"] = round(got["output_tokens_per_s"] / peer, 3)
            say(f"8b-fp8 {prompt}/{output}: output tokens/s", round(got["output_tokens_per_s"]), got["times_trtllm"],
                "x TensorRT-LLM")
        result[f"{prompt}/{output}"] = got
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
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--concurrency", type=int, default=512, help="of the part trtllm")
    parser.add_argument("--waves", type=int, default=2, help="of the part trtllm: requests for each place")
    a = parser.parse_args()
    parts = a.parts.split(",")
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
    if "copy" in parts or "8b" in parts:
        result["copy_gb_s"] = copy_bandwidth()
        say("copy", result["copy_gb_s"], "GB/s")
    if "8b" in parts:
        result["8b"] = bench(a.bundle, "8b", [1, 8, 32, 128, 256], [1024, 8192], a.set)
        save()
    if "8b-fp8" in parts:
        result["8b-fp8"] = fp8(a.bundle, a.set)
        save()
    if "mixed" in parts:
        result["mixed"] = mixed(a.bundle, a.set)
        save()
    if "trtllm" in parts:
        result["trtllm"] = trtllm(a.bundle, a.set, a.concurrency, a.waves)
        save()
    if "profile" in parts:
        result["profile"] = profile(a.bundle, "8b", a.set)
        save()
    if "smollm2" in parts:
        result["smollm2"] = bench(a.bundle, "smollm2", [1, 32, 256], [1024, 8192], a.set)
    save()


if __name__ == "__main__":
    main()
