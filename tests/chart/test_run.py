# SPDX-License-Identifier: Apache-2.0
"""The program as the chart would run it, and Prometheus' answers to the dashboard."""
import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from charts import PVC, REPOSITORY, Rendered, lack
from dashboards import queries

PROGRAM = os.environ.get("MILLRACE_BIN") or lack("set MILLRACE_BIN: these tests run the program")
MODEL = os.environ.get("MILLRACE_MODEL") or lack("set MILLRACE_MODEL: these tests run a real model")

sys.path.insert(0, str(REPOSITORY / "tests" / "e2e"))
from certificates import Authority, credentials  # noqa: E402
from serving import Server, generate, greedy  # noqa: E402
from stubs import pb_grpc  # noqa: E402
from test_prometheus import Prometheus, need  # noqa: E402

READY_S = 240
PROMPT = "The river ran down from the hills, and the mill stood where it was strongest. " * 4
SCRAPED_AS = {"namespace": "prod", "pod": "demo-millrace-5f4d-abcde"}


class Traffic:
    """Requests, one after the other, until it is left."""

    def __init__(self, stub):
        self.stub = stub
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stopped.is_set():
            generate(self.stub, greedy(6, text=PROMPT))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stopped.set()
        self.thread.join()


def numbers(prometheus, query):
    """Values of its samples, once there are some and all are numbers."""
    def look():
        found = [float(sample["value"][1]) for sample in prometheus.ask("query", query=query)["result"]]
        return found if found and not any(map(math.isnan, found)) else None

    try:
        return prometheus.wait_for(look)
    except AssertionError as error:
        raise AssertionError(f"no numbers for {query}") from error


def test_every_query_of_the_dashboard_and_the_scaler_returns_data(tmp_path):
    program = need("prometheus")
    scaling = {"mode": "keda", "keda": {"serverAddress": "http://p:9090"}}
    scaler = Rendered(PVC, {"redis": {"mode": "none"}, "autoscaling": scaling}).one("ScaledObject")
    asked = [*queries("15s", **SCRAPED_AS),
             *[("scaler", trigger["metadata"]["query"]) for trigger in scaler["spec"]["triggers"]]]
    with Server(PROGRAM, MODEL, "max_seq_length=512", metrics=True) as server, Traffic(server.stub), \
            Prometheus(program, tmp_path, server.metrics, labels=SCRAPED_AS) as prometheus:
        values = {title: numbers(prometheus, query) for title, query in asked}
        assert values["Replicas ready"] == [1]
        assert values["Tokens generated"][0] > 0 and values["Tokens of a step"][0] > 0
        assert 0 < values["Prefix cache hits"][0] <= 1
        assert values["First token, P99"][0] > 0
        # Nobody else's series are in it.
        elsewhere = prometheus.ask("query", query='millrace_build_info{namespace!="prod"}')["result"]
        assert elsewhere == []


