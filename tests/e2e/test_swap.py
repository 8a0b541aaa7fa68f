# SPDX-License-Identifier: Apache-2.0
"""More requests than the KV cache holds: those that give way are kept in host memory, and notice nothing."""
import concurrent.futures

import pytest

from metrics import Scrape
from serving import Server, generate, greedy

REQUESTS = 6
TOKENS = 180
BLOCKS = 36  # of 16 tokens; the requests want twelve or more each


def asked(index):
    return greedy(TOKENS, text=f"Story {index}: once upon a time")


@pytest.mark.parametrize("dtype,token_bytes,caching", [("bf16", 30 * 2 * 3 * 128, "false"),
                                                       ("int8", 30 * 2 * 3 * 68, "true")])
def test_swapped_requests_get_what_they_get_alone_M1(millrace_bin, model_path, dtype, token_bytes, caching):
    block = 16 * token_bytes
    settings = ["max_seq_length=256", f"kv_cache_dtype={dtype}", f"kv_cache_memory={(BLOCKS + 1) * block}",
                f"kv_host_memory={80 * block}", f"enable_prefix_caching={caching}"]
    with Server(millrace_bin, model_path, *settings, metrics=True) as server:
        alone = [generate(server.stub, asked(i)).ids for i in range(REQUESTS)]
        assert Scrape(server.metrics).value("millrace_preemptions_total") == 0
        with concurrent.futures.ThreadPoolExecutor(REQUESTS) as pool:
            together = list(pool.map(lambda i: generate(server.stub, asked(i)).ids, range(REQUESTS)))
        after = Scrape(server.metrics)
    assert together == alone
    assert after.value("millrace_kv_cache_bytes_per_token", dtype=dtype) == token_bytes
    assert after.value("millrace_kv_cache_blocks", state="live") == 0
    swapped = after.value("millrace_preemptions_swapped_total")
    assert 0 < swapped <= after.value("millrace_preemptions_total")
    resumed = after.value("millrace_swaps_resumed_total")
    copied_out = after.value("millrace_kv_host_copied_blocks_total", direction="out")
    copied_in = after.value("millrace_kv_host_copied_blocks_total", direction="in")
    assert 0 < resumed <= swapped and 0 < copied_in <= copied_out
    if caching == "false":  # else what the prefix cache still has is not fetched
        assert resumed == swapped and copied_in == copied_out
        assert after.value("millrace_kv_transfers_total", result="done") == 2 * swapped
    assert after.value("millrace_kv_host_blocks", state="swapped") == 0
    assert after.value("millrace_memory_allocated_bytes", part="kv_host") == 80 * block


def test_host_memory_below_a_block_is_refused(millrace_bin, model_path):
    server = Server(millrace_bin, model_path, "kv_host_memory=4KiB", ready=False)
    assert server.wait() != 0
    assert "kv_host_memory" in server.log and "KV block" in server.log
    server.channel.close()
