# SPDX-License-Identifier: Apache-2.0
"""A GPU that fails while it serves: everybody hears of it, and the process ends so that it is started again.
The GPU is the unit tests' (tests/unit/kernels/fake_module.c): every token is 0, and it fails on demand."""
import os
import shutil

import grpc
import pytest
from grpc_health.v1 import health_pb2

from serving import CALL_S, Server, failure, generate, greedy

SETTINGS = ["backend=cuda", "gpu_memory_utilization=0.2", "max_seq_length=1024", "max_batch_size=4",
            "max_batch_tokens=512"]
EXIT_DEVICE = 3


@pytest.fixture(scope="module")
def fake_gpu_bin(millrace_bin, tmp_path_factory):
    """The program with the fake GPU's module beside it."""
    folder = tmp_path_factory.mktemp("fake-gpu")
    program = folder / "millrace"
    try:
        os.link(millrace_bin, program)
    except OSError:
        shutil.copy2(millrace_bin, program)
    shutil.copy2(millrace_bin.parent / "tests/unit/kernels/libmillrace-cuda-fake.so",
                 folder / "libmillrace-cuda.so")
    return program


def test_a_gpu_that_works_serves(fake_gpu_bin, model_path):
    with Server(fake_gpu_bin, model_path, *SETTINGS) as server:
        assert generate(server.stub, greedy(20, text="The river ran")).ids == [0] * 20
        assert "backend=cuda-sm90" in server.log
        assert server.stop() == 0


@pytest.mark.parametrize("call", ["graph_launch:30", "await:600", "to_device:2000"])
def test_a_failure_ends_streams_and_process(fake_gpu_bin, model_path, call):
    """Of a replayed step, of the wait for it, of a copy. Streams end with INTERNAL and the cause."""
    with Server(fake_gpu_bin, model_path, *SETTINGS, env={"MILLRACE_FAKE_FAIL": call}) as server:
        watch = server.health.Watch(health_pb2.HealthCheckRequest(), timeout=CALL_S)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        error = None
        for _ in range(5):
            try:
                generate(server.stub, greedy(500, text="The river ran"))
            except grpc.RpcError as caught:
                error = caught
                break
        assert error is not None and error.code() == grpc.StatusCode.INTERNAL
        assert "the GPU failed while" in error.details() and "an illegal access, says the fake" in error.details()
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        late = failure(server.stub.Generate, greedy(1, text="late"))
        assert late.code() == grpc.StatusCode.UNAVAILABLE
        watch.cancel()
        assert server.wait() == EXIT_DEVICE
        assert "the device failed, every request ends" in server.log
        assert "start the server again" in server.log
