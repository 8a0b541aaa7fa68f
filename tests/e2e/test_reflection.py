# SPDX-License-Identifier: Apache-2.0
"""Server reflection: the published client as it is for v1alpha, a raw stub for v1."""
import threading

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from serving import Server
from stubs import pb

V1 = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
ALPHA = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
INFERENCE = "millrace/v1/inference.proto"
TIMEOUT_S = 30


def opened(channel, path):
    return channel.stream_stream(path, request_serializer=lambda value: value if isinstance(value, bytes)
                                 else value.SerializeToString(),
                                 response_deserializer=ServerReflectionResponse.FromString)


@pytest.fixture(scope="module", params=[V1, ALPHA], ids=["v1", "v1alpha"])
def ask(request, server):
    """Sends requests on one stream; the answers."""
    def send(*asked):
        return list(opened(server.channel, request.param)(iter(asked), timeout=TIMEOUT_S))
    return send


def names(answer):
    return [descriptor_pb2.FileDescriptorProto.FromString(data).name
            for data in answer.file_descriptor_response.file_descriptor_proto]


def test_the_published_client_describes_everything(server):
    database = ProtoReflectionDescriptorDatabase(server.channel)
    services = set(database.get_services())
    assert services == {"millrace.v1.InferenceService", "grpc.health.v1.Health",
                        "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"}
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("millrace.v1.InferenceService")
    mine = pb.DESCRIPTOR.services_by_name["InferenceService"]
    assert [method.name for method in service.methods] == [method.name for method in mine.methods]
    for name in services:
        assert pool.FindServiceByName(name).methods
    assert pool.FindMessageTypeByName("google.rpc.RetryInfo").fields_by_name["retry_delay"]


def test_descriptors_are_the_originals(ask):
    """`string` is not `bytes`, as in the copy that the server's own code is made of; presence is kept."""
    [answer] = ask(ServerReflectionRequest(file_by_filename=INFERENCE))
    [data] = answer.file_descriptor_response.file_descriptor_proto
    told = descriptor_pb2.FileDescriptorProto.FromString(data)
    wanted = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(wanted)
    for file in (told, wanted):
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert told == wanted
    request = next(message for message in told.message_type if message.name == "GenerateRequest")
    field = next(field for field in request.field if field.name == "request_id")
    assert field.type == descriptor_pb2.FieldDescriptorProto.TYPE_STRING


@pytest.mark.parametrize("symbol", [
    "millrace.v1.GenerateRequest", "millrace.v1.InferenceService", "millrace.v1.InferenceService.Generate",
    "millrace.v1.GenerateRequest.request_id", "millrace.v1.FinishReason"])
def test_symbols_lead_to_their_file(ask, symbol):
    [answer] = ask(ServerReflectionRequest(host="h", file_containing_symbol=symbol))
    assert names(answer) == [INFERENCE]
    assert answer.valid_host == "h" and answer.original_request.file_containing_symbol == symbol


def test_every_symbol_of_the_contract_is_found(ask):
    symbols = [f"millrace.v1.{name}" for name in pb.DESCRIPTOR.message_types_by_name]
    symbols += [f"millrace.v1.{name}" for name in pb.DESCRIPTOR.enum_types_by_name]
    symbols += [f"millrace.v1.{value.name}" for enum in pb.DESCRIPTOR.enum_types_by_name.values()
                for value in enum.values]
    answers = ask(*[ServerReflectionRequest(file_containing_symbol=symbol) for symbol in symbols])
    assert [names(answer) for answer in answers] == [[INFERENCE]] * len(symbols)


def test_files_come_with_all_that_they_import(ask):
    by_name, by_symbol = ask(ServerReflectionRequest(file_by_filename="google/rpc/status.proto"),
                             ServerReflectionRequest(file_containing_symbol="google.rpc.RetryInfo"))
    assert names(by_name) == ["google/rpc/status.proto", "google/protobuf/any.proto"]
    assert names(by_symbol) == ["google/rpc/error_details.proto", "google/protobuf/duration.proto"]


def test_what_is_not_there_is_said_in_the_stream(ask):
    asked = [
        ServerReflectionRequest(file_by_filename="no/such.proto"), ServerReflectionRequest(file_by_filename=""),
        ServerReflectionRequest(file_containing_symbol="millrace.v1.Generat"),
        ServerReflectionRequest(file_containing_symbol="millrace.v1.GenerateRequest\0"),
        ServerReflectionRequest(file_containing_symbol="ü" * 1000),
        ServerReflectionRequest(file_containing_extension={"containing_type": "millrace.v1.Load",
                                                           "extension_number": 1}),
        ServerReflectionRequest(all_extension_numbers_of_type="no.Such"), ServerReflectionRequest()]
    answers = ask(*asked, ServerReflectionRequest(list_services=""))
    codes = [answer.error_response.error_code for answer in answers[:-1]]
    assert codes == [grpc.StatusCode.NOT_FOUND.value[0]] * 7 + [grpc.StatusCode.INVALID_ARGUMENT.value[0]]
    assert [answer.original_request for answer in answers[:-1]] == asked
    assert answers[-1].list_services_response.service


def test_a_known_type_has_no_extensions(ask):
    [answer] = ask(ServerReflectionRequest(all_extension_numbers_of_type="millrace.v1.Load"))
    assert answer.all_extension_numbers_response.base_type_name == "millrace.v1.Load"
    assert not answer.all_extension_numbers_response.extension_number


def test_a_stream_without_requests_ends_well(ask):
    assert ask() == []


@pytest.mark.parametrize("payload", [b"\xff\xff\xff", b"\x22\x02\xc3\x28", b"\x1a\x80\x80\x01" + b"a" * 16384],
                         ids=["no message", "no UTF-8", "too long"])
def test_bad_requests_end_the_stream(ask, server, payload):
    with pytest.raises(grpc.RpcError) as caught:
        ask(payload)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert ask(ServerReflectionRequest(list_services=""))


def test_streams_can_be_left_open_and_left(server):
    """An answer comes while the client still sends; a cancelled stream does no harm."""
    gate = threading.Event()

    def slowly():
        yield ServerReflectionRequest(list_services="")
        gate.wait(TIMEOUT_S)

    call = opened(server.channel, V1)(slowly(), timeout=TIMEOUT_S)
    assert next(call).list_services_response.service
    call.cancel()
    gate.set()
    assert ProtoReflectionDescriptorDatabase(server.channel).get_services()


def test_off_by_configuration(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "reflection.enable=false") as server:
        for path in (V1, ALPHA):
            with pytest.raises(grpc.RpcError) as caught:
                list(opened(server.channel, path)(iter([ServerReflectionRequest(list_services="")])))
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert "reflection.enable=true" in caught.value.details()


def test_open_streams_do_not_hold_up_the_shutdown(millrace_bin, model_path):
    with Server(millrace_bin, model_path) as server:
        gate = threading.Event()

        def slowly():
            yield ServerReflectionRequest(list_services="")
            gate.wait(TIMEOUT_S)

        call = opened(server.channel, V1)(slowly(), timeout=TIMEOUT_S)
        next(call)
        server.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            next(call)
        gate.set()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert server.wait(timeout=20) == 0
