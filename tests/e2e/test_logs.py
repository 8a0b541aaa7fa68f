# SPDX-License-Identifier: Apache-2.0
"""What a server logs: one line a request, whatever its end, and nothing of what was asked."""
import json

import grpc
import pytest

import commands
from serving import CALL_S, Server, failure, generate, greedy

SECRET = "The password of the river is xyzzy"


@pytest.fixture(scope="module")
def lines(millrace_bin, model_path):
    """A server that logs JSON, after some requests: (lines by request id, all lines)."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "log.format=json", "log.level=debug") as server:
        generate(server.stub, greedy(5, text=SECRET, requestId="five"))
        call = server.stub.Generate(greedy(200, text=SECRET, requestId="left"), timeout=CALL_S)
        next(call)
        call.cancel()
        error = failure(server.stub.Generate, greedy(200, text=SECRET, requestId="late"), timeout=0.3)
        assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        error = failure(server.stub.Generate, greedy(5, text=SECRET, model=SECRET))
        assert error.code() == grpc.StatusCode.NOT_FOUND
        for _ in range(20):
            failure(server.stub.Generate, greedy(0, text=SECRET))
        generate(server.stub, greedy(1, text="last", requestId="a \"quoted\" id"))
        server.stop()
        every = [json.loads(line) for line in server.log.splitlines()]
    return {line["request_id"]: line for line in every if line.get("msg") == "finished"}, every


def test_usage_line(lines):
    line = lines[0]["five"]
    assert (line["module"], line["level"], line["tenant"]) == ("request", "info", "default")
    assert (line["output_tokens"], line["cached_tokens"], line["finish"], line["status"]) == (5, 0, "length", "OK")
    assert line["prompt_tokens"] >= 5 and "SmolLM2" in line["model"].replace("Smollm2", "SmolLM2")
    assert line["prefill_ms"] > 0 and line["decode_ms"] > 0 and line["queue_ms"] >= 0


def test_requests_that_ended_otherwise(lines):
    by_id, every = lines
    assert by_id["left"]["finish"] == "cancelled" and by_id["left"]["output_tokens"] >= 1
    assert by_id["late"]["finish"] in ("deadline", "cancelled")
    assert 'a "quoted" id' in by_id
    refused = [line for line in every if line.get("msg") == "refused"]
    assert [line["status"] for line in refused[:2]] == ["NOT_FOUND", "INVALID_ARGUMENT"]
    assert refused[1]["field"] == "stopping.max_tokens"


def test_repeats_are_folded(lines):
    told = [line for line in lines[1] if line["module"] == "request" and "refused" in line["msg"]]
    assert len(told) == 6 and told[-1]["repeated"] == 16 and "repeated 16 times" in told[-1]["msg"]


def test_no_user_text(lines):
    assert not any("xyzzy" in json.dumps(line) for line in lines[1])


def test_level(millrace_bin, model_path):
    done = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0", "--set",
                        "log.level=loud")
    assert done.returncode == 2 and "debug|info|warn|error" in done.stderr
    with Server(millrace_bin, model_path, "max_seq_length=256", "log.level=error") as server:
        generate(server.stub, greedy(1, text="a"))
        server.stop()
        assert server.log == ""