def free_ports(count):
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def status(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


def wait_until(what):
    end = time.monotonic() + READY_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def running(*command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=90)


def test_rendered_pod_runs_with_its_redis_and_answers_its_probes_H2(tmp_path):
    """Commands, environment, file and probes are the chart's; only folders and ports are this machine's."""
    if shutil.which("redis-server") is None:
        lack("redis-server is missing: scripts/setup --tests installs it")
    grpc_port, metrics_port = free_ports(2)
    (tmp_path / "models").symlink_to(os.path.dirname(os.path.abspath(MODEL)))
    rendered = Rendered(
        {"model": {"path": os.path.basename(MODEL), "pvc": {"claimName": "models"}}, "listenHost": "127.0.0.1",
         "ports": {"grpc": grpc_port, "metrics": metrics_port},
         "config": {"max_seq_length": 256, "log": {"format": "json"}, "redis": {"timeout_ms": 50}}})
    (tmp_path / "millrace.yaml").write_text(rendered.one("ConfigMap", "-config")["data"]["millrace.yaml"])

    def here(text):
        for folder, place in [("/models", tmp_path / "models"), ("/etc/millrace", tmp_path), ("/run/redis", tmp_path)]:
            text = text.replace(folder, str(place))
        return text

    sidecar, = rendered.pod["spec"]["initContainers"]
    env = {entry["name"]: here(entry["value"]) for entry in rendered.server["env"]}
    probes = {name: rendered.server[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    with running(*map(here, sidecar["command"] + sidecar["args"]), stdout=subprocess.DEVNULL):
        started = sidecar["startupProbe"]["exec"]["command"]
        wait_until(lambda: subprocess.run(list(map(here, started)), check=False).returncode == 0)
        with running(PROGRAM, *map(here, rendered.server["args"]), env={**os.environ, **env},
                     stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as server:
            wait_until(lambda: status(metrics_port, probes["liveness"]) == 200)
            wait_until(lambda: status(metrics_port, probes["startup"]) == 200)
            assert status(metrics_port, probes["readiness"]) == 200

            def connected():
                with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=10) as reply:
                    return "\nmillrace_redis_connected 1\n" in reply.read().decode()

            wait_until(connected)
            server.send_signal(signal.SIGTERM)
            assert server.wait(timeout=rendered.pod["spec"]["terminationGracePeriodSeconds"]) == 0


def test_rendered_pod_speaks_tls_with_a_secret_of_cert_managers_and_probes_need_none_G6(tmp_path):
    """The Secret's folder has the names that cert-manager gives; the health port stays plaintext."""
    grpc_port, metrics_port, health_port = free_ports(3)
    (tmp_path / "models").symlink_to(os.path.dirname(os.path.abspath(MODEL)))
    authority = Authority()
    server_pair, client_pair = authority.server(), authority.issue(uris=["spiffe://example.org/search"])
    secret = tmp_path / "secret"
    secret.mkdir()
    for name, content in [("tls.crt", server_pair.certificate), ("tls.key", server_pair.key),
                          ("ca.crt", authority.certificate)]:
        (secret / name).write_bytes(content)
    rendered = Rendered(
        {"model": {"path": os.path.basename(MODEL), "pvc": {"claimName": "models"}}, "listenHost": "127.0.0.1",
         "ports": {"grpc": grpc_port, "metrics": metrics_port, "health": health_port}, "redis": {"mode": "none"},
         "tls": {"secretName": "t", "clientAuth": "require"}, "healthListener": {"enabled": True},
         "config": {"max_seq_length": 256, "drain": {"pre_stop_ms": 0},
                    "tenants": [{"name": "search", "identities": ["spiffe://example.org/search"]}]}})
    (tmp_path / "millrace.yaml").write_text(rendered.one("ConfigMap", "-config")["data"]["millrace.yaml"])

    def here(text):
        for folder, place in [("/models", tmp_path / "models"), ("/etc/millrace-tls", secret), ("/etc/millrace", tmp_path)]:
            text = text.replace(folder, str(place))
        return text

    def ready(port):
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
            except grpc.RpcError:
                return False
            return reply.status == health_pb2.HealthCheckResponse.SERVING

    env = {entry["name"]: here(entry["value"]) for entry in rendered.server["env"]}
    with running(PROGRAM, *map(here, rendered.server["args"]), env={**os.environ, **env}, stderr=subprocess.DEVNULL,
                 stdout=subprocess.DEVNULL) as server:
        wait_until(lambda: ready(rendered.server["readinessProbe"]["grpc"]["port"]))
        assert status(metrics_port, rendered.server["livenessProbe"]["httpGet"]["path"]) == 200
        address = f"localhost:{grpc_port}"
        with grpc.secure_channel(address, credentials(authority, client_pair)) as channel:
            assert generate(pb_grpc.InferenceServiceStub(channel), greedy(2, text=PROMPT)).ids
        with grpc.secure_channel(address, credentials(authority)) as channel, pytest.raises(grpc.RpcError):
            generate(pb_grpc.InferenceServiceStub(channel), greedy(2, text=PROMPT), timeout=20)
        assert not ready(grpc_port)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=rendered.pod["spec"]["terminationGracePeriodSeconds"]) == 0
