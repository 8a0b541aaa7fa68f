# SPDX-License-Identifier: Apache-2.0
"""A client that stops reading, spoken in plain HTTP/2: gRPC's own clients take megabytes ahead of their reader."""
import struct
import time

import pytest

from http2 import DATA, END_STREAM, HEADERS, INITIAL_WINDOW_SIZE, RST_STREAM, WINDOW_UPDATE, Connection, frame
from serving import CALL_S, Server, generate, greedy


class NarrowClient(Connection):
    """Opens one Generate stream on which the server may send `window` bytes and no more."""

    def __init__(self, address, asked, window):
        super().__init__(address, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))
        self.call("/millrace.v1.InferenceService/Generate", asked)

    def read_to_the_end(self):
        """(bytes of data, the last header block)"""
        taken, block = 0, b""
        while True:
            kind, flags, payload = self.next_frame()
            self.answer(kind, flags, payload)
            if kind == DATA:
                taken += len(payload)
            elif kind == HEADERS:
                block = payload
            if kind in (HEADERS, DATA) and flags & END_STREAM or kind == RST_STREAM:
                return taken, block


@pytest.fixture(scope="module")
def impatient_server(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", "slow_reader_timeout_ms=1000") as running:
        yield running


def test_slow_reader_is_ended_and_nobody_else_notices_S8(impatient_server):
    window = 200
    client = NarrowClient(impatient_server.address, greedy(1000, text="The river ran"), window)
    alone = generate(impatient_server.stub, greedy(40, text="Meanwhile")).ids
    taken, trailers = client.read_to_the_end()
    assert taken <= window
    assert b"grpc-status\x018" in trailers, "RESOURCE_EXHAUSTED is 8"
    assert b"slow" in trailers
    assert generate(impatient_server.stub, greedy(40, text="Meanwhile")).ids == alone


def test_narrow_reader_that_reads_gets_everything(impatient_server):
    """Backpressure alone loses nothing: many tokens wait, and come packed."""
    class Reader(NarrowClient):
        def next_frame(self):
            kind, flags, payload = super().next_frame()
            if kind == DATA and payload:
                time.sleep(0.05)
                update = struct.pack(">I", len(payload))
                self.socket.sendall(frame(WINDOW_UPDATE, 0, 1, update) + frame(WINDOW_UPDATE, 0, 0, update))
            return kind, flags, payload

    client = Reader(impatient_server.address, greedy(60, text="The river ran"), 100)
    taken, trailers = client.read_to_the_end()
    assert b"grpc-status\x010" in trailers
    assert taken > 60 * 4


def test_usage_line_of_a_request_that_ended_before_it_was_read(impatient_server):
    """Its last events wait behind a message that the client has not taken: it ended normally all the same."""
    client = NarrowClient(impatient_server.address, greedy(40, text="The river ran", requestId="unread"), 40)
    end = time.monotonic() + CALL_S
    lines = []
    while not lines and time.monotonic() < end:
        time.sleep(0.05)
        lines = [line for line in impatient_server.log.splitlines() if 'request_id="unread"' in line]
    client.socket.close()
    assert len(lines) == 1 and "finish=length status=OK" in lines[0]
