# SPDX-License-Identifier: Apache-2.0
"""Help, manual page, completion and version: all from the option tables of the commands."""
import pathlib
import re
import shutil
import subprocess

import pytest

import commands

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["serve", "generate", "tokenize", "score", "inspect", "config", "bench offline", "bench serve"]


@pytest.fixture(scope="module")
def run(millrace_bin):
    def say(*words):
        return commands.output(millrace_bin, *words)
    return say


@pytest.fixture(scope="module")
def options(run):
    """The options of each command, by its help."""
    found = {}
    for command in COMMANDS:
        text = run(*command.split(), "--help")
        found[command] = re.findall(r"^  (--[a-z-]+)", text.split("\nexamples:")[0], re.MULTILINE)
        assert "--help" in found[command]
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches(run, command):
    text = run(*command.split(), "--help")
    assert text == run("help", *command.split()) and text.startswith(f"usage: millrace {command} ")
    examples = text.split("\nexamples:\n")[1].split("\n\n")[0].splitlines()
    assert len(examples) >= 2 and all(f"millrace {command}" in line for line in examples)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_use_options_that_there_are(run, options, command):
    text = run(*command.split(), "--help").split("\nexamples:\n")[1].split("\n\n")[0]
    assert set(re.findall(r" (--[a-z-]+)", text)) <= set(options[command])


def test_main_help_lists_every_command(run, millrace_bin):
    text = run("--help")
    assert text == run("help")
    assert all(re.search(rf"^  {command.split()[0]} ", text, re.MULTILINE) for command in COMMANDS)
    assert commands.run(millrace_bin).returncode == 2


def test_manual_page_has_every_command_option_and_setting(run, options):
    page = (REPOSITORY / "docs" / "millrace.1").read_text().replace("\\-", "-")
    for command, names in options.items():
        section = page.split(f'.SS "millrace {command}"\n')[1].split("\n.SS ")[0].split("\n.SH ")[0]
        assert all(f"\n.B {name}" in section for name in names if name != "--help"), command
    keys = re.findall(r"^\| `([a-z_.]+)` \| (?:text|choice|number|size|fixed)",
                      (REPOSITORY / "docs" / "configuration.md").read_text(), re.MULTILINE)
    assert len(keys) > 20 and all(f"\n{key}=" in page for key in keys)


def test_manual_page_is_well_formed():
    page = (REPOSITORY / "docs" / "millrace.1").read_text()
    requests = {line.split()[0] for line in page.splitlines() if line.startswith(".")}
    assert requests <= {".\\\"", ".TH", ".SH", ".SS", ".TP", ".PP", ".B", ".nf", ".fi"}
    assert page.count(".nf\n") == page.count(".fi\n")


def complete(millrace_bin, *words):
    script = f"""source <('{millrace_bin}' completion bash)
COMP_WORDS=(millrace {' '.join(f"'{word}'" for word in words)})
COMP_CWORD={len(words)}
_millrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True).stdout.split()


def test_bash_completion(millrace_bin, options, tmp_path):
    assert complete(millrace_bin, "ser") == ["serve"]
    assert set(COMMANDS[:6]) < set(complete(millrace_bin, ""))
    assert complete(millrace_bin, "bench", "o") == ["offline"]
    for command, names in options.items():
        assert sorted(complete(millrace_bin, *command.split(), "--")) == sorted(names)
    assert "max_batch_size=" in complete(millrace_bin, "serve", "--set", "max_")
    (tmp_path / "model.gguf").touch()
    assert complete(millrace_bin, "serve", "--model", f"{tmp_path}/mo") == [f"{tmp_path}/model.gguf"]
    assert complete(millrace_bin, "generate", "--max-tokens", "") == []


def test_zsh_completion(run, options):
    script = run("completion", "zsh")
    assert script.startswith("#compdef millrace\n")
    for command, names in options.items():
        part = script.split(f"    '{command}')\n")[1].split(";;")[0]
        assert all(re.search(rf"'\*?{name}\[", part) for name in names)
    if shutil.which("zsh"):
        subprocess.run(["zsh", "-n"], input=script, text=True, timeout=60, check=True)


def test_completion_of_another_shell(millrace_bin):
    done = commands.run(millrace_bin, "completion", "fish")
    assert done.returncode == 2 and "fish" in done.stderr and "zsh" in done.stderr


def test_version_names_the_build(run):
    first, *facts = run("--version").splitlines()
    assert re.fullmatch(r"millrace \d+\.\d+\.\d+( commit [0-9a-f]+(-dirty)?)?", first)
    text = "\n".join(facts)
    assert re.search(r"^compiler +(gcc|clang) \d", text, re.MULTILINE)
    assert re.search(r"^CPU paths +reference, portable.*; this machine runs \w+$", text, re.MULTILINE)
    assert all(re.search(rf"{name} \d+\.\d+", text) for name in ("gRPC core", "protobuf-c", "PCRE2"))
