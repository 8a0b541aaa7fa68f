#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a file of the repository is not what the program prints: check_generated.py FILE PROGRAM ARGUMENT..."""
import difflib
import pathlib
import subprocess
import sys


def main(path, *command):
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    kept = pathlib.Path(path).read_text()
    if kept == printed:
        return 0
    sys.stdout.writelines(difflib.unified_diff(kept.splitlines(True), printed.splitlines(True), path, "printed"))
    name = "/".join(pathlib.Path(path).parts[-2:])
    print(f"{name} is out of date; write it anew: {' '.join(['millrace', *command[1:]])} > {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
