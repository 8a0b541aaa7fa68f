#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How far a GPU's 16-bit arithmetic agrees with float32: greedy tokens, top-1 under teacher forcing, perplexity.

    gpu_agreement.py MILLRACE MODEL [--types f16,bf16] [--json OUT]

MODEL is SmolLM2-135M-Instruct.Q4_1.gguf, the model of tests/data. Greedy: each row of tests/data/greedy.json
must be met up to the first token whose two best float32 logits are closer than --gap of its type (f16: 0.05,
bf16: 0.3). Teacher forcing: every prefix of the perplexity text, its next token, against float32 on the GPU,
whose perplexity is compared with the reference's.
"""
import argparse
import json
import pathlib
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"
GAPS = {"f16": 0.05, "bf16": 0.3}


def output_of(command, stdin=None):
    done = subprocess.run(list(map(str, command)), input=stdin, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def settings(kind):
    return ["--set", "backend=cuda", "--set", f"compute={kind}"]


def generate(args, kind, prompts, lengths, **extra):
    asked = "".join(json.dumps({"id": str(i), "prompt_ids": prompt, "temperature": 0, "max_tokens": n, **extra}) + "\n"
                    for i, (prompt, n) in enumerate(zip(prompts, lengths)))
    out = output_of([args.millrace, "generate", "--model", args.model, "--jsonl", *settings(kind)], asked)
    return [json.loads(line) for line in out.splitlines()]


def first_gap(result, gap):
    """Index of the first token whose two best are closer than `gap`; the length if none is."""
    for i, token in enumerate(result["logprobs"]):
        best = sorted((x["logprob"] for x in token["top"]), reverse=True)
        if best[0] - best[1] < gap:
            return i
    return len(result["token_ids"])


def greedy(args, kinds):
    rows = json.loads((DATA / "greedy.json").read_text())
    prompts = [row["prompt_ids"] for row in rows]
    want = [row["output_ids"] for row in rows]
    lengths = [len(ids) for ids in want]
    exact = generate(args, "f32", prompts, lengths, logprobs=2)
    found = {"rows": len(rows), "f32": sum(r["token_ids"] == w for r, w in zip(exact, want))}
    for kind in kinds:
        got = generate(args, kind, prompts, lengths)
        certain = [first_gap(r, GAPS[kind]) for r in exact]
        found[kind] = {"to_gap": sum(g["token_ids"][:c] == w[:c] for g, w, c in zip(got, want, certain)),
                       "wholly": sum(g["token_ids"] == w for g, w in zip(got, want)),
                       "certain_tokens": sum(certain)}
    return found


def teacher_forced(args, kinds):
    ids = json.loads((DATA / "perplexity_persuasion.json").read_text())["ids"]
    prefixes = [ids[:n] for n in range(1, len(ids))]
    ones = [1] * len(prefixes)
    exact = [r["token_ids"] for r in generate(args, "f32", prefixes, ones, ignore_eos=True)]
    found = {"positions": len(prefixes)}
    for kind in kinds:
        got = [r["token_ids"] for r in generate(args, kind, prefixes, ones, ignore_eos=True)]
        found[kind] = sum(a == b for a, b in zip(got, exact)) / len(exact)
    return found


def perplexity(args, kinds):
    text = DATA / "perplexity_persuasion.json"
    want = json.loads(text.read_text())["perplexity"]
    found = {"reference": want}
    for kind in ["f32", *kinds]:
        got = json.loads(output_of([args.millrace, "score", "--model", args.model, "--ids", text, "--json",
                                    *settings(kind)]))["perplexity"]
        found[kind] = {"perplexity": got, "off": abs(got / want - 1)}
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("millrace")
    parser.add_argument("model")
    parser.add_argument("--types", default="f16,bf16")
    parser.add_argument("--json")
    args = parser.parse_args()
    kinds = args.types.split(",")
    result = {}
    for name, part in (("greedy", greedy), ("top-1 under teacher forcing", teacher_forced), ("perplexity", perplexity)):
        result[name] = part(args, kinds)
        print(name, json.dumps(result[name]), flush=True)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
