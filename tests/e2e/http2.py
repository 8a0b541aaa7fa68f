# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 spoken by hand, for what gRPC's own clients do not do."""
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
INITIAL_WINDOW_SIZE = 4
ENHANCE_YOUR_CALM = 11


def frame(kind, flags, stream, payload):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """An HPACK header that is not indexed, without Huffman coding."""
    name, value = name.encode(), value.encode()
    assert len(name) < 127 and len(value) < 127
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


class Connection:
    """One connection, with one call on stream 1 once there was call()."""

    def __init__(self, address, settings=b"", source=None):
        """`source`: the IP address that it comes from."""
        host, port = address.rsplit(":", 1)
        self.address = address
        self.socket = socket.create_connection((host, int(port)), timeout=60, source_address=source and (source, 0))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, settings))

    def call(self, path, asked):
        headers = b"".join(literal(*pair) for pair in [
            (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", self.address),
            ("te", "trailers"), ("content-type", "application/grpc")])
        message = asked.SerializeToString()
        self.socket.sendall(
            frame(HEADERS, END_HEADERS, 1, headers)
            + frame(DATA, END_STREAM, 1, b"\0" + struct.pack(">I", len(message)) + message))

    def receive(self, count):
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    def next_frame(self):
        """(kind, flags, payload)"""
        head = self.receive(9)
        return head[3], head[4], self.receive(int.from_bytes(head[:3], "big"))

    def answer(self, kind, flags, payload):
        """What a frame of the connection's own wants as its answer."""
        if kind == SETTINGS and not flags & ACK:
            self.socket.sendall(frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(frame(PING, ACK, 0, payload))
