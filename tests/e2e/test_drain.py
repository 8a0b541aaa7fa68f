# SPDX-License-Identifier: Apache-2.0
"""How a server leaves: by a signal in every phase of its life, and by request. What everybody must see is the same:
each call ends with a status, a stream that ends well has all its tokens, and health tells before calls fail."""
import concurrent.futures
import json
import signal
import struct
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import http2
from keys import KeyServer, digest
from metrics import Scrape, get
from redis_process import Redis
from serving import CALL_S, Answer, Server, check_retry, failure, generate, greedy, unary
from stubs import pb, pb_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
WAIT_S = 60
AGAIN_S = 0.5  # signals that come sooner after the first are the same ask
SERVICE = "millrace.v1.InferenceService"
# Some seconds to make up; the weights are nobody's.
LARGE = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 8,
         "num_attention_heads": 16, "num_key_value_heads": 4, "vocab_size": 512, "max_position_embeddings": 512,
         "torch_dtype": "bfloat16"}


class Watcher:
    """What a grpc.health.v1 Watch sees, and what it ends with."""

    def __init__(self, server, service=SERVICE):
        self.seen = []
        self.code = None
        self._changed = threading.Condition()
        self._call = server.health.Watch(health_pb2.HealthCheckRequest(service=service), wait_for_ready=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for message in self._call:
                with self._changed:
                    self.seen.append(message.status)
                    self._changed.notify_all()
        except grpc.RpcError as error:
            self.code = error.code()

    def wait_for(self, status):
        with self._changed:
            assert self._changed.wait_for(lambda: self.seen and self.seen[-1] == status, WAIT_S), self.seen

    def ended(self):
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), self.seen
        return self.code

    def cancel(self):
        self._call.cancel()


class Stream:
    """A stream that is read by a thread of its own from its begin on."""

    def __init__(self, server, asked):
        self.call = server.stub.Generate(asked, timeout=CALL_S)
        self.messages = []
        self.error = None
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            for message in self.call:
                self.messages.append(message)
                self._began.set()
        except grpc.RpcError as error:
            self.error = error
        self._began.set()

    def wait_begun(self):
        assert self._began.wait(CALL_S)
        assert self.error is None, self.error
        return self

    def join(self):
        self._thread.join(CALL_S)
        assert not self._thread.is_alive()
        return self

    @property
    def answer(self):
        return Answer(self.messages)


def story(index, max_tokens):
    """Its tokens are the same wherever it runs: seeded, at a temperature."""
    return greedy(max_tokens, text=f"Story {index}:", sampling={"temperature": 0.8, "seed": index})


def check_cut_off(error):
    assert error is not None and error.code() == UNAVAILABLE
    assert "drains" in error.details()
    check_retry(error)


def wait_until(holds, what):
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture
def slow_model(tmp_path):
    """A model that takes seconds to load."""
    (tmp_path / "config.json").write_text(json.dumps(LARGE))
    return tmp_path


def load(server):
    return pb_grpc.AdminServiceStub(server.channel).GetLoad(pb.GetLoadRequest()).load


def test_sigterm_while_loading_H2_H3(millrace_bin, slow_model):
    """It is alive and not ready, refuses with a retry time, and leaves without waiting for the model or the window."""
    with Server(millrace_bin, slow_model, "load_format=random", "max_seq_length=64", "drain.pre_stop_ms=600000",
                ready=False, metrics=True) as server:
        watcher = Watcher(server)
        watcher.wait_for(NOT_SERVING)
        error = failure(server.stub.Generate, greedy(1, tokens={"ids": [5]}))
        assert error.code() == UNAVAILABLE and "loading" in error.details()
        check_retry(error)
        assert get(server.metrics, "/livez")[0] == 200 and get(server.metrics, "/readyz")[0] == 503
        server.terminate()
        assert watcher.ended() == UNAVAILABLE and watcher.seen == [NOT_SERVING]
        assert server.wait() == 0
        assert 'msg="ready"' not in server.log and "finished=0 cut_off=0" in server.log


