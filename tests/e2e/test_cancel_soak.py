# SPDX-License-Identifier: Apache-2.0
"""Streams that are abandoned in four ways, round after round: no KV block and no memory stays behind.
MILLRACE_SOAK=1 runs all the rounds."""
import os
import pathlib
import time

import grpc
import pytest

from serving import CALL_S, Server, generate, greedy
from stubs import pb, pb_grpc

ROUNDS = 200 if os.environ.get("MILLRACE_SOAK") == "1" else 5
WARM_UP = 2  # rounds until allocators and gRPC have what they keep
STREAMS = 40
DRIFT_KIB = 5 * 1024
ABORT_S = 30  # within which a request that was sent has reached the server
PROMPT = "The river ran"
BLOCK = 16
PROMPT_TOKENS = 30 * BLOCK
WAYS = ("cancel", "close", "deadline", "abort")


def load_of(server):
    metadata = getattr(server, "admin_metadata", None)  # where there are tenants
    return pb_grpc.AdminServiceStub(server.channel).GetLoad(pb.GetLoadRequest(), timeout=CALL_S, metadata=metadata).load


def touch_pool(server):
    """Prompts that all differ, until every KV block has held something: cached prefixes keep the pool in use, and what
    it takes is no drift."""
    blocks = load_of(server).kv_blocks_total
    for number in range(blocks * BLOCK // PROMPT_TOKENS + 1):
        generate(server.stub, greedy(1, tokens={"ids": [100 + number] * PROMPT_TOKENS}))


def settled_blocks(server):
    """KV blocks in use by requests. Calls end before the engine's next step has freed what they had."""
    blocks = load_of(server).kv_blocks_live
    for _ in range(100):
        if not blocks:
            break
        time.sleep(0.1)
        blocks = load_of(server).kv_blocks_live
    return blocks


def resident_kib(server):
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")))


def abort(server, name):
    """The request may still be on its way to the server."""
    end = time.monotonic() + ABORT_S
    while not server.stub.Abort(pb.AbortRequest(request_id=name), timeout=CALL_S).found:
        assert time.monotonic() < end, f"{name} was not there to abort"
        time.sleep(0.01)


def leave(server, calls, channel):
    """`calls` by way; some have begun, the others wait for their turn."""
    for name, _ in calls["abort"]:
        abort(server, name)
    for _, call in calls["cancel"]:
        call.cancel()
    channel.close()
    codes = {"abort": grpc.StatusCode.CANCELLED, "deadline": grpc.StatusCode.DEADLINE_EXCEEDED}
    for way, code in codes.items():
        for name, call in calls[way]:
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() == code, name


def soak_round(server, number):
    channel = server.new_channel()
    stubs = {way: server.stub for way in WAYS}
    stubs["close"] = pb_grpc.InferenceServiceStub(channel)
    calls = {way: [] for way in WAYS}
    for index in range(STREAMS):
        way = WAYS[index % len(WAYS)]
        name = f"{way}-{number}-{index}"
        asked = greedy(400, text=f"{PROMPT} {index}", requestId=name)
        asked.sampling.n = 1 + index % 3
        timeout = 0.5 if way == "deadline" else CALL_S
        calls[way].append((name, stubs[way].Generate(asked, timeout=timeout)))
    # Waiting for a certain one would let others end: it may be behind them in the queue.
    time.sleep(0.3)
    leave(server, calls, channel)


def test_abandoned_streams_leave_nothing_C1_C4(millrace_bin, model_path):
    settings = ["max_seq_length=512", "kv_cache_memory=64MiB", "admin.enable=true"]
    with Server(millrace_bin, model_path, *settings) as server:
        before = generate(server.stub, greedy(16, text=PROMPT)).ids
        touch_pool(server)
        for number in range(WARM_UP):
            soak_round(server, number)
        assert settled_blocks(server) == 0
        resident = resident_kib(server)
        for number in range(WARM_UP, WARM_UP + ROUNDS):
            soak_round(server, number)
        assert settled_blocks(server) == 0
        after = generate(server.stub, greedy(16, text=PROMPT))
        assert after.ids == before and after.usage.preemptions == 0
        assert resident_kib(server) - resident < DRIFT_KIB
        # As many tokens at once as fit into a sequence: whoever kept blocks would be noticed.
        full = generate(server.stub, greedy(500, text=PROMPT))
        assert len(full.ids) == 500 and full.usage.preemptions == 0
