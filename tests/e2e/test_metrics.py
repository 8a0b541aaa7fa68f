# SPDX-License-Identifier: Apache-2.0
"""/metrics, /livez and /readyz."""
import re
import threading
import time

import grpc
import pytest

import commands
from metrics import Scrape, get
from serving import CALL_S, Server, failure, generate, greedy, request
from stubs import pb

PROMPT = "The river ran"

# The contract (I2): a name that leaves this list stays for one release beside its successor.
COUNTERS = """
millrace_requests_started_total millrace_requests_finished_total millrace_requests_rejected_total
millrace_requests_refused_total millrace_requests_corrupted_total millrace_prompt_tokens_total
millrace_generated_tokens_total millrace_preemptions_total millrace_preempted_tokens_total millrace_engine_step_seconds_total
millrace_prefix_cache_queried_tokens_total millrace_prefix_cache_found_tokens_total
process_cpu_seconds_total
millrace_rate_limit_decisions_total millrace_rate_limit_refusals_total millrace_redis_connects_total
millrace_redis_commands_total millrace_redis_errors_total millrace_redis_dropped_total
millrace_claims_published_total
millrace_preemptions_swapped_total millrace_swaps_resumed_total millrace_kv_host_copied_blocks_total
millrace_kv_transfers_total millrace_drains_total millrace_drained_requests_total millrace_tls_reloads_total
vllm:num_preemptions_total vllm:prompt_tokens_total vllm:prompt_tokens_cached_total vllm:generation_tokens_total
vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total vllm:request_success_total
vllm:corrupted_requests_total vllm:admission_rejections_total
""".split()
GAUGES = """
millrace_build_info millrace_model_info millrace_ready millrace_requests_running millrace_requests_waiting
millrace_memory_allocated_bytes millrace_kv_cache_reserved_bytes millrace_kv_cache_live_bytes
millrace_kv_cache_cached_bytes millrace_kv_cache_blocks millrace_kv_cache_usage_ratio millrace_engine_busy_ratio
millrace_engine_running_step_seconds millrace_engine_last_step_age_seconds process_resident_memory_bytes
millrace_redis_connected millrace_redis_available millrace_draining millrace_stalled
millrace_tls_certificate_not_after_timestamp_seconds
millrace_kv_cache_bytes_per_token millrace_kv_host_blocks millrace_kv_transfers_unfinished
vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:cache_config_info
vllm:lora_requests_info
""".split()
HISTOGRAMS = """
millrace_step_tokens millrace_time_to_first_token_seconds millrace_inter_token_latency_seconds
millrace_request_seconds millrace_request_queue_seconds millrace_request_prefill_seconds
millrace_request_decode_seconds
vllm:iteration_tokens_total vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds
vllm:request_time_per_output_token_seconds vllm:e2e_request_latency_seconds vllm:request_queue_time_seconds
vllm:request_inference_time_seconds vllm:request_prefill_time_seconds vllm:request_decode_time_seconds
vllm:request_prompt_tokens vllm:request_generation_tokens vllm:request_prefill_kv_computed_tokens
vllm:request_params_n vllm:request_params_max_tokens vllm:request_max_num_generation_tokens
vllm:request_num_preemptions
""".split()
# Labels beyond model_name and engine, which the vllm: families have.
LABELS = {
    "millrace_build_info": {"version"},
    "millrace_model_info": {"model_name", "backend"},
    "millrace_requests_finished_total": {"reason"},
    "millrace_requests_refused_total": {"status"},
    "millrace_rate_limit_decisions_total": {"by"},
    "millrace_rate_limit_refusals_total": {"limit"},
    "millrace_redis_dropped_total": {"what"},
    "millrace_memory_allocated_bytes": {"part"},
    "millrace_kv_cache_blocks": {"state"},
    "millrace_kv_cache_bytes_per_token": {"dtype"},
    "millrace_kv_host_blocks": {"state"},
    "millrace_kv_host_copied_blocks_total": {"direction"},
    "millrace_kv_transfers_total": {"result"},
    "millrace_tls_reloads_total": {"result"},
    "millrace_kv_transfers_unfinished": {"state"},
    "millrace_drains_total": {"by"},
    "millrace_drained_requests_total": {"how"},
    "vllm:request_success_total": {"finished_reason"},
    "vllm:cache_config_info": {"block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"},
    "vllm:lora_requests_info": {"max_lora", "waiting_lora_adapters", "running_lora_adapters"},
}
TTFT = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
        640, 2560]
