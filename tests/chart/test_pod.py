# SPDX-License-Identifier: Apache-2.0
"""What the pod is made of, by the asks of platform engineers."""
import copy
import json

import pytest

from charts import PVC, SETS, Rendered, load, refusal

PATHS = pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
EXTERNAL = {"redis": {"mode": "external", "external": {"host": "redis"}}}


def settings(*values):
    """Environment of the server, by name."""
    return {entry["name"]: entry for entry in Rendered(PVC, *values).server.get("env", [])}


def containers(rendered):
    spec = rendered.pod["spec"]
    return spec["containers"] + spec.get("initContainers", [])


def volume(rendered, name):
    found, = [entry for entry in rendered.pod["spec"]["volumes"] if entry["name"] == name]
    return found


# N1: what others' charts did not let one set.

def test_probes_lifecycle_grace_and_tolerations_are_values_N1():
    tolerations = [{"key": "llm", "operator": "Exists"}]
    rendered = Rendered(PVC, {
        "probes": {"liveness": {"periodSeconds": 33}, "readiness": {"failureThreshold": 7}, "startup": {"periodSeconds": 3}},
        "lifecycle": {"postStart": {"exec": {"command": ["true"]}}},
        "terminationGracePeriodSeconds": 777, "tolerations": tolerations})
    spec = rendered.pod["spec"]
    assert rendered.server["livenessProbe"]["periodSeconds"] == 33
    assert rendered.server["readinessProbe"]["failureThreshold"] == 7
    assert rendered.server["startupProbe"]["periodSeconds"] == 3
    assert rendered.server["lifecycle"]["postStart"] == {"exec": {"command": ["true"]}}
    assert rendered.server["lifecycle"]["preStop"] == {"sleep": {"seconds": 10}}
    assert (spec["terminationGracePeriodSeconds"], spec["tolerations"]) == (777, tolerations)


@pytest.mark.parametrize("values, word", [
    ({"probes": {"liveness": {"periodSeconds": 0}}}, "periodSeconds"),
    ({"probes": {"liveness": {"period": 1}}}, "period"),
    ({"terminationGracePeriodSeconds": "60s"}, "terminationGracePeriodSeconds"),
    ({"tolerations": {"key": "a"}}, "tolerations"),
    ({"service": {"type": "ExternalName"}}, "type"),
    ({"ports": {"grpc": 80}}, "grpc"),
])
def test_values_out_of_bounds_are_refused_by_name_N1(values, word):
    assert word in refusal(PVC, values)


# N2: security.

@PATHS
def test_every_container_is_confined_N2(path):
    rendered = Rendered(load(path))
    context = rendered.pod["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert rendered.pod["spec"]["automountServiceAccountToken"] is False
    for container in containers(rendered):
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True,
                                                "capabilities": {"drop": ["ALL"]}}, container["name"]
    for name in ["hostNetwork", "hostPID", "hostIPC"]:
        assert name not in rendered.pod["spec"]
    assert not any("hostPath" in entry for entry in rendered.pod["spec"]["volumes"])


def test_user_group_and_files_of_volumes_go_together_N2():
    context = Rendered(PVC).pod["spec"]["securityContext"]
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 65532
    platform = Rendered(load([path for path in SETS if path.stem == "openshift"][0])).pod["spec"]["securityContext"]
    assert not {"runAsUser", "runAsGroup", "fsGroup"} & set(platform)


