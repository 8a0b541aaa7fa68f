# SPDX-License-Identifier: Apache-2.0
"""Rate limits of tenants: in one process, through Redis, while Redis is away, and reloaded."""
import hashlib
import os
import pathlib
import signal
import threading
import time

import grpc
import pytest

import commands
from keys import ADMIN, ADMIN_KEY, KeyServer, bearer, digest
from metrics import Scrape
from redis_process import Proxy, Redis
from serving import CALL_S, Answer, check_retry, failure, generate, greedy, unary
from stubs import pb, pb_grpc

KEY = "key-of-acme"
FREE_KEY = "key-of-free"
PROMPT = "The river ran"
WAIT_S = 60
FAKETIME = pathlib.Path("/usr/lib") / (os.uname().machine + "-linux-gnu") / "faketime" / "libfaketimeMT.so.1"


def tenants(**limits):
    """acme, limited, and free, which is not."""
    fields = "".join(f", {name}: {value}" for name, value in limits.items())
    return (f"tenants=[{{name: acme, keys: [{digest(KEY)}]{fields}}}, "
            f"{{name: free, keys: [{digest(FREE_KEY)}]}}]")


def start(millrace_bin, model_path, *settings, **kwargs):
    return KeyServer(KEY, millrace_bin, model_path, "max_seq_length=512", *settings, **kwargs)


def wait_until(holds, what):
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def tenant_key(name="acme"):
    return hashlib.sha256(name.encode()).hexdigest()[:16]


def short(**fields):
    return greedy(1, text=PROMPT, **fields)


def decisions(server, by):
    return Scrape(server.metrics).value("millrace_rate_limit_decisions_total", by=by)


def refusals(server, limit):
    return Scrape(server.metrics).value("millrace_rate_limit_refusals_total", limit=limit)


def available(server):
    return Scrape(server.metrics).value("millrace_redis_available") == 1


def clock_of(server):
    (seconds,) = Scrape(server.metrics).all("vllm:lora_requests_info").values()
    return seconds


class Stream:
    """A stream that a thread reads to its end."""

    def __init__(self, server, max_tokens):
        self._call = server.stub.Generate(greedy(max_tokens, text=PROMPT), timeout=CALL_S)
        self.answer = self.error = None
        self.began = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        assert self.began.wait(CALL_S), "no token came"

    def _read(self):
        messages = []
        try:
            for message in self._call:
                messages.append(message)
                self.began.set()
            self.answer = Answer(messages)
        except grpc.RpcError as error:
            self.error = error
        self.began.set()

    def join(self):
        self._thread.join(CALL_S)
        assert self.error is None, self.error
        return self.answer

    def cancel(self):
        self._call.cancel()


def test_requests_a_second(millrace_bin, model_path):
    with start(millrace_bin, model_path, tenants(requests_per_s=0.01, burst_requests=3), metrics=True) as server:
        for _ in range(3):
            assert len(unary(server.stub, short()).ids) == 1
        error = failure(server.stub.Generate, short())
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        check_retry(error)
        assert 0 < int(dict(error.trailing_metadata())["retry-after-ms"]) <= 100_000
        assert "0.01 requests a second" in error.details()
        # Somebody else is not limited.
        for _ in range(5):
            server.stub.GenerateUnary(pb.GenerateUnaryRequest(request=short()), metadata=bearer(FREE_KEY))
        assert (decisions(server, "process"), refusals(server, "requests")) == (4, 1)


