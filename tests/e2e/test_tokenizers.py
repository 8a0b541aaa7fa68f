# SPDX-License-Identifier: Apache-2.0
"""Ids and text equal Hugging Face `tokenizers`, on 10,000 random strings a family (K2, K3)."""
import hashlib
import json
import pathlib
import random
import struct
import subprocess
import sys
import zlib

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokenizers"))

import families  # noqa: E402

COUNT = 10_000

WORDS = "the of and Hello world don't I'LL it's we've word wordy sword Ünïcödé straße naïve".split()
CODE = ["int main(void) {", "\treturn x->y[0];\n", "#include <a.h>\r\n", "if (a&&b)", "__init__",
        "https://a.b/c?d=1&e=%20", "0xFF", "<div class='a'>", "\\n", "```python\n", "a/b\n\n\n"]
BLANKS = [" ", "  ", "   ", "      ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028",
          "\u200b", "\u180e", "\u0085", "\u2581", "\u2581\u2581 "]
DIGITS = ["1", "12", "345", "2024", "1234567", "3.14", "٣٤", "½", "Ⅳ", "１２", "²"]
MARKS = ["e\u0301", "a\u0308\u0323", "\u0323\u0307", "\u1100\u1161\u11a8", "\u0915\u093c", "\u212b",
         "\ufb01", "\u1e9b\u0323", "\u0344", "\u304b\u3099", "\u0e33", "\u0627\u0654", "\U0001d15e"]
RANGES = [(0x20, 0x7E), (0x20, 0x7E), (0xA1, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF),
          (0x900, 0x97F), (0xE00, 0xE7F), (0x1E00, 0x1FFF), (0x2000, 0x2BFF), (0x3040, 0x30FF),
          (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF)]


def random_text(rng, added):
    parts = []
    for _ in range(rng.randint(0, 14)):
        kind = rng.random()
        if kind < 0.25:
            parts.append(rng.choice(WORDS))
        elif kind < 0.45:
            parts.append(rng.choice(BLANKS))
        elif kind < 0.55:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8))))
        elif kind < 0.62:
            parts.append(rng.choice(DIGITS))
        elif kind < 0.69:
            parts.append(rng.choice(CODE))
        elif kind < 0.75:
            parts.append(rng.choice(MARKS))
        elif kind < 0.95:
            parts.append(rng.choice(added))
        else:  # half of an added token
            token = rng.choice(added)
            cut = rng.randint(1, len(token))
            parts.append(rng.choice([token[:cut], token[cut:]]))
    return "".join(parts)


def texts_for(name, tokenizer):
    rng = random.Random(zlib.crc32(name.encode()))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if len(added) > 60:  # a thousand reserved ones would crowd out the rest
        added = rng.sample(added, 60)
    return [random_text(rng, added) for _ in range(COUNT)]


def run_lines(millrace_bin, model, rows, *options):
    done = subprocess.run(
        [millrace_bin, "tokenize", "--model", model, "--jsonl", *options],
        input="".join(json.dumps(row) + "\n" for row in rows).encode(),
        stdout=subprocess.PIPE, check=True, timeout=300,
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(rows)
    return answers


def compare(millrace_bin, model, name, tokenizer):
    texts = texts_for(name, tokenizer)
    expected = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    got = run_lines(millrace_bin, model, [{"text": text} for text in texts])
    for text, ids, answer in zip(texts, expected, got):
        assert answer == {"ids": ids}, text
    # Ids of added tokens are in there, or the test would say little.
    added = set(tokenizer.get_added_tokens_decoder())
    assert sum(not added.isdisjoint(ids) for ids in expected) > COUNT // 4
    back = run_lines(millrace_bin, model, [{"ids": ids} for ids in expected], "--decode")
    for ids, answer in zip(expected, back):
        assert answer == {"text": tokenizer.decode(ids, skip_special_tokens=False)}, ids


def write_directory(folder, tokenizer):
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize("name", families.FAMILIES)
def test_K2_K3_directory_equals_hugging_face(millrace_bin, tmp_path, name):
    tokenizer = families.FAMILIES[name]()
    compare(millrace_bin, write_directory(tmp_path, tokenizer), name, tokenizer)


def test_K2_K3_smollm_file_and_directory_equal_hugging_face(millrace_bin, model_path, tmp_path):
    tokenizer = families.smollm(model_path)
    compare(millrace_bin, model_path, "smollm", tokenizer)
    compare(millrace_bin, write_directory(tmp_path, tokenizer), "smollm-dir", tokenizer)


def write_gguf(path, pieces):
    """A GGUF file with no tensor, whose metadata is what converters make of a SentencePiece model."""

    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def array(kind, form, values):
        packed = b"".join(text(v) if form is None else struct.pack(form, v) for v in values)
        return struct.pack("<IIQ", 9, kind, len(values)) + packed

    entries = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.tokens": array(8, None, [piece for piece, _, _ in pieces]),
        "tokenizer.ggml.scores": array(6, "<f", [score for _, score, _ in pieces]),
        "tokenizer.ggml.token_type": array(5, "<i", [kind for _, _, kind in pieces]),
        "tokenizer.ggml.bos_token_id": struct.pack("<II", 4, 1),
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries))
    path.write_bytes(head + b"".join(text(key) + value for key, value in entries.items()))
    return path


