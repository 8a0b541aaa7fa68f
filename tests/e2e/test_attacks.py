# SPDX-License-Identifier: Apache-2.0
"""Callers that mean ill cost a bounded amount of memory, are thrown out, and spoil nobody else's stream."""
import contextlib
import os
import queue
import resource
import socket
import struct
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import attacks
import commands
from attacks import THROWN_OUT, Attacker, Peak, headers
from http2 import DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, RST_STREAM, SETTINGS, frame, literal
from keys import bearer, digest
from serving import CALL_S, Answer, Server, check_retry, generate, greedy
from stubs import pb, pb_grpc

MEMORY = 256 << 20  # what an attack may cost: without caps it is gigabytes
CALLS = 100
CONNECTIONS = 24
HANDSHAKE_MS = 1500
REQUEST_MS = 1500
ASKED = greedy(120, text="The river ran")
OTHER = greedy(40, text="Meanwhile")
WAIT_S = 60


@pytest.fixture(scope="module")
def guarded(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", f"limits.connection_calls={CALLS}",
                f"limits.connections={CONNECTIONS}", f"limits.handshake_timeout_ms={HANDSHAKE_MS}",
                f"limits.request_timeout_ms={REQUEST_MS}", "limits.calls=1000", "slow_reader_timeout_ms=1000",
                "limits.penalty_ms=0") as running:
        running.reference = [generate(running.stub, asked).ids for asked in (ASKED, OTHER)]
        yield running


@contextlib.contextmanager
def unharmed(server):
    """A stream that is there before and others that come during the attack get their tokens, and memory stays."""
    first, rest = queue.Queue(), []

    def read():
        for message in server.stub.Generate(ASKED, timeout=CALL_S):
            rest.append(message)
            first.put(None)

    reader = threading.Thread(target=read)
    reader.start()
    first.get(timeout=CALL_S)
    with Peak(server.process.pid) as peak:
        yield
        assert generate(server.stub, OTHER).ids == server.reference[1]
    reader.join()
    assert Answer(rest).ids == server.reference[0]
    assert peak.growth < MEMORY
    assert server.process.poll() is None


def wait_for(what, message):
    end = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < end, message
        time.sleep(0.05)


def test_rapid_reset_ends_the_connection(guarded):
    with unharmed(guarded):
        most = 1_000_000
        assert attacks.rapid_reset(guarded.address, most) < most
    wait_for(lambda: "gives up or is refused too many calls" in guarded.log, guarded.log)


def test_a_few_cancelled_calls_are_no_attack(guarded):
    """As many in ten seconds as there may be calls at a time."""
    with guarded.new_channel() as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        for _ in range(CALLS - 10):
            stub.Generate(greedy(500, text="a"), timeout=CALL_S).cancel()
        assert generate(stub, OTHER).ids == guarded.reference[1]


@pytest.mark.parametrize("attack", [attacks.ping_flood, attacks.settings_flood, attacks.window_flood],
                         ids=["ping", "settings", "window_update"])
def test_floods_of_frames_end_the_connection(guarded, attack):
    with unharmed(guarded):
        most = 200_000_000
        assert attack(guarded.address, most) < most


def test_floods_between_calls_that_bring_nothing_end_the_connection(millrace_bin, model_path):
    """Only what came whole earns anything, and of what was given up there is a bounded budget."""
    with Server(millrace_bin, model_path, "max_seq_length=1024", "limits.penalty_ms=0") as server:
        most = 1 << 30  # found out after 144 MiB, and 8 more a second
        assert attacks.flood_between_calls(server.address, most) < most
        wait_for(lambda: "far more than its calls need" in server.log, server.log)
        assert generate(server.stub, OTHER).ids


def test_continuation_flood_ends_the_connection(guarded):
    """CVE-2023-33953: gRPC would keep all of it, and copy it anew for every frame."""
    with unharmed(guarded):
        assert attacks.continuation_flood(guarded.address, 200 << 20) < 100 << 20


