# SPDX-License-Identifier: Apache-2.0
"""Every method that the server's descriptors have, and a call of each."""
import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from serving import CALL_S, greedy
from stubs import foreign_methods, pb

def _descriptors():
    ours = {f"{service.full_name}/{method.name}": method for service in pb.DESCRIPTOR.services_by_name.values()
            for method in service.methods}
    return ours | foreign_methods("grpc/health/v1/health.proto", "grpc/reflection/v1/reflection.proto",
                                  "grpc/reflection/v1alpha/reflection.proto")


DESCRIPTORS = _descriptors()
UNKNOWN = "no.such.Service/Method"


def asked(method):
    """A request that the server has no reason to refuse."""
    short = greedy(2, text="The river ran")
    fitting = {"Generate": short, "GenerateUnary": pb.GenerateUnaryRequest(request=short),
               "Abort": pb.AbortRequest(request_id="none"), "Tokenize": pb.TokenizeRequest(text="a"),
               "Detokenize": pb.DetokenizeRequest(ids=[1]), "LoadAdapter": pb.LoadAdapterRequest(name="a"),
               "UnloadAdapter": pb.UnloadAdapterRequest(name="a"),
               "ServerReflectionInfo": reflection_pb2.ServerReflectionRequest(list_services="")}
    name = method.split("/")[1]
    if name in fitting:
        return fitting[name]
    return getattr(health_pb2 if "health" in method else pb, DESCRIPTORS[method].input_type.name)()


def outcome(channel, method, metadata=(), timeout=CALL_S):
    """The status of one call, of which no more than the first message is read; and its details."""
    try:
        if method == UNKNOWN:
            channel.unary_unary(f"/{method}")(b"", metadata=metadata, timeout=timeout)
            return grpc.StatusCode.OK, ""
        about = DESCRIPTORS[method]
        kind = f"{'stream' if about.client_streaming else 'unary'}_{'stream' if about.server_streaming else 'unary'}"
        call = getattr(channel, kind)(f"/{method}", request_serializer=lambda value: value.SerializeToString(),
                                      response_deserializer=bytes)
        request = asked(method)
        answer = call(iter([request]) if about.client_streaming else request, metadata=metadata, timeout=timeout)
        if about.server_streaming:
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""