def test_tokens_a_minute(millrace_bin, model_path):
    """What was reserved and not used comes back, whatever ended the request."""
    with start(millrace_bin, model_path, tenants(tokens_per_min=1, burst_tokens=400), metrics=True) as server:
        error = failure(server.stub.Generate, greedy(400, text=PROMPT))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "burst_tokens is 400" in error.details()
        error = failure(server.stub.Generate, greedy(200, text=PROMPT, sampling={"temperature": 0, "n": 2}))
        assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
        # Cancelled after some tokens.
        stream = Stream(server, 300)
        error = failure(server.stub.Generate, greedy(300, text=PROMPT))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1 tokens a minute" in error.details()
        check_retry(error)
        stream.cancel()
        wait_until(lambda: Scrape(server.metrics).value("millrace_requests_running") == 0, "the stream ends")
        # Ended by a stop after one token: nearly all of the 250 are there for the next.
        usage = Scrape(server.metrics).value("millrace_generated_tokens_total")
        for _ in range(3):
            first = generate(server.stub, short()).ids[0]
            answer = generate(server.stub, greedy(100, text=PROMPT, stopping={
                "maxTokens": 100, "tokenIds": [first]}))
            assert len(answer.ids) == 1
        assert usage < 250 and refusals(server, "tokens") == 1


def test_requests_at_a_time(millrace_bin, model_path):
    with start(millrace_bin, model_path, tenants(max_concurrent=1), metrics=True) as server:
        stream = Stream(server, 400)
        error = failure(server.stub.Generate, short())
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "1 requests running" in error.details()
        check_retry(error)
        stream.cancel()
        wait_until(lambda: Scrape(server.metrics).value("millrace_requests_running") == 0, "the stream ends")
        assert len(generate(server.stub, short()).ids) == 1
        assert len(generate(server.stub, short()).ids) == 1


def hammer(servers, seconds):
    """Asks all servers without a pause from several threads; how many requests each one served."""
    end = time.monotonic() + seconds
    granted = [0] * len(servers)
    failures = []
    lock = threading.Lock()

    def ask(index):
        while time.monotonic() < end:
            try:
                unary(servers[index].stub, short())
                with lock:
                    granted[index] += 1
            except grpc.RpcError as error:
                if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                    failures.append(error)
    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(servers)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
    return granted


def test_two_replicas_share_limits_E1(millrace_bin, model_path):
    """The clock of one is ten minutes off. By Redis's clock and its bucket, what was granted is exact:
    burst + rate x time - what is left."""
    if not FAKETIME.exists():
        pytest.skip("libfaketime is not installed")
    off = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+600s", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    rate, burst = 20, 40
    with Redis() as redis:
        settings = [f"redis.url={redis.url}", "redis.on_failure=closed",
                    tenants(requests_per_s=rate, burst_requests=burst)]
        with start(millrace_bin, model_path, *settings, metrics=True) as one, \
                start(millrace_bin, model_path, *settings, metrics=True, env=off) as two:
            for server in (one, two):
                wait_until(lambda server=server: available(server), "Redis is asked")
            bucket = f"millrace:1:rl:{tenant_key()}:req"
            unary(one.stub, short())
            first_us = float(redis.ask("HGET", bucket, "t"))
            granted = hammer([one, two], 6)
            last_us, left = (float(redis.ask("HGET", bucket, field)) for field in ("t", "n"))
            wanted = burst + rate * (last_us - first_us) / 1e6 - left
            assert abs(sum(granted) + 1 - wanted) <= 0.01 * wanted
            assert min(granted) > 0
            assert refusals(one, "requests") > 0 and refusals(two, "requests") > 0
            assert decisions(one, "closed") == decisions(two, "closed") == 0
            # The clocks really differ.
            assert clock_of(two) - clock_of(one) > 500


def test_two_replicas_share_tokens_and_places_E1(millrace_bin, model_path):
    """To the token: what one replica takes is gone for the other, and what it gives back is there."""
    with Redis() as redis:
        settings = [f"redis.url={redis.url}", "redis.on_failure=closed",
                    tenants(tokens_per_min=1, burst_tokens=700, max_concurrent=2)]
        with start(millrace_bin, model_path, *settings, metrics=True) as one, \
                start(millrace_bin, model_path, *settings, metrics=True) as two:
            for server in (one, two):
                wait_until(lambda server=server: available(server), "Redis is asked")
            streams = [Stream(one, 300), Stream(two, 300)]
            for server in (one, two):
                error = failure(server.stub.Generate, short())
                assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "2 requests running" in error.details()
            prompts = [stream.join().usage.prompt_tokens for stream in streams]
            wait_until(lambda: redis.ask("ZCARD", f"millrace:1:cc:{tenant_key()}") == "0", "no lease is left")
            left = float(redis.ask("HGET", f"millrace:1:rl:{tenant_key()}:tok", "n"))
            wanted = 700 - sum(prompts) - 2 * 300
            assert wanted <= left < wanted + 7  # a token a minute flows in
            for server in (one, two):
                error = failure(server.stub.Generate, greedy(int(left) + 8, text=PROMPT))
                assert "1 tokens a minute" in error.details()