def test_headers_that_drip_hold_no_place_that_others_need(guarded):
    """A header block that never ends is no call: nothing waits for it, and its connection gives way."""
    with unharmed(guarded):
        drips = [Attacker(guarded.address) for _ in range(CONNECTIONS)]
        begun = headers(guarded.address) + b"\0\x01a" + attacks.integer(7, 100000)
        for one in drips:
            with contextlib.suppress(*THROWN_OUT):
                one.socket.sendall(frame(HEADERS, 0, 1, begun))
        for _ in range(20):
            for one in drips:
                with contextlib.suppress(*THROWN_OUT):
                    one.socket.sendall(frame(attacks.CONTINUATION, 0, 1, b"x"))
            time.sleep(0.05)
        assert sum(not one.over.is_set() for one in drips) < CONNECTIONS
        with guarded.new_channel() as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), OTHER).ids == guarded.reference[1]
        for one in drips:
            one.close()


def test_requests_that_drip_end_the_call(guarded):
    with unharmed(guarded):
        took, block = attacks.body_drip(guarded.address, threading.Event())
    assert b"grpc-status\x014" in block, "DEADLINE_EXCEEDED is 4"
    assert took >= REQUEST_MS / 1000


def test_half_open_connections_are_closed(guarded):
    host, port = guarded.address.rsplit(":", 1)
    with unharmed(guarded):
        silent = [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(8)]
        for half in silent[4:]:
            half.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")  # and no SETTINGS
        for one in silent:
            with contextlib.suppress(ConnectionError):
                while one.recv(4096):
                    pass  # the server's own SETTINGS
            one.close()


def quiet_connections(address, count):
    host, port = address.rsplit(":", 1)
    return [socket.create_connection((host, int(port)), timeout=WAIT_S) for _ in range(count)]


def closed(one):
    one.settimeout(0)
    try:
        while True:
            if not one.recv(4096):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_connections_are_capped_and_those_without_calls_give_way(guarded):
    with unharmed(guarded):
        many = quiet_connections(guarded.address, 4 * CONNECTIONS)
        wait_for(lambda: sum(not closed(one) for one in many) <= CONNECTIONS, "more than limits.connections are open")
        # Somebody with a call to make gets in, whoever is there.
        with guarded.new_channel() as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), OTHER).ids == guarded.reference[1]
        for one in many:
            one.close()
    wait_for(lambda: "makes room for another" in guarded.log, guarded.log)


def test_connections_with_calls_stay_and_more_are_refused(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", "limits.connections=4", "limits.penalty_ms=0") as server:
        # One that has only asked for the health would give way.
        assert generate(server.stub, greedy(4, text="a")).ids
        channels = [grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(3)]
        for channel in channels:
            assert generate(pb_grpc.InferenceServiceStub(channel), greedy(4, text="a")).ids
        refused = Attacker(server.address)
        assert refused.over.wait(WAIT_S)
        wait_for(lambda: "limits.connections already" in server.log, server.log)
        assert generate(server.stub, greedy(4, text="a")).ids
        channels.pop().close()

        def let_in():
            with contextlib.suppress(*THROWN_OUT):
                attacker = Attacker(server.address)
                if not attacker.over.wait(0.3):
                    attacker.close()
                    return True
            return False

        wait_for(let_in, "no place after one had left")
        for channel in channels:
            channel.close()


def test_connections_that_only_watch_the_health_give_way(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", "limits.connections=4", "limits.penalty_ms=0") as server:
        channels = [grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(4)]
        for channel in channels:
            with contextlib.suppress(grpc.RpcError):
                next(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
        with server.new_channel() as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), greedy(4, text="a")).ids
        for channel in channels:
            channel.close()


def hold(channel):
    """A call that stays: a reflection stream of which nothing more comes."""
    asked = queue.Queue()
    asked.put(reflection_pb2.ServerReflectionRequest(list_services=""))
    call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter(asked.get, None))
    next(call)
    return call


