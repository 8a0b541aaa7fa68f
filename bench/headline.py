#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace beside Hugging Face transformers on one GPU, in one run.

    headline.py BUNDLE_DIR OUT.json [--price-per-hour 3.50] [--cases one,32,1k,8k,8k-long]

The 8B Llama shape with random bf16 weights on both sides, prompts of random ids, no end token. transformers runs in this machine's Python, `generate` in process with sdpa; it makes plans for every
length it has not seen, so its first run of a case (cold) is printed beside the warm one, which counts.
millrace serves over gRPC, prefix cache off, and its own client measures; its first run is printed too.
Throughput is output tokens over the whole time, prompts included. All cases take about three minutes, two of them
transformers' in 8k-long.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import threading
import time

from gpu_tools import Server, model_config, say, shape_dir

# Requests at once, prompt and output tokens, runs; what the articles say of transformers and a serving engine.
CASES = {
    "one": (1, 128, 64, 3, "articles: 8 to 42 tokens/s, 1800 to 620 ms"),
    "32": (32, 128, 64, 3, "articles: 4 to 6 times"),
    "1k": (32, 1024, 64, 3, "articles: 4 to 6 times"),
    "8k": (8, 8192, 64, 3, "articles: 4.2 times"),
    "8k-long": (8, 7680, 512, 2, "articles: 4.2 times"),
}


def peer(cases):
    """transformers, in a process of its own: a JSON line a run."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    config = transformers.LlamaConfig(**{k: v for k, v in model_config("8b").items() if k != "architectures"})
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.02) if p.dim() > 1 else p.fill_(1)
    model.eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)

    def once(batch, prompt, out):
        ids = torch.randint(10, 120000, (batch, prompt), device="cuda")
        torch.cuda.synchronize()
        begin = time.perf_counter()
        made = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=out, min_new_tokens=out,
                              do_sample=False, use_cache=True)
        torch.cuda.synchronize()
        assert made.shape[1] == prompt + out
        return time.perf_counter() - begin

    once(1, 16, 4)  # what every process pays once
    for name in cases:
        for _ in range(CASES[name][3]):
            print(json.dumps({"case": name, "s": once(*CASES[name][:3])}), flush=True)


def measure_peer(cases, timeout):
    """Seconds of the first and of the better later run of each case."""
    process = subprocess.Popen([sys.executable, __file__, "--peer", ",".join(cases)], stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, cwd=pathlib.Path(__file__).parent)
    found, versions, other = {}, {}, []
    timer = threading.Timer(timeout, process.kill)
    timer.start()
    for line in process.stdout:
        if not line.startswith("{"):
            other.append(line)
            continue
        row = json.loads(line)
        say("transformers", row)
        if "case" in row:
            found.setdefault(row["case"], []).append(row["s"])
        else:
            versions = row
    timer.cancel()
    if process.wait() != 0:
        say("transformers ended early:", "".join(other)[-1500:])
    return versions, {k: {"cold_s": v[0], "warm_s": min(v[1:])} for k, v in found.items() if len(v) > 1}


def measure_own(binary, cases, pairs):
    found = {}
    settings = ["load_format=random", "enable_prefix_caching=false", "max_seq_length=8448", *pairs]
    with Server(binary, shape_dir("8b"), settings) as server:
        say("millrace ready after", server.ready_s, "s")
        for name in cases:
            runs = [server.load(*CASES[name][:3]) for _ in range(CASES[name][3])]
            bad = [r for r in runs if "error" in r or r["failed"]]
            if bad:
                say("millrace", name, bad[0])
                continue
            times = [r["duration_s"] for r in runs]
            found[name] = {"cold_s": times[0], "warm_s": min(times[1:]), "ttft_ms": runs[-1]["ttft_ms"],
                           "inter_token_ms": runs[-1]["inter_token_ms"]}
            say("millrace", name, found[name])
    return found


def compare(cases, peers, own, price):
    table = {}
    for name in cases:
        batch, prompt, out, _, articles = CASES[name]
        sides = {}
        for side, found in (("transformers", peers), ("millrace", own)):
            if name in found:
                rate = batch * out / found[name]["warm_s"]
                sides[side] = {**found[name], "tokens_per_s": round(rate, 1),
                               "cold_tokens_per_s": round(batch * out / found[name]["cold_s"], 1),
                               "usd_per_million_tokens": round(price / 3600 / rate * 1e6, 3)}
        if len(sides) == 2:
            sides["times"] = round(sides["millrace"]["tokens_per_s"] / sides["transformers"]["tokens_per_s"], 2)
        table[name] = {"requests": batch, "prompt": prompt, "out": out, "articles": articles, **sides}
    return table


def show(table):
    say(f"{'case':28} {'transformers tok/s (cold)':>27} {'ms':>8} {'$/M':>8} {'millrace tok/s':>15} {'ms':>8} {'$/M':>8}"
        f" {'times':>6}")
    for row in table.values():
        cells = []
        for side in ("transformers", "millrace"):
            s = row.get(side)
            rate = "-" if s is None else f"{s['tokens_per_s']}"
            if s is not None and side == "transformers":
                rate += f" ({s['cold_tokens_per_s']})"
            cells += [rate, "-" if s is None else f"{1e3 * s['warm_s']:.0f}",
                      "-" if s is None else f"{s['usd_per_million_tokens']}"]
        say(f"{row['requests']:3} x {row['prompt']:5} in, {row['out']:3} out     {cells[0]:>27} {cells[1]:>8} {cells[2]:>8}"
            f" {cells[3]:>15} {cells[4]:>8} {cells[5]:>8} {row.get('times', '-'):>6}   {row['articles']}")


def main():
    if sys.argv[1:2] == ["--peer"]:
        return peer(sys.argv[2].split(","))
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--price-per-hour", type=float, default=3.50, help="dollars an hour of the machine")
    parser.add_argument("--cases", default=",".join(CASES), help="of " + ", ".join(CASES))
    parser.add_argument("--peer-timeout", type=float, default=240)
    parser.add_argument("--set", action="append", default=[])
    a = parser.parse_args()
    cases = a.cases.split(",")
    versions, peers = measure_peer(cases, a.peer_timeout)
    own = measure_own(a.bundle / "bin" / "millrace", cases, a.set)
    table = compare(cases, peers, own, a.price_per_hour)
    a.out.write_text(json.dumps({"versions": versions, "price_per_hour": a.price_per_hour, "cases": table}, indent=1))
    show(table)
    return None


if __name__ == "__main__":
    main()
