#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/chat_templates.json: conversations as Jinja2 renders published chat templates.

The templates come from two packages: llama-cpp-python 0.3.36 (source distribution, unpacked) and
xinference 4.1.0 (wheel, unpacked); only their digests are kept. Made with Jinja2 3.1.6, seed 2; the
environment is the one that transformers sets up (sandboxed and immutable, trim_blocks,
lstrip_blocks). Usage: make_templates_golden.py LLAMA_CPP_PYTHON XINFERENCE OUT.json
"""
import ast
import hashlib
import json
import pathlib
import random
import re
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

SEED = 2
COUNT = 60


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def environment():
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
    )
    made.globals["raise_exception"] = raise_exception
    return made


def sources(llama_cpp, xinference):
    """{name: (template, bos, eos)}"""
    folder = llama_cpp / "vendor" / "llama.cpp" / "models" / "templates"
    code = (llama_cpp / "llama_cpp" / "llama_chat_format.py").read_text()
    named = {
        name: ast.literal_eval(text)
        for name, text in re.findall(r'^(\w+)_CHAT_TEMPLATE = (".*")$', code, re.MULTILINE)
    }
    models = {}
    for path in sorted((xinference / "xinference" / "model" / "llm").rglob("*.json")):
        data = json.loads(path.read_text())
        for model in data if isinstance(data, list) else [data]:
            if model.get("chat_template"):
                models[model["model_name"]] = model["chat_template"]

    def file(name):
        return (folder / f"{name}.jinja").read_text()

    llama = ("<|begin_of_text|>", "<|eot_id|>")
    chatml = ("", "<|im_end|>")
    mistral = ("<s>", "</s>")
    phi = ("<s>", "<|endoftext|>")
    return {
        "chatml": (named["CHATML"], *chatml),
        "qwen2": (models["codeqwen1.5-chat"], *chatml),
        "qwen2.5": (file("Qwen-Qwen2.5-7B-Instruct"), *chatml),
        "qwen3": (file("Qwen-Qwen3-0.6B"), *chatml),
        "qwen3-later": (models["qwen3"], *chatml),
        "llama3": (named["LLAMA3_INSTRUCT"], *llama),
        "llama3.1": (file("meta-llama-Llama-3.1-8B-Instruct"), *llama),
        "mistral": (named["MISTRAL_INSTRUCT"], *mistral),
        "mixtral": (named["MIXTRAL_INSTRUCT"], *mistral),
        "mistral-nemo": (file("mistralai-Mistral-Nemo-Instruct-2407"), *mistral),
        "phi3": (models["phi-3-mini-4k-instruct"], *phi),
        "phi3.5": (file("microsoft-Phi-3.5-mini-instruct"), *phi),
        "gemma2": (file("google-gemma-2-2b-it"), "<bos>", "<eos>"),
    }


PARTS = ["Hi", " there", "\n", "\r\n", "  ", "", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "[INST]",
         "{{", "%}", "é", "語", "\u00a0", "\u3000", "\x1c", "'", "1", "\t", "\u0000", "<think>", "</think>",
         "<think>\nwhy\n</think>\n\n", "\n\n", "</s>", "<end_of_turn>"]
HAND = [
    [("user", "Hello")],
    [("user", "")],
    [("system", "Be brief."), ("user", "Hi")],
    [("system", ""), ("user", " Hi ")],
    [("system", "only a system turn")],
    [("user", "1"), ("assistant", "2"), ("user", "3"), ("assistant", "4")],
    [("user", "1"), ("assistant", "<think>\na\n</think>\n\nb"), ("user", "3")],
    [("user", "1"), ("assistant", "<think>\na\n</think>\n\nb"), ("tool", "21"), ("tool", "22"),
     ("assistant", "<think>\nc\n</think>\n\n\nd")],
    [("user", "1"), ("assistant", "2"), ("user", "<tool_response>\n3\n</tool_response>"),
     ("assistant", "a</think>b</think>c")],
    [("assistant", "an answer comes first")],
    [("user", "a"), ("user", "b")],
    [("system", "a"), ("system", "b"), ("user", "c")],
    [("ρόλος", "unknown role")],
    [("user", "a"), ("ρόλος", "unknown role")],
    [("user", "\x1f\u2028 blanks \x85\u00a0")],
]


def conversations():
    rng = random.Random(SEED)
    rows = [list(row) for row in HAND]
    while len(rows) < COUNT:
        roles = ["system"] if rng.random() < 0.4 else []
        for i in range(rng.randint(1, 6)):
            roles.append(["user", "assistant"][i % 2])
        if rng.random() < 0.2:
            roles[rng.randrange(len(roles))] = rng.choice(["tool", "user", "system", "x"])
        rows.append([(role, "".join(rng.choices(PARTS, k=rng.randint(0, 7)))) for role in roles])
    return [[{"role": role, "content": content} for role, content in row] for row in rows]


def render(template, bos, eos, messages, opened):
    try:
        text = template.render(
            messages=messages, add_generation_prompt=opened, bos_token=bos, eos_token=eos
        )
    except Raised as error:
        return {"error": str(error)}
    return {"text": text}


def main():
    llama_cpp, xinference, out = map(pathlib.Path, sys.argv[1:])
    families = []
    for name, (source, bos, eos) in sources(llama_cpp, xinference).items():
        source = source.removesuffix("\n")
        template = environment().from_string(source)
        rows = []
        for index, messages in enumerate(conversations()):
            if name == "llama3.1" and any(m["role"] == "tool" for m in messages):
                continue  # tools are refused
            opened = index % 4 != 3
            answer = render(template, bos, eos, messages, opened)
            rows.append({"messages": messages, "open": opened, **answer})
        digest = hashlib.sha256(source.encode()).hexdigest()
        print(name, digest, file=sys.stderr)
        families.append(
            {"name": name, "template_sha256": digest, "bos": bos, "eos": eos, "rows": rows}
        )
    with open(out, "w", encoding="ascii") as file:
        file.write('{"families": [\n')
        lines = (json.dumps(family, separators=(",", ":")) for family in families)
        file.write(",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