def test_sigterm_while_idle_H3(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=512", "drain.pre_stop_ms=300") as server:
        watchers = [Watcher(server, name) for name in ("", SERVICE)]
        for watcher in watchers:
            watcher.wait_for(SERVING)
        server.terminate()
        for watcher in watchers:
            assert watcher.ended() == UNAVAILABLE and watcher.seen == [SERVING, NOT_SERVING]
        assert server.wait() == 0
        assert 'msg="draining" by=signal pre_stop_ms=300 timeout_ms=30000' in server.log
        assert "finished=0 cut_off=0" in server.log


def test_sigterm_while_streaming_H3(millrace_bin, model_path):
    """Streams and unary calls end well, with all their tokens."""
    asked = [story(index, 60 + 20 * index) for index in range(4)]
    with Server(millrace_bin, model_path, "max_seq_length=512", "drain.pre_stop_ms=100",
                "drain.timeout_ms=240000") as server:
        expected = [generate(server.stub, one).ids for one in asked]
        watcher = Watcher(server)
        streams = [Stream(server, one) for one in asked]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            whole = pool.submit(unary, server.stub, asked[0])
            for stream in streams:
                stream.wait_begun()
            server.terminate()
            watcher.wait_for(NOT_SERVING)
            for stream, ids in zip(streams, expected):
                assert stream.join().error is None and stream.call.code() == grpc.StatusCode.OK
                assert stream.answer.ids == ids and stream.answer.usage.completion_tokens == len(ids)
                assert stream.answer.finish == pb.FINISH_REASON_LENGTH
            assert whole.result().ids == expected[0]
        assert watcher.ended() == UNAVAILABLE
        assert server.wait() == 0
        assert "cut_off=0" in server.log and "cut off" not in server.log


def test_calls_during_the_window_are_served_and_then_refused_H3(millrace_bin, model_path):
    """On connections old and new. No call fails before health says NOT_SERVING, nor for a while after."""
    asked = story(1, 8)
    with Server(millrace_bin, model_path, "max_seq_length=512", "drain.pre_stop_ms=8000", metrics=True) as server:
        expected = generate(server.stub, asked).ids
        watcher = Watcher(server)
        watcher.wait_for(SERVING)
        server.terminate()
        watcher.wait_for(NOT_SERVING)
        status, _, reason = get(server.metrics, "/readyz")
        assert status == 503 and "shutting down" in reason
        assert get(server.metrics, "/livez")[0] == 200
        assert generate(server.stub, asked).ids == expected
        with server.new_channel() as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), asked).ids == expected
            check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert check.status == NOT_SERVING
        scrape = Scrape(server.metrics)
        assert scrape.value("millrace_draining") == 1 and scrape.value("millrace_ready") == 0
        assert scrape.value("millrace_drains_total", by="signal") == 1
        assert scrape.value("millrace_drained_requests_total", how="finished") == 2
        assert watcher.code is None, "the watch goes on while requests are served"
        served, error = 0, None
        while error is None:
            try:
                assert generate(server.stub, asked).ids == expected
                served += 1
            except grpc.RpcError as refused:
                error = refused
        assert served > 0 and error.code() == UNAVAILABLE
        assert watcher.ended() == UNAVAILABLE and watcher.seen == [SERVING, NOT_SERVING]
        assert server.wait() == 0


