#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generates the protobuf-c code of one .proto file.

protobuf-c holds a `string` as a C string: what follows a NUL is lost, and nothing checks UTF-8.
`string` and `bytes` are the same on the wire, so the C code is made from a copy in which every
`string` reads `bytes`; clients keep the original. Files that are not below --root (google/protobuf)
are taken as they are.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

STRING_FIELD = re.compile(r"^(\s*(?:optional |repeated )?)string (?=\w+ = \d)", re.MULTILINE)
COMMENT = re.compile(r"//.*")


def copy_with_bytes(source: pathlib.Path, target: pathlib.Path) -> None:
    text = STRING_FIELD.sub(r"\1bytes ", source.read_text(encoding="utf-8"))
    if re.search(r"\bstring\b", COMMENT.sub("", text)):
        sys.exit(f"{source}: a string that is not a plain field: teach {sys.argv[0]} about it")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protoc", required=True)
    parser.add_argument("--plugin", required=True, help="protoc-gen-cx")
    parser.add_argument("--root", type=pathlib.Path, help="folder that import paths start at")
    parser.add_argument("--out", required=True, help="folder that output paths start at")
    parser.add_argument("name", help="path of the .proto below the root")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        include = []
        if args.root is not None:
            for source in args.root.rglob("*.proto"):
                copy_with_bytes(source, pathlib.Path(scratch) / source.relative_to(args.root))
            include = [f"-I{scratch}"]
        # protoc finds google/protobuf/*.proto beside its own installation.
        command = [args.protoc, f"--plugin=protoc-gen-cx={args.plugin}", *include,
                   f"--cx_out={args.out}", args.name]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
