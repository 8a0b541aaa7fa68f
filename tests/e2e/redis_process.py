# SPDX-License-Identifier: Apache-2.0
"""A redis-server of a test's own, on a socket."""
import contextlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

import pytest

WAIT_S = 30


class Redis:
    """Starts at once; use as a context manager. Skips the test where there is no redis-server."""

    def __init__(self, password=None):
        if not shutil.which("redis-server"):
            pytest.skip("redis-server is not installed")
        self.password = password
        self._folder = tempfile.TemporaryDirectory(prefix="mr-redis-")
        self.socket = f"{self._folder.name}/socket"
        login = f":{password}@" if password else ""
        self.url = f"unix://{login}{self.socket}"
        self.process = None
        self.start()

    def start(self):
        command = ["redis-server", "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no",
                   "--dir", self._folder.name]
        if self.password:
            command += ["--requirepass", self.password]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            if self._ask("PING").stdout.strip() == "PONG":
                return
            assert self.process.poll() is None, "redis-server ended"
            time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def _ask(self, *command):
        login = ["-a", self.password, "--no-auth-warning"] if self.password else []
        return subprocess.run(["redis-cli", "-s", self.socket, *login, *map(str, command)], capture_output=True,
                              text=True, timeout=60)

    def ask(self, *command):
        """The reply as redis-cli prints it; several lines for lists."""
        answer = self._ask(*command)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._folder.cleanup()


class Proxy:
    """Stands before a Redis and ends a connection that asks it for a command that it does not know: ROLE."""

    def __init__(self, redis):
        self._to = redis.socket
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"
        self.ended = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._to)
                threading.Thread(target=self._carry, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._carry, args=(server, client, False), daemon=True).start()

    def _carry(self, source, sink, asks):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if asks and b"ROLE\r\n" in data:
                    self.ended += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.close()