def test_connections_are_told_while_streams_go_on_H3(millrace_bin, model_path):
    """GOAWAY without an error comes long before the stream's end, and takes nothing from it: grpc-status 0 last."""
    with Server(millrace_bin, model_path, "max_seq_length=1024", "drain.timeout_ms=240000") as server:
        connection = http2.Connection(server.address)
        connection.call("/millrace.v1.InferenceService/Generate", greedy(600, text="The river ran"))
        order, data = [], b""
        while not order or order[-1] != "end":
            kind, flags, payload = connection.next_frame()
            connection.answer(kind, flags, payload)
            if kind == http2.DATA:
                if not data:
                    server.terminate()
                data += payload
                order.append("data")
            elif kind == http2.GOAWAY:
                assert struct.unpack(">I", payload[4:8])[0] == 0
                order.append("goaway")
            elif kind == http2.HEADERS and flags & http2.END_STREAM:
                order.append("end")
        assert order.count("goaway") == 2  # the first asks to call no more, the second names the last call
        assert order[order.index("goaway"):].count("data") > 1
        tokens = 0
        while data:
            size = struct.unpack(">I", data[1:5])[0]
            message = pb.GenerateResponse.FromString(data[5:5 + size])
            tokens += sum(len(chunk.tokens) for chunk in message.chunks)
            data = data[5 + size:]
        assert tokens == 600
        assert server.wait() == 0


def fill(server, max_tokens):
    """One stream runs, four wait, which is all that may."""
    streams = [Stream(server, story(0, max_tokens)).wait_begun()]
    streams += [Stream(server, story(index, max_tokens)) for index in range(1, 5)]
    wait_until(lambda: load(server).waiting == 4, "four wait")
    error = failure(server.stub.Generate, story(9, 1))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    check_retry(error)
    return streams


FULL = ("max_batch_size=1", "max_queue_requests=4", "admin.enable=true")


def test_connections_that_answer_nothing_do_not_hold_up_the_end_H3(millrace_bin, model_path):
    """They have no call, whatever gRPC waits for; those with one have the whole time."""
    with Server(millrace_bin, model_path, "max_seq_length=2048", "drain.timeout_ms=600000") as server:
        silent = [http2.Connection(server.address) for _ in range(3)]
        for one in silent:
            one.next_frame()  # it is there
        stream = Stream(server, story(1, 400)).wait_begun()
        server.terminate()
        assert len(stream.join().answer.ids) == 400 and stream.error is None
        assert server.wait() == 0
        assert "a connection without calls is closed" in server.log
        for one in silent:
            one.socket.close()


def test_sigterm_with_a_full_queue_H3(millrace_bin, model_path):
    """Who waits gets its turn, if there is time."""
    with Server(millrace_bin, model_path, *FULL, "max_seq_length=512", "drain.timeout_ms=240000") as server:
        expected = [generate(server.stub, story(index, 100)).ids for index in range(5)]
        watcher = Watcher(server)
        streams = fill(server, 100)
        server.terminate()
        watcher.wait_for(NOT_SERVING)
        for stream, ids in zip(streams, expected):
            assert stream.join().error is None and stream.answer.ids == ids
        assert watcher.ended() == UNAVAILABLE and server.wait() == 0
        assert "finished=5 cut_off=0" in server.log


def test_sigterm_with_a_full_queue_and_no_time_H3(millrace_bin, model_path):
    """Each ends with a status that says why: the one that runs after its last token, the others without any."""
    with Server(millrace_bin, model_path, *FULL, "max_seq_length=8192", "drain.timeout_ms=400") as server:
        watcher = Watcher(server)
        streams = fill(server, 8000)
        server.terminate()
        for stream in streams:
            check_cut_off(stream.join().error)
        answer = streams[0].answer
        assert answer.finish == pb.FINISH_REASON_CANCELLED and len(answer.ids) == answer.usage.completion_tokens > 0
        assert [stream.messages for stream in streams[1:]] == [[]] * 4
        assert watcher.ended() == UNAVAILABLE and watcher.seen == [SERVING, NOT_SERVING]
        assert server.wait() == 0
        assert "finished=0 cut_off=5" in server.log and "streams are cut off" in server.log


