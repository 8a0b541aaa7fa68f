# SPDX-License-Identifier: Apache-2.0
"""Model information, health, cancellation, overload and shutdown of a server."""
import concurrent.futures
import random
import re
import threading
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import commands
from metrics import Scrape
from serving import CALL_S, Server, check_retry, failure, generate, greedy
from stubs import pb, pb_grpc

PROMPT = "The river ran"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "millrace.v1.InferenceService"


def test_get_model(server):
    model = server.stub.GetModel(pb.GetModelRequest(), timeout=60).model
    assert (model.architecture, model.quantization, model.vocab_size) == ("llama", "Q4_1", 49152)
    assert model.max_seq_length == 1024
    assert list(model.eos_token_ids) == [2]
    assert 134_000_000 < model.parameters < 136_000_000
    assert model.backend.startswith("cpu") and model.version and model.chat
    assert model.kv_cache_dtype in ("bf16", "f16", "f32", "int8")
    assert model.name and not model.adapters and not model.digest


def test_health_of_known_and_unknown_services(server):
    for name in ("", SERVICE):
        assert server.health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
    error = failure(server.health.Check, health_pb2.HealthCheckRequest(service="other"))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    watch = server.health.Watch(health_pb2.HealthCheckRequest(service="other"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_health_from_loading_to_shutdown_H3(millrace_bin, model_path):
    """Watch tells every change; calls before the model is loaded are refused with a retry time."""
    with Server(millrace_bin, model_path, "max_seq_length=512", ready=False) as server:
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE), wait_for_ready=True)
        seen = [next(watch).status]
        if seen == [NOT_SERVING]:
            try:
                generate(server.stub, greedy(1, text=PROMPT))
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                check_retry(error)
            seen.append(next(watch).status)
        assert seen[-1] == SERVING
        assert generate(server.stub, greedy(1, text=PROMPT)).ids
        server.terminate()
        assert next(watch).status == NOT_SERVING
        error = failure(lambda *_, **__: watch, None)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0


@pytest.fixture(scope="module")
def small_server(millrace_bin, model_path):
    """A pool that holds two long requests at most."""
    with Server(millrace_bin, model_path, "max_seq_length=256", "kv_cache_memory=12MiB", metrics=True) as running:
        yield running


def cancel_in_stream(server):
    call = server.stub.Generate(greedy(250, text=PROMPT), timeout=CALL_S)
    next(call)
    call.cancel()


def cancel_before_stream(server):
    call = server.stub.Generate(greedy(250, tokens={"ids": list(range(100, 340))}), timeout=CALL_S)
    time.sleep(0.02)
    call.cancel()


def pass_deadline(server):
    error = failure(server.stub.Generate, greedy(250, text=PROMPT), timeout=0.2)
    assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def leave_unary(server):
    future = server.stub.GenerateUnary.future(pb.GenerateUnaryRequest(request=greedy(250, text=PROMPT)))
    time.sleep(0.05)
    future.cancel()


def close_channel(server):
    channel = server.new_channel()
    call = pb_grpc.InferenceServiceStub(channel).Generate(greedy(250, text=PROMPT), timeout=CALL_S)
    next(call)
    channel.close()


@pytest.mark.parametrize("leave", [cancel_in_stream, cancel_before_stream, pass_deadline, leave_unary,
                                   close_channel])
def test_blocks_are_free_after_the_client_left_C1_C6_C7(small_server, leave):
    """Each abandoned request could fill the pool: if one kept its blocks, those after it would end up waiting."""
    longest = greedy(150, tokens={"ids": list(range(100, 200))})
    for _ in range(6):
        leave(small_server)
    answer = generate(small_server.stub, longest)
    assert len(answer.ids) == 150
    assert answer.ids[:24] == generate(small_server.stub, greedy(24, tokens={"ids": list(range(100, 200))})).ids


def test_over_commitment_ends_every_request_M1_M5(small_server):
    """Three times what the pool holds; each preemption has a line that says whose it was and what it cost."""
    names = ("millrace_preemptions_total", "millrace_preempted_tokens_total")
    before = [Scrape(small_server.metrics).value(name) for name in names]
    ids = [f"story-{index}" for index in range(8)]
    asked = [greedy(200, text=f"Story {index}:", requestId=id) for index, id in enumerate(ids)]
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda one: generate(small_server.stub, one), asked))
    assert [len(answer.ids) for answer in answers] == [200] * len(asked)
    after = [Scrape(small_server.metrics).value(name) for name in names]
    preemptions, lost = (now - was for now, was in zip(after, before))
    assert preemptions > 0
    line = re.compile(r'msg="preempted" request_id="(story-\d)" .*tokens_lost=(\d+) .*preemptions=(\d+) '
                      r'kv_blocks_before=(\d+) kv_blocks_after=(\d+) kv_blocks_total=(\d+)')
    found = [line.search(one) for one in small_server.log.splitlines() if "story-" in one and '"preempted"' in one]
    assert len(found) == preemptions and sum(int(one[2]) for one in found) == lost
    for one in found:
        assert int(one[5]) < int(one[4]) <= int(one[6])
        assert int(one[2]) <= 16 * (int(one[4]) - int(one[5]))
    assert {one[1] for one in found} <= set(ids) and max(int(one[3]) for one in found) <= 3


