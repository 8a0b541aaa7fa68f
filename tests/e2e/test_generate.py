# SPDX-License-Identifier: Apache-2.0
"""Generate and GenerateUnary over real clients."""
import concurrent.futures
import json
import math
import pathlib
import threading

import grpc
import pytest

from serving import CALL_S, Answer, failure, generate, greedy, request
from stubs import pb

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
GREEDY = json.loads((DATA / "greedy.json").read_text())
PROMPT = "The river ran"


def in_parallel(jobs):
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as pool:
        return [future.result() for future in [pool.submit(job) for job in jobs]]


def check_greedy(row, answer):
    settled = row["first_gap_below_0.05"]
    if settled is None:
        assert answer.ids == row["output_ids"]
        assert answer.text == row["text"]
        ended = row["output_ids"][-1] == 2
        assert answer.finish == (pb.FINISH_REASON_STOP if ended else pb.FINISH_REASON_LENGTH)
    else:
        assert answer.ids[:settled] == row["output_ids"][:settled]


def greedy_input(row, kind):
    if kind == "tokens":
        return {"tokens": {"ids": row["prompt_ids"]}}
    if row["kind"] == "chat":
        return {"chat": {"messages": [{"role": "user", "content": row["user"]}]}}
    return {"text": row["prompt"]}


@pytest.mark.parametrize("kind", ["tokens", "words"])
def test_greedy_output_is_the_reference(exact_server, kind):
    """Ids in, and what they are made from: a chat (K1: no second BOS) or raw text."""
    def job(row):
        asked = request({**greedy_input(row, kind), "sampling": {"temperature": 0},
                         "stopping": {"maxTokens": len(row["output_ids"])}, "output": {"echoPromptIds": True}})
        return generate(exact_server.stub, asked)

    answers = in_parallel([lambda row=row: job(row) for row in GREEDY])
    for row, answer in zip(GREEDY, answers):
        assert [token.id for token in answer.messages[0].prompt] == row["prompt_ids"]
        assert answer.usage.prompt_tokens == len(row["prompt_ids"])
        check_greedy(row, answer)


def test_chat_with_system_message_and_without_opened_turn(stub):
    fields = {"chat": {"messages": [{"role": "system", "content": "Be brief."},
                                    {"role": "user", "content": "Hello"}]},
              "output": {"echoPromptIds": True}}
    opened = generate(stub, greedy(1, **fields)).messages[0].prompt
    fields["chat"]["noGenerationPrompt"] = True
    closed = generate(stub, greedy(1, **fields)).messages[0].prompt
    assert 0 < len(closed) < len(opened)
    assert opened[:len(closed)] == closed
    text = b"".join(token.raw for token in opened).decode()
    assert "Be brief." in text and text.endswith("assistant\n")


def test_stream_shape_S6(stub):
    messages = generate(stub, greedy(12, text=PROMPT, requestId="shape")).messages
    assert [message.request_id for message in messages] == ["shape"] * len(messages)
    assert all(len(message.chunks) == 1 and message.chunks[0].index == 0 for message in messages)
    reasons = [message.chunks[0].finish_reason for message in messages]
    assert reasons == [pb.FINISH_REASON_UNSPECIFIED] * (len(messages) - 1) + [pb.FINISH_REASON_LENGTH]
    assert [message.HasField("usage") for message in messages] == [False] * (len(messages) - 1) + [True]
    assert messages[-1].HasField("timings")
    timings = messages[-1].timings
    assert timings.first_token_ms >= timings.prefill_ms > 0 and timings.decode_ms > 0 <= timings.queue_ms
    assert all(chunk.seed == 0 for message in messages[1:] for chunk in message.chunks)


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_every_token_is_delivered_and_counted_S5_S7(stub, count):
    answer = generate(stub, greedy(count, text=PROMPT))
    assert len(answer.ids) == count == answer.usage.completion_tokens
    assert answer.finish == pb.FINISH_REASON_LENGTH


def test_unary_equals_the_stream(stub):
    asked = request({"text": "Once upon a time", "sampling": {"temperature": 1.1, "seed": "77"},
                     "stopping": {"maxTokens": 40}, "output": {"logprobs": True, "topLogprobs": 2}})
    streamed = generate(stub, asked)
    unary = Answer([stub.GenerateUnary(pb.GenerateUnaryRequest(request=asked), timeout=CALL_S).response])
    assert len(unary.chunks) == 1
    assert unary.tokens == streamed.tokens
    assert unary.text == streamed.text
    assert (unary.finish, unary.seed) == (streamed.finish, streamed.seed) == (streamed.finish, 77)
    assert unary.usage.completion_tokens == streamed.usage.completion_tokens
    assert unary.chunks[-1].cumulative_logprob == streamed.chunks[-1].cumulative_logprob


@pytest.mark.parametrize("seed", range(1, 7))
def test_text_is_whole_characters_S1(stub, seed):
    """Hot sampling gives tokens that are parts of characters; protobuf refuses deltas that are not UTF-8."""
    answer = generate(stub, request({"text": "Emoji: \U0001f600\U0001f680 \u4f60\u597d \u00e9\u00e8",
                                     "sampling": {"temperature": 1.6, "seed": str(seed)},
                                     "stopping": {"maxTokens": 60, "ignoreEos": True},
                                     "output": {"keepSpecialTokens": True}}))
    assert answer.text == b"".join(token.raw for token in answer.tokens).decode("utf-8", "replace")


def test_half_a_character_in_the_prompt_S2(stub):
    """A prompt of ids that ends inside a character: its bytes are not part of the answer."""
    whole = generate(stub, greedy(1, text="\U0001f680", output={"echoPromptIds": True})).messages[0].prompt
    assert len(whole) > 1, "the tokenizer has one token for this character: take another"
    answer = generate(stub, greedy(8, tokens={"ids": [token.id for token in whole[:-1]]}))
    assert answer.text == b"".join(token.raw for token in answer.tokens).decode("utf-8", "replace")


