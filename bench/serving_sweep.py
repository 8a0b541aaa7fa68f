#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a server can take: arrivals swept to the knee, for three ways of serving, and batch sizes against latency.

Ways: one request at a time (max_batch_size 1); static batches (what has arrived is sent together, up to the batch
size, runs to its longest output, and only then comes the next; the load generator does this); and ours (requests join and leave
the batch at every step). Lengths are spread evenly over ranges; the same seed gives all three the same requests.

The capacity of each way is measured with as many requests as it can have under way all the time. Between 0 and a
little more than that, the rate of Poisson arrivals is bisected to the knee: the highest at which 90 % of the requests
have their first token within --ttft-ms and 90 % of all times between tokens are at most --itl-ms. Goodput is what the
knee's run served within the objectives, a request's own times between tokens taken as their mean. Static batches are
flattered: their requests stream.

Then every batch size with that many requests always under way, and with arrivals at 90 % of the knee.

usage: serving_sweep.py --millrace BUILD/millrace --model M.gguf [--quick] [--json OUT] [--set KEY=VALUE ...]
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))

from serving import Server  # noqa: E402

FLOORS = {"one": 1.5, "static": 1.2}
ALL_AT_ONCE = 100000  # requests a second
HEADROOM = 1.2  # a short run has a beginning and an end in which little is under way
NAMES = {"one": "one at a time", "static": "static batches", "ours": "ours"}


def span(text):
    least, _, most = text.partition("-")
    return int(least), int(most or least)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", type=span, default=(32, 256), metavar="P-Q", help="tokens (32-256)")
    parser.add_argument("--output", type=span, default=(16, 128), metavar="P-Q", help="tokens (16-128)")
    parser.add_argument("--batch", type=int, default=32, help="max_batch_size of ours, and of static batches")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[8, 16, 32, 64, 128])
    parser.add_argument("--batch-tokens", type=int, default=128,
                        help="of a step, which bounds how long a prompt holds up the others")
    parser.add_argument("--ttft-ms", type=float, default=1000)
    parser.add_argument("--itl-ms", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=12, help="of arrivals in a run")
    parser.add_argument("--least", type=int, default=30, help="requests of a run")
    parser.add_argument("--probes", type=int, default=5, help="rates that are tried for a knee")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="whether it works, not how fast it is")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--json", help="write everything here")
    args = parser.parse_args()
    if args.quick:
        args.prompt, args.output, args.batch, args.batches = (8, 32), (4, 12), 4, [2, 4]
        args.seconds, args.least, args.probes = 1, 6, 2
    return args