def test_what_is_written_goes_to_scratch_and_shm_is_memory_N2():
    rendered = Rendered(PVC, {"shm": {"sizeLimit": "1Gi"}})
    assert volume(rendered, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert volume(rendered, "scratch")["emptyDir"] == {"sizeLimit": "64Mi"}
    mounts = {mount["mountPath"]: mount for mount in rendered.server["volumeMounts"]}
    assert mounts["/tmp"]["name"] == "scratch" and mounts["/dev/shm"]["name"] == "shm"
    assert mounts["/models"]["readOnly"] and mounts["/etc/millrace"]["readOnly"]


def test_secrets_stay_out_of_the_configmap_N2():
    for name in ["cache_salt_secret", "redis"]:
        value = {"redis": {"url": "redis://:secret@host"}} if name == "redis" else {name: "secret"}
        message = refusal(PVC, {"config": value})
        assert ("url" if name == "redis" else name) in message and "not allowed" in message


def test_secrets_come_by_reference_N2():
    env = settings(EXTERNAL, {
        "tenantsSecret": {"name": "t", "key": "list"}, "cacheSaltSecret": {"name": "s"},
        "redis": {"external": {"username": "u", "database": 3, "passwordSecret": {"name": "r"}}}})
    assert env["MILLRACE_TENANTS"]["valueFrom"] == {"secretKeyRef": {"name": "t", "key": "list"}}
    assert env["MILLRACE_CACHE_SALT_SECRET"]["valueFrom"] == {"secretKeyRef": {"name": "s", "key": "salt"}}
    assert env["REDIS_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "r", "key": "password"}}
    assert env["MILLRACE_REDIS_URL"]["value"] == "redis://u:$(REDIS_PASSWORD)@redis:6379/3"
    # The kubelet puts in what comes before.
    assert list(env).index("REDIS_PASSWORD") < list(env).index("MILLRACE_REDIS_URL")


def test_whole_file_from_a_secret_N2():
    rendered = Rendered(PVC, {"configSecret": {"name": "c", "key": "a.yaml"}})
    assert volume(rendered, "config")["secret"]["secretName"] == "c"
    assert rendered.server["args"][-2:] == ["--config", "/etc/millrace/a.yaml"]
    assert rendered.all("ConfigMap") == []


# N3: without a GPU.

@PATHS
def test_no_nvidia_without_gpu_N3(path):
    values = load(path)
    values.setdefault("gpu", {})["enabled"] = False
    for name in ["tolerations", "nodeSelector", "affinity", "runtimeClassName", "config"]:
        values.pop(name, None)
    assert "nvidia" not in json.dumps(Rendered(values).documents)


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_gpu_resource_is_a_value_beside_the_others_N3_N4(name):
    rendered = Rendered(PVC, {"gpu": {"enabled": True, "resourceName": name}})
    assert rendered.server["resources"]["limits"] == {"memory": "4Gi", name: 1}
    assert rendered.server["resources"]["requests"] == {"cpu": "2", "memory": "4Gi"}
    other = Rendered(PVC, {"gpu": {"enabled": True, "resourceName": name}, "resources": {"limits": None}})
    assert other.server["resources"]["limits"] == {name: 1}


def test_with_a_gpu_the_program_must_use_it_N3():
    on = {"gpu": {"enabled": True}}
    assert settings(on)["MILLRACE_BACKEND"]["value"] == "cuda"
    assert "MILLRACE_BACKEND" not in settings(on, {"config": {"backend": "auto"}})
    assert "MILLRACE_BACKEND" not in settings()
    assert "gpu.enabled" in refusal(PVC, on, {"config": {"backend": "cpu"}})
    assert "gpu.enabled" in refusal(PVC, {"config": {"backend": "cuda"}})
    assert "config.tensor_parallel_size" in refusal(PVC, {"gpu": {"enabled": True, "count": 2}})


# N4: where the model comes from; resources as they are.

def test_model_from_a_claim_N4():
    rendered = Rendered({"model": {"path": "a/b.gguf", "pvc": {"claimName": "c", "subPath": "s"}}})
    assert volume(rendered, "model")["persistentVolumeClaim"] == {"claimName": "c", "readOnly": True}
    mount, = [mount for mount in rendered.server["volumeMounts"] if mount["name"] == "model"]
    assert mount == {"name": "model", "mountPath": "/models", "readOnly": True, "subPath": "s"}
    assert rendered.server["args"][:3] == ["serve", "--model", "/models/a/b.gguf"]


def test_model_from_an_image_N4():
    rendered = Rendered({"model": {"source": "image", "image": {"reference": "r/m:1"}}})
    assert volume(rendered, "model")["image"] == {"reference": "r/m:1", "pullPolicy": "IfNotPresent"}


def test_model_from_an_init_container_is_checked_and_no_hook_fetches_N4():
    digest = "0" * 64
    rendered = Rendered({"model": {"source": "init", "init": {
        "url": "https://h:8443/m", "sha256": digest, "sizeLimit": "9Gi", "resources": {"limits": {"memory": "1Gi"}}}}})
    fetch = rendered.pod["spec"]["initContainers"][0]
    assert {entry["name"]: entry["value"] for entry in fetch["env"]} == {
        "FILE": "/models/model.gguf", "URL": "https://h:8443/m", "SHA256": digest}
    assert fetch["resources"] == {"limits": {"memory": "1Gi"}}
    assert volume(rendered, "model")["emptyDir"] == {"sizeLimit": "9Gi"}
    assert "postStart" not in rendered.server["lifecycle"]
    ports = [port["port"] for rule in rendered.one("NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert ports == [53, 53, 8443]


def test_resources_are_verbatim_N4():
    resources = {"requests": {"cpu": "1500m", "example.com/fpga": 1}, "limits": {"memory": "3Gi", "hugepages-2Mi": "1Gi"},
                 "claims": [{"name": "gpu"}]}
    wanted = copy.deepcopy(resources)
    wanted["requests"]["memory"] = "4Gi"  # of the chart's default, as Helm merges values
    assert Rendered(PVC, {"resources": resources}).server["resources"] == wanted


@pytest.mark.parametrize("model, word", [
    ({"source": "pvc"}, "model.pvc.claimName"),
    ({"source": "image"}, "model.image.reference"),
    ({"source": "init", "init": {"url": "https://h/m"}}, "model.init.sha256"),
    ({"source": "init", "init": {"url": "https://h/m", "sha256": "0" * 64, "command": ["a"]}}, "model.init.url"),
    ({"source": "hub"}, "source"),
])
def test_a_model_from_nowhere_is_refused_N4(model, word):
    assert word in refusal({"model": model})


# N5: configuration.

def checksum(*values):
    return Rendered(PVC, *values).pod["metadata"]["annotations"]["checksum/config"]


def test_pods_roll_when_the_configuration_changes_and_only_then_N5():
    assert checksum() == checksum({"podDisruptionBudget": {"enabled": False}})
    assert checksum() != checksum({"config": {"max_batch_size": 8}}) != checksum({"config": {"max_batch_size": 9}})


# N6: the way out.

def test_defaults_leave_time_for_the_drain_N6():
    rendered = Rendered(PVC)
    before = rendered.server["lifecycle"]["preStop"]["sleep"]["seconds"]
    # Its own window of 2 s, 30 s for streams, 4 s to end.
    assert rendered.pod["spec"]["terminationGracePeriodSeconds"] > before + 36


@pytest.mark.parametrize("values, least", [
    ({}, 47),
    ({"shutdown": {"preStopSeconds": 0}}, 37),
    ({"shutdown": {"preStopSeconds": 100}}, 137),
    ({"lifecycle": {"preStop": {"sleep": {"seconds": 20}}}}, 57),
    ({"lifecycle": {"preStop": {"exec": {"command": ["sleep", "7"]}}}, "shutdown": {"preStopSeconds": 7}}, 44),
    ({"config": {"drain": {"timeout_ms": 90001}}}, 108),
    ({"config": {"drain": {"pre_stop_ms": 0, "timeout_ms": 0}}}, 15),
    ({"config": {"drain": {"pre_stop_ms": 500, "timeout_ms": 500}}, "shutdown": {"preStopSeconds": 0}}, 6),
])
def test_grace_must_be_longer_than_pre_stop_and_drain_N6(values, least):
    rendered = Rendered(PVC, values, {"terminationGracePeriodSeconds": least})
    assert rendered.pod["spec"]["terminationGracePeriodSeconds"] == least
    message = refusal(PVC, values, {"terminationGracePeriodSeconds": least - 1})
    assert "terminationGracePeriodSeconds" in message and str(least - 1) in message


def test_no_window_no_hook_and_an_own_hook_stays_N6():
    assert "lifecycle" not in Rendered(PVC, {"shutdown": {"preStopSeconds": 0}}).server
    own = {"preStop": {"exec": {"command": ["sleep", "5"]}}}
    assert Rendered(PVC, {"lifecycle": own}).server["lifecycle"] == own


def test_rollouts_lose_no_replica_N6():
    assert Rendered(PVC).one("Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


# Health.

@pytest.mark.parametrize("budget, period, tries", [(600, 5, 120), (601, 5, 121), (1, 5, 1), (30, 30, 1)])
def test_start_budget_is_a_value_H2(budget, period, tries):
    server = Rendered(PVC, {"probes": {"startBudgetSeconds": budget, "startup": {"periodSeconds": period}}}).server
    assert server["startupProbe"]["failureThreshold"] == tries
    assert server["startupProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert server["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert server["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}


def test_health_port_answers_the_probes_that_ask_for_readiness_G6():
    rendered = Rendered(PVC, {"healthListener": {"enabled": True}})
    server = rendered.server
    assert server["args"][server["args"].index("--health-listen") + 1] == "0.0.0.0:8002"
    assert {"name": "health", "containerPort": 8002, "protocol": "TCP"} in server["ports"]
    assert server["startupProbe"]["grpc"] == server["readinessProbe"]["grpc"] == {"port": 8002}
    assert server["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    ingress = rendered.one("NetworkPolicy")["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in ingress] == ["grpc", "metrics", "health"]
    assert "--health-listen" not in Rendered(PVC).server["args"]


# TLS.

TLS = {"tls": {"secretName": "t"}}
PEMS = {"MILLRACE_TLS_CERTIFICATE": "/etc/millrace-tls/tls.crt", "MILLRACE_TLS_PRIVATE_KEY": "/etc/millrace-tls/tls.key"}


def tls_settings(*values):
    return {name: entry["value"] for name, entry in settings(*values).items() if name.startswith("MILLRACE_TLS_")}


def test_tls_comes_from_a_secret_mounted_as_a_folder_G6():
    """As a folder, or a new certificate would never be seen; with the names that cert-manager gives."""
    rendered = Rendered(PVC, TLS)
    assert volume(rendered, "tls")["secret"] == {"secretName": "t", "defaultMode": 0o440}
    mount, = [mount for mount in rendered.server["volumeMounts"] if mount["name"] == "tls"]
    assert mount == {"name": "tls", "mountPath": "/etc/millrace-tls", "readOnly": True}
    assert tls_settings(TLS) == PEMS and tls_settings() == {}
    port, = rendered.one("Service", "millrace")["spec"]["ports"]
    assert "appProtocol" not in port
    assert "speaks TLS, and asks for no client certificate" in rendered.notes and "--tls-ca" in rendered.notes
    assert "plaintext: keep them inside" in Rendered(PVC).notes


def test_clients_certificates_are_of_the_same_secrets_ca_or_anothers_G6():
    same = {"tls": {"clientAuth": "require"}}
    assert tls_settings(TLS, same) == {**PEMS, "MILLRACE_TLS_CLIENT_CA": "/etc/millrace-tls/ca.crt",
                                       "MILLRACE_TLS_CLIENT_AUTH": "require"}
    other = {"tls": {"clientAuth": "optional", "clientCASecretName": "c"}}
    assert tls_settings(TLS, other)["MILLRACE_TLS_CLIENT_CA"] == "/etc/millrace-client-ca/ca.crt"
    rendered = Rendered(PVC, TLS, other)
    assert volume(rendered, "client-ca")["secret"] == {"secretName": "c", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    # Probes need no certificate: they are HTTP on the metrics port.
    assert rendered.server["readinessProbe"]["httpGet"]["port"] == "metrics"


def test_administrators_come_from_a_secret_G5():
    env = settings({"adminSecret": {"name": "a"}})
    assert env["MILLRACE_ADMIN_ENABLE"]["value"] == "true"
    assert env["MILLRACE_ADMIN_CALLERS"]["valueFrom"] == {"secretKeyRef": {"name": "a", "key": "callers"}}
    assert not [name for name in settings() if "ADMIN" in name]


ROUTE = {"gateway": {"grpcRoute": {"enabled": True, "parentRefs": [{"name": "g"}]}}}
POOL = {"gateway": {"inferencePool": {"enabled": True, "endpointPicker": {"name": "p"}}}}
CHECKED = {"gateway": {"grpcRoute": {"backendTLS": {"hostname": "llm.example"}}}}


def test_gateway_checks_the_servers_certificate():
    rendered = Rendered(PVC, TLS, ROUTE, CHECKED)
    spec = rendered.one("BackendTLSPolicy")["spec"]
    assert spec["targetRefs"] == [{"group": "", "kind": "Service", "name": "demo-millrace"}]
    assert spec["validation"] == {"hostname": "llm.example", "wellKnownCACertificates": "System"}
    own = {"gateway": {"grpcRoute": {"backendTLS": {"caConfigMapName": "ca"}}}}
    validation = Rendered(PVC, TLS, ROUTE, CHECKED, own).one("BackendTLSPolicy")["spec"]["validation"]
    assert validation["caCertificateRefs"] == [{"group": "", "kind": "ConfigMap", "name": "ca"}]
    assert Rendered(PVC, ROUTE).all("BackendTLSPolicy") == []


@pytest.mark.parametrize("values, word", [
    ([{"tls": {"clientAuth": "require"}}], "tls.secretName"),
    ([{"tls": {"clientCASecretName": "c"}}], "tls.secretName"),
    ([TLS, {"tls": {"clientCASecretName": "c"}}], "tls.clientCASecretName"),
    ([TLS, {"tls": {"clientAuth": "maybe"}}], "clientAuth"),
    ([TLS, {"config": {"tls": {"client_auth": "none"}}}], "config.tls.client_auth"),
    ([TLS, POOL], "gateway.inferencePool"),
    ([TLS, ROUTE], "backendTLS.hostname"),
    ([ROUTE, CHECKED], "backendTLS cannot act"),
    ([TLS, {"tls": {"clientAuth": "require"}}, ROUTE, CHECKED], "tls.clientAuth"),
    ([{"adminSecret": {"name": "a"}, "config": {"admin": {"enable": True}}}], "adminSecret"),
    ([{"tenantsSecret": {"name": "t"}, "config": {"admin": {"enable": True}}}], "config.admin.callers"),
    ([TLS, {"tls": {"clientAuth": "optional"}, "config": {"admin": {"enable": "true"}}}], "config.admin.callers"),
    ([{"networkPolicy": {"healthFrom": [{"podSelector": {}}]}}], "healthListener.enabled"),
    ([{"ports": {"metrics": 8001}}], "two of them are the same"),
])
def test_tls_and_administrators_that_cannot_act_are_refused_G5_G6(values, word):
    assert word in refusal(PVC, *values)


# Redis.

def test_redis_sidecar_starts_first_ends_last_and_has_no_port():
    rendered = Rendered(PVC)
    sidecar, = rendered.pod["spec"]["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"]) == ("redis", "Always")
    assert sidecar["args"][:2] == ["--port", "0"] and "ports" not in sidecar
    assert volume(rendered, "redis")["emptyDir"]["medium"] == "Memory"
    assert settings()["MILLRACE_REDIS_URL"]["value"] == "unix:///run/redis/redis.sock?db=0"


@pytest.mark.parametrize("values, word", [
    ({"replicaCount": 2}, "redis.mode"),
    ({"autoscaling": {"mode": "hpa"}}, "redis.mode"),
    ({"redis": {"mode": "external"}}, "redis.external.host"),
    ({"redis": {"mode": "none"}, "config": {"redis": {"timeout_ms": 5}}}, "config.redis"),
    ({"redis": {"mode": "external", "external": {"host": "h", "urlSecret": {"name": "u"}}}}, "redis.external.urlSecret"),
    ({"configSecret": {"name": "c"}, "config": {"max_batch_size": 2}}, "configSecret"),
    ({"tenantsSecret": {"name": "c"}, "config": {"tenants": [{"name": "a"}]}}, "tenantsSecret"),
    ({"cacheSaltSecret": {"name": "c"}, "config": {"enable_prefix_caching": False}}, "cacheSaltSecret"),
])
def test_values_that_cannot_act_are_refused(values, word):
    assert word in refusal(PVC, values)


def test_redis_by_url_and_none():
    by_url = settings({"redis": {"mode": "external", "external": {"urlSecret": {"name": "u"}}}})
    assert by_url["MILLRACE_REDIS_URL"]["valueFrom"] == {"secretKeyRef": {"name": "u", "key": "url"}}
    assert settings({"redis": {"mode": "none"}}) == {}
    assert settings(EXTERNAL)["MILLRACE_REDIS_URL"]["value"] == "redis://redis:6379/0"


# Who may reach it, and how much of it may be away.

def test_network_policy_opens_two_ports_to_those_named():
    spec = Rendered(load([path for path in SETS if path.stem == "closed"][0])).one("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert [rule["ports"] for rule in spec["ingress"]] == [[{"port": "grpc", "protocol": "TCP"}],
                                                           [{"port": "metrics", "protocol": "TCP"}]]
    assert [list(rule["from"][0]["namespaceSelector"]["matchLabels"].values()) for rule in spec["ingress"]] == [
        ["gateways"], ["monitoring"]]
    assert [port["port"] for rule in spec["egress"] for port in rule["ports"]] == [53, 53, 6380]


def test_disruption_budget():
    assert Rendered(PVC).one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    least = Rendered(PVC, {"podDisruptionBudget": {"minAvailable": "50%"}}).one("PodDisruptionBudget")["spec"]
    assert least["minAvailable"] == "50%" and "maxUnavailable" not in least
    assert Rendered(PVC, {"podDisruptionBudget": {"enabled": False}}).all("PodDisruptionBudget") == []


def test_selectors_find_the_pods_and_nothing_else_changes_them():
    rendered = Rendered(PVC, {"podLabels": {"a": "b"}})
    labels = rendered.pod["metadata"]["labels"]
    selectors = [rendered.one("Deployment")["spec"]["selector"]["matchLabels"],
                 rendered.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
                 rendered.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
                 rendered.pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"],
                 *[service["spec"]["selector"] for service in rendered.all("Service")]]
    for selector in selectors:
        assert selector == {"app.kubernetes.io/name": "millrace", "app.kubernetes.io/instance": "demo"}
        assert selector.items() <= labels.items()


def test_long_names_fit():
    rendered = Rendered(PVC, {"dashboard": {"enabled": True}}, name="r" * 53)
    assert max(len(document["metadata"]["name"]) for document in rendered.documents) <= 63


def test_notes_warn_of_open_doors():
    notes = Rendered(PVC).notes
    assert "no tenants" in notes and "every pod of the cluster" in notes and "millrace generate --server" in notes
    closed = Rendered(load([path for path in SETS if path.stem == "closed"][0])).notes
    assert "no tenants" not in closed and "rollout restart" in closed
