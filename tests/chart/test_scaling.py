# SPDX-License-Identifier: Apache-2.0
"""Names of metrics that autoscalers and the endpoint picker go by, and what leads to them."""
import re

import pytest

from charts import PVC, REPOSITORY, Rendered, refusal

NONE = {"redis": {"mode": "none"}}
TABLE = (REPOSITORY / "service" / "metrics.def").read_text()
GAUGES = set(re.findall(r'^MR_FAMILY\(\w+, "gauge", "([\w:]+)"', TABLE, re.M))
# The families that the picker's extractor reads of an engine of type vllm.
PICKED = {"vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc",
          "vllm:cache_config_info", "vllm:lora_requests_info"}
POOL = {"gateway": {"inferencePool": {"enabled": True, "endpointPicker": {"name": "picker"}}}}


def test_hpa_goes_by_queue_and_kv_use():
    scaling = {"autoscaling": {"mode": "hpa", "waitingPerReplica": 3, "kvUsagePercent": 75, "minReplicas": 2}}
    rendered = Rendered(PVC, NONE, scaling)
    spec = rendered.one("HorizontalPodAutoscaler")["spec"]
    targets = {metric["pods"]["metric"]["name"]: metric["pods"]["target"] for metric in spec["metrics"]}
    assert targets == {"millrace_requests_waiting": {"type": "AverageValue", "averageValue": "3"},
                       "millrace_kv_cache_usage_ratio": {"type": "AverageValue", "averageValue": "750m"}}
    assert set(targets) <= GAUGES
    deployment = rendered.one("Deployment")
    assert "replicas" not in deployment["spec"]  # or each upgrade would undo the scaling
    assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


def test_keda_goes_by_the_same():
    scaling = {"autoscaling": {"mode": "keda", "kvUsagePercent": 75, "keda": {"serverAddress": "http://p:9090"}}}
    rendered = Rendered(PVC, NONE, scaling)
    spec = rendered.one("ScaledObject")["spec"]
    asked = {trigger["metadata"]["query"]: trigger["metadata"]["threshold"] for trigger in spec["triggers"]}
    mine = '{namespace="prod",pod=~"demo-millrace-.+"}'
    assert asked == {f"sum(millrace_requests_waiting{mine})": "4", f"sum(millrace_kv_cache_usage_ratio{mine})": "0.75"}
    assert "replicas" not in rendered.one("Deployment")["spec"]
    other = Rendered(PVC, NONE, scaling, {"autoscaling": {"keda": {"selector": 'service="x"'}}})
    assert 'sum(millrace_requests_waiting{service="x"})' in str(other.one("ScaledObject"))


@pytest.mark.parametrize("scaling, word", [
    ({"mode": "keda"}, "autoscaling.keda.serverAddress"),
    ({"mode": "hpa", "minReplicas": 5}, "autoscaling.minReplicas"),
    ({"mode": "vpa"}, "mode"),
])
def test_scaling_that_cannot_work_is_refused(scaling, word):
    assert word in refusal(PVC, NONE, {"autoscaling": scaling})


def test_pool_finds_the_pods_and_the_picker_its_metrics():
    rendered = Rendered(PVC, POOL)
    spec = rendered.one("InferencePool")["spec"]
    labels = rendered.pod["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert spec["targetPorts"] == [{"number": 8001}] and spec["appProtocol"] == "kubernetes.io/h2c"
    assert spec["endpointPickerRef"] == {"name": "picker", "port": {"number": 9002}, "failureMode": "FailOpen"}
    for label in ["inference.networking.k8s.io/engine-type", "llm-d.ai/engine-type"]:
        assert labels[label] == "vllm"
    assert PICKED <= GAUGES
    readme = (REPOSITORY / "charts" / "millrace" / "README.md").read_text()
    assert all(name in readme for name in PICKED)


def test_pool_without_its_metrics_is_refused():
    assert "vllm_names" in refusal(PVC, POOL, {"config": {"metrics": {"vllm_names": False}}})


def test_route_leads_to_the_service_or_the_pool():
    route = {"gateway": {"grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}], "hostnames": ["h.example"]}}}
    spec = Rendered(PVC, route).one("GRPCRoute")["spec"]
    assert spec["rules"] == [{"backendRefs": [{"name": "demo-millrace", "port": 8001}]}]
    assert (spec["parentRefs"], spec["hostnames"]) == ([{"name": "g"}], ["h.example"])
    to_pool = {"gateway": {"grpcRoute": {"backend": "inferencePool"}}}
    spec = Rendered(PVC, route, POOL, to_pool).one("GRPCRoute")["spec"]
    assert spec["rules"][0]["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "demo-millrace"}]
    assert "gateway.inferencePool.enabled" in refusal(PVC, route, to_pool)
    assert "parentRefs" in refusal(PVC, {"gateway": {"grpcRoute": {"enabled": True}}})
