#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a GPU's 16-bit arithmetic agrees with float32: greedy tokens, top-1 under teacher forcing, perplexity.

    gpu_agreement.py MILLRACE MODEL [--types f16,bf16] [--positions N] [--json OUT]

MODEL is SmolLM2-135M-Instruct.Q4_1.gguf, the model of tests/data. Greedy: each row of tests/data/greedy.json
must be met up to its near-tie, in f16 the one that is marked there (two best logits closer than 0.05), in bf16
the first token whose two best float32 logits are closer than 0.3. Teacher forcing: every prefix of the perplexity
text (--positions: so many), its next token, against float32 on the GPU. Perplexity: against the reference's. Two
runs: tokens and logprobs bit by bit. Exit status 1 if anything misses what it must show; about half a minute.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import time

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
GAP = 0.3  # of bf16
TOP_1, OFF = 0.98, 0.005  # at least, and at most


def output_of(command, stdin=None):
    done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def settings(kind):
    return ["--set", "backend=cuda", "--set", f"compute={kind}"]


def generate(args, kind, prompts, lengths, sets=(), **extra):
    asked = "".join(json.dumps({"id": str(i), "prompt_ids": prompt, "max_tokens": n, **{"temperature": 0, **extra}}) +
                    "\n" for i, (prompt, n) in enumerate(zip(prompts, lengths)))
    more = [x for pair in sets for x in ("--set", pair)]
    out = output_of([args.millrace, "generate", "--model", args.model, "--jsonl", *settings(kind), *more], asked)
    return [json.loads(line) for line in out.splitlines()]


def certain(kind, row, exact):
    """Tokens of a row that must be met: those before its near-tie."""
    near = row["first_gap_below_0.05"]
    if kind == "bf16":
        gaps = [sorted((x["logprob"] for x in token["top"]), reverse=True) for token in exact["logprobs"]]
        near = next((i for i, best in enumerate(gaps) if best[0] - best[1] < GAP), None)
    return len(row["output_ids"]) if near is None else near


def greedy(args, kinds):
    rows = json.loads((DATA / "greedy.json").read_text())
    prompts = [row["prompt_ids"] for row in rows]
    want = [row["output_ids"] for row in rows]
    lengths = [len(ids) for ids in want]
    exact = generate(args, "f32", prompts, lengths, logprobs=2)
    found = {"rows": len(rows), "f32": sum(r["token_ids"] == w for r, w in zip(exact, want))}
    for kind in kinds:
        got = generate(args, kind, prompts, lengths)
        upto = [certain(kind, row, e) for row, e in zip(rows, exact)]
        met = sum(g["token_ids"][:n] == w[:n] for g, w, n in zip(got, want, upto))
        found[kind] = {"to_gap": met, "wholly": sum(g["token_ids"] == w for g, w in zip(got, want)),
                       "certain_tokens": sum(upto), "tokens": sum(lengths), "met": met == len(rows)}
    return found


def teacher_forced(args, kinds):
    ids = json.loads((DATA / "perplexity_persuasion.json").read_text())["ids"]
    prefixes = [ids[:n] for n in range(1, len(ids))][:args.positions]
    ones = [1] * len(prefixes)
    exact = [r["token_ids"] for r in generate(args, "f32", prefixes, ones, ignore_eos=True)]
    found = {"positions": len(prefixes)}
    for kind in kinds:
        got = [r["token_ids"] for r in generate(args, kind, prefixes, ones, ignore_eos=True)]
        share = sum(a == b for a, b in zip(got, exact)) / len(exact)
        found[kind] = {"top_1": share, "met": share >= TOP_1}
    return found


def perplexity(args, kinds):
    text = DATA / "perplexity_persuasion.json"
    want = json.loads(text.read_text())["perplexity"]
    found = {"reference": want}
    for kind in ["f32", *kinds]:
        got = json.loads(output_of([args.millrace, "score", "--model", args.model, "--ids", text, "--json",
                                    *settings(kind)]))["perplexity"]
        found[kind] = {"perplexity": got, "off": abs(got / want - 1), "met": abs(got / want - 1) <= OFF}
    return found


def two_runs(args, kinds):
    """The same batches twice: greedy and drawn, one request at a time so that batches are the same."""
    rows = json.loads((DATA / "greedy.json").read_text())[:6]
    prompts, lengths = [row["prompt_ids"] for row in rows], [64] * len(rows)
    found = {}
    for kind in kinds:
        ways = [dict(temperature=t, seed=7, logprobs=1, ignore_eos=True) for t in (0, 1)]
        made = [[[(r["token_ids"], [x["logprob"] for x in r["logprobs"]]) for r in
                  generate(args, kind, prompts, lengths, ["max_batch_size=1"], **way)] for way in ways]
                for _ in range(2)]
        found[kind] = {"met": made[0] == made[1]}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("millrace")
    parser.add_argument("model")
    parser.add_argument("--types", default="f16,bf16")
    parser.add_argument("--positions", type=int, help="of the text under teacher forcing")
    parser.add_argument("--json")
    args = parser.parse_args()
    kinds = args.types.split(",")
    result = {}
    parts = {"greedy": greedy, "top-1 under teacher forcing": teacher_forced, "perplexity": perplexity,
             "two runs": two_runs}
    missed = []
    for name, part in parts.items():
        begin = time.time()
        result[name] = part(args, kinds)
        missed += [f"{name}, {kind}" for kind in kinds if not result[name][kind]["met"]]
        print(name, json.dumps(result[name]), f"({time.time() - begin:.1f} s)", flush=True)
    print("missed: " + "; ".join(missed) if missed else "all met")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({**result, "missed": missed}, indent=1))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
