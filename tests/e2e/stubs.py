# SPDX-License-Identifier: Apache-2.0
"""Python stubs of millrace.v1, made from api/ when the tests start; and our own foreign messages."""
import atexit
import importlib
import pathlib
import shutil
import sys
import tempfile

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
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


def _foreign_files(*names):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "set"
        well_known = pathlib.Path(grpc_tools.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{REPOSITORY / 'api' / 'foreign'}", f"-I{well_known}", "--include_imports",
                     f"--descriptor_set_out={out}", *names]
        if protoc.main(arguments) != 0:
            raise RuntimeError(f"grpc_tools {grpc_tools.__file__} could not compile {names}")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return files, pool


def foreign_messages(*names):
    """Classes by full name of the messages in files below api/foreign, in a pool of their own: the published
    stubs have the same names."""
    files, pool = _foreign_files(*names)
    return message_factory.GetMessageClassesForFiles([file.name for file in files.file], pool)


def foreign_methods(*names):
    """Descriptors of the methods in files below api/foreign, by "package.Service/Method"."""
    _, pool = _foreign_files(*names)
    return {f"{service.full_name}/{method.name}": method for name in names
            for service in pool.FindFileByName(name).services_by_name.values() for method in service.methods}