TOKEN = [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80]
PHASE = [0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]
COUNTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]  # up to max_seq_length, 1024 here
STEPS = [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]


@pytest.fixture(scope="module")
def measured(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", "max_batch_size=2", "max_queue_requests=4",
                metrics=True) as running:
        yield running


def settled(server, condition):
    """A scrape that meets the condition within a second (C6)."""
    end = time.monotonic() + 1
    while True:
        scrape = Scrape(server.metrics)
        if condition(scrape) or time.monotonic() > end:
            return scrape
        time.sleep(0.02)


def idle(scrape):
    return scrape.value("millrace_requests_running") == 0 and scrape.value("millrace_requests_waiting") == 0


def check_sum(scrape):
    """I1."""
    live = scrape.value("millrace_requests_running") + scrape.value("millrace_requests_waiting")
    assert scrape.value("millrace_requests_started_total") == scrape.total("millrace_requests_finished_total") + live


def test_families_are_the_contract_from_the_first_scrape_I2_I3(millrace_bin, model_path):
    """Also while the model is loading; with zeros."""
    with Server(millrace_bin, model_path, metrics=True, ready=False) as server:
        for _ in range(2):
            scrape = Scrape(server.metrics)
            types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", scrape.text, re.MULTILINE))
            wanted = {**dict.fromkeys(COUNTERS, "counter"), **dict.fromkeys(GAUGES, "gauge"),
                      **dict.fromkeys(HISTOGRAMS, "histogram")}
            assert types == wanted
            assert scrape.content_type == "text/plain; version=0.0.4; charset=utf-8"
            assert scrape.value("millrace_requests_started_total") == 0
            assert scrape.total("millrace_requests_finished_total") == 0
            server.wait_ready()


def test_total_is_of_counters_and_help_says_units_I3(measured):
    text = Scrape(measured.metrics).text
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        assert name.endswith("_total") == (kind == "counter") or name == "vllm:iteration_tokens_total"
        about = re.search(rf"^# HELP {name} (.+)$", text, re.MULTILINE).group(1)
        for unit in ("seconds", "bytes", "tokens"):
            assert unit not in name.split("_") or unit in about.lower() or name.endswith(f"{unit}_total")


def test_labels_are_a_fixed_set_I4(measured):
    generate(measured.stub, greedy(2, text=PROMPT, requestId="a-secret-id"))
    scrape = Scrape(measured.metrics)
    assert "a-secret-id" not in scrape.text
    for name, labels in scrape.samples:
        family = re.sub(r"_(bucket|sum|count)$", "", name) if name not in LABELS else name
        known = LABELS.get(family, set()) | ({"model_name", "engine"} if name.startswith("vllm:") else set())
        known |= {"le"} if name.endswith("_bucket") else set()
        assert {label for label, _ in labels} == known, name


