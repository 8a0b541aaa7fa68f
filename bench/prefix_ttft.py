#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of requests that share a long beginning: cold ÷ warm.

One server, one request at a time. Every round resets the prefix cache, sends a request whose prompt
is the shared tokens and a few of its own (cold), and then others with the same shared tokens and
other ends (warm). Medians over all rounds; the ratio of the medians is the figure.

usage: prefix_ttft.py --millrace BUILD/millrace --model M.gguf [--shared 512] [--own 8] [--rounds 7]
           [--warm 4] [--set KEY=VALUE ...] [--json OUT]
"""
import argparse
import json
import pathlib
import random
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from serving import CALL_S, Server, greedy  # noqa: E402
from stubs import pb, pb_grpc  # noqa: E402

FLOOR = 5.0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shared", type=int, default=512, help="tokens that all prompts begin with")
    parser.add_argument("--own", type=int, default=8, help="tokens of each prompt's own")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, default=4, help="warm requests a round")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


def first_token(server, ids):
    """Milliseconds to the first token, and the tokens that were found in the cache."""
    asked = greedy(2, tokens={"ids": ids})
    started = time.perf_counter()
    call = server.stub.Generate(asked, timeout=CALL_S)
    message = next(call)
    elapsed = (time.perf_counter() - started) * 1000
    assert any(chunk.tokens for chunk in message.chunks)
    return elapsed, [message, *call][-1].usage.cached_tokens


def measure(server, args):
    admin = pb_grpc.AdminServiceStub(server.channel)
    rng = random.Random(1)
    shared = [rng.randrange(1000, 40000) for _ in range(args.shared)]
    own = lambda: [rng.randrange(1000, 40000) for _ in range(args.own)]  # noqa: E731
    cold, warm = [], []
    first_token(server, shared + own())
    for _ in range(args.rounds):
        admin.ResetPrefixCache(pb.ResetPrefixCacheRequest(), timeout=CALL_S)
        elapsed, cached = first_token(server, shared + own())
        assert cached == 0
        cold.append(elapsed)
        for _ in range(args.warm):
            elapsed, cached = first_token(server, shared + own())
            assert cached == args.shared // 16 * 16, f"{cached} tokens were found"
            warm.append(elapsed)
    return cold, warm


def main():
    args = arguments()
    settings = ["admin.enable=true", "block_size=16", "max_seq_length=2048", *args.settings]
    with Server(args.millrace, args.model, *settings) as server:
        while "the model is identified" not in server.log:
            time.sleep(0.05)
        cold, warm = measure(server, args)
    ratio = statistics.median(cold) / statistics.median(warm)
    print(f"{args.shared} shared tokens, {args.own} own: time to the first token, ms, median (least, most)")
    for name, values in (("cold", cold), ("warm", warm)):
        print(f"  {name}  {statistics.median(values):8.1f}  ({min(values):.1f}, {max(values):.1f})  n={len(values)}")
    print(f"  cold / warm  {ratio:.1f}  (floor {FLOOR:g}: {'met' if ratio >= FLOOR else 'MISSED'})")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"shared": args.shared, "own": args.own, "cold_ms": cold, "warm_ms": warm, "ratio": ratio,
                       "floor": FLOOR}, out, indent=1)
    return 0 if ratio >= FLOOR else 1


if __name__ == "__main__":
    sys.exit(main())
