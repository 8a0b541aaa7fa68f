# SPDX-License-Identifier: Apache-2.0
"""Abort, Tokenize and Detokenize."""
import grpc
import pytest

from serving import CALL_S, failure, generate, greedy
from stubs import pb

PROMPT = "The river ran"
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]}


def tokenize(stub, **fields):
    return stub.Tokenize(pb.TokenizeRequest(**fields), timeout=CALL_S)


def detokenize(stub, ids, keep=True):
    return stub.Detokenize(pb.DetokenizeRequest(ids=ids, keep_special_tokens=keep), timeout=CALL_S).text


def test_abort_ends_a_stream_and_is_idempotent(stub):
    call = stub.Generate(greedy(900, text=PROMPT, requestId="abort-me"), timeout=CALL_S)
    messages = [next(call)]
    assert stub.Abort(pb.AbortRequest(request_id="abort-me"), timeout=CALL_S).found
    with pytest.raises(grpc.RpcError) as caught:
        messages.extend(call)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert messages[-1].chunks[-1].finish_reason == pb.FINISH_REASON_CANCELLED
    assert 0 < messages[-1].usage.completion_tokens < 900
    for _ in range(2):
        assert not stub.Abort(pb.AbortRequest(request_id="abort-me"), timeout=CALL_S).found
    assert generate(stub, greedy(1, text=PROMPT, requestId="abort-me")).ids


def test_abort_of_a_unary_call_and_of_all_choices(stub):
    asked = greedy(900, text=PROMPT, requestId="abort-all")
    asked.sampling.n = 4
    future = stub.GenerateUnary.future(pb.GenerateUnaryRequest(request=asked), timeout=CALL_S)
    while not stub.Abort(pb.AbortRequest(request_id="abort-all"), timeout=CALL_S).found:
        assert not future.done()
    assert future.exception(timeout=CALL_S).code() == grpc.StatusCode.CANCELLED


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 129])
def test_abort_of_what_is_no_id(stub, name):
    error = failure(stub.Abort, pb.AbortRequest(request_id=name))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("request_id")


TEXTS = ["", "Hello world", " leading and trailing ", "a\0b\0", "\n\n\t x", "<|im_start|>user\n<|im_end|>",
         "\u00e9\u4f60\u597d \U0001f680\U0001f468\u200d\U0001f469", "def f(x):\n    return x  # \u2028"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokenize_and_back(stub, text):
    answer = tokenize(stub, text=text)
    assert b"".join(answer.raw) == text.encode() and len(answer.raw) == len(answer.ids)
    assert detokenize(stub, answer.ids) == text
    if text:
        echoed = generate(stub, greedy(1, text=text, output={"echoPromptIds": True})).prompt
        assert [token.id for token in echoed] == list(tokenize(stub, text=text, add_special=True).ids)


def test_special_tokens_are_parsed_unless_told_otherwise(stub):
    parsed = tokenize(stub, text="<|im_end|>")
    assert list(parsed.ids) == [2]
    plain = tokenize(stub, text="<|im_end|>", parse_special=False)
    assert len(plain.ids) > 1 and 2 not in plain.ids and b"".join(plain.raw) == b"<|im_end|>"
    assert detokenize(stub, parsed.ids, keep=False) == "" and detokenize(stub, parsed.ids) == "<|im_end|>"


def test_tokenize_chat_is_the_prompt_of_generate(stub):
    asked = greedy(1, chat=CHAT, output={"echoPromptIds": True})
    answer = tokenize(stub, chat=asked.chat)
    assert list(answer.ids) == [token.id for token in generate(stub, asked).prompt]
    # What a user wrote never becomes a special token.
    assert list(answer.ids).count(2) == 2


def test_detokenize_replaces_what_is_no_character(stub):
    whole = tokenize(stub, text="\U0001f680").ids
    assert len(whole) > 1, "the tokenizer has one token for this character: take another"
    assert "\ufffd" in detokenize(stub, whole[:-1])
    assert detokenize(stub, whole) == "\U0001f680"


BAD = [
    ("input", "Tokenize", pb.TokenizeRequest()),
    ("add_special", "Tokenize", pb.TokenizeRequest(chat=greedy(chat=CHAT).chat, add_special=True)),
    ("parse_special", "Tokenize", pb.TokenizeRequest(chat=greedy(chat=CHAT).chat, parse_special=False)),
    ("chat.messages", "Tokenize", pb.TokenizeRequest(chat=pb.Chat())),
    ("ids", "Detokenize", pb.DetokenizeRequest(ids=[5, 49152])),
    ("ids", "Detokenize", pb.DetokenizeRequest(ids=[2**32 - 1])),
]


@pytest.mark.parametrize("field,method,asked", BAD, ids=[f"{row[1]} {row[0]} {i}" for i, row in enumerate(BAD)])
def test_what_is_refused(stub, field, method, asked):
    error = failure(getattr(stub, method), asked)
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith(field)


def test_answers_stay_below_what_clients_take_G4(stub):
    error = failure(stub.Tokenize, pb.TokenizeRequest(text="a b " * 700_000))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "in parts" in error.details()


def test_text_longer_than_its_answer_may_be_is_not_tokenized_G4(stub):
    """One word of 15 MiB takes seconds to turn into tokens, and other calls would wait for it: the size is enough."""
    error = failure(stub.Tokenize, pb.TokenizeRequest(text="a" * (15 << 20)))
    assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert error.details().startswith(f"text has {15 << 20} bytes") and "in parts" in error.details()


def test_long_texts_hold_up_nobody_G4(stub):
    """More of them than the server has threads for calls; each takes a tenth of a second or more."""
    text = " ".join(f"{i * i:x}-{i}" for i in range(120_000))[:1_000_000]
    long = [stub.Tokenize.future(pb.TokenizeRequest(text=text), timeout=CALL_S) for _ in range(24)]
    for _ in range(3):
        assert tokenize(stub, text="short").ids
        assert generate(stub, greedy(1, tokens={"ids": [1, 2, 3]})).tokens
    assert not all(call.done() for call in long), "the short ones waited for all long ones"
    assert [len(call.result().ids) > 100_000 for call in long] == [True] * 24


def test_a_long_prompt_of_generate_is_read_aside(stub):
    """Above what is tokenized at once: read by the worker, generated from and refused all the same."""
    text = "-" * 40_000  # tokens of up to 64 of them
    ids = list(tokenize(stub, text=text).ids)
    assert len(ids) < 1_000
    assert generate(stub, greedy(2, text=text)).ids == generate(stub, greedy(2, tokens={"ids": ids})).ids
    error = failure(stub.Generate, greedy(2, text="word " * 7_000))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("text")
