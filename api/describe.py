#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes C tables for server reflection: the descriptors of .proto files and where symbols are.

The descriptors are protoc's own bytes, of the original files. Only their index is read out of them,
by the wire format, so that nothing but protoc is needed. service/descriptors.h declares the tables.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile

LENGTH_DELIMITED = 2


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, content) of the length-delimited fields of a message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            _, at = varint(data, at)
        elif kind == LENGTH_DELIMITED:
            size, at = varint(data, at)
            yield key >> 3, data[at:at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[kind]


def parts(data, number):
    return [content for found, content in fields(data) if found == number]


def name_of(data):
    return parts(data, 1)[0].decode()


def enum_symbols(data, scope):
    yield scope + name_of(data)
    # Values are siblings of their enum.
    yield from (scope + name_of(value) for value in parts(data, 2))


def message_symbols(data, scope):
    """DescriptorProto: field 2, nested_type 3, enum_type 4, extension 6, oneof_decl 8."""
    name = scope + name_of(data)
    yield name
    for number in (2, 6, 8):
        yield from (f"{name}.{name_of(part)}" for part in parts(data, number))
    for nested in parts(data, 3):
        yield from message_symbols(nested, name + ".")
    for enum in parts(data, 4):
        yield from enum_symbols(enum, name + ".")


class File:
    """FileDescriptorProto: name 1, package 2, dependency 3, message_type 4, enum_type 5, service 6."""

    def __init__(self, data):
        self.data = data
        self.name = name_of(data)
        self.imports = [part.decode() for part in parts(data, 3)]
        package = "".join(part.decode() + "." for part in parts(data, 2))
        self.messages = [name for message in parts(data, 4) for name in message_symbols(message, package)]
        enums = [name for enum in parts(data, 5) for name in enum_symbols(enum, package)]
        self.services = [package + name_of(service) for service in parts(data, 6)]
        methods = [f"{package}{name_of(service)}.{name_of(method)}"
                   for service in parts(data, 6) for method in parts(service, 2)]
        self.symbols = self.messages + enums + self.services + methods


def load(protoc, root, names):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "set"
        subprocess.run([protoc, *(f"-I{path}" for path in root), "--include_imports",
                        f"--descriptor_set_out={out}", *names], check=True)
        return [File(data) for data in parts(out.read_bytes(), 1)]


def c_bytes(data):
    rows = [data[at:at + 24] for at in range(0, len(data), 24)]
    return ",\n".join("    " + ", ".join(str(byte) for byte in row) for row in rows)


def closure(files, first):
    """The index of a file, then those of all that it needs."""
    index = {file.name: i for i, file in enumerate(files)}
    found = [first]
    for at in found:
        found += [index[name] for name in files[at].imports if index[name] not in found]
    return found


def write(files, out):
    print("/* SPDX-License-Identifier: Apache-2.0 */\n/* Made by api/describe.py. */", file=out)
    print('#include "service/descriptors.h"\n', file=out)
    for i, file in enumerate(files):
        print(f"static const uint8_t data_{i}[] = {{\n{c_bytes(file.data)}}};", file=out)
        needed = ", ".join(str(number) for number in closure(files, i))
        print(f"static const uint16_t closure_{i}[] = {{{needed}}};\n", file=out)
    print("const mr_descriptor_file mr_descriptor_files[] = {", file=out)
    for i, file in enumerate(files):
        print(f'    {{"{file.name}", data_{i}, sizeof(data_{i}), closure_{i}, '
              f"sizeof(closure_{i}) / sizeof(closure_{i}[0])}},", file=out)
    print("};\n", file=out)
    print(f"const size_t mr_descriptor_n_files = {len(files)};\n", file=out)
    print("const mr_descriptor_symbol mr_descriptor_symbols[] = {", file=out)
    symbols = sorted((name.encode(), i) for i, file in enumerate(files) for name in file.symbols)
    for name, i in symbols:
        print(f'    {{"{name.decode()}", {i}}},', file=out)
    print("};\n", file=out)
    print(f"const size_t mr_descriptor_n_symbols = {len(symbols)};\n", file=out)
    services = sorted(name for file in files for name in file.services)
    print("const char *const mr_descriptor_services[] = {", file=out)
    print("".join(f'    "{name}",\n' for name in services) + "};\n", file=out)
    print(f"const size_t mr_descriptor_n_services = {len(services)};", file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protoc", required=True)
    parser.add_argument("--root", action="append", required=True, help="folder that import paths start at")
    parser.add_argument("--out", required=True)
    parser.add_argument("names", nargs="+", help=".proto files below a root")
    args = parser.parse_args()
    with open(args.out, "w", encoding="utf-8") as out:
        write(load(args.protoc, args.root, args.names), out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
