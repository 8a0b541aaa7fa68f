# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 pings, and how calls end on the wire."""
import struct
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import commands
from http2 import ACK, ENHANCE_YOUR_CALM, GOAWAY, HEADERS, PING, SETTINGS, Connection, frame
from serving import CALL_S, Server, generate, greedy
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


class Pinger(Connection):
    """Waits for each answer, so that the server sees two pings no closer together than they were sent. It begins once
    the server has sent its own first frames: gRPC forgives a ping that meets one, and counts anew."""

    def __init__(self, address, silent_call):
        super().__init__(address)
        self.frames_until(SETTINGS, ACK)
        if silent_call:
            self.call("/grpc.health.v1.Health/Watch", health_pb2.HealthCheckRequest())
            self.frames_until(HEADERS)

    def frames_until(self, wanted, flags=0):
        """The payload of the next such frame; None when the server says GOAWAY first."""
        while True:
            kind, has, payload = self.next_frame()
            if kind == GOAWAY:
                self.goaway = payload
                return None
            if kind == wanted and has & flags == flags:
                return payload
            self.answer(kind, has, payload)

    def ping(self, count, interval_s):
        """How many were answered before the server said GOAWAY."""
        for i in range(count):
            self.socket.sendall(frame(PING, 0, 0, struct.pack(">Q", i)))
            answer = self.frames_until(PING, ACK)
            if answer is None:
                return i
            assert answer == struct.pack(">Q", i)
            time.sleep(interval_s)
        return count


@pytest.fixture(scope="module")
def lenient_server(millrace_bin, model_path):
    """The default policy, ninety times faster: pings every 0.1 s instead of 9 s."""
    with Server(millrace_bin, model_path, "max_seq_length=64", "keepalive.min_ping_interval_ms=100") as running:
        yield running


@pytest.fixture(scope="module")
def strict_server(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=64", "keepalive.min_ping_interval_ms=3600000") as running:
        yield running


@pytest.mark.parametrize("silent_call", [True, False])
def test_pings_as_often_as_configured_are_tolerated_G1(lenient_server, silent_call):
    assert Pinger(lenient_server.address, silent_call).ping(100, 0.11) == 100


@pytest.mark.parametrize("silent_call", [True, False])
def test_pings_more_often_than_configured_end_the_connection_G1(strict_server, silent_call):
    client = Pinger(strict_server.address, silent_call)
    assert client.ping(100, 0.11) < 5
    assert struct.unpack(">I", client.goaway[4:8]) == (ENHANCE_YOUR_CALM,)
    assert client.goaway[8:] == b"too_many_pings"


def test_any_pings_are_tolerated_where_no_interval_is_configured_G1(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=64", "keepalive.min_ping_interval_ms=0") as server:
        assert Pinger(server.address, True).ping(300, 0) == 300


def test_pings_without_calls_can_be_forbidden_G1(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=64", "keepalive.min_ping_interval_ms=0",
                "keepalive.permit_without_calls=false") as server:
        assert Pinger(server.address, True).ping(50, 0.01) == 50
        idle = Pinger(server.address, False)
        assert idle.ping(50, 0.01) < 5 and idle.goaway[8:] == b"too_many_pings"


def test_server_pings_silent_calls_and_drops_peers_that_do_not_answer_G1(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=64", "keepalive.time_ms=200",
                "keepalive.timeout_ms=300") as server:
        alive, dead = Pinger(server.address, True), Pinger(server.address, True)
        for _ in range(10):  # more than gRPC sends by default while there is no data
            payload = alive.frames_until(PING)
            assert payload is not None
            alive.answer(PING, 0, payload)
        with pytest.raises((EOFError, ConnectionError)):
            while True:  # reads, and says nothing
                dead.next_frame()
        alive.socket.close()


@pytest.mark.parametrize("setting, says", [
    ("keepalive.time_ms=99", "from 100 to 86400000"), ("keepalive.time_ms=86400001", "from 100 to 86400000"),
    ("keepalive.min_ping_interval_ms=-1", "from 0 to 86400000"),
    ("keepalive.permit_without_calls=1", "true|false"),
    ("keepalive.min_ping_interval=5", "did you mean keepalive.min_ping_interval_ms?")])
def test_keepalive_slips_end_the_start_G1(millrace_bin, model_path, setting, says):
    run = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0", "--set", setting)
    assert run.returncode == 2 and setting.split("=")[0] in run.stderr and says in run.stderr
    assert "listening on" not in run.stdout


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
