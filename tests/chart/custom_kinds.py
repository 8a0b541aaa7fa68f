# SPDX-License-Identifier: Apache-2.0
"""Schemas of the kinds that are no part of Kubernetes itself: what the chart uses of them, and nothing else.

Written from the reference pages of the projects, since no package for Debian 12 carries them:
Prometheus Operator v0.93 (monitoring.coreos.com/v1), KEDA 2.20 (keda.sh/v1alpha1), Gateway API v1.4
(gateway.networking.k8s.io/v1), Gateway API Inference Extension v1.6 (inference.networking.k8s.io/v1).
"""
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}


def closed(required=(), **properties):
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def many(items, low=1, high=1000):
    return {"type": "array", "minItems": low, "maxItems": high, "items": items}


METADATA = closed(["name", "namespace", "labels"], name=NAME, namespace=NAME, labels=STRINGS, annotations=STRINGS)


def kind(spec):
    return closed(["apiVersion", "kind", "metadata", "spec"], apiVersion={"type": "string"}, kind={"type": "string"},
                  metadata=METADATA, spec=spec)


SERVICE_MONITOR = kind(closed(
    ["selector", "endpoints"],
    selector=closed(["matchLabels"], matchLabels=STRINGS),
    endpoints=many(closed(["port"], port={"type": "string"}, path={"type": "string", "pattern": "^/"},
                          interval=DURATION))))

RULE = closed(["alert", "expr", "annotations", "labels"], alert={"type": "string", "minLength": 1},
              expr={"type": "string", "minLength": 1}, labels=STRINGS, annotations=STRINGS, **{"for": DURATION})
PROMETHEUS_RULE = kind(closed(["groups"], groups=many(closed(["name", "rules"], name={"type": "string"},
                                                             rules=many(RULE)))))

# Values of a trigger's metadata are text, thresholds too.
TRIGGER = closed(
    ["type", "metadata"], type={"const": "prometheus"}, name={"type": "string"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata={**closed(["serverAddress", "query", "threshold"], serverAddress={"type": "string"},
                       query={"type": "string"}, threshold={"type": "string", "pattern": "^[0-9.]+$"})},
    authenticationRef=closed(["name"], name=NAME, kind={"type": "string"}))
SCALED_OBJECT = kind(closed(
    ["scaleTargetRef", "triggers"],
    scaleTargetRef=closed(["name"], apiVersion={"type": "string"}, kind={"type": "string"}, name=NAME),
    pollingInterval={"type": "integer"}, cooldownPeriod={"type": "integer"},
    minReplicaCount={"type": "integer"}, maxReplicaCount={"type": "integer"},
    advanced=closed(horizontalPodAutoscalerConfig=closed(behavior={"type": "object"})),
    triggers=many(TRIGGER)))

PARENT = closed(["name"], group={"type": "string"}, kind={"type": "string"}, namespace=NAME, name=NAME,
                sectionName=NAME, port=PORT)
# A port goes with a Service, and with nothing else.
BACKEND = {"oneOf": [
    closed(["name", "port"], name=NAME, port=PORT),
    closed(["group", "kind", "name"], group={"const": "inference.networking.k8s.io"},
           kind={"const": "InferencePool"}, name=NAME),
]}
GRPC_ROUTE = kind(closed(
    ["parentRefs", "rules"], parentRefs=many(PARENT, high=32),
    hostnames=many({"type": "string"}, high=16), rules=many(closed(["backendRefs"], backendRefs=many(BACKEND)), high=16)))

# The one way to trust or the other.
TRUST = {"oneOf": [
    closed(["hostname", "caCertificateRefs"], hostname=NAME, caCertificateRefs=many(
        closed(["group", "kind", "name"], group={"const": ""}, kind={"const": "ConfigMap"}, name=NAME), high=8)),
    closed(["hostname", "wellKnownCACertificates"], hostname=NAME, wellKnownCACertificates={"const": "System"}),
]}
BACKEND_TLS_POLICY = kind(closed(
    ["targetRefs", "validation"], validation=TRUST, targetRefs=many(
        closed(["group", "kind", "name"], group={"const": ""}, kind={"const": "Service"}, name=NAME), high=16)))

INFERENCE_POOL = kind(closed(
    ["selector", "targetPorts", "endpointPickerRef"],
    selector=closed(["matchLabels"], matchLabels=STRINGS),
    targetPorts=many(closed(["number"], number=PORT), high=8),
    appProtocol={"enum": ["http", "kubernetes.io/h2c"]},
    endpointPickerRef=closed(["name", "port"], name=NAME, port=closed(["number"], number=PORT),
                             failureMode={"enum": ["FailOpen", "FailClose"]})))

SCHEMAS = {
    ("monitoring.coreos.com/v1", "ServiceMonitor"): SERVICE_MONITOR,
    ("monitoring.coreos.com/v1", "PrometheusRule"): PROMETHEUS_RULE,
    ("keda.sh/v1alpha1", "ScaledObject"): SCALED_OBJECT,
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): GRPC_ROUTE,
    ("gateway.networking.k8s.io/v1", "BackendTLSPolicy"): BACKEND_TLS_POLICY,
    ("inference.networking.k8s.io/v1", "InferencePool"): INFERENCE_POOL,
}
