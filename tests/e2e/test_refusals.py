# SPDX-License-Identifier: Apache-2.0
"""What the server refuses, and that it serves on afterwards."""
import json
import re

import grpc
import pytest
from google.protobuf import json_format

from serving import CALL_S, Answer, Server, failure, generate, greedy, request
from stubs import REPOSITORY, pb, pb_grpc

GENERATE = "/millrace.v1.InferenceService/Generate"
PROMPT = "The river ran"


def c_string(literal):
    return json.loads(literal)  # the escapes that the table uses are JSON's too


def unsupported_rows():
    row = re.compile(r'^MR_UNSUPPORTED\(PROTO, ("(?:[^"\\]|\\.)*"), ("(?:[^"\\]|\\.)*"), ("(?:[^"\\]|\\.)*")\)',
                     re.MULTILINE)
    text = re.sub(r"\n +", " ", (REPOSITORY / "service" / "unsupported.def").read_text())
    rows = [tuple(c_string(part) for part in match.groups()) for match in row.finditer(text)]
    assert len(rows) == text.count("MR_UNSUPPORTED(PROTO"), "a row that this test cannot read"
    return rows


ROWS = unsupported_rows()
FIELD_ROWS = [row for row in ROWS if "/" not in row[0]]
METHOD_ROWS = [row for row in ROWS if "/" in row[0]]


def camel(name):
    head, *tail = name.split("_")
    return head + "".join(part.title() for part in tail)


def asking_for(path, value):
    """The request in which the field at `path` has this value; a chat's message is completed."""
    fields = {"stopping": {"maxTokens": 1}}
    if path.startswith("chat."):
        fields["chat"] = {"messages": [{"role": "user", "content": "Hello"}]}
    else:
        fields["text"] = PROMPT
    place = fields
    *parents, last = path.split(".")
    for parent in parents:
        place = place.setdefault(camel(parent), {})
        if isinstance(place, list):
            place = place[0]
    place[camel(last)] = value
    return request(fields)


@pytest.mark.parametrize("name,sample,what", FIELD_ROWS, ids=[row[0] for row in FIELD_ROWS])
def test_unsupported_field_is_refused_by_name(stub, name, sample, what):
    error = failure(stub.Generate, asking_for(name, json.loads(sample)))
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert error.details().startswith(name) and what in error.details()


@pytest.mark.parametrize("name,sample,what", METHOD_ROWS, ids=[row[0] for row in METHOD_ROWS])
def test_unsupported_method_is_refused_by_name(server, name, sample, what):
    service, method = name.split("/")
    about = pb.DESCRIPTOR.services_by_name[service].methods_by_name[method]
    asked = json_format.ParseDict(json.loads(sample), getattr(pb, about.input_type.name)())
    service_stub = getattr(pb_grpc, service + "Stub")(server.channel)
    error = failure(getattr(service_stub, method), asked)
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert name in error.details() and what in error.details()


def test_every_method_is_served_or_in_the_table():
    listed = {row[0] for row in METHOD_ROWS}
    served = {f"InferenceService/{name}" for name in
              ("Generate", "GenerateUnary", "Abort", "Tokenize", "Detokenize", "GetModel")}
    served |= {f"AdminService/{name}" for name in ("GetLoad", "ResetPrefixCache", "Drain")}
    methods = {f"{service.name}/{method.name}" for service in pb.DESCRIPTOR.services_by_name.values()
               for method in service.methods}
    assert listed | served == methods and not listed & served


