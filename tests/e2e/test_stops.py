# SPDX-License-Identifier: Apache-2.0
"""Stop strings and stop tokens. What is expected comes from the same generation without stops."""
import pytest

from serving import choices, failure, generate, greedy, unary
from stubs import pb

PROMPT = "The river ran"
LENGTH = 48
EOS = 2
CHAT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}


@pytest.fixture(scope="module")
def plain(stub):
    answer = unary(stub, greedy(LENGTH, text=PROMPT))
    assert answer.text.isascii() and len(answer.text) > 100, "take another prompt"
    return answer


def stopping(strings, **more):
    return {"maxTokens": LENGTH, "ignoreEos": True, "strings": strings, **more}


def expected_stop(plain, strings):
    """(text before the match, the string, tokens that were needed): the match that ends first, of those the
    longest."""
    for end in range(1, len(plain.text) + 1):
        hits = [stop for stop in strings if plain.text[:end].endswith(stop)]
        if hits:
            stop = max(hits, key=len)
            size, count = 0, 0
            while size < end:
                size += len(plain.tokens[count].raw)
                count += 1
            return plain.text[:end - len(stop)], stop, count
    return plain.text, "", len(plain.ids)


def held(text, strings):
    """Length of the longest end of `text` that begins a stop string and is not all of it."""
    return max((size for stop in strings for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0)


def cases(text):
    """Stop strings by what is peculiar about them."""
    word = text.split()[4]
    return {
        "a word": [word],
        "across tokens": [text[21:32]],
        "one character": [","],
        "of two the one that ends first": [text[30:50], text[34:41]],
        "of one end the longest": [text[30:41], text[36:41]],
        "never whole": [text[10:20] + "\0", text[40:44] + "~"],
        "at the first byte": [text[0]],
        "at the last byte": [text[-3:] if text.index(text[-3:]) == len(text) - 3 else text[-12:]],
    }


@pytest.mark.parametrize("kind", list(cases("a b c d e f g h")))
@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_T1_T2_T3(stub, plain, kind, include):
    strings = cases(plain.text)[kind]
    text, stop, count = expected_stop(plain, strings)
    answer = generate(stub, greedy(text=PROMPT, stopping=stopping(strings, includeStopInText=include)))
    assert answer.text == text + (stop if include else "")
    assert answer.ids == plain.ids[:count]
    last = answer.chunks[-1]
    assert last.matched_stop == stop and not last.HasField("matched_stop_token")
    assert answer.finish == (pb.FINISH_REASON_STOP if stop else pb.FINISH_REASON_LENGTH)
    assert answer.usage.completion_tokens == count
    # What has been shown after each message is all but what may still become a stop string.
    shown, raw = "", b""
    for chunk in answer.chunks[:-1]:
        shown += chunk.text
        raw += b"".join(token.raw for token in chunk.tokens)
        so_far = raw.decode()
        assert shown == so_far[:len(so_far) - held(so_far, strings)]


def test_stops_of_a_unary_call_equal_the_stream(stub, plain):
    strings = cases(plain.text)["across tokens"]
    asked = greedy(text=PROMPT, stopping=stopping(strings))
    streamed, once = generate(stub, asked), unary(stub, asked)
    assert (once.text, once.ids, once.chunks[0].matched_stop) == (streamed.text, streamed.ids, strings[0])


def test_stop_string_waits_for_min_tokens(stub, plain):
    stop = plain.text.split()[1]
    _, _, first = expected_stop(plain, [stop])
    answer = generate(stub, greedy(text=PROMPT, stopping=stopping([stop], minTokens=first + 1)))
    assert answer.ids[:first + 1] == plain.ids[:first + 1]


@pytest.mark.parametrize("keep", [False, True])
def test_stop_token_T3(stub, plain, keep):
    at = next(i for i in range(5, LENGTH) if plain.ids[i] not in plain.ids[:i])
    answer = generate(stub, greedy(text=PROMPT, stopping=stopping([], tokenIds=[plain.ids[at]]),
                                   output={"keepSpecialTokens": keep}))
    assert answer.ids == plain.ids[:at + 1]
    assert answer.text == b"".join(token.raw for token in plain.tokens[:at]).decode()
    assert answer.finish == pb.FINISH_REASON_STOP
    assert answer.chunks[-1].matched_stop_token == plain.ids[at] and answer.chunks[-1].matched_stop == ""


def test_special_token_as_stop_string_T3(exact_server):
    """A special token's text is text where special tokens are kept, and nowhere else."""
    fields = {"chat": CHAT, "stopping": {"maxTokens": 24, "ignoreEos": True, "strings": ["<|im_end|>"]}}
    kept = generate(exact_server.stub, greedy(output={"keepSpecialTokens": True}, **fields))
    assert kept.finish == pb.FINISH_REASON_STOP and kept.chunks[-1].matched_stop == "<|im_end|>"
    assert kept.ids[-1] == EOS and "<|im_end|>" not in kept.text
    hidden = generate(exact_server.stub, greedy(**fields))
    assert hidden.finish == pb.FINISH_REASON_LENGTH and EOS in hidden.ids


def test_stop_strings_need_text_T4(stub):
    error = failure(stub.Generate, greedy(text=PROMPT, stopping=stopping(["a"]), output={"skipText": True}))
    assert error.code().name == "INVALID_ARGUMENT" and error.details().startswith("stopping.strings")


def test_end_tokens_T5_T6(exact_server):
    stub = exact_server.stub
    assert EOS in stub.GetModel(pb.GetModelRequest(), timeout=60).model.eos_token_ids
    ended = generate(stub, greedy(chat=CHAT, stopping={"maxTokens": 40}))
    assert ended.finish == pb.FINISH_REASON_STOP and ended.ids[-1] == EOS
    assert ended.chunks[-1].matched_stop_token == EOS
    on = generate(stub, greedy(40, chat=CHAT))
    assert on.finish == pb.FINISH_REASON_LENGTH and len(on.ids) == 40 and on.ids[:len(ended.ids)] == ended.ids
    own = generate(stub, greedy(chat=CHAT, stopping={"maxTokens": 40, "ignoreEos": True, "tokenIds": [EOS]}))
    assert own.ids == ended.ids and own.finish == pb.FINISH_REASON_STOP


def test_each_choice_has_its_own_stop(stub):
    fields = {"text": PROMPT, "sampling": {"temperature": 1, "seed": "3", "n": 4}}
    free = choices(generate(stub, greedy(stopping={"maxTokens": 32, "ignoreEos": True}, **fields)))
    strings = [","]
    stopped = choices(generate(stub, greedy(stopping={"maxTokens": 32, "ignoreEos": True, "strings": strings},
                                            **fields)))
    assert len(free) == len(stopped) == 4
    for with_stop, without in zip(stopped, free):
        assert with_stop.text == without.text.split(",")[0]
        assert with_stop.ids == without.ids[:len(with_stop.ids)]
        assert (with_stop.last.matched_stop == ",") == ("," in without.text)


def test_time_limit(stub):
    answer = generate(stub, greedy(text=PROMPT, stopping={"maxTokens": 1000, "ignoreEos": True, "timeLimitMs": 300}))
    assert answer.finish == pb.FINISH_REASON_TIME_LIMIT
    assert len(answer.ids) == answer.usage.completion_tokens < 1000
