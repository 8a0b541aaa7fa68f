# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 pings, and how calls end on the wire."""
import threading

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from serving import CALL_S, generate, greedy
from stubs import pb, pb_grpc

PROMPT = "The river ran"
PINGS_S = 45  # a server that minds pings of 10 s closes the connection at the fourth


def test_pings_of_ten_seconds_are_tolerated_on_silent_calls_G1(server):
    channel = grpc.insecure_channel(server.address, options=[
        ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.http2.max_pings_without_data", 0), ("grpc.keepalive_permit_without_calls", 1)])
    states = []
    channel.subscribe(states.append)
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    over = threading.Event()
    watch.add_callback(over.set)
    assert not over.wait(PINGS_S), f"the silent call ended: {watch.code()} {watch.details()}"
    assert generate(pb_grpc.InferenceServiceStub(channel), greedy(2, text=PROMPT)).ids
    assert states[-1] == grpc.ChannelConnectivity.READY and states.count(states[-1]) == 1
    watch.cancel()
    channel.close()


@pytest.mark.parametrize("fields", [{"text": PROMPT}, {"text": ""}, {"text": PROMPT, "model": "other"}])
def test_every_call_ends_with_a_status_G3(stub, fields):
    """A stream that was read to its end has its trailers: success is never only the absence of an error."""
    call = stub.Generate(greedy(3, **fields), timeout=CALL_S)
    try:
        messages = list(call)
    except grpc.RpcError:
        messages = []
    assert call.code() is not None and call.trailing_metadata() is not None
    assert (call.code() == grpc.StatusCode.OK) == bool(messages)
    assert not messages or messages[-1].chunks[-1].finish_reason == pb.FINISH_REASON_LENGTH