@pytest.mark.parametrize("mode", ["open", "closed"])
def test_sigterm_while_redis_is_down_E3_H3(millrace_bin, model_path, mode):
    """What runs ends well; what comes in the window is decided as redis.on_failure says; nothing waits for Redis."""
    key = "key-of-acme"
    asked = story(1, 150)
    tenants = f"tenants=[{{name: acme, keys: [{digest(key)}], requests_per_s: 1000, max_concurrent: 20}}]"
    with Redis() as redis:
        with KeyServer(key, millrace_bin, model_path, "max_seq_length=512", f"redis.url={redis.url}",
                       f"redis.on_failure={mode}", tenants, "drain.pre_stop_ms=5000", metrics=True) as server:
            expected = generate(server.stub, asked).ids
            wait_until(lambda: Scrape(server.metrics).value("millrace_redis_available") == 1, "Redis is asked")
            watcher = Watcher(server)
            streams = [Stream(server, asked).wait_begun() for _ in range(3)]
            redis.kill()
            wait_until(lambda: Scrape(server.metrics).value("millrace_redis_available") == 0, "Redis is missed")
            server.terminate()
            watcher.wait_for(NOT_SERVING)
            if mode == "open":
                assert len(generate(server.stub, story(2, 4)).ids) == 4
            else:
                error = failure(server.stub.Generate, story(2, 4))
                assert error.code() == UNAVAILABLE and "Redis" in error.details()
                check_retry(error)
            for stream in streams:
                assert stream.join().error is None and stream.answer.ids == expected
            assert watcher.ended() == UNAVAILABLE and server.wait() == 0
            assert "cut_off=0" in server.log


@pytest.mark.parametrize("window_ms", [600000, 0], ids=["in the window", "after it"])
@pytest.mark.parametrize("second, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"])
def test_a_second_signal_ends_all_at_once_H3(millrace_bin, model_path, window_ms, second, code):
    """With a status, for what runs and what waits, however much time the drain would have had."""
    with Server(millrace_bin, model_path, *FULL, "max_seq_length=8192", f"drain.pre_stop_ms={window_ms}",
                "drain.timeout_ms=600000") as server:
        expected = generate(server.stub, story(0, 200)).ids
        watcher = Watcher(server)
        streams = fill(server, 8000)
        server.terminate()
        watcher.wait_for(NOT_SERVING)
        if window_ms == 0:
            wait_until(lambda: "new requests are refused" in server.log, "new requests are refused")
        assert not any(stream.error for stream in streams)
        time.sleep(AGAIN_S)
        server.terminate(second)
        for stream in streams:
            check_cut_off(stream.join().error)
        ids = streams[0].answer.ids[:200]
        assert ids == expected[:len(ids)]
        assert watcher.ended() == UNAVAILABLE and watcher.seen == [SERVING, NOT_SERVING]
        assert server.wait(timeout=30) == code
        assert "cut_off=5" in server.log


def test_a_second_signal_gives_its_status_behind_what_is_on_its_way_H3(millrace_bin, model_path):
    """A message that the client takes late, as on a busy machine: the status that follows is whole, not gRPC's own."""
    with Server(millrace_bin, model_path, "max_seq_length=2048", "drain.timeout_ms=600000") as server:
        client = http2.Connection(server.address, struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0))
        client.call(f"/{SERVICE}/Generate", story(1, 2000))

        def next_of(*kinds):
            while True:
                kind, flags, payload = client.next_frame()
                client.answer(kind, flags, payload)
                if kind in kinds:
                    return kind, flags, payload

        next_of(http2.HEADERS)
        server.terminate()
        time.sleep(AGAIN_S)
        server.terminate()
        wait_until(lambda: "streams are cut off" in server.log, "streams are cut off")
        client.socket.sendall(http2.frame(http2.WINDOW_UPDATE, 0, 1, struct.pack(">I", 1 << 20)))
        seen = [next_of(http2.DATA, http2.HEADERS)]
        while not seen[-1][1] & http2.END_STREAM:
            seen.append(next_of(http2.DATA, http2.HEADERS, http2.RST_STREAM))
        assert seen[0][0] == http2.DATA
        assert seen[-1][0] == http2.HEADERS and b"grpc-status\x0214" in seen[-1][2] and b"retry-after-ms" in seen[-1][2]
        assert server.wait() == 143
        client.socket.close()


