# SPDX-License-Identifier: Apache-2.0
"""Parts of gpu.py about FP8 and full load: 8b-fp8, mixed, trtllm, perplexity-fp8. Peers' figures stand beside.

mixed is mixed-8b and mixed-8b-fp8, about 35 s each; trtllm is trtllm-1000 (about 80 s) and trtllm-128 (about 120 s),
with LOAD as it is. --concurrency 256 halves the requests, and with them the time.
"""
import json
import pathlib
import time

from gpu_tools import Server, run, say, settings, shape_dir

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
# On an H200. vLLM 0.25.1, measured: milliseconds a step by concurrency, prompt tokens/s, and total tokens/s of 256
# requests of 512 + 256 tokens. TensorRT-LLM, published: output tokens/s, FP8 with an FP8 cache.
VLLM_STEP_MS = {1: 3.51, 32: 4.56, 128: 5.93}
VLLM_PREFILL = {8192: 55400}
VLLM_MIXED = {"8b": 29545, "8b-fp8": 39653}
TRTLLM = {(1000, 1000): 17744, (128, 2048): 26221}
LOAD = {"concurrency": 512, "waves": 2}  # of the parts trtllm: requests at a time, and how often so many


def fp8(bundle, pairs):
    """Decode and prefill with FP8 weights and 16-bit caches."""
    r = run([bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir("8b-fp8"), "--decode",
             "1,8,32,128,256", "--prefill", "1024,8192", "--prompt", "128", "--generate", "128", "--json",
             *settings(["backend=cuda", "load_format=random", *pairs])], 280)
    if r["rc"] != 0:
        say("8b-fp8 failed", r["rc"], r["out"][-500:], r["err"][-2000:])
        return {"rc": r["rc"], "err": r["err"][-2000:]}
    result = json.loads(r["out"])
    for row in result["decode"]:
        row["step_ms"] = round(1000 * row["batch"] / row["tokens_per_s"], 4)
        if row["batch"] in VLLM_STEP_MS:
            row["times_vllm"] = round(VLLM_STEP_MS[row["batch"]] / row["step_ms"], 3)
        say("8b-fp8 decode", row["batch"], row["step_ms"], "ms a step,", row.get("times_vllm"), "x vLLM")
    for row in result["prefill"]:
        if row["tokens"] in VLLM_PREFILL:
            row["times_vllm"] = round(row["tokens_per_s"] / VLLM_PREFILL[row["tokens"]], 3)
        say("8b-fp8 prefill", row["tokens"], round(row["tokens_per_s"]), row.get("times_vllm"), "x vLLM")
    say("load_s", result["load_s"])
    return result


def closed_loop(bundle, shape, case, concurrency, waves, pairs, runs=1):
    """So many requests at a time, from the program's own client: the best of the runs, all of them beside it.

    Before them come a few whole prompts and a full batch of short ones: what a step of either kind needs once.
    """
    prompt, output = case
    sets = ["load_format=random", "enable_prefix_caching=false", f"max_batch_size={concurrency}",
            f"max_queue_requests={2 * concurrency}", f"max_seq_length={prompt + output + 16}", *pairs]
    with Server(bundle / "bin" / "millrace", shape_dir(shape), sets, port=18002) as server:
        loads = [server.load(48, prompt, 4), server.load(concurrency, 16, 24)]
        begin = time.time()
        loads += [server.load(waves * concurrency, prompt, output, concurrency, timeout=400) for _ in range(runs)]
        seconds = round(time.time() - begin, 1)
    bad = [r for r in loads if "error" in r or r["failed"]]
    if bad:
        say(shape, case, "failed", bad[0])
        return {"failed": bad[0]}
    rates = [r["output_tokens_per_s"] for r in loads[2:]]
    return {"concurrency": concurrency, "requests": waves * concurrency, "prompt": prompt, "output": output,
            "ready_s": server.ready_s, "measured_s": seconds, "output_tokens_per_s": max(rates), "runs": rates,
            "total_tokens_per_s": max(rates) * (prompt + output) / output, "raw": loads[2:]}