def test_K2_K3_mistral_gguf_equals_hugging_face(millrace_bin, tmp_path):
    model = write_gguf(tmp_path / "mistral.gguf", families.mistral_pieces())
    tokenizer = families.mistral()
    compare(millrace_bin, model, "mistral-gguf", tokenizer)
    row = {"text": "Hello", "add_special": True}
    expected = tokenizer.encode("Hello").ids
    assert run_lines(millrace_bin, model, [row]) == [{"ids": expected}]


def test_K1_bos_of_the_post_processor_once(millrace_bin, tmp_path):
    tokenizer = families.llama2()
    model = write_directory(tmp_path, tokenizer)
    texts = ["Hello", "", "<s>Hello", "</s>"]
    rows = run_lines(millrace_bin, model, [{"text": t, "add_special": True} for t in texts])
    bos = tokenizer.token_to_id("<s>")
    for text, row in zip(texts, rows):
        expected = tokenizer.encode(text).ids
        if text.startswith("<s>"):  # Hugging Face adds a second one
            assert expected[:2] == [bos, bos]
            expected = expected[1:]
        assert row == {"ids": expected}, text


def test_K1_tokenizer_config_goes_before_the_post_processor(millrace_bin, tmp_path):
    tokenizer = families.llama2()
    model = write_directory(tmp_path, tokenizer)
    config = {"add_bos_token": False, "add_eos_token": True, "bos_token": "<s>"}
    config["eos_token"] = {"__type": "AddedToken", "content": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    plain = tokenizer.encode("Hello", add_special_tokens=False).ids
    rows = run_lines(millrace_bin, model, [{"text": "Hello", "add_special": True}])
    assert rows == [{"ids": [*plain, tokenizer.token_to_id("</s>")]}]


def refusal(millrace_bin, folder):
    done = subprocess.run(
        [millrace_bin, "tokenize", "--model", folder, "--jsonl"],
        input=b"", capture_output=True, timeout=60,
    )
    assert done.returncode == 1
    return done.stderr.decode()


@pytest.mark.parametrize(
    "part, value",
    [
        ("normalizer", {"type": "Lowercase"}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "BertNormalizer"}]}),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("decoder", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
        ("post_processor", {"type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2]}),
        ("model", {"type": "Unigram", "unk_id": 0, "vocab": [["a", -1.0]]}),
        ("model", {"type": "WordPiece", "unk_token": "a", "vocab": {"a": 0}}),
    ],
)
def test_K3_unknown_component_is_refused_by_name(millrace_bin, tmp_path, part, value):
    data = json.loads(families.gpt2().to_str())
    data[part] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    name = (value.get("normalizers") or [value])[0]["type"]
    message = refusal(millrace_bin, tmp_path)
    assert f'"{name}"' in message and "tokenizer.json" in message


def chat_directory(folder, model_path, template=None):
    """SmolLM2's tokenizer and its template, as a directory."""
    write_directory(folder, families.smollm(model_path))
    data = families.gguf_metadata(model_path)
    config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    config["chat_template"] = template or data["tokenizer.chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_K6_chat_of_a_directory_never_reads_users_text_as_special(
    millrace_bin, model_path, tmp_path
):
    model = chat_directory(tmp_path, model_path)
    tokenizer = families.smollm(model_path)
    specials = {t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special}
    rows = [{"messages": [{"role": "user", "content": f"a {text}b"}]} for text in sorted(specials)]
    answers = run_lines(millrace_bin, model, rows, "--chat")
    assert answers == run_lines(millrace_bin, model_path, rows, "--chat")
    ids = {tokenizer.token_to_id(text) for text in specials}
    for row, answer in zip(rows, answers):
        content = row["messages"][0]["content"]
        assert content in answer["text"]
        # Three turns are opened and two closed; no other control token is there.
        assert sum(one in ids for one in answer["ids"]) == 5
        assert tokenizer.decode(answer["ids"], skip_special_tokens=False) == answer["text"]


@pytest.mark.parametrize("place", ["tokenizer_config.json", "chat_template.jinja"])
def test_K4_other_template_serves_text_but_no_chat(millrace_bin, model_path, tmp_path, place):
    other = "{% for m in messages %}{{ m.content }}{% endfor %}"
    model = chat_directory(tmp_path, model_path, other if place.endswith("json") else None)
    if place.endswith("jinja"):  # goes before the configuration's, a known one
        (tmp_path / place).write_text(other + "\n")
    assert "ids" in run_lines(millrace_bin, model, [{"text": "Hello"}])[0]
    done = subprocess.run(
        [millrace_bin, "tokenize", "--model", model, "--jsonl", "--chat"],
        input=json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode() + b"\n",
        capture_output=True, timeout=60,
    )
    assert done.returncode == 1
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "FAILED_PRECONDITION"
    assert hashlib.sha256(other.encode()).hexdigest() in error["message"]