def test_special_tokens_show_only_when_kept(exact_server):
    """SmolLM2 ends its answer with <|im_end|>."""
    stub = exact_server.stub
    fields = {"chat": {"messages": [{"role": "user", "content": "What is the capital of France?"}]},
              "sampling": {"temperature": 0}, "stopping": {"maxTokens": 60}}
    plain = generate(stub, request(fields))
    assert plain.finish == pb.FINISH_REASON_STOP
    kept = generate(stub, request({**fields, "output": {"keepSpecialTokens": True}}))
    assert kept.text == plain.text + "<|im_end|>"
    assert kept.ids == plain.ids and plain.tokens[-1].raw == b"<|im_end|>"


def test_skip_text_keeps_the_ids(stub):
    spoken = generate(stub, greedy(10, text=PROMPT))
    silent = generate(stub, greedy(10, text=PROMPT, output={"skipText": True}))
    assert silent.ids == spoken.ids
    assert silent.text == "" and spoken.text != ""


def test_logprobs_L1_L2(stub):
    fields = {"text": PROMPT, "stopping": {"maxTokens": 12, "ignoreEos": True},
              "output": {"logprobs": True, "topLogprobs": 5}}
    answer = generate(stub, request({**fields, "sampling": {"temperature": 0}}))
    for token in answer.tokens:
        assert token.HasField("logprob") and len(token.top) == 5
        values = [top.logprob for top in token.top]
        assert values == sorted(values, reverse=True) and all(math.isfinite(value) for value in values)
        assert sum(math.exp(value) for value in values) <= 1 + 1e-3
        assert (token.id, token.logprob) == (token.top[0].id, token.top[0].logprob)
    total = math.fsum(token.logprob for token in answer.tokens)
    assert answer.chunks[-1].cumulative_logprob == pytest.approx(total, rel=1e-6)
    # RAW is the model's own distribution whatever the sampling is.
    warm = generate(stub, request({**fields, "sampling": {"temperature": 1.7, "topK": 1}}))
    assert warm.ids == answer.ids
    for one, other in zip(warm.tokens, answer.tokens):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    # After top_k = 1 only one token is left.
    fields["output"]["logprobsMode"] = "LOGPROBS_MODE_PROCESSED"
    certain = generate(stub, request({**fields, "sampling": {"temperature": 1.7, "topK": 1}}))
    assert [token.logprob for token in certain.tokens] == pytest.approx([0.0] * 12, abs=1e-5)


def test_no_logprobs_unless_asked(stub):
    answer = generate(stub, greedy(3, text=PROMPT))
    assert not any(token.HasField("logprob") or token.top for token in answer.tokens)
    assert not answer.chunks[-1].HasField("cumulative_logprob")


def test_seeds_D3(stub):
    """Unseeded runs differ, and the seed that is returned repeats its run."""
    fields = {"text": "Once upon a time", "sampling": {"temperature": 1}, "stopping": {"maxTokens": 24}}
    first, second = (generate(stub, request(fields)) for _ in range(2))
    assert first.seed != second.seed and first.ids != second.ids
    fields["sampling"]["seed"] = str(first.seed)
    assert generate(stub, request(fields)).ids == first.ids


def test_repetition_penalty_acts(stub):
    plain = generate(stub, greedy(40, text="one two one two one two"))
    asked = greedy(40, text="one two one two one two")
    asked.sampling.repetition_penalty = 5
    assert generate(stub, asked).ids != plain.ids


def test_concurrent_streams_are_independent_C_D1(stub):
    """32 streams at once: each has its first token before any has ended, and each equals its run alone."""
    count, length = 32, 32
    def asked(index):
        return request({"text": f"Story number {index}:", "sampling": {"temperature": 0.9, "seed": str(index + 1)},
                        "stopping": {"maxTokens": length, "ignoreEos": True}})

    started, ended_early, lock = set(), [], threading.Lock()
    gate = threading.Barrier(count)

    def job(index):
        gate.wait()
        messages = []
        for message in stub.Generate(asked(index), timeout=CALL_S):
            messages.append(message)
            with lock:
                started.add(index)
                if message.HasField("usage") and len(started) < count:
                    ended_early.append(index)
        return Answer(messages)

    together = in_parallel([lambda index=index: job(index) for index in range(count)])
    assert not ended_early
    for index, answer in enumerate(together):
        assert answer.ids == generate(stub, asked(index)).ids, f"stream {index}"


def test_request_ids(stub):
    made = {generate(stub, greedy(1, text=PROMPT)).messages[0].request_id for _ in range(3)}
    assert len(made) == 3 and "" not in made
    call = stub.Generate(greedy(400, text=PROMPT, requestId="busy"), timeout=CALL_S)
    next(call)
    error = failure(stub.Generate, greedy(1, text=PROMPT, requestId="busy"))
    assert error.code() == grpc.StatusCode.ALREADY_EXISTS and error.details().startswith("request_id")
    call.cancel()
    for _ in range(2):
        assert generate(stub, greedy(1, text=PROMPT, requestId="again")).ids


def test_text_with_nul(stub):
    prompt = generate(stub, greedy(1, text="a\0b", output={"echoPromptIds": True})).messages[0].prompt
    assert b"".join(token.raw for token in prompt).endswith(b"b")


def test_served_model_name_is_accepted(stub):
    name = stub.GetModel(pb.GetModelRequest(), timeout=60).model.name
    assert generate(stub, greedy(1, text=PROMPT, model=name)).ids
