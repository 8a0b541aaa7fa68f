#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What healthy streams notice of HTTP/2 attacks: time between tokens, P99 with an attack ÷ without.

One server. Healthy streams run all the time; each attack has a time without it before and after, in
the same run, and goes on in a process of its own, beginning anew whenever it is thrown out. The
attacker runs at the lowest priority, since it would not sit on the server's machine.

usage: http2_attacks.py --millrace BUILD/millrace --model M.gguf [--streams 4] [--seconds 10]
           [--attack NAME ...] [--set KEY=VALUE ...] [--json OUT]
"""
import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "e2e"))

import attacks  # noqa: E402
from serving import CALL_S, Server, greedy  # noqa: E402
from stubs import pb_grpc  # noqa: E402

CEILING = 2.0
# Opening connections on the same machine is mostly the kernel's work, whoever does it: told, and held to nothing.
NOT_HELD = {"connection flood"}
ATTACKS = {
    "rapid reset": attacks.rapid_reset, "PING flood": attacks.ping_flood, "SETTINGS flood": attacks.settings_flood,
    "WINDOW_UPDATE flood": attacks.window_flood, "CONTINUATION flood": attacks.continuation_flood,
    "connection flood": attacks.connection_flood, "half-open connections": attacks.half_open,
    "headers and requests that drip": attacks.drips, "zero windows": attacks.zero_windows,
    "huge headers": attacks.huge_headers,
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--millrace", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=4, help="healthy ones at a time")
    parser.add_argument("--seconds", type=float, default=10, help="with each attack, and without")
    parser.add_argument("--attack", action="append", choices=list(ATTACKS), help="these only")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--json", help="write all figures here")
    return parser.parse_args()


class Healthy:
    """Streams one after the other; the times between messages, and how many streams went wrong."""

    def __init__(self, server, streams):
        self.server, self.stop = server, threading.Event()
        self.gaps, self.wrong, self.lock = [], 0, threading.Lock()
        self.threads = [threading.Thread(target=self._run, args=(i,)) for i in range(streams)]
        for thread in self.threads:
            thread.start()

    def _run(self, number):
        stub = pb_grpc.InferenceServiceStub(self.server.new_channel())
        asked, wanted = greedy(200, text=f"The river ran {number}"), None
        while not self.stop.is_set():
            last, ids = None, []
            for message in stub.Generate(asked, timeout=CALL_S):
                now = time.perf_counter()
                tokens = [token.id for chunk in message.chunks for token in chunk.tokens]
                ids += tokens
                if last is not None and tokens:
                    with self.lock:
                        self.gaps.append((now - last) * 1000)
                last = now
            wanted = wanted or ids
            with self.lock:
                self.wrong += ids != wanted

    def measure(self, seconds):
        with self.lock:
            self.gaps = []
        time.sleep(seconds)
        with self.lock:
            return sorted(self.gaps)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def attack_again_and_again(name, address, stop):
    os.nice(19)
    while not stop.is_set():
        ATTACKS[name](address, 1 << 40, stop)


def p99(gaps):
    return gaps[min(len(gaps) - 1, len(gaps) * 99 // 100)]


def measure(server, healthy, name, seconds):
    stop = multiprocessing.Event()
    attacker = multiprocessing.Process(target=attack_again_and_again, args=(name, server.address, stop), daemon=True)
    before = healthy.measure(seconds / 2)
    with attacks.Peak(server.process.pid) as peak:
        attacker.start()
        during = healthy.measure(seconds)
        stop.set()
        attacker.join(timeout=30)
        attacker.kill()
    after = healthy.measure(seconds / 2)
    quiet = sorted(before + after)
    return {"attack": name, "p50_without_ms": statistics.median(quiet), "p50_ms": statistics.median(during),
            "p99_without_ms": p99(quiet), "p99_ms": p99(during), "ratio": p99(during) / p99(quiet),
            "tokens": len(during), "memory_mib": peak.growth / (1 << 20)}


def main():
    args = arguments()
    multiprocessing.set_start_method("spawn")  # no thread of gRPC's is in the attacker
    rows = []
    with Server(args.millrace, args.model, "max_seq_length=512", *args.settings) as server:
        healthy = Healthy(server, args.streams)
        try:
            healthy.measure(3)
            for name in args.attack or ATTACKS:
                rows.append(measure(server, healthy, name, args.seconds))
        finally:
            healthy.end()
    print("| attack | P50 without, ms | with | P99 without, ms | with | ratio of P99 | memory, MiB |\n|---|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['attack']} | {row['p50_without_ms']:.1f} | {row['p50_ms']:.1f} | {row['p99_without_ms']:.1f} | "
              f"{row['p99_ms']:.1f} | {row['ratio']:.2f} | {row['memory_mib']:.0f} |")
    worst = max([row["ratio"] for row in rows if row["attack"] not in NOT_HELD], default=0)
    print(f"\nworst ratio {worst:.2f} (ceiling {CEILING}; {', '.join(NOT_HELD)} left out), streams with wrong tokens: {healthy.wrong}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"rows": rows, "wrong": healthy.wrong}, indent=1))
    return worst > CEILING or healthy.wrong > 0


if __name__ == "__main__":
    sys.exit(main())