def test_calls_beyond_the_cap_are_refused_though_the_settings_are_never_acknowledged(guarded):
    """gRPC minds its own cap only once the client says that it knows it."""
    with unharmed(guarded):
        attacker = Attacker(guarded.address)
        with contextlib.suppress(*THROWN_OUT):
            for _ in range(1000):
                attacker.open(10)
                if attacker.over.wait(0.002):
                    break
        assert attacker.over.wait(WAIT_S), "it keeps ten thousand calls open"
        assert b"grpc-status\x018" in attacker.received, "RESOURCE_EXHAUSTED is 8"
        attacker.close()


def test_calls_of_all_connections_are_capped(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", "limits.calls=6") as server:
        request = health_pb2.HealthCheckRequest()
        channels = [grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(2)]
        held = [hold(channel) for channel in channels for _ in range(3)]
        with pytest.raises(grpc.RpcError) as caught:
            generate(server.stub, greedy(4, text="a"))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "limits.calls" in caught.value.details()
        check_retry(caught.value)
        # Health has places of its own.
        assert server.health.Check(request).status == health_pb2.HealthCheckResponse.SERVING
        held[0].cancel()

        def fits():
            with contextlib.suppress(grpc.RpcError):
                return bool(generate(server.stub, greedy(4, text="a")).ids)
            return False

        wait_for(fits, "no room after a call had ended")
        for channel in channels:
            channel.close()


def frames_of(client, wanted):
    """Flags and payload of the next such frame."""
    while True:
        kind, flags, payload = client.next_frame()
        client.answer(kind, flags, payload)
        if kind == wanted:
            return flags, payload


@pytest.mark.parametrize("acknowledges", [True, False])
def test_huge_headers_are_refused(guarded, acknowledges):
    with unharmed(guarded):
        client = Attacker(guarded.address, reads=False)
        if acknowledges:
            frames_of(client, SETTINGS)
        more = [(f"x-{i}", "y" * 100) for i in range(150)]
        client.socket.sendall(frame(HEADERS, END_HEADERS, 1, headers(guarded.address, more=more)))
        with contextlib.suppress(EOFError, ConnectionError):
            flags, block = frames_of(client, HEADERS)
            assert flags & END_STREAM and b"grpc-status\x018" in block
        client.close()


ODD_HEADERS = {"te": (("te", "trailers"), ("te", "x")), "scheme": ((":scheme", "http"), (":scheme", "x")),
               "client_stats": (None, ("grpclb_client_stats", "x")), "binary": (None, ("x-bin", "!!! no base64 !!!"))}


@pytest.mark.parametrize("name", ODD_HEADERS)
def test_headers_that_upset_grpc_hurt_their_own_connection_at_most(guarded, name):
    """CVE-2023-1428: the first three made gRPC abort; CVE-2023-32732: the last ends a connection."""
    old, new = ODD_HEADERS[name]
    block = headers(guarded.address)
    block = block.replace(literal(*old), literal(*new)) if old else block + literal(*new)
    with unharmed(guarded):
        client = Attacker(guarded.address)
        client.socket.sendall(frame(HEADERS, END_HEADERS | END_STREAM, 1, block))
        wait_for(lambda: b"grpc-status" in client.received or client.over.is_set(), "no answer")
        client.close()


def test_readers_that_take_no_answer_are_ended(guarded):
    """Windows of zero: the answers of a hundred calls wait in the server, and no longer than it likes."""
    with unharmed(guarded):
        client = Attacker(guarded.address, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0), reads=False)
        streams = range(1, 2 * 80, 2)
        for stream in streams:
            client.socket.sendall(frame(HEADERS, END_HEADERS, stream, headers(guarded.address, attacks.GET_MODEL))
                                  + frame(DATA, END_STREAM, stream, b"\0\0\0\0\0"))
        ended = 0
        while ended < len(streams):
            kind, flags, payload = client.next_frame()
            client.answer(kind, flags, payload)
            assert kind != DATA or not payload
            ended += kind == RST_STREAM or kind == HEADERS and bool(flags & END_STREAM)
        client.close()


