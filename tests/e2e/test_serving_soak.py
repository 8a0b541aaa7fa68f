# SPDX-License-Identifier: Apache-2.0
"""Requests of two tenants on a KV cache that is too small for them, many of which end early: the counts add up at
every scrape, and afterwards nothing is left. MILLRACE_SOAK=1 runs 2,000 of them."""
import concurrent.futures
import os
import random
import threading
import time

import grpc

from keys import ADMIN, ADMIN_KEY, KeyServer, bearer, digest
from metrics import Scrape
from serving import CALL_S, greedy
from stubs import pb, pb_grpc
from test_cancel_soak import DRIFT_KIB, resident_kib, settled_blocks

SOAK = os.environ.get("MILLRACE_SOAK") == "1"
REQUESTS = 2000 if SOAK else 48
WARM_UP = 300 if SOAK else 48
CLIENTS = 16
BLOCK = 16 * 30 * 2 * 3 * 128  # bytes of 16 tokens in bf16
BLOCKS = 40  # a request wants up to 15, and eight run together
KEYS = {"ada": "key-of-ada", "bob": "key-of-bob"}
TENANTS = (f"tenants=[{{name: ada, keys: [{digest(KEYS['ada'])}], weight: 3, priority_max: 2}}, "
           f"{{name: bob, keys: [{digest(KEYS['bob'])}], max_concurrent: 6}}]")
STORY = "Once upon a time there was a miller who lived by a river and had three sons and a donkey and a cat. "
EARLY = {grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED}


class Watch:
    """Scrapes without a pause while the others work."""

    def __init__(self, server):
        self._server = server
        self._stop = threading.Event()
        self.wrong, self.scrapes, self.busiest = [], 0, 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self):
        while not self._stop.is_set():
            scrape = Scrape(self._server.metrics)
            running, waiting = (scrape.value(f"millrace_requests_{state}") for state in ("running", "waiting"))
            started = scrape.value("millrace_requests_started_total")
            finished = scrape.total("millrace_requests_finished_total")
            if started != finished + running + waiting:
                self.wrong.append((started, finished, running, waiting))
            self.scrapes += 1
            self.busiest = max(self.busiest, running + waiting)
            self._stop.wait(0.02)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


def draw_request(rng, name):
    """One of four beginnings, which the cache may still have, and an end of its own."""
    text = f"Book {rng.randrange(4)}. " + STORY * rng.choice((1, 2, 3)) + f"Then {rng.randrange(10**6)} of them"
    priority = rng.randrange(3) if rng.random() < 0.2 and name.startswith("ada") else 0
    asked = greedy(rng.randrange(20, 120), text=text, requestId=name, priority=priority)
    asked.sampling.n = 1 + (rng.random() < 0.2)
    return asked


def one_request(server, number):
    """Its status: OK, how it was ended, or why it was refused."""
    rng = random.Random(number)
    tenant = rng.choice(list(KEYS))
    name = f"{tenant}-{number}"
    way = rng.choice(("whole", "whole", "cancel", "abort", "deadline"))
    timeout = rng.uniform(0.01, 1) if way == "deadline" else CALL_S
    call = server.stub.Generate(draw_request(rng, name), metadata=bearer(KEYS[tenant]), timeout=timeout)
    leave_after = rng.randrange(12)
    try:
        for index, _ in enumerate(call):
            if index == leave_after and way == "cancel":
                call.cancel()
            elif index == leave_after and way == "abort":
                server.stub.Abort(pb.AbortRequest(request_id=name), metadata=bearer(KEYS[tenant]), timeout=CALL_S)
    except grpc.RpcError:
        pass
    return way, call.code(), call.details()


def run(server, first, count):
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(lambda number: one_request(server, number), range(first, first + count)))


def check_outcomes(outcomes):
    for way, code, details in outcomes:
        refused = code == grpc.StatusCode.RESOURCE_EXHAUSTED and "requests running" in details
        early = way != "whole" and code in EARLY
        assert code == grpc.StatusCode.OK or refused or early, (way, code, details)
    codes = [code for _, code, _ in outcomes]
    assert codes.count(grpc.StatusCode.OK) > 0 and len(EARLY & set(codes)) == 2


def settled_scrape(server):
    assert settled_blocks(server) == 0
    scrape = Scrape(server.metrics)
    assert scrape.value("millrace_requests_running") == scrape.value("millrace_requests_waiting") == 0
    assert scrape.value("millrace_requests_started_total") == scrape.total("millrace_requests_finished_total")
    return scrape


def test_soak_of_tenants_under_pressure_C1_I1(millrace_bin, model_path):
    settings = ["max_seq_length=256", "max_batch_size=8", "kv_cache_dtype=bf16", *ADMIN,
                f"kv_cache_memory={(BLOCKS + 1) * BLOCK}", f"kv_host_memory={BLOCKS * BLOCK}", TENANTS]
    with KeyServer(KEYS["ada"], millrace_bin, model_path, *settings, metrics=True) as server:
        server.admin_metadata = bearer(ADMIN_KEY)
        run(server, 0, WARM_UP)
        before = settled_scrape(server)
        resident = resident_kib(server)
        with Watch(server) as watch:
            outcomes = run(server, WARM_UP, REQUESTS)
        after = settled_scrape(server)
        grown = resident_kib(server) - resident
        check_outcomes(outcomes)
        assert not watch.wrong, watch.wrong[:5]
        assert watch.scrapes >= REQUESTS / 100 and watch.busiest >= 8

        def more(name):
            return after.value(name) - before.value(name)

        # What was refused at the door did not start.
        refused = [code for _, code, _ in outcomes].count(grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert 0 < more("millrace_requests_started_total") <= REQUESTS - refused
        assert more("millrace_preemptions_total") > 0 and more("millrace_prefix_cache_found_tokens_total") > 0
        assert after.value("millrace_kv_host_blocks", state="swapped") == 0
        assert grown < DRIFT_KIB
        admin = pb_grpc.AdminServiceStub(server.channel)
        admin.ResetPrefixCache(pb.ResetPrefixCacheRequest(), timeout=CALL_S, metadata=bearer(ADMIN_KEY))
        end = time.monotonic() + CALL_S
        while Scrape(server.metrics).value("millrace_kv_cache_blocks", state="free") != BLOCKS:
            assert time.monotonic() < end, "blocks are missing"
            time.sleep(0.05)
