# SPDX-License-Identifier: Apache-2.0
"""MILLRACE_BIN names the program, MILLRACE_MODEL the SmolLM2-135M-Instruct Q4_1 GGUF file."""
import os
import pathlib

import pytest

from serving import Server


def _path_from(variable):
    value = os.environ.get(variable)
    if not value:
        pytest.fail(f"set {variable}: these tests run a real server on a real model", pytrace=False)
    path = pathlib.Path(value)
    if not path.exists():
        pytest.fail(f"{variable} is {value}: there is no such file", pytrace=False)
    return path


@pytest.fixture(scope="session")
def millrace_bin():
    return _path_from("MILLRACE_BIN")


@pytest.fixture(scope="session")
def model_path():
    return _path_from("MILLRACE_MODEL")


@pytest.fixture(scope="session")
def server(millrace_bin, model_path):
    """The default configuration, shared by all tests that leave it as they found it."""
    with Server(millrace_bin, model_path, "max_seq_length=1024") as running:
        yield running


@pytest.fixture(scope="session")
def stub(server):
    return server.stub


@pytest.fixture(scope="module")
def exact_server(millrace_bin, model_path):
    """Exact arithmetic: its greedy output is the reference's."""
    with Server(millrace_bin, model_path, "compute=f32", "max_seq_length=1024") as running:
        yield running