def test_the_server_outlives_a_lack_of_file_descriptors(millrace_bin, model_path):
    """CVE-2023-4785: gRPC would never accept again."""
    with Server(millrace_bin, model_path, "max_seq_length=256") as server:
        open_now = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (open_now + 8, hard))
        many = quiet_connections(server.address, 40)
        wait_for(lambda: "no file descriptor left" in server.log, server.log)
        for one in many:
            one.close()
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with grpc.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), greedy(4, text="a")).ids


def test_large_requests_are_no_flood(guarded):
    """Ten megabytes of a prompt that is too long: refused for what they say, and the connection stays."""
    ids = [65] * 3_000_000
    before = guarded.log.count("far more than its calls need")
    with grpc.insecure_channel(guarded.address, options=[("grpc.max_send_message_length", -1)]) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                generate(stub, greedy(4, tokens={"ids": ids}))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT, caught.value.details()
        assert generate(stub, OTHER).ids == guarded.reference[1]
    assert guarded.log.count("far more than its calls need") == before


class Line:
    """Between a client and the server, for one connection: it can stall, and go on."""

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.server = socket.create_connection((host, int(port)), timeout=WAIT_S)
        self.passed, self.most = 0, 0
        self.goes_on = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def stall_after(self, count):
        self.goes_on.clear()
        self.most = self.passed + count

    def _run(self):
        self.client, _ = self.listener.accept()
        threading.Thread(target=self._back, daemon=True).start()
        with contextlib.suppress(*THROWN_OUT):
            while part := self.client.recv(attacks.CHUNK):
                if self.passed >= self.most:
                    self.goes_on.wait()
                self.server.sendall(part)
                self.passed += len(part)

    def _back(self):
        with contextlib.suppress(*THROWN_OUT):
            while part := self.server.recv(attacks.CHUNK):
                self.client.sendall(part)


def test_uploads_that_run_into_their_deadline_are_no_flood(guarded):
    """A line that stalls for seconds in the midst of large requests: what comes after their end is theirs too."""
    large = greedy(4, tokens={"ids": [100_000] * 3_000_000})  # three bytes each
    before = guarded.log.count("a connection is closed")
    line = Line(guarded.address)
    with grpc.insecure_channel(line.address, options=[("grpc.max_send_message_length", -1),
                                                      ("grpc.keepalive_time_ms", 600000)]) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        line.most = 1 << 40
        assert generate(stub, OTHER).ids == guarded.reference[1]
        for _ in range(2):
            line.stall_after(4 << 20)
            calls = [stub.Generate(large, timeout=2) for _ in range(2)]
            time.sleep(4)  # both are over, but a client sees no end while its socket takes nothing
            line.most = 1 << 40
            line.goes_on.set()
            for call in calls:
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED, caught.value.details()
        # The same connection: the line has only one.
        assert generate(stub, OTHER).ids == guarded.reference[1]
    assert guarded.log.count("a connection is closed") == before


def test_refused_calls_hurt_no_neighbour_on_their_connection(millrace_bin, model_path):
    """A wrong key, no such method: the messages that come in vain are not their connection's flood."""
    key = "a key of somebody on the same connection"
    tenants = f"tenants=[{{name: acme, keys: [{digest(key)}]}}]"
    with Server(millrace_bin, model_path, "max_seq_length=1024", tenants) as server:
        stream = server.stub.Generate(greedy(300, text="The river ran"), timeout=CALL_S, metadata=bearer(key))
        next(stream)
        large = greedy(1, text="x" * 200_000)
        other = server.channel.unary_unary("/millrace.v1.InferenceService/NoSuchMethod")
        for _ in range(10):
            with pytest.raises(grpc.RpcError) as caught:
                list(server.stub.Generate(large, timeout=CALL_S, metadata=bearer("wrong")))
            assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.RpcError) as caught:
                other(bytes(200_000), timeout=CALL_S, metadata=bearer(key))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert len([chunk for message in stream for chunk in message.chunks]) > 1