@pytest.mark.parametrize("name,bounds", [
    ("vllm:time_to_first_token_seconds", TTFT), ("vllm:inter_token_latency_seconds", TOKEN),
    ("vllm:request_time_per_output_token_seconds", TOKEN), ("vllm:e2e_request_latency_seconds", PHASE),
    ("vllm:request_queue_time_seconds", PHASE), ("vllm:request_inference_time_seconds", PHASE),
    ("vllm:request_prefill_time_seconds", PHASE), ("vllm:request_decode_time_seconds", PHASE),
    ("vllm:request_prompt_tokens", COUNTS), ("vllm:request_generation_tokens", COUNTS),
    ("vllm:request_params_max_tokens", COUNTS), ("vllm:request_params_n", [1, 2, 5, 10, 20]),
    ("vllm:request_max_num_generation_tokens", COUNTS),
    ("vllm:request_num_preemptions", [0, 1, 2, 5, 10, 20, 50, 100]), ("vllm:iteration_tokens_total", STEPS)])
def test_buckets(measured, name, bounds):
    buckets = {float(dict(labels)["le"]): value for labels, value in Scrape(measured.metrics).all(name + "_bucket").items()}
    assert sorted(buckets) == [*bounds, float("inf")]


def test_counts_after_known_requests(measured):
    before = settled(measured, idle)

    def grown(scrape, name, **labels):
        return scrape.value(name, **labels) - before.value(name, **labels)

    lengths = [3, 5, 9]
    for length in lengths:
        answer = generate(measured.stub, greedy(length, tokens={"ids": [10, 11, 12, 13]}))
        assert len(answer.ids) == length
    after = settled(measured, lambda scrape: idle(scrape) and grown(scrape, "millrace_request_seconds_count") == 3)
    assert grown(after, "millrace_requests_started_total") == 3
    assert grown(after, "millrace_requests_finished_total", reason="length") == 3
    assert grown(after, "millrace_prompt_tokens_total") == 12
    assert grown(after, "millrace_generated_tokens_total") == sum(lengths)
    assert grown(after, "millrace_time_to_first_token_seconds_count") == 3
    assert grown(after, "millrace_inter_token_latency_seconds_count") == sum(lengths) - 3
    model = dict(model_name=measured.stub.GetModel(pb.GetModelRequest()).model.name, engine="0")
    assert grown(after, "vllm:request_success_total", finished_reason="length", **model) == 3
    assert grown(after, "vllm:request_prompt_tokens_sum", **model) == 12
    assert grown(after, "vllm:request_generation_tokens_sum", **model) == sum(lengths)
    assert grown(after, "vllm:request_params_n_sum", **model) == 3
    assert grown(after, "vllm:request_params_max_tokens_sum", **model) == sum(lengths)
    assert grown(after, "vllm:request_max_num_generation_tokens_sum", **model) == sum(lengths)
    assert grown(after, "vllm:request_num_preemptions_bucket", le="0", **model) == 3
    # Each step was counted with its tokens: 4 of a prompt, then one at a time.
    assert grown(after, "vllm:iteration_tokens_total_sum", **model) == 12 + sum(lengths) - 3
    assert grown(after, "vllm:iteration_tokens_total_count", **model) == sum(lengths)
    for phase in ("e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time",
                  "request_inference_time"):
        assert grown(after, f"vllm:{phase}_seconds_count", **model) == 3
    assert grown(after, "millrace_engine_step_seconds_total") > 0
    assert 0 <= after.value("millrace_engine_busy_ratio") <= 1
    check_sum(after)