class Way:
    """A server and how it is loaded."""

    def __init__(self, args, batch, static=False):
        self.args = args
        self.batch = batch
        self.static = ["--static-batch", str(batch)] if static else []
        self.server = Server(args.millrace, args.model, f"max_batch_size={batch}",
                             f"max_batch_tokens={args.batch_tokens}", "max_queue_requests=100000",
                             f"max_seq_length={args.prompt[1] + args.output[1]}", *args.settings)

    def __enter__(self):
        self.load("--requests", 2, "--concurrency", 1)
        return self

    def __exit__(self, *_):
        self.server.stop()

    def load(self, *options):
        args = self.args
        command = [args.millrace, "bench", "serve", "--server", self.server.address, "--json",
                   "--prompt-tokens", args.prompt[0], "--prompt-tokens-max", args.prompt[1],
                   "--output-tokens", args.output[0], "--output-tokens-max", args.output[1],
                   "--slo-ttft-ms", args.ttft_ms, "--slo-itl-ms", args.itl_ms, "--seed", args.seed, *options]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"bench serve failed: {done.stderr}")
        return json.loads(done.stdout)

    def at_once(self):
        requests = self.batch + max(self.batch // 2, self.args.least // 2)
        if self.static:
            return self.load("--requests", requests, "--rate", ALL_AT_ONCE, *self.static)
        return self.load("--requests", requests, "--concurrency", self.batch)

    def at(self, rate):
        requests = max(self.args.least, math.ceil(rate * self.args.seconds))
        return self.load("--requests", requests, "--rate", f"{rate:.4f}", *self.static)


def say(text):
    print(text, file=sys.stderr, flush=True)


def within(args, report):
    return report["ttft_ms"]["p90"] <= args.ttft_ms and report["inter_token_ms"]["p90"] <= args.itl_ms


def find_knee(args, way):
    """The run at the highest rate within the objectives (None: at none), and all runs."""
    capacity = way.at_once()
    low, high = 0.0, HEADROOM * capacity["requests_per_s"]
    knee, runs = None, []
    for _ in range(args.probes):
        rate = (low + high) / 2
        report = way.at(rate)
        good = within(args, report)
        say(f"  {rate:8.2f} requests/s: first token P90 {report['ttft_ms']['p90']:8.1f} ms, between tokens P90 "
            f"{report['inter_token_ms']['p90']:6.1f} ms {'' if good else ' too slow'}")
        runs.append(report)
        if good:
            low, knee = rate, report
        else:
            high = rate
    return {"capacity": capacity, "knee": knee, "too_slow_at": high, "runs": runs}


def sweep_ways(args):
    found = {}
    for name, batch in (("one", 1), ("static", args.batch), ("ours", args.batch)):
        say(NAMES[name])
        with Way(args, batch, static=name == "static") as way:
            found[name] = find_knee(args, way)
    return found


def sweep_batches(args, rate):
    rows = []
    for batch in args.batches:
        say(f"batch {batch}")
        with Way(args, batch) as way:
            rows.append({"batch": batch, "full": way.at_once(), "arrivals": way.at(rate) if rate else None})
    return rows


def ratios(found):
    ours = found["ours"]["knee"]
    result = {}
    for name, floor in FLOORS.items():
        other = found[name]["knee"]
        parts = {}
        for what in ("requests_per_s", "output_tokens_per_s"):
            known = ours and other and other["goodput"][what] > 0
            parts[what] = ours["goodput"][what] / other["goodput"][what] if known else None
        result[f"ours/{name}"] = {**parts, "floor": floor,
                                  "met": parts["requests_per_s"] is not None and parts["requests_per_s"] >= floor}
    return result


def print_ways(args, found):
    print(f"prompts {args.prompt[0]}-{args.prompt[1]}, outputs {args.output[0]}-{args.output[1]} tokens; knee: first "
          f"token P90 <= {args.ttft_ms:g} ms, between tokens P90 <= {args.itl_ms:g} ms\n")
    print(f"{'':16}{'capacity':>9}{'knee':>8}{'goodput':>9}{'goodput':>9}{'first token ms':>24}{'between tokens ms':>24}")
    print(f"{'':16}{'req/s':>9}{'req/s':>8}{'req/s':>9}{'tokens/s':>9}" + f"{'p50':>8}{'p90':>8}{'p99':>8}" * 2)
    for name, result in found.items():
        line = f"{NAMES[name]:16}{result['capacity']['requests_per_s']:9.2f}"
        knee = result["knee"]
        if knee is None:
            print(f"{line}   none up to {result['too_slow_at']:.2f} requests/s")
            continue
        good = knee["goodput"]
        line += f"{knee['rate']:8.2f}{good['requests_per_s']:9.2f}{good['output_tokens_per_s']:9.1f}"
        for what in ("ttft_ms", "inter_token_ms"):
            line += "".join(f"{knee[what][p]:8.1f}" for p in ("p50", "p90", "p99"))
        print(line)


def print_batches(rows, rate):
    print(f"\n{'':8}{'as many under way all the time':>36}" + (f"{f'arrivals at {rate:.2f} requests/s':>40}" if rate else ""))
    print(f"{'batch':8}{'tokens/s':>12}{'between p50':>12}{'p90':>12}" +
          (f"{'first p90':>12}{'between p90':>14}{'tokens/s':>14}" if rate else ""))
    for row in rows:
        full, open_loop = row["full"], row["arrivals"]
        line = f"{row['batch']:<8}{full['output_tokens_per_s']:12.1f}"
        line += f"{full['inter_token_ms']['p50']:12.1f}{full['inter_token_ms']['p90']:12.1f}"
        if open_loop:
            line += f"{open_loop['ttft_ms']['p90']:12.1f}{open_loop['inter_token_ms']['p90']:14.1f}"
            line += f"{open_loop['output_tokens_per_s']:14.1f}"
        print(line)


def main():
    args = arguments()
    started = time.monotonic()
    found = sweep_ways(args)
    knee = found["ours"]["knee"]
    rate = 0.9 * knee["rate"] if knee else None
    rows = sweep_batches(args, rate)
    compared = ratios(found)
    print_ways(args, found)
    for name, ratio in compared.items():
        value = ratio["requests_per_s"]
        print(f"{name}: {'unknown' if value is None else f'{value:.2f}'}, floor {ratio['floor']:g}: "
              f"{'met' if ratio['met'] else 'MISSED'}")
    print_batches(rows, rate)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as out:
            json.dump({"settings": vars(args), "ways": found, "ratios": compared, "batches": rows}, out, indent=1)
    return 0 if all(ratio["met"] for ratio in compared.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
