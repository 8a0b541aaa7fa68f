# SPDX-License-Identifier: Apache-2.0
"""`millrace bench serve` against a real server."""
import json
import subprocess

import pytest

from serving import CALL_S, Server


def bench(binary, address, *options, code=0):
    done = subprocess.run([binary, "bench", "serve", "--server", address, *options], capture_output=True, text=True,
                          timeout=CALL_S, check=False)
    assert done.returncode == code, (done.returncode, done.stderr)
    return done


def percentiles(part):
    assert 0 <= part["p50"] <= part["p90"] <= part["p99"] <= part["max"]
    return part


@pytest.mark.parametrize("loop", [("--concurrency", "3"), ("--rate", "20")], ids=["closed", "open"])
def test_report(server, millrace_bin, loop):
    out = bench(millrace_bin, server.address, "--json", "--requests", "8", *loop, "--prompt-tokens", "20",
                "--output-tokens", "6", "--slo-ttft-ms", "1000000", "--slo-itl-ms", "1000000").stdout
    report = json.loads(out)
    assert (report["requests"], report["failed"], report["done"], report["errors"]) == (8, 0, 8, {})
    assert (report["prompt_tokens"], report["output_tokens"]) == (20, 6)
    first, between, whole = (percentiles(report[name]) for name in ("ttft_ms", "inter_token_ms", "e2e_ms"))
    assert first["p50"] > 0 and between["mean"] > 0 and whole["max"] >= first["max"]
    assert report["output_tokens_per_s"] == pytest.approx(8 * 6 / report["duration_s"])
    assert whole["max"] <= report["duration_s"] * 1000 + 1
    assert report["goodput"]["good"] == 8
    if loop[0] == "--concurrency":
        assert report["loop"] == "closed" and report["max_in_flight"] == 3
    else:
        assert report["loop"] == "open" and report["rate"] == 20


def test_table(server, millrace_bin):
    out = bench(millrace_bin, server.address, "--requests", "2", "--prompt-tokens", "4", "--output-tokens", "3").stdout
    assert "closed loop, 8 at a time" in out and "2 requests, 0 failed" in out
    assert all(name in out for name in ("first token", "between tokens", "whole request"))


def test_failures_are_counted_by_status(millrace_bin, model_path):
    """A queue of one: most of a burst is refused, and the run says so."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "max_batch_size=1", "max_queue_requests=1") as small:
        done = bench(millrace_bin, small.address, "--json", "--requests", "10", "--concurrency", "10",
                     "--prompt-tokens", "16", "--output-tokens", "64", code=1)
    report = json.loads(done.stdout)
    assert 1 <= report["failed"] <= 9 and report["errors"] == {"RESOURCE_EXHAUSTED": report["failed"]}
    assert report["done"] + report["failed"] == report["requests"] == 10
    assert f"{report['failed']} of 10 requests failed" in done.stderr and "queue" in done.stderr


def test_latency_counts_from_the_due_time(millrace_bin, model_path):
    """Ten requests due at once on a server that runs one at a time: the last has waited for nine others."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "max_batch_size=1") as small:
        report = json.loads(bench(millrace_bin, small.address, "--json", "--requests", "10", "--rate", "1000",
                                  "--prompt-tokens", "16", "--output-tokens", "16").stdout)
    assert report["ttft_ms"]["max"] > 0.6 * report["duration_s"] * 1000


def test_deadline(server, millrace_bin):
    done = bench(millrace_bin, server.address, "--json", "--requests", "2", "--timeout-ms", "1", "--prompt-tokens",
                 "200", "--output-tokens", "100", code=1)
    report = json.loads(done.stdout)
    assert report["errors"] == {"DEADLINE_EXCEEDED": 2} and report["ttft_ms"]["p50"] is None


def test_too_long_for_the_server(server, millrace_bin):
    done = bench(millrace_bin, server.address, "--prompt-tokens", "1000", "--output-tokens", "25", code=1)
    assert "1024" in done.stderr and "max_seq_length" in done.stderr and done.stdout == ""