MODES = {"local": None, "open": None, "closed": grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("mode", MODES)
def test_redis_killed_under_load_E3(millrace_bin, model_path, mode):
    """No stream fails, decisions follow the mode and are counted, and Redis is back within two seconds."""
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", f"redis.on_failure={mode}",
                   tenants(requests_per_s=1000, tokens_per_min=1000000, max_concurrent=20), metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            streams = [Stream(server, 300) for _ in range(3)]
            assert decisions(server, "redis") == 3
            redis.kill()
            wait_until(lambda: not available(server), "Redis is missed")
            for _ in range(3):
                if MODES[mode] is None:
                    assert len(unary(server.stub, short()).ids) == 1
                else:
                    error = failure(server.stub.Generate, short())
                    assert error.code() == MODES[mode]
                    check_retry(error)
            assert decisions(server, mode) == 3
            redis.start()
            since = time.monotonic()
            wait_until(lambda: available(server), "Redis is asked again")
            assert time.monotonic() - since < 2
            assert len(unary(server.stub, short()).ids) == 1
            assert decisions(server, mode) == 3
            assert [len(stream.join().ids) for stream in streams] == [300] * 3
            wait_until(lambda: redis.ask("ZCARD", f"millrace:1:cc:{tenant_key()}") == "0", "no lease is left")


@pytest.mark.parametrize("mode", MODES)
def test_redis_paused_under_load_E3(millrace_bin, model_path, mode):
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", f"redis.on_failure={mode}",
                   tenants(requests_per_s=1000, tokens_per_min=1000000, max_concurrent=20), metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            streams = [Stream(server, 300) for _ in range(3)]
            redis.ask("CLIENT", "PAUSE", 3000)
            paused = time.monotonic()
            while time.monotonic() < paused + 2.5:
                if MODES[mode] is None:
                    assert len(unary(server.stub, short()).ids) == 1
                else:
                    assert failure(server.stub.Generate, short()).code() == MODES[mode]
            asked = decisions(server, mode)
            assert asked > 3 and decisions(server, "redis") == 3
            redis.ask("PING")  # answers when the pause is over
            since = time.monotonic()
            wait_until(lambda: available(server), "Redis is asked again")
            assert time.monotonic() - since < 2
            assert len(unary(server.stub, short()).ids) == 1
            assert [len(stream.join().ids) for stream in streams] == [300] * 3
            wait_until(lambda: redis.ask("ZCARD", f"millrace:1:cc:{tenant_key()}") == "0", "no lease is left")


def test_call_that_ends_before_its_decision_leaks_nothing(millrace_bin, model_path):
    """Its client gives up while Redis stands still; what Redis grants later is given back."""
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", "redis.on_failure=open",
                   tenants(max_concurrent=2), metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            assert len(unary(server.stub, short()).ids) == 1
            redis.ask("CLIENT", "PAUSE", 500)
            for _ in range(6):
                error = failure(server.stub.Generate, greedy(400, text=PROMPT), timeout=0.01)
                assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            wait_until(lambda: available(server), "Redis is asked again")
            wait_until(lambda: Scrape(server.metrics).value("millrace_requests_running") == 0, "nothing runs")
            wait_until(lambda: redis.ask("ZCARD", f"millrace:1:cc:{tenant_key()}") == "0", "no lease is left")
            streams = [Stream(server, 60) for _ in range(2)]
            assert failure(server.stub.Generate, short()).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert [len(stream.join().ids) for stream in streams] == [60] * 2


def test_id_that_comes_again_at_once_has_a_lease_of_its_own(millrace_bin, model_path):
    """A client cancels and repeats with the same id, while the engine still ends the first."""
    leases = f"millrace:1:cc:{tenant_key()}"
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", tenants(max_concurrent=2),
                   metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            for _ in range(5):
                asked = greedy(400, text=PROMPT, requestId="again")
                first = server.stub.Generate(asked, timeout=CALL_S)
                next(first)
                first.cancel()
                second = server.stub.Generate(asked, timeout=CALL_S)
                next(second)
                wait_until(lambda: Scrape(server.metrics).value("millrace_requests_running") == 1, "the first ends")
                unary(server.stub, short())  # behind the end of the first lease
                assert redis.ask("ZCARD", leases) == "1"
                second.cancel()
                wait_until(lambda: redis.ask("ZCARD", leases) == "0", "no lease is left")


def test_killed_replica_leaks_no_lease(millrace_bin, model_path):
    """Its leases have an end; a replica that lives renews its own."""
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", tenants(max_concurrent=1),
                   metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            Stream(server, 400)
            leases = redis.ask("ZRANGE", f"millrace:1:cc:{tenant_key()}", 0, -1, "WITHSCORES").splitlines()
            seconds, micros = redis.ask("TIME").splitlines()
            left_ms = float(leases[1]) - (int(seconds) * 1000 + int(micros) / 1000)
            assert len(leases) == 2 and 0 < left_ms <= 30_000
            server.process.kill()
            server.process.wait()


def claims_in(redis, replica):
    """Epochs of the replica's claims, by block."""
    keys = redis.ask("KEYS", "millrace:1:px:*").split()
    assert all(len(key) == len("millrace:1:px:") + 32 for key in keys)
    return {key: redis.ask("HGET", key, replica) for key in keys}


def test_replica_restarts_under_its_name_X5(millrace_bin, model_path):
    """Its record has another epoch, so that no claim of the one before counts, though all are still there."""
    record = "millrace:1:replica:first"
    epochs = []
    before = {}
    with Redis() as redis:
        for _ in range(2):
            with start(millrace_bin, model_path, f"redis.url={redis.url}", "redis.replica_id=first",
                       "cache_salt_secret=a secret of a few bytes", tenants()) as server:
                wait_until(lambda: redis.ask("HGET", record, "epoch") not in ("", *epochs), "the record is new")
                assert claims_in(redis, "first") == before
                assert redis.ask("HGET", record, "epoch") not in before.values()

                def claimed():
                    generate(server.stub, greedy(1, text=PROMPT * 40))
                    before.update(claims_in(redis, "first"))
                    return redis.ask("HGET", record, "epoch") in before.values()
                wait_until(claimed, "blocks are claimed")
                epochs.append(redis.ask("HGET", record, "epoch"))
                assert redis.ask("HGET", record, "addr") == server.address
                assert redis.ask("HGET", record, "state") == "ready"
                assert 0 < int(redis.ask("PTTL", record)) <= 15_000
                server.process.kill()
                server.process.wait()
    assert len(set(epochs)) == 2


def test_claims_are_published_and_outdated_X5(millrace_bin, model_path):
    """A replica claims the blocks that it computed, under its record's epoch; ResetPrefixCache makes nothing of
    them all."""
    record = "millrace:1:replica:first"
    with Redis() as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", "redis.replica_id=first",
                   "cache_salt_secret=a secret of a few bytes", *ADMIN, tenants(),
                   metrics=True) as server:
            def claims():
                return claims_in(redis, "first")

            def asked():
                generate(server.stub, greedy(1, text=PROMPT * 40))
                return claims()
            wait_until(asked, "blocks are claimed")
            assert set(claims().values()) == {redis.ask("HGET", record, "epoch")}
            assert 0 < int(redis.ask("PTTL", next(iter(claims())))) <= 600_000
            admin = pb_grpc.AdminServiceStub(server.channel)
            assert admin.ResetPrefixCache(pb.ResetPrefixCacheRequest(),
                                          metadata=bearer(ADMIN_KEY)).blocks_dropped > 0
            wait_until(lambda: redis.ask("HGET", record, "epoch") not in claims().values(), "the epoch is another")
            generate(server.stub, greedy(1, text=PROMPT * 40))
            wait_until(lambda: redis.ask("HGET", record, "epoch") in claims().values(), "blocks are claimed again")


