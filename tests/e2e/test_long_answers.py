# SPDX-License-Identifier: Apache-2.0
"""Answers beyond the 4 MiB that one message may have, from a model of which one token is very long."""
import pathlib
import sys

import grpc
import pytest

from serving import Server, choices, failure, generate, greedy, unary
from stubs import REPOSITORY, pb

sys.path.insert(0, str(REPOSITORY / "tests" / "fuzz"))
import make_gguf_corpus as gguf  # noqa: E402

TOKEN_BYTES = 200 << 10  # each is in the answer twice, as the token's bytes and as text
MESSAGE_BYTES = 4 << 20
LONG = 1


@pytest.fixture(scope="module")
def wordy_server(millrace_bin, tmp_path_factory):
    """Its logits are all zero, so that a bias picks the token."""
    tokens = ["<|end|>", "a" * TOKEN_BYTES, "a"]
    model = gguf.llama(vocab=len(tokens))
    model.tensors = [(name, dims, kind, bytes(len(data))) for name, dims, kind, data in model.tensors]
    model.key("tokenizer.ggml.model", gguf.STRING, "gpt2")
    model.key("tokenizer.ggml.pre", gguf.STRING, "smollm")
    model.key("tokenizer.ggml.tokens", gguf.ARRAY, (gguf.STRING, tokens))
    model.key("tokenizer.ggml.token_type", gguf.ARRAY, (gguf.I32, [3, 1, 1]))
    model.key("tokenizer.ggml.merges", gguf.ARRAY, (gguf.STRING, []))
    model.key("tokenizer.ggml.eos_token_id", gguf.U32, 0)
    path = pathlib.Path(tmp_path_factory.mktemp("model")) / "wordy.gguf"
    path.write_bytes(model.bytes())
    with Server(millrace_bin, path) as running:
        yield running


def asked(count, n=1):
    made = greedy(count, tokens={"ids": [2]})
    made.sampling.n = n
    made.sampling.logit_bias.add(token=LONG, bias=100)
    return made


# Twelve are refused when the message is put together, twenty-five while they are generated.
@pytest.mark.parametrize("count", [12, 25])
def test_unary_answer_that_is_too_long_names_the_streaming_method_G2_G4(wordy_server, count):
    error = failure(wordy_server.stub.GenerateUnary, pb.GenerateUnaryRequest(request=asked(count)))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "use Generate," in error.details() and str(MESSAGE_BYTES) in error.details()
    answer = generate(wordy_server.stub, asked(count))
    assert answer.ids == [LONG] * count and answer.text == "a" * (count * TOKEN_BYTES)


def test_choices_of_a_unary_answer_count_together_G4(wordy_server):
    error = failure(wordy_server.stub.GenerateUnary, pb.GenerateUnaryRequest(request=asked(6, n=4)))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "use Generate," in error.details()
    assert [choice.ids for choice in choices(generate(wordy_server.stub, asked(6, n=4)))] == [[LONG] * 6] * 4


def test_unary_answer_below_the_limit_is_sent(wordy_server):
    assert unary(wordy_server.stub, asked(10)).text == "a" * (10 * TOKEN_BYTES)
