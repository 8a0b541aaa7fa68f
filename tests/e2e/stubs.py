# SPDX-License-Identifier: Apache-2.0
"""Python stubs of millrace.v1, made from api/ when the tests start."""
import atexit
import importlib
import pathlib
import shutil
import sys
import tempfile

import grpc_tools
from grpc_tools import protoc

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def _generate():
    out = tempfile.mkdtemp(prefix="millrace-stubs-")
    atexit.register(shutil.rmtree, out, ignore_errors=True)
    arguments = ["protoc", f"-I{REPOSITORY / 'api'}", f"--python_out={out}", f"--grpc_python_out={out}",
                 "millrace/v1/inference.proto"]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"grpc_tools {grpc_tools.__file__} could not compile api/millrace/v1/inference.proto")
    sys.path.insert(0, out)
    return (importlib.import_module("millrace.v1.inference_pb2"),
            importlib.import_module("millrace.v1.inference_pb2_grpc"))


pb, pb_grpc = _generate()