def test_proxies_that_end_connections_at_unknown_commands_are_connected_to(millrace_bin, model_path):
    with Redis() as redis, Proxy(redis) as proxy:
        with start(millrace_bin, model_path, f"redis.url={proxy.url}", "redis.on_failure=closed",
                   tenants(requests_per_s=1000), metrics=True) as server:
            assert generate(server.stub, short()).ids
            assert decisions(server, "redis") == 1
            assert proxy.ended > 0


def test_password_is_never_shown(millrace_bin, model_path):
    with Redis(password="xyzzy-s3cret") as redis:
        with start(millrace_bin, model_path, f"redis.url={redis.url}", "log.level=debug", tenants(),
                   metrics=True) as server:
            wait_until(lambda: available(server), "Redis is asked")
            redis.kill()
            wait_until(lambda: not available(server), "Redis is missed")
            server.stop()
            assert "xyzzy" not in server.log and "redis.url=unix://***@" in server.log
    shown = commands.output(millrace_bin, "config", "--set", "redis.url=redis://me:xyzzy@h/1")
    assert "xyzzy" not in shown and "redis://***@h:6379/1" in shown


def config_file(path, text):
    path.write_text(text.replace("tenants=", "tenants: ") + "\n")
    return path


def test_limits_are_reloaded(millrace_bin, model_path, tmp_path):
    """SIGHUP changes limits and keys, and no stream notices."""
    path = config_file(tmp_path / "millrace.yaml", tenants())
    with start(millrace_bin, model_path, config=path, metrics=True) as server:
        stream = Stream(server, 400)
        config_file(path, tenants(requests_per_s=0.001, burst_requests=2))
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "settings are reloaded" in server.log, "the log says so")
        unary(server.stub, short())
        unary(server.stub, short())
        assert failure(server.stub.Generate, short()).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # A file with a mistake changes nothing.
        path.write_text("tenants: [{name: acme}]\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "settings are not reloaded" in server.log, "the log says so")
        assert failure(server.stub.Generate, short()).code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        # acme goes: its stream goes on, its key opens nothing.
        path.write_text(f"tenants: [{{name: free, keys: [{digest(FREE_KEY)}]}}]\nmax_batch_size: 4\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "take effect with the next start" in server.log, "the log says so")
        wait_until(lambda: failure(server.stub.Generate, short()).code() == grpc.StatusCode.UNAUTHENTICATED,
                   "the key is gone")
        asked = pb.GenerateUnaryRequest(request=short())
        server.stub.GenerateUnary(asked, metadata=bearer(FREE_KEY), timeout=CALL_S)
        assert len(stream.join().ids) == 400


def test_requests_from_before_the_tenants_are_nobodys(millrace_bin, model_path, tmp_path):
    """An open server gets tenants: the first one has the index of everybody, and reaches nothing of theirs."""
    path = tmp_path / "millrace.yaml"
    path.write_text("max_batch_size: 8\n")
    with start(millrace_bin, model_path, config=path, metrics=True) as server:
        asked = greedy(400, text=PROMPT, requestId="one")
        before = server.stub.Generate(asked, timeout=CALL_S)
        next(before)
        path.write_text("max_batch_size: 8\n" + tenants().replace("tenants=", "tenants: ") + "\n")
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "settings are reloaded" in server.log, "the log says so")
        assert not server.stub.Abort(pb.AbortRequest(request_id="one")).found
        mine = server.stub.Generate(asked, timeout=CALL_S)
        next(mine)
        assert server.stub.Abort(pb.AbortRequest(request_id="one")).found
        with pytest.raises(grpc.RpcError) as caught:
            list(mine)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        assert sum(len(chunk.tokens) for message in before for chunk in message.chunks) > 300