def test_sum_holds_at_any_scrape_I1(measured):
    """While requests end, are cancelled, are refused and wait."""
    stop = threading.Event()
    scrapes = []

    def watch():
        while not stop.is_set():
            scrapes.append(Scrape(measured.metrics))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        calls = [measured.stub.Generate(greedy(40, text=PROMPT), timeout=CALL_S) for _ in range(12)]
        for call in calls[::4]:
            call.cancel()
        statuses = []
        for call in calls:
            try:
                list(call)
                statuses.append(grpc.StatusCode.OK)
            except grpc.RpcError as error:
                statuses.append(error.code())
        failure(measured.stub.Generate, request({"text": PROMPT, "sampling": {"topP": 7}}))
    finally:
        stop.set()
        watcher.join()
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in statuses and grpc.StatusCode.OK in statuses
    assert len(scrapes) > 5
    started = [scrape.value("millrace_requests_started_total") for scrape in scrapes]
    assert started == sorted(started)
    for scrape in scrapes:
        check_sum(scrape)
    last = settled(measured, idle)
    assert idle(last)
    check_sum(last)
    assert last.value("millrace_requests_rejected_total") >= statuses.count(grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert last.value("millrace_requests_refused_total", status="INVALID_ARGUMENT") >= 1


def test_gauges_are_right_a_second_after_all_left_C6(measured):
    calls = [measured.stub.Generate(greedy(900, text=PROMPT), timeout=CALL_S) for _ in range(4)]
    next(calls[0])
    busy = settled(measured, lambda scrape: scrape.value("millrace_requests_waiting") == 2)
    assert busy.value("millrace_requests_running") == 2 and busy.value("millrace_requests_waiting") == 2
    assert busy.total("vllm:kv_cache_usage_perc") > 0
    assert busy.value("millrace_kv_cache_live_bytes") > 0
    for call in calls:
        call.cancel()
    quiet = settled(measured, lambda scrape: idle(scrape) and scrape.value("millrace_kv_cache_usage_ratio") == 0)
    assert idle(quiet)
    assert quiet.value("millrace_kv_cache_live_bytes") == 0 and quiet.total("vllm:kv_cache_usage_perc") == 0
    assert quiet.value("millrace_engine_running_step_seconds") == 0


def test_memory_and_cache_agree(measured):
    scrape = settled(measured, idle)
    reserved = scrape.value("millrace_kv_cache_reserved_bytes")
    assert 0 < reserved <= scrape.value("millrace_memory_allocated_bytes", part="kv_cache")
    assert scrape.value("millrace_memory_allocated_bytes", part="weights") > 50 << 20
    assert scrape.value("process_resident_memory_bytes") > 50 << 20
    info = dict(*scrape.all("vllm:cache_config_info"))
    assert int(info["num_gpu_blocks"]) == scrape.total("millrace_kv_cache_blocks") and info["block_size"] == "16"


def test_vllm_names_can_be_switched_off(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "metrics.vllm_names=false", metrics=True) as server:
        text = Scrape(server.metrics).text
        assert "vllm:" not in text and "millrace_requests_running" in text


def test_probes_from_loading_to_draining_H2_H3(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=1024", metrics=True, ready=False) as server:
        assert get(server.metrics, "/livez")[0] == 200
        status, _, reason = get(server.metrics, "/readyz")
        assert status == 200 or (status == 503 and "loading" in reason)
        server.wait_ready()
        assert get(server.metrics, "/readyz")[0] == 200
        assert Scrape(server.metrics).value("millrace_ready") == 1
        call = server.stub.Generate(greedy(300, text=PROMPT), timeout=CALL_S)
        next(call)
        server.terminate()
        end = time.monotonic() + 10
        while get(server.metrics, "/readyz")[0] == 200:
            assert time.monotonic() < end
        status, _, reason = get(server.metrics, "/readyz")
        assert status == 503 and "shutting down" in reason
        assert get(server.metrics, "/livez")[0] == 200
        assert Scrape(server.metrics).value("millrace_ready") == 0
        list(call)
        assert server.wait() == 0


def test_other_paths_and_methods(measured):
    status, _, text = get(measured.metrics, "/other")
    assert status == 404 and "/metrics" in text
    assert get(measured.metrics, "/metrics?x=1")[0] == 200


def test_a_metrics_address_in_use_ends_the_start(measured, millrace_bin, model_path):
    run = commands.run(millrace_bin, "serve", "--model", model_path, "--listen", "127.0.0.1:0", "--metrics-listen",
                       measured.metrics)
    assert run.returncode == 1 and measured.metrics in run.stderr and "--metrics-listen" in run.stderr
    assert "listening on" not in run.stdout