def offline(bundle, shape, requests, case, pairs):
    """As vLLM was measured: all requests given at once, without a server. The median of three runs."""
    r = run([bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir(shape), "--requests", requests,
             "--prompt", case[0], "--generate", case[1], "--repeat", 3, "--json",
             *settings(["backend=cuda", "load_format=random", *pairs])], 150)
    if r["rc"] != 0:
        say(shape, "offline failed", r["rc"], r["out"][-500:], r["err"][-1500:])
        return {"failed": r["err"][-1500:]}
    found = json.loads(r["out"])
    return {**found["requests"], "load_s": found["load_s"]}


def mixed(shape):
    """256 requests of 512 + 256 tokens, all at once, served and offline."""
    def part(bundle, pairs):
        case, peer, result = (512, 256), VLLM_MIXED[shape], {}
        result["offline"] = offline(bundle, shape, 256, case, pairs)
        result["served"] = closed_loop(bundle, shape, case, 256, 1, pairs, runs=2)
        for way, got in result.items():
            if "total_tokens_per_s" in got:
                got["times_vllm"] = round(got["total_tokens_per_s"] / peer, 3)
                say(shape, way, "256 x 512/256: total tokens/s", round(got["total_tokens_per_s"]), got["times_vllm"],
                    "x vLLM (offline)")
        return result
    return part


def trtllm(case):
    """Full load, FP8 weights and cache."""
    def part(bundle, pairs):
        got = closed_loop(bundle, "8b-fp8", case, LOAD["concurrency"], LOAD["waves"], ["kv_cache_dtype=fp8", *pairs])
        if "output_tokens_per_s" in got:
            got["times_trtllm"] = round(got["output_tokens_per_s"] / TRTLLM[case], 3)
            say(f"8b-fp8 {case[0]}/{case[1]}: output tokens/s", round(got["output_tokens_per_s"]), got["times_trtllm"],
                "x TensorRT-LLM,", got["requests"], "requests,", got["concurrency"], "at a time, in",
                got["measured_s"], "s")
        return got
    return part


def perplexity(bundle, pairs):
    """A small FP8 checkpoint, and caches of one byte, against float32 on the CPU."""
    model = DATA / "quantised" / "packages" / "compressed-float"
    ids = bundle / "perplexity.json"
    ids.write_text(json.dumps({"ids": [(17 * i * i + 3 * i) % 64 for i in range(128)]}))
    ways = {"cpu f32": ["backend=cpu", "compute=f32"], "gpu bf16": ["backend=cuda", "compute=bf16"],
            "gpu f16": ["backend=cuda", "compute=f16"],
            "gpu bf16, fp8 cache": ["backend=cuda", "compute=bf16", "kv_cache_dtype=fp8"],
            "gpu bf16, int8 cache": ["backend=cuda", "compute=bf16", "kv_cache_dtype=int8"]}
    result = {}
    for name, way in ways.items():
        r = run([bundle / "bin" / "millrace", "score", "--model", model, "--ids", ids, "--json",
                 *settings([*way, *pairs])], 60)
        result[name] = json.loads(r["out"]) if r["rc"] == 0 else {"error": r["err"][-600:]}
        say("small FP8 checkpoint,", name, result[name].get("perplexity", result[name].get("error")))
    return result


PARTS = {"8b-fp8": fp8, **{f"mixed-{shape}": mixed(shape) for shape in VLLM_MIXED},
         **{f"trtllm-{case[0]}": trtllm(case) for case in TRTLLM}, "perplexity-fp8": perplexity}
# Names of several parts.
GROUPS = {"mixed": [f"mixed-{shape}" for shape in VLLM_MIXED], "trtllm": [f"trtllm-{case[0]}" for case in TRTLLM]}
