# SPDX-License-Identifier: Apache-2.0
"""grpc.health.v1 through its published stubs; and what AdminService tells of the load."""
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2

from serving import CALL_S, Server, failure, generate, greedy
from stubs import pb, pb_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
PROMPT = "The river ran"
KNOWN = ["", "millrace.v1.InferenceService", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
         "grpc.reflection.v1alpha.ServerReflection"]


def asked(name):
    return health_pb2.HealthCheckRequest(service=name)


@pytest.mark.parametrize("name", KNOWN)
def test_known_services(server, name):
    assert server.health.Check(asked(name)).status == SERVING
    watch = server.health.Watch(asked(name))
    assert next(watch).status == SERVING
    watch.cancel()


@pytest.mark.parametrize("name", ["other", "millrace.v1.AdminService", "millrace.v1.InferenceService\0", "x" * 5000])
def test_unknown_services(server, name):
    error = failure(server.health.Check, asked(name))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    watch = server.health.Watch(asked(name))
    assert next(watch).status == SERVICE_UNKNOWN
    watch.cancel()


def test_watch_tells_changes_only(server):
    """It stays open and silent while nothing changes."""
    watch = server.health.Watch(asked(""), timeout=1.5)
    assert next(watch).status == SERVING
    with pytest.raises(grpc.RpcError) as caught:
        next(watch)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_many_watchers_see_loading_serving_and_draining_H2_H3(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", ready=False) as server:
        watches = [server.health.Watch(asked(name), wait_for_ready=True) for name in KNOWN for _ in range(4)]
        unknown = server.health.Watch(asked("other"), wait_for_ready=True)
        assert next(unknown).status == SERVICE_UNKNOWN
        for watch in watches:
            seen = next(watch).status
            assert seen in (SERVING, NOT_SERVING)
            if seen == NOT_SERVING:
                assert next(watch).status == SERVING
        call = server.stub.Generate(greedy(200, text=PROMPT), timeout=CALL_S)
        next(call)
        server.terminate()
        for watch in watches:
            assert next(watch).status == NOT_SERVING
            error = failure(lambda *_, open_watch=watch, **__: open_watch, None)
            assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert failure(lambda *_, **__: unknown, None).code() == grpc.StatusCode.UNAVAILABLE
        list(call)  # runs to its end all the same
        assert server.wait() == 0


def test_watchers_that_leave_are_forgotten(server):
    for _ in range(30):
        watches = [server.health.Watch(asked("")) for _ in range(10)]
        for watch in watches:
            next(watch)
        for watch in watches:
            watch.cancel()
    assert generate(server.stub, greedy(1, text=PROMPT)).ids


def test_load_is_off_by_default(server):
    admin = pb_grpc.AdminServiceStub(server.channel)
    error = failure(admin.GetLoad, pb.GetLoadRequest())
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED and "admin.enable=true" in error.details()


def test_load(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "admin.enable=true", "max_seq_length=1024", "max_batch_size=1") as server:
        admin = pb_grpc.AdminServiceStub(server.channel)
        quiet = admin.GetLoad(pb.GetLoadRequest()).load
        assert quiet.kv_blocks_total > 0
        assert quiet == pb.Load(kv_blocks_total=quiet.kv_blocks_total)
        calls = [server.stub.Generate(greedy(800, text=PROMPT), timeout=CALL_S) for _ in range(3)]
        next(calls[0])
        end = time.monotonic() + 10
        load = admin.GetLoad(pb.GetLoadRequest()).load
        while (load.running, load.waiting) != (1, 2) and time.monotonic() < end:  # the engine tells after each step
            load = admin.GetLoad(pb.GetLoadRequest()).load
        assert (load.running, load.waiting) == (1, 2)
        assert load.kv_blocks_live > 0 and load.last_step_age_ms > 0 and not load.draining
        for call in calls:
            call.cancel()
        while load.running + load.waiting + load.kv_blocks_live > 0 and time.monotonic() < end:
            load = admin.GetLoad(pb.GetLoadRequest()).load
        assert load.running + load.waiting + load.kv_blocks_live == 0
        assert server.health.Check(asked("millrace.v1.AdminService")).status == SERVING