INVALID = [
    ("sampling.temperature", {"sampling": {"temperature": -0.5}}),
    ("sampling.temperature", {"sampling": {"temperature": "NaN"}}),
    ("sampling.temperature", {"sampling": {"temperature": "Infinity"}}),
    ("sampling.top_p", {"sampling": {"topP": 0}}),
    ("sampling.top_p", {"sampling": {"topP": 1.5}}),
    ("sampling.top_p", {"sampling": {"topP": "NaN"}}),
    ("sampling.min_p", {"sampling": {"minP": -0.1}}),
    ("sampling.min_p", {"sampling": {"minP": 1.1}}),
    ("sampling.seed", {"sampling": {"seed": str(2**53)}}),
    ("sampling.n", {"sampling": {"n": 0}}),
    ("sampling.n", {"sampling": {"n": 129}}),
    ("sampling.beam_width", {"sampling": {"beamWidth": 0}}),
    ("sampling.beam_width", {"sampling": {"beamWidth": 17}}),
    ("sampling.repetition_penalty", {"sampling": {"repetitionPenalty": 0}}),
    ("sampling.repetition_penalty", {"sampling": {"repetitionPenalty": "-Infinity"}}),
    ("sampling.presence_penalty", {"sampling": {"presencePenalty": 2.5}}),
    ("sampling.presence_penalty", {"sampling": {"presencePenalty": "NaN"}}),
    ("sampling.frequency_penalty", {"sampling": {"frequencyPenalty": -2.5}}),
    ("stopping.max_tokens", {"stopping": {"maxTokens": 0}}),
    ("stopping.min_tokens", {"stopping": {"maxTokens": 4, "minTokens": 5}}),
    ("sampling.n", {"sampling": {"n": 2**32 - 1}}),
    ("sampling.n", {"sampling": {"n": 3, "beamWidth": 2}}),
    ("sampling.top_p", {"sampling": {"topP": "-Infinity"}}),
    ("sampling.min_p", {"sampling": {"minP": "NaN"}}),
    ("sampling.repetition_penalty", {"sampling": {"repetitionPenalty": -1}}),
    ("sampling.repetition_penalty", {"sampling": {"repetitionPenalty": "NaN"}}),
    ("sampling.frequency_penalty", {"sampling": {"frequencyPenalty": "Infinity"}}),
    ("sampling.length_penalty", {"sampling": {"lengthPenalty": "NaN"}}),
    ("sampling.length_penalty", {"sampling": {"lengthPenalty": "Infinity"}}),
    ("sampling.length_penalty", {"sampling": {"lengthPenalty": -11, "beamWidth": 2}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": 5, "bias": "NaN"}]}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": 5, "bias": "-Infinity"}]}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": 5, "bias": 100.5}]}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": 49152, "bias": 1}]}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": 5, "bias": 1}, {"token": 5, "bias": 1}]}}),
    ("sampling.logit_bias", {"sampling": {"logitBias": [{"token": i, "bias": 1} for i in range(1025)]}}),
    ("stopping.max_tokens", {"stopping": {"maxTokens": 0, "strings": ["a"]}}),
    ("stopping.strings", {"stopping": {"strings": [""]}}),
    ("stopping.strings", {"stopping": {"strings": ["a", ""]}}),
    ("stopping.strings", {"stopping": {"strings": ["a"] * 17}}),
    ("stopping.strings", {"stopping": {"strings": ["x" * 4097]}}),
    ("stopping.strings", {"stopping": {"strings": ["a"]}, "output": {"skipText": True}}),
    ("stopping.token_ids", {"stopping": {"tokenIds": [49152]}}),
    ("stopping.token_ids", {"stopping": {"tokenIds": [2**32 - 1]}}),
    ("stopping.token_ids", {"stopping": {"tokenIds": list(range(65))}}),
    ("output.top_logprobs", {"sampling": {"beamWidth": 2}, "output": {"logprobs": True, "topLogprobs": 1}}),
    ("output.top_logprobs", {"output": {"promptLogprobs": True, "topLogprobs": 21}}),
    ("output.top_logprobs", {"output": {"logprobs": True, "topLogprobs": 21}}),
    ("output.top_logprobs", {"output": {"topLogprobs": 1}}),
    ("tokens.ids", {"tokens": {"ids": [49152]}}),
    ("tokens.ids", {"tokens": {"ids": []}}),
    ("text", {"text": ""}),
    ("chat.messages", {"chat": {"messages": []}}),
    ("constraint", {"constraint": {}}),
    ("request_id", {"requestId": "x" * 129}),
    ("request_id", {"requestId": "a\0b"}),
    ("input", {"text": None}),
]


