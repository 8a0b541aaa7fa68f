# SPDX-License-Identifier: Apache-2.0
"""Two replicas, restarted in turn under load. No stream fails, and each has the tokens of a server that nobody disturbs."""
import concurrent.futures
import itertools
import json
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

import grpc
import pytest

from metrics import Scrape
from serving import CALL_S, Server, generate, greedy
from stubs import pb_grpc

OPERATIONS = pathlib.Path(__file__).parents[2] / "docs" / "operations.md"
STORIES = 8
CLIENTS = 6
ROUNDS = 2
WAIT_S = 120


def block(language):
    """The only block of that language in the page."""
    [found] = re.findall(rf"```{language}\n(.*?)```", OPERATIONS.read_text(), re.S)
    return found


def service_config():
    """The page's JSON block with a load balancing policy."""
    [found] = [text for text in re.findall(r"```json\n(.*?)```", OPERATIONS.read_text(), re.S)
               if "loadBalancingConfig" in text]
    return json.dumps(json.loads(found))


def story(index):
    return greedy(30 + 6 * index, text=f"Story {index}:", sampling={"temperature": 0.8, "seed": index})


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(holds, what):
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


class Replicas:
    """Two servers that keep their addresses when they start anew; the times of their drains are the default."""

    def __init__(self, binary, model):
        self._args = (binary, model, "max_seq_length=512", "drain.pre_stop_ms=2000")
        self.servers = [Server(*self._args, metrics=True) for _ in range(2)]

    def restart(self, index):
        """Ends one as a rollout does, and gives what its log says of the drain: requests finished, cut off."""
        old = self.servers[index]
        old.terminate()
        assert old.wait() == 0
        old.channel.close()
        self.servers[index] = Server(*self._args, listen=old.address, metrics=old.metrics)
        [counts] = re.findall(r'msg="drained" finished=(\d+) cut_off=(\d+)', old.log)
        return tuple(map(int, counts))

    def requests(self, index):
        return Scrape(self.servers[index].metrics).value("millrace_requests_started_total")

    def stop(self):
        return [server.stop() for server in self.servers]


@pytest.fixture
def replicas(millrace_bin, model_path):
    running = Replicas(millrace_bin, model_path)
    yield running
    running.stop()


@pytest.fixture
def proxy(replicas, tmp_path):
    """HAProxy with the page's own configuration, at this test's addresses."""
    if not shutil.which("haproxy"):
        pytest.skip("haproxy is not installed")
    text, port = block("haproxy"), free_port()
    changes = [("0.0.0.0:8000", f"127.0.0.1:{port}")]
    for index, server in enumerate(replicas.servers, 1):
        port_of_checks = server.metrics.rsplit(":", 1)[1]
        changes.append((f"10.0.0.{index}:8001 check port 9090", f"{server.address} check port {port_of_checks}"))
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = tmp_path / "haproxy.cfg"
    path.write_text(text)
    process = subprocess.Popen(["haproxy", "-db", "-f", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    yield f"127.0.0.1:{port}"
    assert process.poll() is None, process.stderr.read()
    process.terminate()
    process.wait(timeout=30)


def through_haproxy(request):
    """Four connections, so that the proxy has several of its own too."""
    address = request.getfixturevalue("proxy")
    return [grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)])
            for _ in range(4)]


def by_round_robin(request):
    """gRPC's own clients, which watch the health of each server."""
    target = "ipv4:" + ",".join(server.address for server in request.getfixturevalue("replicas").servers)
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.service_config", service_config()),
               ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]
    return [grpc.insecure_channel(target, options=options) for _ in range(2)]


class Load:
    """Clients that stream one story after another until told to stop. None retries."""

    def __init__(self, channels, expected):
        self._stubs = [pb_grpc.InferenceServiceStub(channel) for channel in channels]
        self._expected = expected
        self._over = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(CLIENTS)
        self._jobs = [self._pool.submit(self._run, number) for number in range(CLIENTS)]

    def _run(self, number):
        stub = self._stubs[number % len(self._stubs)]
        done, wrong = 0, []
        for index in itertools.count(number):
            if self._over.is_set():
                return done, wrong
            try:
                answer = generate(stub, story(index % STORIES))
                if answer.ids != self._expected[index % STORIES]:
                    wrong.append(f"story {index % STORIES}: {len(answer.ids)} tokens {answer.ids}")
            except grpc.RpcError as error:
                wrong.append(f"story {index % STORIES}: {error.code()} {error.details()}")
            done += 1

    def stop(self):
        """The number of streams, and those that failed or were not as they should be."""
        self._over.set()
        results = [job.result(timeout=CALL_S) for job in self._jobs]
        self._pool.shutdown()
        return sum(done for done, _ in results), [text for _, wrong in results for text in wrong]


@pytest.mark.parametrize("connect", [through_haproxy, by_round_robin])
def test_rolling_restarts_lose_no_stream_and_no_token_H3(connect, replicas, request):
    expected = [generate(replicas.servers[0].stub, story(index)).ids for index in range(STORIES)]
    assert [len(ids) for ids in expected] == [30 + 6 * index for index in range(STORIES)]
    assert len({tuple(ids[:20]) for ids in expected}) == STORIES
    channels = connect(request)
    for channel in channels:
        grpc.channel_ready_future(channel).result(timeout=WAIT_S)
    load = Load(channels, expected)
    drained = []
    try:
        for index in [0, 1] * ROUNDS:
            for each in range(2):  # both are in use, also the one that was restarted last
                before = replicas.requests(each)
                wait_until(lambda: replicas.requests(each) > before + 2, f"replica {each} is sent requests")
            drained.append(replicas.restart(index))
    finally:
        total, wrong = load.stop()
        for channel in channels:
            channel.close()
    assert wrong == []
    assert total > 2 * len(drained) * CLIENTS
    assert all(cut_off == 0 for _, cut_off in drained)
    assert sum(finished for finished, _ in drained) > 0, "nothing ran on any server that was told to leave"
