# SPDX-License-Identifier: Apache-2.0
"""Prefix caching: what is found, by whom, and that nothing but time tells."""
import json
import random
import re
import threading
import time

import grpc
import pytest

import commands
from keys import KeyServer, bearer, digest
from metrics import Scrape
from serving import CALL_S, Answer, Server, choices, failure, generate, greedy, request, unary
from stubs import pb, pb_grpc

BLOCK = 16
SETTINGS = ("max_seq_length=1024", "admin.enable=true", "cache_salt_secret=swordfish")
# Longer than 512 tokens, so that attention has several splits and the prompt several chunks.
LONG = " ".join(f"Clause {number}: the tenant of house {number} keeps the {number}. key." for number in range(40))


def identified(server):
    """Waits until the digest stands for the model: until then the cache may start anew at any time."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found = re.search(r"the model is identified\" digest=([0-9a-f]{64})", server.log)
        if found:
            return found.group(1)
        time.sleep(0.02)
    raise AssertionError(f"the model was never identified:\n{server.log}")


@pytest.fixture(scope="module")
def cached(millrace_bin, model_path):
    with Server(millrace_bin, model_path, *SETTINGS, metrics=True) as server:
        identified(server)
        yield server


@pytest.fixture(scope="module")
def uncached(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", "admin.enable=true",
                "enable_prefix_caching=false") as server:
        yield server


def reset(server):
    return pb_grpc.AdminServiceStub(server.channel).ResetPrefixCache(pb.ResetPrefixCacheRequest(),
                                                                     timeout=CALL_S).blocks_dropped


def load_of(server):
    return pb_grpc.AdminServiceStub(server.channel).GetLoad(pb.GetLoadRequest(), timeout=CALL_S).load


def drawn(**fields):
    asked = {"sampling": {"temperature": 0.8, "seed": "11"}, "stopping": {"maxTokens": 24, "ignoreEos": True},
             "output": {"logprobs": True, "topLogprobs": 5}}
    asked.update(fields)
    return request(asked)


def content(answer):
    """Everything but times and what was cached, to the last bit."""
    return [(choice.ids, choice.text, [(token.logprob, [(top.id, top.logprob) for top in token.top])
                                       for token in choice.tokens]) for choice in choices(answer)]


def test_hit_gives_the_same_bits_D1(cached, uncached):
    reset(cached)
    plain = generate(uncached.stub, drawn(text=LONG))
    cold = generate(cached.stub, drawn(text=LONG))
    warm = generate(cached.stub, drawn(text=LONG))
    assert plain.usage.cached_tokens == cold.usage.cached_tokens == 0
    prompt = warm.usage.prompt_tokens
    assert prompt > 512 and warm.usage.cached_tokens == (prompt - 1) // BLOCK * BLOCK
    assert content(warm) == content(cold) == content(plain)
    assert all(token.top for token in warm.tokens)


def test_every_length_of_hit_gives_the_same_bits_D1(cached, uncached):
    """A prefix that ends anywhere; what follows is computed in other chunks than at first."""
    reset(cached)
    words = LONG.split()
    for count in (5, 11, 60, 61, 120, 250):
        text = " ".join(words[:count]) + " And then"
        plain = generate(uncached.stub, drawn(text=text))
        found = generate(cached.stub, drawn(text=text))
        assert content(found) == content(plain)
        assert count < 60 or found.usage.cached_tokens > 0


def test_choices_and_beams_share_the_prompt(cached, uncached):
    reset(cached)
    for sampling in ({"temperature": 0.9, "seed": "5", "n": 4}, {"beamWidth": 3, "n": 2}):
        asked = request({"text": LONG[:900], "sampling": sampling, "output": {"logprobs": True},
                         "stopping": {"maxTokens": 16, "ignoreEos": True}})
        plain = unary(uncached.stub, asked)
        first = unary(cached.stub, asked)
        second = unary(cached.stub, asked)
        assert second.usage.cached_tokens >= 128
        assert content(first) == content(second) == content(plain)


def test_output_is_found_as_the_next_prompt(cached):
    reset(cached)
    first = generate(cached.stub, greedy(60, text="The old house by the sea"))
    tokens = list(cached.stub.Tokenize(pb.TokenizeRequest(text="The old house by the sea")).ids) + first.ids
    second = generate(cached.stub, greedy(4, tokens={"ids": tokens}))
    assert second.usage.cached_tokens == (len(tokens) - 1) // BLOCK * BLOCK


def test_prompt_logprobs_are_whole(cached):
    reset(cached)
    asked = greedy(2, text=LONG[:400], output={"promptLogprobs": True})
    first = generate(cached.stub, asked)
    second = generate(cached.stub, asked)
    assert second.usage.cached_tokens == 0
    assert [token.logprob for token in second.prompt] == [token.logprob for token in first.prompt]
    assert all(token.HasField("logprob") for token in second.prompt[1:])
    assert generate(cached.stub, greedy(2, text=LONG[:400])).usage.cached_tokens > 0


def test_salts_separate_X1_X2(cached):
    reset(cached)
    seen = []
    for salt in ("", "a", "b", "ab", "a"):
        seen.append(generate(cached.stub, greedy(2, text=LONG[:400], cacheSalt=salt)).usage.cached_tokens > 0)
    assert seen == [False, False, False, False, True]
    error = failure(cached.stub.Generate, greedy(2, text="a", cacheSalt="x" * 257))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("cache_salt")


@pytest.mark.parametrize("scope,found", [("tenant", [False, False, True, True, False]),
                                         ("shared", [False, True, True, True, False])])
def test_tenants_find_their_own_or_what_all_share_X1(millrace_bin, model_path, scope, found):
    """ada, bob, each again, and bob with a salt; ada's second key is ada's as well."""
    tenants = ", ".join(f"{{name: {name}, keys: [{', '.join(digest(key) for key in keys)}]}}"
                        for name, keys in (("ada", ("a", "a2")), ("bob", ("b",))))
    settings = ("max_seq_length=512", f"cache_scope={scope}", f"tenants=[{tenants}]")
    with KeyServer("a", millrace_bin, model_path, *settings) as server:
        identified(server)
        seen = []
        for key, salt in (("a", ""), ("b", ""), ("a2", ""), ("b", ""), ("b", "ada")):
            call = server.stub.Generate(greedy(2, text=LONG[:400], cacheSalt=salt), metadata=bearer(key), timeout=CALL_S)
            seen.append(Answer(call).usage.cached_tokens > 0)
        assert seen == found


def test_reset_hurts_nothing_that_runs_X4(cached):
    reset(cached)
    asked = greedy(80, text=LONG[:400])
    calm = generate(cached.stub, asked)
    call = cached.stub.Generate(asked, timeout=CALL_S)
    messages = [next(call)]
    assert reset(cached) > 0
    messages += list(call)
    disturbed = Answer(messages)
    assert disturbed.usage.cached_tokens > 0 and disturbed.ids == calm.ids
    # What it computed before and after the reset is not found either.
    assert load_of(cached).kv_blocks_cached == 0
    assert generate(cached.stub, asked).usage.cached_tokens == 0
    assert generate(cached.stub, asked).usage.cached_tokens > 0


def test_replicas_agree_on_the_model(cached, millrace_bin, model_path):
    with Server(millrace_bin, model_path, *SETTINGS) as other:
        assert identified(other) == identified(cached)
        assert "cache_salt_secret is empty" not in other.log


def test_unset_secret_is_said_and_a_given_one_is_not_shown(cached, millrace_bin, model_path):
    assert "cache_salt_secret=***" in cached.log and "swordfish" not in cached.log
    with Server(millrace_bin, model_path, "max_seq_length=256") as server:
        identified(server)
        assert "cache_salt_secret is empty" in server.log


def test_gauges_after_a_soak_C4_C6(cached):
    """Streams of common and of own prompts, some left in the middle."""
    rng = random.Random(6)

    def client(number):
        for turn in range(8):
            text = LONG[:rng.choice((100, 300, 600))] + (f" {number} {turn}" if rng.random() < 0.5 else "")
            call = cached.stub.Generate(greedy(rng.choice((4, 30)), text=text), timeout=CALL_S)
            try:
                for at, _ in enumerate(call):
                    if rng.random() < 0.1:
                        call.cancel()
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.CANCELLED

    threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert 0 <= Scrape(cached.metrics).value("millrace_kv_cache_usage_ratio") <= 1
        time.sleep(0.05)
    end = time.monotonic() + 5
    while load_of(cached).kv_blocks_live + load_of(cached).running > 0 and time.monotonic() < end:
        time.sleep(0.05)
    scrape = Scrape(cached.metrics)
    blocks = {state: scrape.value("millrace_kv_cache_blocks", state=state) for state in ("live", "cached", "free")}
    assert blocks["live"] == 0 and blocks["cached"] > 0
    assert sum(blocks.values()) == load_of(cached).kv_blocks_total
    assert scrape.value("millrace_kv_cache_usage_ratio") == 0
    assert scrape.value("millrace_kv_cache_cached_bytes") > 0 == scrape.value("millrace_kv_cache_live_bytes")


def test_metrics_and_usage_log_tell_what_was_found(cached):
    reset(cached)
    names = ("millrace_prefix_cache_queried_tokens_total", "millrace_prefix_cache_found_tokens_total",
             "millrace_prompt_tokens_total")
    before = [Scrape(cached.metrics).value(name) for name in names]
    answers = [generate(cached.stub, greedy(2, text=LONG[:700], requestId=f"told-{turn}")) for turn in range(2)]
    prompt = answers[0].usage.prompt_tokens
    found = answers[1].usage.cached_tokens
    end = time.monotonic() + 1
    wanted = [2 * prompt, found, 2 * prompt - found]
    told = []
    while told != wanted and time.monotonic() < end:
        scrape = Scrape(cached.metrics)
        told = [scrape.value(name) - was for name, was in zip(names, before)]
    assert found > 0 and told == wanted
    labels = {"model_name": re.search(r'model_name="([^"]+)"', scrape.text).group(1), "engine": "0"}
    assert scrape.value("vllm:prefix_cache_hits_total", **labels) == scrape.value(names[1])
    assert scrape.value("vllm:prefix_cache_queries_total", **labels) == scrape.value(names[0])
    assert scrape.value("vllm:prompt_tokens_cached_total", **labels) == scrape.value(names[1])
    assert 'enable_prefix_caching="True"' in scrape.text
    lines = {name: line for line in cached.log.splitlines() for name in ("told-0", "told-1") if name in line}
    assert "cached_tokens=0 " in lines["told-0"] and f"cached_tokens={found} " in lines["told-1"]


def test_off_means_off_Q6(uncached, millrace_bin, model_path):
    for _ in range(2):
        assert generate(uncached.stub, greedy(2, text=LONG[:400])).usage.cached_tokens == 0
    assert load_of(uncached).kv_blocks_cached == 0
    error = failure(pb_grpc.AdminServiceStub(uncached.channel).ResetPrefixCache, pb.ResetPrefixCacheRequest())
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION and "enable_prefix_caching" in error.details()
    done = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0", "--set",
                        "enable_prefix_caching=false", "--set", "cache_scope=shared")
    assert done.returncode != 0 and "cannot act" in done.stderr


def test_jsonl_rows_tell_what_was_cached_X2(millrace_bin, model_path):
    rows = [{"id": number, "prompt": LONG[:400], "max_tokens": 6, "temperature": 0, "logprobs": 1, "cache_salt": salt}
            for number, salt in enumerate(("", "", "a", "a"))]
    done = commands.output(millrace_bin, "generate", "--model", model_path, "--jsonl", "--set", "max_batch_size=1",
                           "--set", "max_seq_length=512", stdin="".join(json.dumps(row) + "\n" for row in rows))
    results = [json.loads(line) for line in done.splitlines()]
    assert [result["cached_tokens"] > 0 for result in results] == [False, True, False, True]
    assert all(result["token_ids"] == results[0]["token_ids"] for result in results)
    assert all(result["logprobs"] == results[0]["logprobs"] for result in results)
