# SPDX-License-Identifier: Apache-2.0
"""`millrace bench serve` against a real server."""
import concurrent.futures
import json

import grpc
import pytest

import commands
from serving import Server
from stubs import pb, pb_grpc


def bench(binary, address, *options, code=0):
    done = commands.run(binary, "bench", "serve", "--server", address, *options)
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


def test_lengths_in_a_range(server, millrace_bin):
    """The mean of 60 lengths that are evenly spread over 2 to 12 is 7, give or take; every run asks the same."""
    def tokens(seed):
        report = json.loads(bench(millrace_bin, server.address, "--json", "--requests", "60", "--seed", seed,
                                  "--prompt-tokens", "8", "--prompt-tokens-max", "40", "--output-tokens", "2",
                                  "--output-tokens-max", "12").stdout)
        assert (report["prompt_tokens"], report["prompt_tokens_max"]) == (8, 40)
        assert (report["output_tokens"], report["output_tokens_max"], report["failed"]) == (2, 12, 0)
        return round(report["output_tokens_per_s"] * report["duration_s"])

    once = tokens("1")
    assert 60 * 5 < once < 60 * 9 and once == tokens("1") != tokens("2")


def test_static_batches(server, millrace_bin):
    """Twelve requests that are there at once: four at a time, and the ones of a later batch wait for all of the
    one before."""
    report = json.loads(bench(millrace_bin, server.address, "--json", "--requests", "12", "--rate", "100000",
                              "--static-batch", "4", "--prompt-tokens", "8", "--output-tokens", "2",
                              "--output-tokens-max", "40", "--slo-ttft-ms", "1000000").stdout)
    assert (report["static_batch"], report["max_in_flight"], report["done"]) == (4, 4, 12)
    # Eight have ended before the four of the last batch begin.
    assert report["ttft_ms"]["p90"] > report["e2e_ms"]["p50"]
    good = report["goodput"]
    assert good["good"] == 12
    assert good["output_tokens_per_s"] == pytest.approx(report["output_tokens_per_s"])


class Listener(pb_grpc.InferenceServiceServicer):
    """A server that keeps what it is asked."""

    def __init__(self):
        self.asked = []

    def GetModel(self, request, context):
        return pb.GetModelResponse(model=pb.Model(name="none", vocab_size=100, max_seq_length=100))

    def Generate(self, request, context):
        self.asked.append(request)
        n = request.stopping.max_tokens
        yield pb.GenerateResponse(chunks=[pb.Chunk(tokens=[pb.Token(id=7)] * n, finish_reason=pb.FINISH_REASON_LENGTH)],
                                  usage=pb.Usage(completion_tokens=n))


def test_sampling_is_that_of_the_options(millrace_bin):
    """Every request is drawn as the options say, by a seed of its own; without them nothing is said."""
    listener = Listener()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        pb_grpc.add_InferenceServiceServicer_to_server(listener, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        lengths = ("--json", "--requests", "3", "--prompt-tokens", "4", "--output-tokens", "2", "--seed", "9")
        report = json.loads(bench(millrace_bin, f"127.0.0.1:{port}", *lengths, "--temperature", "0.5", "--top-p", "0.25",
                                  "--top-k", "40", "--min-p", "0.125").stdout)
        plain = json.loads(bench(millrace_bin, f"127.0.0.1:{port}", *lengths).stdout)
        server.stop(None)
    assert (report["done"], plain["done"]) == (3, 3)
    given = {"temperature": 0.5, "top_p": 0.25, "top_k": 40, "min_p": 0.125}
    assert {name: report.get(name) for name in given} == given
    assert not given.keys() & plain.keys()
    for request in listener.asked[:3]:
        assert {name: getattr(request.sampling, name) for name in given} == given
    for request in listener.asked[3:]:
        assert not any(request.sampling.HasField(name) for name in given)
    assert sorted(r.sampling.seed for r in listener.asked) == [9, 9, 10, 10, 11, 11]


def test_static_batches_and_ranges_are_checked(millrace_bin):
    for options, said in ((("--static-batch", "4"), "--rate"), (("--rate", "1", "--static-batch", "0"), "1 to"),
                          (("--prompt-tokens", "9", "--prompt-tokens-max", "8"), "-max"),
                          (("--output-tokens-max", "63"), "-max"), (("--top-p", "2"), "--top-p"),
                          (("--temperature", "-1"), "--temperature")):
        assert said in bench(millrace_bin, "127.0.0.1:1", *options, code=2).stderr


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