def test_a_second_signal_waits_for_nobody_who_takes_nothing_H3(millrace_bin, model_path):
    """The end of the connection has to do, since gRPC drops a status that would overtake a message then."""
    with Server(millrace_bin, model_path, "max_seq_length=2048", "drain.timeout_ms=600000") as server:
        client = http2.Connection(server.address, struct.pack(">HI", http2.INITIAL_WINDOW_SIZE, 0))
        client.call(f"/{SERVICE}/Generate", story(1, 2000))
        server.terminate()
        time.sleep(AGAIN_S)
        server.terminate()
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                kind, flags, payload = client.next_frame()
                client.answer(kind, flags, payload)
                assert kind != http2.DATA or not payload
        assert server.wait() == 143
        client.socket.close()


def test_signals_that_come_together_are_one_H3(millrace_bin, model_path):
    """As from `timeout`, which signals a process and then its group."""
    with Server(millrace_bin, model_path, "max_seq_length=512", "drain.timeout_ms=240000") as server:
        expected = generate(server.stub, story(1, 200)).ids
        stream = Stream(server, story(1, 200)).wait_begun()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            server.terminate(number)
        assert stream.join().error is None and stream.answer.ids == expected
        assert server.wait() == 0


def test_a_second_signal_does_not_wait_for_a_long_step_H3(millrace_bin, model_path):
    """The status comes while the step of a long prompt still runs."""
    with Server(millrace_bin, model_path, "max_seq_length=8192", "max_batch_tokens=8192", "max_batch_size=2",
                "drain.timeout_ms=600000", metrics=True) as server:
        stream = Stream(server, greedy(8, tokens={"ids": [100 + index % 900 for index in range(5000)]}))
        wait_until(lambda: Scrape(server.metrics).value("millrace_engine_running_step_seconds") > 0, "a step runs")
        watcher = Watcher(server)
        server.terminate()
        watcher.wait_for(NOT_SERVING)
        time.sleep(AGAIN_S)
        server.terminate()
        check_cut_off(stream.join().error)
        assert stream.messages == []
        assert server.wait() == 143
        drained, ended = server.log.find('msg="drained" finished=0 cut_off=1'), server.log.find('module=request msg="finished"')
        assert drained >= 0 and (ended < 0 or ended > drained), "the engine's end of the request was waited for"


def test_drain_by_request_H3(millrace_bin, model_path):
    """The server is out of service, tells so, and waits for its signal; the call answers once nothing runs."""
    with Server(millrace_bin, model_path, "max_seq_length=1024", "admin.enable=true", "drain.pre_stop_ms=500",
                metrics=True) as server:
        asked = [story(index, 200) for index in range(3)]
        expected = [generate(server.stub, one).ids for one in asked]
        admin = pb_grpc.AdminServiceStub(server.channel)
        watcher = Watcher(server)
        streams = [Stream(server, one).wait_begun() for one in asked]
        drain = admin.Drain.future(pb.DrainRequest(timeout_ms=240000))
        watcher.wait_for(NOT_SERVING)
        assert load(server).draining
        assert admin.Drain.future(pb.DrainRequest(timeout_ms=240000)).cancel()  # which stops nothing
        assert drain.result(timeout=CALL_S) == pb.DrainResponse()
        for stream, ids in zip(streams, expected):
            assert stream.join().error is None and stream.answer.ids == ids

        error = failure(server.stub.Generate, story(1, 1))
        assert error.code() == UNAVAILABLE and "draining" in error.details()
        check_retry(error)
        assert admin.Drain(pb.DrainRequest()) == pb.DrainResponse()
        assert watcher.code is None and watcher.seen == [SERVING, NOT_SERVING]
        assert get(server.metrics, "/livez")[0] == 200 and get(server.metrics, "/readyz")[0] == 503
        scrape = Scrape(server.metrics)
        assert scrape.value("millrace_drains_total", by="request") >= 2
        assert scrape.value("millrace_drained_requests_total", how="finished") == 3
        assert scrape.value("millrace_drained_requests_total", how="cut_off") == 0
        server.terminate()
        assert watcher.ended() == UNAVAILABLE and server.wait() == 0


