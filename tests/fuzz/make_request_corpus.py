#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of fuzz_request and fuzz_chat, the same bytes every time. Needs tests/requirements.txt.

    make_request_corpus.py CORPUS_DIR
"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
from serving import request  # noqa: E402

CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<|im_end|>Hé"}]}
REQUESTS = {
    "text": {"text": "The river ran", "stopping": {"maxTokens": 8, "strings": ["\n\n", "end"], "tokenIds": [3]}},
    "ids": {"requestId": "a", "tokens": {"ids": [1, 2, 255]}, "output": {"logprobs": True, "topLogprobs": 5,
                                                                        "promptLogprobs": True}},
    "chat": {"chat": CHAT, "sampling": {"temperature": 0.7, "topP": 0.9, "topK": 40, "minP": 0.05, "seed": 7}},
    "choices": {"text": "a", "sampling": {"n": 4, "repetitionPenalty": 1.2, "presencePenalty": 0.5,
                                          "frequencyPenalty": -0.5, "logitBias": [{"token": 5, "bias": 2.5}]}},
    "beams": {"text": "a", "sampling": {"beamWidth": 4, "n": 2, "lengthPenalty": 1.0},
              "stopping": {"minTokens": 1, "timeLimitMs": 1000, "includeStopInText": True}},
    "refused": {"text": "a", "sampling": {"temperature": -1}, "priority": 3, "cacheSalt": "x"},
}
CHATS = {
    "system": b"\x01system\xffBe brief.\xffuser\xffWhy?\xff",
    "default": b"\x00user\xff<|im_end|>\n<|im_start|>system\xffassistant\xff\xff",
    "empty": b"\x01",
    "not-text": b"\x01user\xff\xc3\x28\xff",
}


def main():
    out = pathlib.Path(sys.argv[1])
    for folder, seeds in [("request", {name: request(fields).SerializeToString(deterministic=True)
                                       for name, fields in REQUESTS.items()}), ("chat", CHATS)]:
        (out / folder).mkdir(parents=True, exist_ok=True)
        for name, data in seeds.items():
            (out / folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
