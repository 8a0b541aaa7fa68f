# SPDX-License-Identifier: Apache-2.0
"""Typical mistakes of a new user. Each is answered by one line that names the thing and the way out, with the right
exit status: 1 for a run that failed, 2 for what could not have worked as it was asked for."""
import concurrent.futures
import ctypes
import http.server
import json
import os
import resource
import struct
import subprocess
import threading
import zipfile

import grpc
import pytest

from serving import CALL_S

MIB = 1 << 20
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def obey_permissions():
    """Root reads everything; without these two capabilities it is held to what the files allow."""
    if os.getuid() == 0:
        libc = ctypes.CDLL(None)
        libc.prctl(PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, 0, 0, 0)
        libc.prctl(PR_CAPBSET_DROP, CAP_DAC_READ_SEARCH, 0, 0, 0)


def limit_memory(mib):
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (mib * MIB, mib * MIB))


@pytest.fixture(scope="module")
def places(tmp_path_factory, model_path, server):
    """What the cases name in braces."""
    folder = tmp_path_factory.mktemp("mistakes")
    model = model_path.read_bytes()
    (folder / "cut.gguf").write_bytes(model[:100_000])
    (folder / "half.gguf").write_bytes(model[:len(model) // 2])
    (folder / "empty.gguf").write_bytes(b"")
    at = model.index(b"llama", model.index(b"general.architecture"))
    (folder / "mamba.gguf").write_bytes(model[:at] + b"mamba" + model[at + 5:])
    with zipfile.ZipFile(folder / "model.zip", "w") as archive:
        archive.writestr("model.gguf", "x")
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    (folder / "notes.txt").write_text("Dear model,\n")
    (folder / "pointer.gguf").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (folder / "closed").mkdir()
    (folder / "closed" / "model.gguf").write_bytes(b"GGUF")
    (folder / "type.yaml").write_text("threads: 2\nmax_batch_size: many\n")
    (folder / "key.yaml").write_text("max_batchsize: 4\n")
    (folder / "tab.yaml").write_text("drain:\n\ttimeout_ms: 1\n")
    (folder / "group.yaml").write_text("log: debug\n")
    (folder / "list.yaml").write_text("- threads\n")
    (folder / "later.yaml").write_text("attention:\n  sparse: true\n")
    (folder / "long.txt").write_text("word " * 2000)
    (folder / "long.jsonl").write_text('{"prompt": "a", "max_tokens": 1}\n\n{"prompt": \n')
    (folder / "field.jsonl").write_text('{"promt": "a"}\n')
    (folder / "closed").chmod(0)
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    other = grpc.server(concurrent.futures.ThreadPoolExecutor(1))
    other_port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    yield {"M": model_path, "D": folder, "taken": server.address, "server": server.address,
           "web": f"127.0.0.1:{web.server_port}", "other": f"127.0.0.1:{other_port}"}
    other.stop(None)
    web.shutdown()
    (folder / "closed").chmod(0o700)


# name: (arguments, exit status, what the message must say, how to run it otherwise)
CASES = {
    "no command": ("", 2, ["command", "millrace --help"]),
    "unknown command": ("serv --model {M}", 2, ["serv", "did you mean serve"]),
    "option before the command": ("--model {M} serve", 2, ["--model", "command comes first"]),
    "command of a later version": ("quantize {M}", 2, ["quantize", "does not have", "--help"]),
    "unknown option": ("generate --model {M} --max_tokens 5 Hello", 2, ["--max_tokens", "did you mean --max-tokens"]),
    "short option": ("generate --model {M} -n 5 Hello", 2, ["-n", "two dashes", "--help"]),
    "option without its value": ("generate Hello --model", 2, ["--model PATH"]),
    "model without its option": ("serve {M}", 2, ["{M}", "--model"]),
    "no model": ("serve", 2, ["--model PATH is missing"]),
    "neither model nor server": ("generate Hello", 2, ["--model PATH", "--server HOST:PORT"]),
    "missing PROMPT": ("generate --model {M}", 2, ["PROMPT is missing", "last argument", "standard input"]),
    "prompt of several words": ("generate --model {M} Once upon", 2, ["upon", "usage: millrace generate"]),

    "wrong path": ("generate --model {D}/nothing.gguf Hello", 1, ["{D}/nothing.gguf", "check the path"]),
    "zip archive": ("generate --model {D}/model.zip Hello", 1, ["{D}/model.zip", "zip archive", "unpack it"]),
    "safetensors": ("inspect {D}/model.safetensors", 1, ["{D}/model.safetensors", "safetensors", "GGUF"]),
    "text file": ("inspect {D}/notes.txt", 1, ["{D}/notes.txt", "text", "give a model in GGUF"]),
    "empty file": ("inspect {D}/empty.gguf", 1, ["{D}/empty.gguf", "empty", "download"]),
    "truncated in its header": ("generate --model {D}/cut.gguf Hello", 1, ["{D}/cut.gguf", "cut off", "download"]),
    "truncated in its weights": ("generate --model {D}/half.gguf Hello", 1, ["{D}/half.gguf", "cut off", "download"]),
    "pointer of Git LFS": ("inspect {D}/pointer.gguf", 1, ["{D}/pointer.gguf", "git lfs pull"]),
    "model directory": ("generate --model {D} Hello", 1, ["{D}", "directory", "GGUF file"]),
    "other architecture": ("generate --model {D}/mamba.gguf Hello", 1, ["{D}/mamba.gguf", "mamba", "llama"]),
    "unreadable directory": ("inspect {D}/closed/model.gguf", 1, ["{D}/closed/model.gguf", "Permission denied", "let"],
                             {"preexec_fn": obey_permissions}),
    "no memory for the file": ("generate --model {M} Hello", 1, ["{M}", "memory", "ulimit -v"],
                               {"preexec_fn": limit_memory(100)}),
    "no memory for the KV cache": ("generate --model {M} --set threads=1 --set max_seq_length=8192 Hello", 1,
                                   ["KV cache", "lower max_seq_length"], {"preexec_fn": limit_memory(330)}),

    "wrong type in YAML": ("serve --model {M} --config {D}/type.yaml", 2,
                           ["{D}/type.yaml", "line 2", "max_batch_size", "many", "1 to 4096"]),
    "unknown key": ("serve --model {M} --config {D}/key.yaml", 2, ["line 1", "max_batchsize", "mean max_batch_size"]),
    "tab in YAML": ("serve --model {M} --config {D}/tab.yaml", 2, ["{D}/tab.yaml", "line 2", "not YAML"]),
    "value for a group": ("serve --model {M} --config {D}/group.yaml", 2, ["{D}/group.yaml", "line 1", "log.level"]),
    "list instead of keys": ("serve --model {M} --config {D}/list.yaml", 2, ["{D}/list.yaml", "mapping"]),
    "key of a later version": ("serve --model {M} --config {D}/later.yaml", 2, ["attention.sparse", "leave it out"]),
    "no such configuration": ("serve --model {M} --config {D}/no.yaml", 2, ["{D}/no.yaml", "check the path"]),
    "model as configuration": ("serve --model {M} --config {M}", 2, ["{M}", "YAML"]),
    "--set without a value": ("serve --model {M} --set threads", 2, ["threads", "KEY=VALUE"]),
    "--set of an unknown key": ("serve --model {M} --set thread=2", 2, ["thread", "did you mean threads"]),
    "--set out of bounds": ("serve --model {M} --set threads=0", 2, ["threads", "1 to 1024", "auto"]),
    "wrong unit": ("serve --model {M} --set kv_cache_memory=4GB", 2, ["kv_cache_memory", "4GB", "40GiB"]),
    "too small a cache": ("serve --model {M} --set kv_cache_memory=1MiB --set max_seq_length=512 --listen 127.0.0.1:0",
                          1, ["KV cache", "max_seq_length", "kv_cache_memory to at least"]),
    "longer than the model": ("generate --model {M} --set max_seq_length=100000 Hello", 1,
                              ["max_seq_length", "8192", "lower it"]),
    "wrong variable": ("serve --model {M}", 2, ["MILLRACE_THREAD", "MILLRACE_THREADS"],
                       {"env": {**os.environ, "MILLRACE_THREAD": "2"}}),

    "port taken": ("serve --model {M} --listen {taken}", 1, ["{taken}", "in use", "another port"]),
    "port alone": ("serve --model {M} --listen 8001", 2, ["8001", "HOST:PORT"]),
    "metrics port taken": ("serve --model {M} --listen 127.0.0.1:0 --metrics-listen {taken}", 1,
                           ["--metrics-listen", "{taken}", "another port"]),
    "metrics port alone": ("serve --model {M} --listen 127.0.0.1:0 --metrics-listen 9090", 2,
                           ["--metrics-listen", "9090", "HOST:PORT"]),
    "unknown host to listen on": ("serve --model {M} --listen nobody.invalid:8001", 1,
                                  ["nobody.invalid:8001", "address of this machine"]),
    "port out of range": ("serve --model {M} --listen 127.0.0.1:80011", 2, ["80011", "65535"]),
    "address of another machine": ("serve --model {M} --listen 192.0.2.1:8001", 1, ["192.0.2.1:8001", "0.0.0.0"]),
    "server not running": ("generate --server 127.0.0.1:1 Hello", 1, ["127.0.0.1:1", "millrace serve"]),
    "web server on that port": ("generate --server {web} Hello", 1, ["{web}", "does not speak plaintext gRPC"]),
    "gRPC server of another kind": ("generate --server {other} Hello", 1, ["{other}", "none of millrace.v1"]),
    "load on nobody": ("bench serve --server 127.0.0.1:1", 1, ["127.0.0.1:1", "millrace serve"]),
    "URL as address": ("generate --server http://127.0.0.1:8001 Hello", 2, ["HOST:PORT", "without http://"]),
    "host without port": ("bench serve --server localhost", 2, ["localhost", "HOST:PORT"]),
    "unknown host": ("generate --server nobody.invalid:8001 Hello", 1, ["nobody.invalid:8001", "host name"]),
    "deadline too short": ("generate --server {server} --max-tokens 900 --timeout-ms 100 Hello", 1,
                           ["{server}", "deadline", "allow more time"]),
    "settings for a server": ("generate --server {server} --set threads=1 Hello", 2, ["--set", "its own"]),

    "too long a prompt": ("generate --model {M} --set max_seq_length=512", 1, ["PROMPT", "512", "shorten it"],
                          {"stdin": "{D}/long.txt"}),
    "too long a prompt for the server": ("generate --server {server}", 1, ["1024", "shorten it"],
                                         {"stdin": "{D}/long.txt"}),
    "NaN temperature": ("generate --model {M} --temperature nan Hello", 2, ["--temperature is nan", "at least 0"]),
    "comma for a point": ("generate --model {M} --temperature 0,5 Hello", 2, ["--temperature 0,5", "number"]),
    "negative max-tokens": ("generate --model {M} --max-tokens -5 Hello", 2, ["--max-tokens -5", "whole number"]),
    "empty stop string": ("generate --model {M} --stop= Hello", 2, ["--stop", "empty"]),
    "no token at all": ("generate --model {M} --max-tokens 0 Hello", 2, ["--max-tokens is 0", "from 1"]),
    "top-p above one": ("generate --model {M} --top-p 90 Hello", 2, ["--top-p is 90", "at most 1"]),
    "both loops": ("bench serve --server {server} --rate 1 --concurrency 1", 2,
                   ["--rate", "--concurrency", "not both"]),
    "no rate": ("bench serve --server {server} --rate 0", 2, ["--rate", "above 0"]),

    "bad JSON line": ("generate --model {M} --jsonl", 1, ["1 of 2 requests failed", "error rows"],
                      {"stdin": "{D}/long.jsonl", "row": ["line 3", "not JSON"]}),
    "wrong field in a line": ("generate --model {M} --jsonl", 1, ["1 of 1 requests failed"],
                              {"stdin": "{D}/field.jsonl", "row": ["line 1", "promt", "did you mean prompt"]}),
    "PROMPT beside lines": ("generate --model {M} --jsonl Hello", 2, ["--jsonl", "standard input"]),
    "text for --ids": ("score --model {M} --ids {D}/notes.txt", 1, ["{D}/notes.txt", '{{"ids": [1, 2, …]}}']),
    "text for tokenize": ("tokenize --model {M}", 2, ["--jsonl"]),
    "nothing to score": ("score --model {M}", 2, ["--ids FILE.json", "text file"]),
    "disk full": ("generate --model {M} --max-tokens 1 Hello", 1, ["standard output", "No space left", "free space"],
                  {"stdout": "/dev/full"}),
    "disk full, of rows": ("generate --model {M} --jsonl", 1, ["No space left"],
                           {"stdin": "{D}/long.jsonl", "stdout": "/dev/full"}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_mistake(millrace_bin, places, case):
    line, status, wanted, *rest = case
    how = dict(rest[0]) if rest else {}
    if how.get("preexec_fn") not in (None, obey_permissions) and b"__asan_init" in millrace_bin.read_bytes():
        pytest.skip("AddressSanitizer reserves more address space than any limit here allows")
    row = how.pop("row", None)
    with open(how.pop("stdin", "/dev/null").format(**places)) as stdin, \
            open(how.pop("stdout", places["D"] / "out"), "w") as stdout:
        done = subprocess.run([millrace_bin, *(word.format(**places) for word in line.split())], stdin=stdin,
                              stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=CALL_S, check=False, **how)
    message = done.stderr
    assert message.startswith("millrace: ") and message.endswith("\n") and message.count("\n") == 1, message
    for part in wanted:
        assert part.format(**places) in message, message
    assert done.returncode == status, message
    assert not message.endswith("...\n"), "cut off: " + message
    if row is not None:
        last = json.loads((places["D"] / "out").read_text().splitlines()[-1])
        assert all(part in last["error"]["message"] for part in row), last
