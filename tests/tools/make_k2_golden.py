#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/k2_smollm2.json: how Hugging Face tokenizes 10,000 random strings (ask K2).

Made with tokenizers 0.23.3 and gguf 0.19.0. The file holds no strings but what they are drawn from:
splitmix64 from `seed`, one stream for all. A string has 1 + next % 16 parts. For each part,
kind = next % 8 and then
  0     the character of the code point next % 0x110000 (a surrogate becomes U+FFFD)
  1     added[next % n]
  2     the first 1 + next % (bytes - 1) bytes of added[next % n], the token being drawn first
  3..7  fragments[next % n]
Each digest is the SHA-256 over `group` strings of: the number of ids, then the ids, all u32 little
endian. Usage: make_k2_golden.py MODEL.gguf OUT.json
"""
import hashlib
import json
import struct
import sys

import tokenizers
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

SEED = 20240229
COUNT = 10000
GROUP = 100
CONTROL = 3
MASK = (1 << 64) - 1

FRAGMENTS = (
    [" ", " ", "  ", "     ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085"]
    + ["'s", "'t", "'re", "'LL", "'", "\"", ".", ", ", "...", "!?", "--", "(", ")", "[{", "}]", "://", "\\"]
    + ["the", " the", "The", " quick", " brown", "fox", " jumps", "over", " lazy", "dogs", " and", "a"]
    + [" Wentworth", "Kellynch", " accidentally", "tokenization", " internationalisation", "ing", "ed"]
    + ["0", "1", "42", "1999", "3.14", "1,000,000", " 7", "x86_64", "٣", "²", "Ⅳ", "½"]
    + ["def f(x):\n    return x", " != ", "==", "/* c */", "<b>", "</b>", "<|", "|>", "<", ">", "#include "]
    + ["é", "naïve", "Straße", "слово", " Привет", "你好", "日本語", "한국어", "שלום", "مرحبا", "ελληνικά"]
    + ["🙂", "👩\u200d👩\u200d👧", "e\u0301", "\u0000", "\u0004", "\ufeff", "\u180e", "\ufffd", "\U0001e030"]
    + ["\U00010d40", "\U00011de0", "\U00040000", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
    + ["=" * 80, "- - - - - - - -", "ACGTACGTTTGACA" * 6, "antidisestablishmentarianism" * 3]
)


class SplitMix64:
    def __init__(self, seed):
        self.state = seed

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def draw_part(draw, added):
    kind = draw.next() % 8
    if kind == 0:
        code = draw.next() % 0x110000
        return chr(0xFFFD if 0xD800 <= code < 0xE000 else code)
    if kind == 1:
        return added[draw.next() % len(added)]
    if kind == 2:
        token = added[draw.next() % len(added)]
        return token[: 1 + draw.next() % (len(token) - 1)]
    return FRAGMENTS[draw.next() % len(FRAGMENTS)]


def load(path):
    fields = GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in fields["tokenizer.ggml.merges"].contents()]
    kinds = fields["tokenizer.ggml.token_type"].contents()
    added = [token for token, kind in zip(tokens, kinds) if kind == CONTROL]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in added])
    return tokenizer, added


def main():
    tokenizer, added = load(sys.argv[1])
    draw = SplitMix64(SEED)
    digests = []
    for _ in range(COUNT // GROUP):
        digest = hashlib.sha256()
        for _ in range(GROUP):
            text = "".join(draw_part(draw, added) for _ in range(1 + draw.next() % 16))
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            digest.update(struct.pack("<%dI" % (1 + len(ids)), len(ids), *ids))
        digests.append(digest.hexdigest())
    golden = {
        "made_with": "tokenizers " + tokenizers.__version__,
        "seed": SEED,
        "group": GROUP,
        "added": added,
        "fragments": FRAGMENTS,
        "digests": digests,
    }
    with open(sys.argv[2], "w", encoding="ascii") as out:
        json.dump(golden, out, indent=0)
        out.write("\n")


if __name__ == "__main__":
    main()
