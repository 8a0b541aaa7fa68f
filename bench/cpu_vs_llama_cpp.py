#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""millrace beside llama.cpp on the CPU: same file, same threads, runs in turn, medians, ratios.

The peer is driven by its own programs: llama-bench for prefill, llama-batched-bench (128 prompt and
64 generated tokens a sequence) for decode. With several builds of the peer each cell takes the
faster one. A peer may also be given its own best format of the same weights (--peer-model).

usage: cpu_vs_llama_cpp.py --millrace BUILD/millrace --model M.gguf --peer DIR [--peer DIR ...]
           [--peer-model N.gguf] [--threads 2] [--rounds 5] [--prefill 512] [--decode 1,8] [--json OUT]
"""
import argparse
import json
import re
import statistics
import subprocess
import sys


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--peer", action="append", required=True, help="folder of llama.cpp's programs")
    parser.add_argument("--peer-model", help="the file the peer reads, if not --model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", default="512")
    parser.add_argument("--decode", default="1,8")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def output_of(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def run_millrace(args):
    data = json.loads(output_of([
        args.millrace, "bench", "offline", "--model", args.model, "--json", "--prefill", args.prefill,
        "--decode", args.decode, "--prompt", "128", "--generate", "64", "--set", f"threads={args.threads}"]))
    cells = {f"prefill {row['tokens']}": row["tokens_per_s"] for row in data["prefill"]}
    cells.update({f"decode {row['batch']}": row["tokens_per_s"] for row in data["decode"]})
    return data["backend"], cells


def run_peer(args, folder):
    model = args.peer_model or args.model
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
    return cells


def median_cells(runs):
    return {cell: statistics.median(run[cell] for run in runs) for cell in runs[0]}


def main():
    args = arguments()
    ours, peers = [], {folder: [] for folder in args.peer}
    backend = ""
    for turn in range(args.rounds):
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
        backend, cells = run_millrace(args)
        ours.append(cells)
        for folder in args.peer:
            peers[folder].append(run_peer(args, folder))
    mine = median_cells(ours)
    theirs = {folder: median_cells(runs) for folder, runs in peers.items()}
    best = {cell: max(cells[cell] for cells in theirs.values()) for cell in mine}
    print(f"millrace {backend}, {args.threads} threads, medians of {args.rounds}, tokens/s")
    print(f"{'':14}{'millrace':>10}{'llama.cpp':>11}{'ratio':>8}")
    for cell in mine:
        print(f"{cell:14}{mine[cell]:10.1f}{best[cell]:11.1f}{mine[cell] / best[cell]:8.2f}")
    if args.json:
        with open(args.json, "w") as out:
            json.dump({"backend": backend, "threads": args.threads, "millrace": ours, "peers": peers}, out, indent=1)


if __name__ == "__main__":
    main()