def test_full_queue_is_refused_with_a_retry_time(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=512", "max_batch_size=1",
                "max_queue_requests=1") as server:
        calls = [server.stub.Generate(greedy(400, text=PROMPT), timeout=CALL_S) for _ in range(6)]
        refused = []
        for call in calls[1:]:
            try:
                next(call)
            except grpc.RpcError as error:
                refused.append(error)
                if len(refused) == 4:
                    break
        for error in refused:
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            check_retry(error)
        assert refused
        for call in calls:
            call.cancel()


def test_storm_of_leaving_clients_C1(small_server):
    """Cancels, deadlines and closed channels at random; then all is as before."""
    before = generate(small_server.stub, greedy(16, text=PROMPT)).ids

    def client(seed):
        dice = random.Random(seed)
        for _ in range(12):
            channel = small_server.new_channel()
            stub = pb_grpc.InferenceServiceStub(channel)
            try:
                call = stub.Generate(greedy(100, text=PROMPT), timeout=dice.choice([0.05, 0.3, CALL_S]))
                for _ in range(dice.randrange(4)):
                    next(call)
                if dice.random() < 0.5:
                    call.cancel()
            except grpc.RpcError as error:
                assert error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
            finally:
                channel.close()

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(client, range(8)))
    assert generate(small_server.stub, greedy(16, text=PROMPT)).ids == before


def test_sigterm_lets_streams_end_H3(millrace_bin, model_path):
    """Streams run to their end, with trailers; new calls are refused; the exit status is 0."""
    server = Server(millrace_bin, model_path, "max_seq_length=512")
    try:
        first = threading.Barrier(5)

        def job(index):
            call = server.stub.Generate(greedy(24, text=f"Story {index}:"), timeout=CALL_S)
            messages = [next(call)]
            first.wait()
            messages += list(call)
            return messages[-1].usage.completion_tokens, call.code()

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            jobs = [pool.submit(job, index) for index in range(4)]
            first.wait()
            server.terminate()
            assert [job.result() for job in jobs] == [(24, grpc.StatusCode.OK)] * 4
        error = failure(server.stub.Generate, greedy(1, text=PROMPT), timeout=5)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert server.wait() == 0
    finally:
        server.stop()


def test_new_calls_are_answered_while_a_stream_runs_H3(millrace_bin, model_path):
    """A drain by request keeps the port: calls, also on new connections, are refused with a retry time."""
    server = Server(millrace_bin, model_path, "max_seq_length=8192", "admin.enable=true")
    try:
        call = server.stub.Generate(greedy(8100, text=PROMPT), timeout=CALL_S)
        next(call)
        watch = server.health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert next(watch).status == SERVING
        drain = pb_grpc.AdminServiceStub(server.channel).Drain.future(pb.DrainRequest())
        assert next(watch).status == NOT_SERVING
        with server.new_channel() as channel:
            for stub, health in ((server.stub, server.health),
                                 (pb_grpc.InferenceServiceStub(channel), health_pb2_grpc.HealthStub(channel))):
                error = failure(stub.Generate, greedy(1, text=PROMPT))
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                check_retry(error)
                assert health.Check(health_pb2.HealthCheckRequest()).status == NOT_SERVING
        assert next(call).chunks and not drain.done()
        call.cancel()
        assert drain.result(timeout=CALL_S) == pb.DrainResponse()
        watch.cancel()
        server.terminate()
        assert server.wait() == 0
    finally:
        server.stop()


def test_sigterm_while_the_model_loads(millrace_bin, model_path):
    server = Server(millrace_bin, model_path, ready=False)
    try:
        server.terminate()
        assert server.wait() == 0
        assert "shutting down" in server.log
    finally:
        server.stop()


def test_sigterm_cuts_off_streams_that_do_not_end_H3(millrace_bin, model_path):
    """After 30 s: what was produced is sent, then a status that says to try elsewhere."""
    server = Server(millrace_bin, model_path, "max_seq_length=8192")
    try:
        call = server.stub.Generate(greedy(8100, text=PROMPT), timeout=CALL_S)
        messages = [next(call)]
        server.terminate()
        with pytest.raises(grpc.RpcError) as raised:
            for message in call:
                messages.append(message)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
        check_retry(raised.value)
        assert messages[-1].chunks[0].finish_reason == pb.FINISH_REASON_CANCELLED
        assert messages[-1].usage.completion_tokens == sum(len(one.chunks[0].tokens) for one in messages)
        assert server.wait() == 0
    finally:
        server.stop()


def test_port_in_use(server, millrace_bin, model_path):
    done = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", server.address)
    assert done.returncode == 1
    assert server.address in done.stderr and "in use" in done.stderr


def test_address_that_is_none(millrace_bin, model_path):
    done = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "nonsense")
    assert done.returncode == 2 and "HOST:PORT" in done.stderr


def test_client_of_the_command_line(server, millrace_bin):
    done = commands.run(millrace_bin, "generate", "--server", server.address, "--temperature", "0", "--max-tokens",
                        "8", PROMPT)
    assert done.returncode == 0, done.stderr
    answer = generate(server.stub, greedy(8, text=PROMPT))
    assert answer.text.strip() in done.stdout
    nobody = commands.run(millrace_bin, "generate", "--server", "127.0.0.1:1", PROMPT)
    assert nobody.returncode == 1 and "127.0.0.1:1" in nobody.stderr
