# SPDX-License-Identifier: Apache-2.0
"""Several choices, beam search, logit bias, logprobs of prompts."""
import json
import math

import grpc
import pytest

import commands
from serving import Server, choices, failure, generate, greedy, request, unary
from stubs import pb

PROMPT = "The river ran"


def sampled(**fields):
    return request({"text": PROMPT, "stopping": {"maxTokens": 24, "ignoreEos": True}, **fields})


@pytest.mark.parametrize("count", [1, 2, 5, 20])
def test_each_choice_has_all_its_tokens_S5_S6_S7(stub, count):
    answer = generate(stub, request({"text": PROMPT, "sampling": {"n": 3, "temperature": 1},
                                     "stopping": {"maxTokens": count, "ignoreEos": True}}))
    found = choices(answer)
    assert [len(choice.ids) for choice in found] == [count] * 3
    assert {choice.finish for choice in found} == {pb.FINISH_REASON_LENGTH}
    assert answer.usage.completion_tokens == 3 * count
    assert [message.HasField("usage") for message in answer.messages].count(True) == 1
    assert answer.messages[-1].HasField("usage")


def test_choices_differ_and_repeat(stub):
    asked = sampled(sampling={"n": 5, "temperature": 1, "seed": "11"})
    first = choices(generate(stub, asked))
    assert len({tuple(choice.ids) for choice in first}) == 5
    assert [choice.ids for choice in choices(generate(stub, asked))] == [choice.ids for choice in first]
    once = unary(stub, asked)
    assert [chunk.index for chunk in once.chunks] == list(range(5))
    assert [choice.ids for choice in choices(once)] == [choice.ids for choice in first]
    assert [choice.text for choice in choices(once)] == [choice.text for choice in first]
    assert all(choice.chunks[0].seed == 11 for choice in first)


def test_many_choices(stub):
    answer = generate(stub, request({"text": PROMPT, "sampling": {"n": 128, "temperature": 1},
                                     "stopping": {"maxTokens": 2, "ignoreEos": True}}))
    assert [len(choice.ids) for choice in choices(answer)] == [2] * 128


def test_beam_search_is_that_of_the_command_line(millrace_bin, model_path, stub):
    answer = generate(stub, sampled(sampling={"beamWidth": 4, "n": 3, "lengthPenalty": 0.5},
                                    output={"logprobs": True}))
    found = choices(answer)
    totals = [choice.last.cumulative_logprob for choice in found]
    assert len(found) == 3 and totals == sorted(totals, reverse=True)
    for choice, total in zip(found, totals):
        assert math.fsum(token.logprob for token in choice.tokens) == pytest.approx(total, abs=1e-3)
    line = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "beam_width": 4, "n": 3, "length_penalty": 0.5}
    done = commands.output(millrace_bin, "generate", "--model", model_path, "--set", "max_seq_length=1024", "--jsonl",
                           stdin=json.dumps(line))
    rows = [json.loads(row) for row in done.splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2]
    assert [row["token_ids"] for row in rows] == [choice.ids for choice in found]
    assert [row["text"] for row in rows] == [choice.text for choice in found]
    assert [row["cumulative_logprob"] for row in rows] == pytest.approx(totals, rel=1e-6)


def test_beams_are_no_worse_than_greedy(stub):
    plain = generate(stub, greedy(24, text=PROMPT, output={"logprobs": True}))
    best = choices(generate(stub, sampled(sampling={"beamWidth": 8})))[0]
    assert best.last.cumulative_logprob >= plain.chunks[-1].cumulative_logprob - 1e-3


def test_logit_bias(stub):
    free = generate(stub, greedy(4, text=PROMPT))
    asked = greedy(4, text=PROMPT)
    asked.sampling.logit_bias.add(token=100, bias=100)
    assert generate(stub, asked).ids == [100] * 4
    asked = greedy(4, text=PROMPT)
    asked.sampling.logit_bias.add(token=free.ids[0], bias=-100)
    assert free.ids[0] not in generate(stub, asked).ids


def test_raw_logprobs_are_of_the_model_L1_L2(stub):
    """Whatever temperature, penalties and biases do, the same tokens have the same logprobs."""
    plain = generate(stub, greedy(12, text=PROMPT, output={"logprobs": True, "topLogprobs": 5}))
    for change in ({"temperature": 1.9, "topK": 1}, {"temperature": 0.2, "topK": 1, "minP": 0.9}):
        other = generate(stub, sampled(sampling=change, stopping={"maxTokens": 12, "ignoreEos": True},
                                       output={"logprobs": True, "topLogprobs": 5}))
        assert other.ids == plain.ids
        assert [token.logprob for token in other.tokens] == pytest.approx(
            [token.logprob for token in plain.tokens], abs=1e-4)
    biased = greedy(1, text=PROMPT, output={"logprobs": True, "topLogprobs": 5})
    biased.sampling.logit_bias.add(token=100, bias=100)
    token = generate(stub, biased).tokens[0]
    assert token.id == 100 and math.isfinite(token.logprob)
    tops = [top.logprob for top in token.top]
    assert tops == pytest.approx([top.logprob for top in plain.tokens[0].top], abs=1e-4)
    assert all(math.isfinite(top) for top in tops) and sum(map(math.exp, tops)) <= 1 + 1e-3


def test_prompt_logprobs_are_those_of_score(millrace_bin, model_path, stub, tmp_path):
    answer = generate(stub, greedy(2, text=PROMPT + " down to the sea, and nobody knew why it",
                                   output={"promptLogprobs": True, "topLogprobs": 3}))
    prompt = answer.messages[0].prompt
    assert len(prompt) == answer.usage.prompt_tokens and not prompt[0].HasField("logprob") and not prompt[0].top
    for token in prompt[1:]:
        assert token.HasField("logprob") and math.isfinite(token.logprob) and len(token.top) == 3
        assert sum(math.exp(top.logprob) for top in token.top) <= 1 + 1e-3
    assert not any(token.HasField("logprob") for token in answer.tokens)
    path = tmp_path / "ids.json"
    path.write_text(json.dumps({"ids": [token.id for token in prompt]}))
    done = commands.output(millrace_bin, "score", "--model", model_path, "--ids", path, "--json")
    mean = -math.fsum(token.logprob for token in prompt[1:]) / (len(prompt) - 1)
    assert mean == pytest.approx(json.loads(done)["mean_nll"], abs=1e-4)


def test_long_prompt_with_logprobs_comes_in_parts_G2(millrace_bin, model_path):
    """No message is near the 4 MiB that clients take unless told otherwise."""
    ids = [(7919 * i) % 40000 + 100 for i in range(2400)]
    with Server(millrace_bin, model_path, "max_seq_length=4096", "max_batch_size=1") as server:
        answer = generate(server.stub, greedy(1, tokens={"ids": ids},
                                              output={"promptLogprobs": True, "topLogprobs": 20}))
        error = failure(server.stub.Generate, sampled(sampling={"beamWidth": 2}))
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT and error.details().startswith("sampling.beam_width")
    assert [token.id for token in answer.prompt] == ids
    assert all(len(token.top) == 20 for token in answer.prompt[1:])
    parts = [message for message in answer.messages if message.prompt]
    assert len(parts) > 1 and all(message.ByteSize() < 2 << 20 for message in answer.messages)
    assert not any(message.chunks for message in parts[:-1])
    assert len(answer.ids) == 1 and answer.messages[-1].HasField("usage")