def test_a_health_check_beside_an_upload_is_no_flood(guarded):
    """What is on its way stays awaited, whatever else is received meanwhile."""
    client = Attacker(guarded.address, reads=False)
    frames_of(client, SETTINGS)  # its windows are for those who know of them
    part = b"\0" + struct.pack(">I", 10 << 20) + bytes(3 << 20)
    client.socket.sendall(frame(HEADERS, END_HEADERS, 1, headers(guarded.address)) + frame(DATA, 0, 1, part))
    client.socket.sendall(frame(HEADERS, END_HEADERS, 3, headers(guarded.address, "/grpc.health.v1.Health/Check"))
                          + frame(DATA, END_STREAM, 3, b"\0\0\0\0\0"))
    while not frames_of(client, HEADERS)[0] & END_STREAM:
        pass
    client.socket.settimeout(0.5)  # several looks at what was sent
    with pytest.raises(TimeoutError):
        while True:
            client.next_frame()
    client.close()


def watch(attacker):
    """A Watch of the health whose end nobody looks at."""
    stream = attacker.next_stream
    attacker.open(1, attacks.WATCH, lambda number: frame(DATA, END_STREAM, number, b"\0\0\0\0\0"))
    return stream


def test_watches_of_strangers_make_room_for_a_probe(millrace_bin, model_path):
    """All the places for health calls: the address that has the most loses its oldest."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "limits.calls=16") as server:
        strangers = [Attacker(server.address, source="127.0.0.2") for _ in range(4)]
        for one in strangers:
            for _ in range(2):
                watch(one)
        wait_for(lambda: any(b"grpc-status\x018" in one.received for one in strangers), "none lost its place")
        for _ in range(3):
            assert server.health.Check(health_pb2.HealthCheckRequest(), timeout=CALL_S).status == \
                health_pb2.HealthCheckResponse.SERVING
        watcher = server.health.Watch(health_pb2.HealthCheckRequest(), timeout=CALL_S)
        assert next(watcher).status == health_pb2.HealthCheckResponse.SERVING
        for one in strangers:
            for _ in range(8):
                watch(one)
        assert generate(server.stub, OTHER).ids
        assert watcher.is_active(), "one watch is less than what the strangers have"
        for one in strangers:
            one.close()


def can_connect(address):
    attacker = Attacker(address, reads=False)
    try:
        return bool(attacker.receive(9))
    except THROWN_OUT:
        return False
    finally:
        attacker.close()


@pytest.mark.parametrize("attack", ["floods", "connections"])
def test_addresses_that_flood_get_no_new_connection_for_a_while(millrace_bin, model_path, attack):
    with Server(millrace_bin, model_path, "max_seq_length=256", "limits.penalty_ms=3000") as server:
        assert can_connect(server.address)
        stream = server.stub.Generate(greedy(100, text="a"), timeout=CALL_S)
        if attack == "floods":
            attacks.settings_flood(server.address, 200_000_000)
        else:
            for _ in range(100):
                with contextlib.suppress(*THROWN_OUT):
                    quiet_connections(server.address, 1)[0].close()
        wait_for(lambda: not can_connect(server.address), "it is let in again at once")
        assert len(Answer(stream).ids) == 100  # connections that are there stay
        wait_for(lambda: can_connect(server.address), "it is never let in again")


@pytest.mark.parametrize("setting, says", [
    ("limits.connections=0", "from 1 to 16384"), ("limits.connection_calls=65537", "from 1 to 65536"),
    ("limits.calls=0", "from 1 to 1000000"), ("limits.handshake_timeout_ms=99", "from 100 to 600000"),
    ("limits.request_timeout_ms=99", "from 100 to 3600000"), ("limits.connection=5", "did you mean limits.connections?")])
def test_limits_out_of_bounds_end_the_start(millrace_bin, setting, says):
    run = commands.run(millrace_bin, "config", "--set", setting)
    assert run.returncode == 2 and says in run.stderr