@pytest.mark.parametrize("field,change", INVALID, ids=[f"{field}-{i}" for i, (field, _) in enumerate(INVALID)])
def test_invalid_value_names_its_field_D5(stub, field, change):
    fields = {} if {"tokens", "chat", "text"} & change.keys() else {"text": PROMPT}
    error = failure(stub.Generate, request({**fields, **change}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error.details()
    assert error.details().startswith(field)
    unary = failure(stub.GenerateUnary, pb.GenerateUnaryRequest(request=request({**fields, **change})))
    assert (unary.code(), unary.details()) == (error.code(), error.details())


def test_bad_values_leave_a_neighbour_alone_D5(stub):
    asked = request({"text": PROMPT, "sampling": {"temperature": 1, "seed": "9"},
                     "stopping": {"maxTokens": 120, "ignoreEos": True}})
    alone = generate(stub, asked)
    neighbour = stub.Generate(asked, timeout=CALL_S)
    messages = [next(neighbour)]
    for _, change in INVALID:
        fields = {} if {"tokens", "chat", "text"} & change.keys() else {"text": PROMPT}
        assert failure(stub.Generate, request({**fields, **change})).code() == grpc.StatusCode.INVALID_ARGUMENT
    messages.extend(neighbour)
    assert Answer(messages).tokens == alone.tokens and Answer(messages).text == alone.text


@pytest.mark.parametrize("field", ["output.logprobs_mode", "speculation.method"])
def test_unknown_enum_value(stub, field):
    asked = greedy(1, text=PROMPT)
    message, name = field.split(".")
    setattr(getattr(asked, message), name, 99)
    error = failure(stub.Generate, asked)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith(field)


def test_harmless_values_of_unsupported_fields(stub):
    """Asking for what is done anyway is no reason to refuse."""
    asked = greedy(1, text=PROMPT, speculation={"method": "SPECULATION_METHOD_NONE"}, sparseAttention={})
    asked.sampling.n = 1
    asked.sampling.beam_width = 1
    assert generate(stub, asked).ids
    chat = {"messages": [{"role": "user", "content": "Hello"}], "templateKwargsJson": "{}"}
    assert generate(stub, greedy(1, chat=chat)).ids


def test_unary_without_request(stub):
    error = failure(stub.GenerateUnary, pb.GenerateUnaryRequest())
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("request")


def test_wrong_model_is_not_found(stub):
    error = failure(stub.Generate, greedy(1, text=PROMPT, model="another"))
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert "another" in error.details() and stub.GetModel(pb.GetModelRequest()).model.name in error.details()


def test_prompt_over_the_limit_M4(stub):
    limit = stub.GetModel(pb.GetModelRequest()).model.max_seq_length
    error = failure(stub.Generate, greedy(1, tokens={"ids": [5] * limit}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and str(limit) in error.details()
    longest = generate(stub, greedy(8, tokens={"ids": [5] * (limit - 1)}))
    assert len(longest.ids) == 1


@pytest.mark.parametrize("name,asked", [
    ("text", {"text": "a" * (15 << 20)}),
    ("chat.messages", {"chat": {"messages": [{"role": "user", "content": "a" * (1 << 20)}] * 15}}),
], ids=["text", "chat"])
def test_text_too_long_by_its_size_is_not_tokenized(stub, name, asked):
    """One word of 15 MiB takes seconds to turn into tokens, and other calls would wait for it: the size is enough."""
    error = failure(stub.Generate, greedy(1, **asked))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details().startswith(f"{name} has {15 << 20} bytes") and "shorten it" in error.details()


def raw_call(server, data):
    call = server.channel.unary_stream(GENERATE, request_serializer=lambda sent: sent,
                                       response_deserializer=pb.GenerateResponse.FromString)
    return failure(call, data)


def field(number, data):
    """A length-delimited field."""
    size, length = len(data), b""
    while size >= 128:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


BAD_UTF8 = [
    ("text", field(3, b"ab\xff")),
    ("text", field(3, b"\xed\xa0\x80")),
    ("request_id", field(1, b"\xc0\x80") + field(3, b"a")),
    ("model", field(2, b"\x80") + field(3, b"a")),
    ("stopping.strings", field(3, b"a") + field(7, field(3, b"\xff"))),
    ("chat.messages.content", field(5, field(1, field(1, b"user") + field(2, b"\xe2\x82")))),
    ("chat.messages.role", field(5, field(1, field(1, b"\xff") + field(2, b"a")))),
]


@pytest.mark.parametrize("name,data", BAD_UTF8, ids=[f"{name}-{i}" for i, (name, _) in enumerate(BAD_UTF8)])
def test_text_that_is_not_utf8(server, name, data):
    error = raw_call(server, data)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith(name)


@pytest.mark.parametrize("data", [b"\xff", b"\x1a\x05ab", b"\x0a", b"\x32\x05\x0d\x00\x00"])
def test_bytes_that_are_no_request_F5(server, data):
    assert raw_call(server, data).code() == grpc.StatusCode.INVALID_ARGUMENT


def test_messages_that_swell_when_decoded_F5(server, stub):
    """A million empty chat messages, two bytes each."""
    error = raw_call(server, field(5, field(1, b"") * 1_000_000))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert generate(stub, greedy(1, text=PROMPT)).ids


def test_message_limits_G2(server, stub):
    """16 MiB is taken in, and refused for what it says; over the limit it is refused by its size."""
    error = raw_call(server, field(4, field(1, b"\x07" * ((16 << 20) - 64))))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("tokens.ids")
    for size in (16 << 20, 64 << 20):
        error = raw_call(server, field(3, b"a" * size))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and re.search(r"\d{8}", error.details())
    error = raw_call(server, field(3, b"a" * (16 << 20)))
    assert "16777216" in error.details() and "max_message_bytes" in error.details()
    assert generate(stub, greedy(1, text=PROMPT)).ids


def test_message_limit_is_configured_G2(millrace_bin, model_path):
    with Server(millrace_bin, model_path, "max_seq_length=256", "max_message_bytes=64KiB") as small:
        error = raw_call(small, field(3, b"a" * (64 << 10)))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "65536" in error.details()
        assert generate(small.stub, greedy(1, text=PROMPT)).ids


def test_unknown_method_names_the_known_ones_G4(server):
    call = server.channel.unary_unary("/millrace.v1.InferenceService/Complete", request_serializer=bytes,
                                      response_deserializer=bytes)
    error = failure(call, b"")
    assert error.code() == grpc.StatusCode.UNIMPLEMENTED
    assert "Complete" in error.details() and "Generate" in error.details()


def test_errors_leave_the_server_well(stub):
    for _ in range(200):
        failure(stub.Generate, request({"text": PROMPT, "sampling": {"topP": 0}}), timeout=CALL_S)
    assert generate(stub, greedy(2, text=PROMPT)).ids
