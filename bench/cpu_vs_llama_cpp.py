#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace beside llama.cpp on the CPU: same threads, runs in turn, medians, ratios.

The peer is driven by its own programs: llama-bench for prefill, llama-batched-bench (128 prompt and
64 generated tokens a sequence) for decode. With several builds of the peer each cell takes the
faster one. --best names the peer's best format of the same weights, measured in the same rounds.
With --peer-source the time from start to a first token and the peak resident memory of both are
compared too, by a small program on the peer's library (llama_cpp_first_token.c).

usage: cpu_vs_llama_cpp.py --millrace BUILD/millrace --model M.gguf --peer DIR [--peer DIR ...]
           [--best N.gguf] [--peer-source LLAMA_CPP] [--threads 2] [--rounds 5]
           [--prefill 512,4096] [--decode 1,8,32] [--json OUT]
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

PROMPT = "The quick brown fox jumps over the lazy dog. " * 12
CONTEXT = 8192
SMALLER_IS_BETTER = ("first token s", "peak MiB")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", action="append", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--best", help="the peer's best format of the same weights")
    parser.add_argument("--peer-source", help="llama.cpp's source: also measure start to first token, and memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", default="512,4096")
    parser.add_argument("--decode", default="1,8,32")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def start_cells(command):
    """Wall time and peak resident memory of a program that prints one token and ends."""
    begin = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(command[:2])} … failed with status {child.returncode}")
    return {"first token s": time.monotonic() - begin, "peak MiB": usage.ru_maxrss / 1024}


def run_millrace(args):
    data = json.loads(output_of([
        args.millrace, "bench", "offline", "--model", args.model, "--json", "--prefill", args.prefill, "--decode",
        args.decode, "--prompt", "128", "--generate", "64", "--repeat", "1", "--set", f"threads={args.threads}"]))
    cells = {f"prefill {row['tokens']}": row["tokens_per_s"] for row in data["prefill"]}
    cells.update({f"decode {row['batch']}": row["tokens_per_s"] for row in data["decode"]})
    if args.peer_source:
        cells.update(start_cells([
            args.millrace, "generate", "--model", args.model, "--max-tokens", "1", "--temperature", "0", "--set",
            f"threads={args.threads}", "--set", f"max_seq_length={CONTEXT}", "--set", "max_batch_size=1", "--set",
            "kv_cache_dtype=bf16", PROMPT]))
    return data["backend"], cells


def run_peer(args, folder, model, first_token):
    rows = json.loads(output_of([
        f"{folder}/llama-bench", "-m", model, "-p", args.prefill, "-n", "0", "-t", str(args.threads), "-r", "1",
        "-o", "json"]))
    cells = {f"prefill {row['n_prompt']}": row["avg_ts"] for row in rows}
    widest = max(int(n) for n in args.decode.split(","))
    text = output_of([
        f"{folder}/llama-batched-bench", "-m", model, "-npp", "128", "-ntg", "64", "-npl", args.decode,
        "-t", str(args.threads), "-tb", str(args.threads), "-c", str(192 * widest + 64)])
    for line in text.splitlines():
        fields = [f.strip() for f in line.strip("| \n").split("|")]
        if len(fields) == 10 and re.fullmatch(r"\d+", fields[2]):
            cells[f"decode {fields[2]}"] = float(fields[7])
    if first_token:
        cells.update(start_cells([first_token, model, str(CONTEXT), str(args.threads), PROMPT]))
    return cells


def build_first_token(source, folder, out):
    """The peer's side of start to first token, linked with the build in `folder`."""
    program = f"{out}/first_token_{abs(hash(folder))}"
    here = pathlib.Path(__file__).resolve().parent
    output_of(["cc", "-O2", f"-I{source}/include", f"-I{source}/ggml/include", f"{here}/llama_cpp_first_token.c", "-o",
               program, f"-L{folder}", f"-Wl,-rpath,{os.path.abspath(folder)}", "-lllama", "-lggml", "-lggml-base"])
    return program


def median_cells(runs):
    return {cell: statistics.median(run[cell] for run in runs) for cell in runs[0]}


def best_of(builds):
    """The better build of the peer, cell by cell."""
    medians = [median_cells(runs) for runs in builds.values()]
    return {cell: (min if cell in SMALLER_IS_BETTER else max)(m[cell] for m in medians) for cell in medians[0]}


def measure(args, programs):
    ours, backend = [], ""
    peers = {kind: {folder: [] for folder in args.peer} for kind in ("same", "best") if kind == "same" or args.best}
    for turn in range(args.rounds):
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
        backend, cells = run_millrace(args)
        ours.append(cells)
        for kind, builds in peers.items():
            for folder, runs in builds.items():
                model = args.model if kind == "same" else args.best
                runs.append(run_peer(args, folder, model, programs.get(folder)))
    return backend, ours, peers


def print_table(args, backend, ours, peers):
    mine = median_cells(ours)
    theirs = {kind: best_of(builds) for kind, builds in peers.items()}
    print(f"millrace {backend}, {args.threads} threads, medians of {args.rounds}; tokens/s unless said")
    print(f"{'':16}{'millrace':>10}" + "".join(f"{'peer ' + kind:>12}{'ratio':>8}" for kind in theirs))
    for cell in mine:
        row = f"{cell:16}{mine[cell]:10.2f}"
        for cells in theirs.values():
            row += f"{cells[cell]:12.2f}{mine[cell] / cells[cell]:8.2f}"
        print(row)


def main():
    args = arguments()
    with tempfile.TemporaryDirectory() as out:
        programs = {}
        if args.peer_source:
            programs = {folder: build_first_token(args.peer_source, folder, out) for folder in args.peer}
        backend, ours, peers = measure(args, programs)
    print_table(args, backend, ours, peers)
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"backend": backend, "threads": args.threads, "millrace": ours, "peers": peers}, out, indent=1)


if __name__ == "__main__":
    main()
