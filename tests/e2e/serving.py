# SPDX-License-Identifier: Apache-2.0
"""A `millrace serve` process, and what tests ask of it."""
import os
import signal
import subprocess
import threading
import time

import grpc
from google.protobuf import json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stubs import pb, pb_grpc

CHANNEL_OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
START_S = 240  # of a debug build on a busy machine
CALL_S = 240


class Server:
    """Starts at once; use as a context manager, or call stop(). `metrics`: whether, or at which address."""

    def __init__(self, binary, model, *settings, listen="127.0.0.1:0", metrics=False, health=False,
                 ready=True, config=None, env=None):
        command = [str(binary), "serve", "--model", str(model), "--listen", listen]
        # Nobody has to be told to go elsewhere, but for tests that say otherwise.
        for setting in ("drain.pre_stop_ms=0", *settings):
            command += ["--set", setting]
        if config:
            command += ["--config", str(config)]
        if metrics:
            command += ["--metrics-listen", "127.0.0.1:0" if metrics is True else metrics]
        if health:
            command += ["--health-listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, **(env or {})})
        self._log = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), f"no address: {line!r}; {self.log_after_exit()}"
        self.address = line.split()[-1]
        self.metrics = self.process.stdout.readline().split()[-1] if metrics else None
        self.probes = self.process.stdout.readline().split()[-1] if health else None
        self.channel = self.new_channel()
        self.stub = pb_grpc.InferenceServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)
        if ready:
            self.wait_ready()

    def _read_log(self):
        for line in self.process.stderr:
            self._log.append(line)

    @property
    def log(self):
        return "".join(self._log)

    def log_after_exit(self):
        self.process.wait(timeout=30)
        self._reader.join(timeout=10)
        return self.log

    def new_channel(self):
        return grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS)

    def wait_ready(self):
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            assert self.process.poll() is None, f"the server did not start:\n{self.log_after_exit()}"
            try:
                status = self.health.Check(health_pb2.HealthCheckRequest(), timeout=2, wait_for_ready=True).status
            except grpc.RpcError:
                continue
            if status == health_pb2.HealthCheckResponse.SERVING:
                return
            time.sleep(0.1)
        raise AssertionError(f"the server never became ready:\n{self.log}")

    def terminate(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=90):
        code = self.process.wait(timeout=timeout)
        self._reader.join(timeout=10)
        return code

    def stop(self):
        """Ends the server; its exit status."""
        if self.process.poll() is None:
            self.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.channel.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def request(fields):
    """A GenerateRequest from its JSON form."""
    return json_format.ParseDict(fields, pb.GenerateRequest())


def greedy(max_tokens=16, **fields):
    """A greedy request; ends early only where told so."""
    asked = {"sampling": {"temperature": 0}, "stopping": {"maxTokens": max_tokens, "ignoreEos": True}}
    asked.update(fields)
    return request(asked)


class Answer:
    """A stream put together."""

    def __init__(self, messages):
        self.messages = list(messages)
        chunks = [chunk for message in self.messages for chunk in message.chunks]
        self.chunks = chunks
        self.text = "".join(chunk.text for chunk in chunks)
        self.tokens = [token for chunk in chunks for token in chunk.tokens]
        self.ids = [token.id for token in self.tokens]
        self.finish = chunks[-1].finish_reason if chunks else None
        self.prompt = [token for message in self.messages for token in message.prompt]
        self.usage = self.messages[-1].usage if self.messages else None
        self.seed = chunks[0].seed if chunks else None


class Choice:
    """One choice of an answer."""

    def __init__(self, answer, index):
        chunks = [chunk for chunk in answer.chunks if chunk.index == index]
        self.chunks = chunks
        self.text = "".join(chunk.text for chunk in chunks)
        self.tokens = [token for chunk in chunks for token in chunk.tokens]
        self.ids = [token.id for token in self.tokens]
        finishes = [chunk.finish_reason for chunk in chunks if chunk.finish_reason]
        assert len(finishes) == 1 and chunks[-1].finish_reason == finishes[0], f"choice {index} ends {finishes}"
        self.finish = finishes[0]
        self.last = chunks[-1]


def choices(answer):
    return [Choice(answer, index) for index in sorted({chunk.index for chunk in answer.chunks})]


def unary(stub, asked, timeout=CALL_S):
    return Answer([stub.GenerateUnary(pb.GenerateUnaryRequest(request=asked), timeout=timeout).response])


def generate(stub, asked, timeout=CALL_S):
    return Answer(stub.Generate(asked, timeout=timeout))


def failure(call, asked, timeout=CALL_S):
    """The error of a call that must fail; streams are read to their end."""
    try:
        answer = call(asked, timeout=timeout)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"succeeded: {asked}")


def check_retry(error):
    """A retry time, as trailer and in the rich error model, and equal."""
    trailers = dict(error.trailing_metadata())
    wait_ms = int(trailers["retry-after-ms"])
    rich = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    info = error_details_pb2.RetryInfo()
    assert rich.details[0].Unpack(info)
    assert info.retry_delay.ToMilliseconds() == wait_ms > 0
    assert rich.code == error.code().value[0] and rich.message == error.details()
