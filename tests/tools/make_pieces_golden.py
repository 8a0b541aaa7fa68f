#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/pieces.json: texts, and where Hugging Face pre-tokenizers cut them.

Made with tokenizers 0.23.3, seed 1. Each text has, a family, the offsets in bytes at which its
pieces end. Usage: make_pieces_golden.py OUT.json
"""
import json
import random
import sys

import tokenizers
from tokenizers import Regex, pre_tokenizers

SEED = 1
COUNT = 240
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


FAMILIES = {
    "gpt-2": byte_level(True),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]
    ),
    "llama-bpe": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), byte_level(False)]
    ),
}

HAND = [
    "",
    "Hello world",
    " I'm here, we'll go; they'd've SAID'S 'LL",
    "a  b   c\t\td \n\n e",
    "x 12345 6,789.01 1  2   3",
    "  \n  \n\tint main(void) { return 0; }\r\n\r\n",
    "naïve café 你好，世界 🙂\u200d🙂 e\u0301",
    "\u0000a\u0000 \u0000",
    "non\u00a0breaking\u3000wide\u2028line\u180evowel",
    "½ ² Ⅳ ٣ \U00011de0 \U00016ff4 \U00010d40",
    "\u1c89\ua7cb \U000105c0 \U0001e030'\u017f '\u212a",
]

# Blank runs, contractions and characters at the borders of the classes that patterns name.
PARTS = (
    [" ", "  ", "   ", "\n", "\r\n", "\t", " \n", "'s", "'S", "'Ll", "'", "''", "!", "?!", "-- ", "_"]
    + ["a", "The", " word", "Ünïcödé", "слово", "語", "1", "23", "4567", "٣٤", "²"]
    + ["\u180e", "\u0085", "\u00a0", "\u2028", "\u3000", "\u0000", "\u0301", "\u200d", "\ufeff"]
    + ["\u1c89", "\U0001e030", "\U00010d40", "\U00011de0", "\U00016ff4", "\u017f", "\u212a"]
)


def ends(family, text):
    return [
        len(text[:end].encode()) for _, (_, end) in FAMILIES[family].pre_tokenize_str(text)
    ]


def main():
    draw = random.Random(SEED)
    texts = list(HAND)
    while len(texts) < COUNT:
        texts.append("".join(draw.choice(PARTS) for _ in range(draw.randint(1, 12))))
    rows = [
        {"text": text, "ends": {family: ends(family, text) for family in FAMILIES}}
        for text in texts
    ]
    with open(sys.argv[1], "w", encoding="ascii") as out:
        out.write('{"made_with": "tokenizers %s", "rows": [\n' % tokenizers.__version__)
        out.write(",\n".join(json.dumps(row, separators=(",", ":")) for row in rows))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