def test_drain_by_request_has_a_timeout_and_a_later_one_may_be_shorter_H3(millrace_bin, model_path):
    with Server(millrace_bin, model_path, *FULL, "max_seq_length=8192", metrics=True) as server:
        admin = pb_grpc.AdminServiceStub(server.channel)
        streams = fill(server, 8000)
        first = admin.Drain.future(pb.DrainRequest(timeout_ms=4294967295))
        wait_until(lambda: load(server).draining, "it drains")
        assert admin.Drain(pb.DrainRequest(timeout_ms=300), timeout=CALL_S) == pb.DrainResponse()
        assert first.result(timeout=CALL_S) == pb.DrainResponse()
        for stream in streams:
            check_cut_off(stream.join().error)
        assert Scrape(server.metrics).value("millrace_drained_requests_total", how="cut_off") == 5
        wait_until(lambda: load(server).kv_blocks_live == 0, "no block is held")
        server.terminate()
        assert server.wait() == 0


def test_signal_during_a_drain_by_request_H3(millrace_bin, model_path):
    """The process ends when what runs has ended, and the caller of Drain gets its answer."""
    with Server(millrace_bin, model_path, "max_seq_length=1024", "admin.enable=true",
                "drain.timeout_ms=240000") as server:
        expected = generate(server.stub, story(1, 200)).ids
        stream = Stream(server, story(1, 200)).wait_begun()
        drain = pb_grpc.AdminServiceStub(server.channel).Drain.future(pb.DrainRequest())
        wait_until(lambda: load(server).draining, "it drains")
        server.terminate()
        assert drain.result(timeout=CALL_S) == pb.DrainResponse()
        assert stream.join().error is None and stream.answer.ids == expected
        assert server.wait() == 0


def test_drain_is_off_by_default_and_none_while_loading(server, millrace_bin, slow_model):
    error = failure(pb_grpc.AdminServiceStub(server.channel).Drain, pb.DrainRequest())
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED and "admin.enable=true" in error.details()
    with Server(millrace_bin, slow_model, "load_format=random", "max_seq_length=64", "admin.enable=true",
                ready=False) as loading:
        error = failure(pb_grpc.AdminServiceStub(loading.channel).Drain, pb.DrainRequest())
        assert error.code() == UNAVAILABLE and "loading" in error.details()


def test_health_follows_an_engine_that_stalls_H1(millrace_bin, model_path):
    """A step that takes longer than stall_timeout_ms: not ready, though alive, until it is over; the stream ends well."""
    with Server(millrace_bin, model_path, "max_seq_length=8192", "max_batch_tokens=8192", "max_batch_size=2",
                "stall_timeout_ms=100", metrics=True) as server:
        watcher = Watcher(server)
        watcher.wait_for(SERVING)
        stream = Stream(server, greedy(8, tokens={"ids": [100 + index % 900 for index in range(5000)]}))
        watcher.wait_for(NOT_SERVING)
        status, _, reason = get(server.metrics, "/readyz")
        assert status == 503 and "no step" in reason
        assert get(server.metrics, "/livez")[0] == 200
        assert Scrape(server.metrics).value("millrace_stalled") == 1
        watcher.wait_for(SERVING)
        assert stream.join().error is None and len(stream.answer.ids) == 8
        assert get(server.metrics, "/readyz")[0] == 200
        assert Scrape(server.metrics).value("millrace_stalled") == 0
        assert "the engine makes no step" in server.log and "the engine goes on" in server.log
        watcher.cancel()
