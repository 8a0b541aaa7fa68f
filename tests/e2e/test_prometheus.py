# SPDX-License-Identifier: Apache-2.0
"""Debian's Prometheus scrapes the server."""
import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request

import pytest

from metrics import get
from serving import Server, generate, greedy
from stubs import REPOSITORY

PROMPT = "The river ran"
READY_S = 60
CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: millrace
    static_configs: [{targets: ["ADDRESS"], labels: LABELS}]
"""


def need(program):
    found = shutil.which(program)
    if found is None:
        message = f"{program} is not installed: scripts/setup --tests installs Debian's package prometheus"
        if os.environ.get("CI"):
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return found


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Prometheus:
    """Its own process, data below `folder`; use as a context manager."""

    def __init__(self, program, folder, target, labels=None):
        config = folder / "prometheus.yml"
        config.write_text(CONFIG.replace("ADDRESS", target).replace("LABELS", json.dumps(labels or {})))
        self.address = f"127.0.0.1:{free_port()}"
        self.process = subprocess.Popen(
            [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
             f"--web.listen-address={self.address}", "--log.level=warn"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._log = []
        self._reader = threading.Thread(target=lambda: self._log.extend(self.process.stdout), daemon=True)
        self._reader.start()

    def ask(self, path, **parameters):
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success" and not answer.get("warnings"), answer
        return answer["data"]

    def wait_for(self, what):
        """What `what` gives once it gives something."""
        end = time.monotonic() + READY_S
        found = None
        while not found and time.monotonic() < end:
            assert self.process.poll() is None, f"prometheus ended: {self._log}"
            try:
                found = what()
            except OSError:
                pass
            time.sleep(0.1)
        assert found, f"nothing in {READY_S} s: {self._log}"
        return found

    def value(self, query):
        """Of all its samples together; None: there is none."""
        found = self.ask("query", query=query)["result"]
        return sum(float(sample["value"][1]) for sample in found) if found else None

    def stop(self):
        """Its log."""
        self.process.terminate()
        self.process.wait(timeout=60)
        self._reader.join(timeout=10)
        return "".join(self._log)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def families():
    """(type, name) of every row of the table."""
    table = (REPOSITORY / "service" / "metrics.def").read_text()
    found = re.findall(r'^MR_FAMILY\(\w+, "(\w+)", "([\w:]+)"', table, re.MULTILINE)
    assert len(found) == table.count("\nMR_FAMILY(") > 50
    return found


@pytest.fixture(scope="module")
def scraped(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", metrics=True) as server:
        yield server


def test_prometheus_scrapes_every_family_without_a_warning(scraped, tmp_path):
    program = need("prometheus")
    generate(scraped.stub, greedy(3, text=PROMPT))
    with Prometheus(program, tmp_path, scraped.metrics) as prometheus:
        def scraped_target():
            targets = prometheus.ask("targets", state="active")["activeTargets"]
            return targets if targets and targets[0]["health"] != "unknown" else None

        target, = prometheus.wait_for(scraped_target)
        assert (target["health"], target["lastError"]) == ("up", "")
        prometheus.wait_for(lambda: prometheus.value("up") == 1)
        for kind, name in families():
            for query in [name] if kind != "histogram" else [f"{name}_bucket", f"{name}_sum", f"{name}_count"]:
                assert prometheus.value(query) is not None, f"{query} is not there"
        assert prometheus.value("millrace_generated_tokens_total") == 3
        assert prometheus.value('vllm:request_generation_tokens_bucket{le="+Inf"}') == 1
        assert prometheus.value("histogram_quantile(0.5, vllm:request_generation_tokens_bucket)") > 0
        about = prometheus.ask("metadata")
        for kind, name in families():
            assert [(entry["type"], bool(entry["help"])) for entry in about[name]] == [(kind, True)]
        target, = prometheus.ask("targets", state="active")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        log = prometheus.stop()
    bad = [line for line in log.splitlines() if "level=warn" in line or "level=error" in line]
    assert [line for line in bad if "Received SIGTERM" not in line] == []  # which stop() has sent


def complaints(program, text):
    run = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60,
                         check=False)
    lines = (run.stdout + run.stderr).splitlines()
    assert (run.returncode == 0) == (not lines)
    return set(lines)


def test_promtool_minds_none_of_our_names_I3(scraped):
    """Of those that vLLM chose it minds the colons, and a histogram that ends in _total."""
    program = need("promtool")
    _, _, text = get(scraped.metrics, "/metrics")
    native = [block for block in re.split(r"(?m)^(?=# HELP )", text) if not block.startswith("# HELP vllm:")]
    assert len(native) > 25 and complaints(program, "".join(native)) == set()
    expected = {f"{name} metric names should not contain ':'" for _, name in families() if name.startswith("vllm:")}
    expected.add('vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix')
    assert complaints(program, text) == expected
