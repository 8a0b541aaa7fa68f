#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/fuzz/corpus/tokenizer_json: a tokenizer_config.json in one line, a tokenizer.json
behind it, with every component once. Usage: make_tokenizer_json_corpus.py OUT_DIR
"""
import json
import pathlib
import sys

MARK = "\u2581"
CONFIG = {"add_bos_token": True, "bos_token": "<s>", "eos_token": {"content": "</s>"},
          "add_eos_token": None, "chat_template": [{"name": "default", "template": "{{ x }}"}],
          "added_tokens_decoder": {"0": {"content": "<s>"}}}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def added(texts, first, **flags):
    base = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
            "special": True}
    return [{"id": first + i, "content": text, **base, **flags} for i, text in enumerate(texts)]


def template(bos):
    return {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A"}}],
            "pair": [], "special_tokens": {bos: {"id": bos, "ids": [0], "tokens": [bos]}}}


def bpe(vocab, merges, **options):
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
            "vocab": {text: i for i, text in enumerate(vocab)}, "merges": merges, **options}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


LETTERS = ["<s>", "</s>", *"Helowrdab", "\u0120", "\u010a", "1", "2", "3"]


def byte_level():
    splits = [split({"Regex": "\\p{N}{1,3}"}), split({"Regex": "[^\\s\\p{L}]+|\\s+(?!\\S)"}),
              split({"String": "l"}, "MergedWithNext"), split({"Regex": "^H|d$"}, "Removed", True),
              split({"String": "o"}, "MergedWithPrevious"), split({"Regex": "(?=1)"}, "Contiguous")]
    return {
        "added_tokens": added(["<s>", "</s>"], 0) + added(["<x>", "word"], 40, special=False,
                                                          normalized=True, lstrip=True, rstrip=True,
                                                          single_word=True),
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFKD"}]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*splits, BYTE_LEVEL]},
        "post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL, template("<s>")]},
        "decoder": BYTE_LEVEL,
        "model": bpe([*LETTERS, "He", "ll", "Hell"], [["H", "e"], ["l", "l"], ["He", "ll"]],
                     ignore_merges=True),
    }


def digits():
    steps = [{"type": "Digits", "individual_digits": True}, BYTE_LEVEL]
    return {"added_tokens": [], "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": None,
            "decoder": BYTE_LEVEL, "model": bpe([*LETTERS, "lo"], ["l o"], unk_token="<s>")}


def characters():
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(0, 256, 1)), MARK, *"Helowab"]
    decoders = [{"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    prepend = [{"type": "Prepend", "prepend": MARK},
               {"type": "Replace", "pattern": {"String": " "}, "content": MARK}]
    return {"added_tokens": added(["<unk>", "<s>", "</s>"], 0),
            "normalizer": {"type": "Sequence", "normalizers": prepend}, "pre_tokenizer": None,
            "post_processor": template("<s>"),
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": bpe([*vocab, "el", MARK + "H"], ["e l", f"{MARK} H"], unk_token="<unk>",
                         fuse_unk=True, byte_fallback=True)}


def metaspace():
    space = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "first", "split": True}
    return {"added_tokens": added(["<x>"], 9, lstrip=True), "normalizer": None,
            "pre_tokenizer": space, "post_processor": None, "decoder": space,
            "model": bpe([MARK, *"ablo"], ["a b", "l o"][1:1])}


def main():
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for make in (byte_level, digits, characters, metaspace):
        text = json.dumps(CONFIG) + "\n" + json.dumps(make(), separators=(",", ":"))
        (out / make.__name__).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
