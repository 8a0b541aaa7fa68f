# SPDX-License-Identifier: Apache-2.0
"""Callers with keys: whose requests are whose. Who gets in is test_access.py."""
import os
import re
import subprocess
import time

import grpc
import pytest

from keys import KeyServer, bearer, digest
from serving import CALL_S, Server, generate, greedy
from stubs import pb, pb_grpc

KEYS = {"ada": "key-of-ada", "ada2": "second-key-of-ada", "bob": "key-of-bob"}
TENANTS = (f"tenants=[{{name: ada, keys: [{digest(KEYS['ada'])}, {digest(KEYS['ada2'])}], priority_max: 5}}, "
           f"{{name: bob, keys: [{digest(KEYS['bob'])}], weight: 3}}]")


@pytest.fixture(scope="module")
def locked(millrace_bin, model_path):
    with KeyServer(KEYS["ada"], millrace_bin, model_path, "max_seq_length=256", TENANTS) as running:
        yield running


@pytest.fixture
def channel(locked):
    """One that sends nothing by itself."""
    with grpc.insecure_channel(locked.address) as plain:
        yield plain


def outcome(call, *args, metadata):
    """The status of a call of any kind, read to its end."""
    try:
        answer = call(*args, metadata=metadata, timeout=CALL_S)
        if hasattr(answer, "__next__"):
            next(answer)
            answer.cancel()
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


def test_ids_belong_to_their_tenant_and_abort_reaches_no_other(locked, channel):
    stub = pb_grpc.InferenceServiceStub(channel)
    ada, bob = bearer(KEYS["ada"]), bearer(KEYS["bob"])
    asked = greedy(200, text="The river ran", requestId="one")
    first = stub.Generate(asked, metadata=ada, timeout=CALL_S)
    next(first)
    second = stub.Generate(asked, metadata=bob, timeout=CALL_S)  # the same id, another tenant
    next(second)
    again = outcome(stub.Generate, asked, metadata=bearer(KEYS["ada2"]))  # the same tenant by its other key
    assert again[0] == grpc.StatusCode.ALREADY_EXISTS

    assert stub.Abort(pb.AbortRequest(request_id="one"), metadata=bob).found
    with pytest.raises(grpc.RpcError) as caught:
        list(second)
    assert caught.value.code() == grpc.StatusCode.CANCELLED
    assert not stub.Abort(pb.AbortRequest(request_id="one"), metadata=bob).found
    next(first)  # untouched
    assert stub.Abort(pb.AbortRequest(request_id="one"), metadata=ada).found
    with pytest.raises(grpc.RpcError):
        list(first)
    end = time.monotonic() + CALL_S
    lines = []
    while len(lines) < 2 and time.monotonic() < end:
        lines = [line for line in locked.log.splitlines() if 'request_id="one"' in line]
        time.sleep(0.01)
    assert len(lines) == 2 and "tenant=bob " in lines[0] and "tenant=ada " in lines[1]


def test_priority_within_what_the_tenant_may_M7(channel):
    stub = pb_grpc.InferenceServiceStub(channel)

    def status(priority, key):
        return outcome(stub.Generate, greedy(2, text="The river ran", priority=priority), metadata=bearer(KEYS[key]))

    assert status(5, "ada")[0] == grpc.StatusCode.OK
    assert status(-1000, "bob")[0] == grpc.StatusCode.OK
    code, details = status(6, "ada")
    assert code == grpc.StatusCode.PERMISSION_DENIED and details.startswith("priority is 6") and "5" in details
    assert status(1, "bob")[0] == grpc.StatusCode.PERMISSION_DENIED
    code, details = status(1001, "ada")
    assert code == grpc.StatusCode.INVALID_ARGUMENT and details.startswith("priority")


def test_command_line_sends_a_key(millrace_bin, locked, tmp_path):
    def run(*options, key=None):
        env = {name: value for name, value in os.environ.items() if name != "MILLRACE_API_KEY"}
        if key is not None:
            env["MILLRACE_API_KEY"] = key
        return subprocess.run([str(millrace_bin), *options], env=env, text=True, capture_output=True, timeout=CALL_S,
                              stdin=subprocess.DEVNULL)

    generate_it = ("generate", "--server", locked.address, "--max-tokens", "2", "Hello")
    refused = run(*generate_it)
    assert refused.returncode == 1 and "authorization: Bearer KEY" in refused.stderr
    assert run(*generate_it, key=KEYS["bob"]).returncode == 0
    assert run(*generate_it, key="wrong").returncode == 1

    key_file = tmp_path / "key"
    key_file.write_text(KEYS["ada"] + "\n")
    assert run(*generate_it, "--api-key-file", str(key_file), key="wrong").returncode == 0
    key_file.write_text("two words\n")
    bad = run(*generate_it, "--api-key-file", str(key_file))
    assert bad.returncode == 2 and "spaces" in bad.stderr and "words" not in bad.stderr

    bench = ("bench", "serve", "--server", locked.address, "--requests", "2", "--prompt-tokens", "4",
             "--output-tokens", "2", "--json")
    assert run(*bench, key=KEYS["bob"]).returncode == 0
    assert run(*bench).returncode == 1


def test_logs_hold_no_key_and_say_who_may_call(locked, server):
    text = locked.log
    assert re.search(r'msg="callers need credentials" tenants=2', text)
    assert not any(secret in text for key in KEYS.values() for secret in (key, digest(key)))
    assert "no tenants are set" in server.log and "level=warn" in server.log
    assert generate(server.stub, greedy(2, text="The river ran")).usage.completion_tokens == 2
