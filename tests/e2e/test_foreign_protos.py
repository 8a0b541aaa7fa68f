# SPDX-License-Identifier: Apache-2.0
"""Our files below api/foreign say the same on the wire as the published stubs."""
import pytest
from google.protobuf import any_pb2, duration_pb2, json_format
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from stubs import foreign_messages

HEALTH = "grpc.health.v1"
REFLECTION = "grpc.reflection.v1"
ALPHA = "grpc.reflection.v1alpha"


@pytest.fixture(scope="module")
def ours():
    return foreign_messages("grpc/health/v1/health.proto", "grpc/reflection/v1/reflection.proto",
                            "grpc/reflection/v1alpha/reflection.proto", "google/rpc/status.proto",
                            "google/rpc/error_details.proto")


def retry_info(seconds, nanos):
    info = error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=seconds, nanos=nanos))
    return json_format.MessageToDict(info)


SAMPLES = [
    (f"{HEALTH}.HealthCheckRequest", health_pb2.HealthCheckRequest, {"service": "müller.v1"}),
    *[(f"{HEALTH}.HealthCheckResponse", health_pb2.HealthCheckResponse, {"status": status})
      for status in ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")],
    ("google.rpc.RetryInfo", error_details_pb2.RetryInfo, retry_info(3, 250_000_000)),
    ("google.rpc.Status", status_pb2.Status, {"code": 14, "message": "später"}),
]
REFLECTION_SAMPLES = {
    "ServerReflectionRequest": [
        {"host": "h", "fileByFilename": "a/b.proto"}, {"fileContainingSymbol": "a.b.C"},
        {"fileContainingExtension": {"containingType": "a.T", "extensionNumber": -7}},
        {"allExtensionNumbersOfType": "a.T"}, {"listServices": ""}, {"listServices": "*"}],
    "ServerReflectionResponse": [
        {"validHost": "h", "originalRequest": {"listServices": "*"},
         "listServicesResponse": {"service": [{"name": "a.S"}, {"name": "b.S"}]}},
        {"fileDescriptorResponse": {"fileDescriptorProto": ["AAEC", "/w=="]}},
        {"allExtensionNumbersResponse": {"baseTypeName": "a.T", "extensionNumber": [1, 300, -1]}},
        {"errorResponse": {"errorCode": 5, "errorMessage": "none"}}],
}
SAMPLES += [(f"{package}.{name}", getattr(reflection_pb2, name), sample) for package in (REFLECTION, ALPHA)
            for name, samples in REFLECTION_SAMPLES.items() for sample in samples]


@pytest.mark.parametrize("name,published,fields", SAMPLES, ids=[f"{i}-{row[0]}" for i, row in enumerate(SAMPLES)])
def test_bytes_are_those_of_the_published_stubs(ours, name, published, fields):
    theirs = json_format.ParseDict(fields, published()).SerializeToString(deterministic=True)
    mine = json_format.ParseDict(fields, ours[name]()).SerializeToString(deterministic=True)
    assert mine == theirs
    assert json_format.MessageToDict(ours[name].FromString(theirs)) == json_format.MessageToDict(published.FromString(theirs))


def test_status_with_details(ours):
    info = any_pb2.Any()
    info.Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1)))
    theirs = status_pb2.Status(code=8, message="full", details=[info]).SerializeToString()
    mine = ours["google.rpc.Status"].FromString(theirs)
    assert mine.SerializeToString() == theirs
    detail = mine.details[0]
    assert detail.type_url == "type.googleapis.com/google.rpc.RetryInfo"
    assert ours["google.rpc.RetryInfo"].FromString(detail.value).retry_delay.seconds == 1


PAIRS = [
    (f"{HEALTH}.HealthCheckRequest", health_pb2.HealthCheckRequest),
    (f"{HEALTH}.HealthCheckResponse", health_pb2.HealthCheckResponse),
    ("google.rpc.Status", status_pb2.Status), ("google.rpc.RetryInfo", error_details_pb2.RetryInfo),
    *[(f"{package}.{name}", getattr(reflection_pb2, name)) for package in (REFLECTION, ALPHA)
      for name in reflection_pb2.DESCRIPTOR.message_types_by_name],
]


def shape(descriptor):
    return {field.number: (field.name, field.type, field.is_repeated,
                           field.containing_oneof.name if field.containing_oneof else None,
                           field.message_type.name if field.message_type else None,
                           {value.name: value.number for value in field.enum_type.values} if field.enum_type else None)
            for field in descriptor.fields}


@pytest.mark.parametrize("name,published", PAIRS, ids=[row[0] for row in PAIRS])
def test_every_field_has_its_published_name_number_and_type(ours, name, published):
    assert shape(ours[name].DESCRIPTOR) == shape(published.DESCRIPTOR)
