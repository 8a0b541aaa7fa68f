#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that includes point down only, and that every source file starts with its licence line.

usage: check_layers.py ROOT
"""
import pathlib
import re
import sys

# What each layer may include, itself always included.
MAY_INCLUDE = {
    "base": set(),
    "kernels": {"base"},
    "cache": {"kernels", "base"},
    "model": {"kernels", "base"},
    "scheduler": {"cache", "model", "kernels", "base"},
    "service": {"api", "scheduler", "cache", "model", "kernels", "base"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)
CODE = {".c", ".h", ".cpp", ".cu", ".cuh", ".def"}
MARKED = CODE | {".py", ".sh", ".proto"}


def faults(root):
    for layer, below in MAY_INCLUDE.items():
        for path in sorted((root / layer).rglob("*")):
            if path.suffix not in CODE:
                continue
            for name in INCLUDE.findall(path.read_text()):
                top = name.split("/")[0] if "/" in name else None
                if top is None:
                    # Generated headers have no folder; they belong to api.
                    if not (name.endswith(".pb-c.h") and layer == "service"):
                        yield f"{path.relative_to(root)}: include \"{name}\" from the root: layer/file.h"
                elif top in MAY_INCLUDE or top == "api":
                    if top != layer and top not in below:
                        yield f"{path.relative_to(root)}: {layer} may not include {name}"
                elif not name.endswith(".pb-c.h"):
                    yield f"{path.relative_to(root)}: include of unknown folder {name}"
    skip = {"build", ".git", ".venv", "models", ".cache"}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if any(p in skip or p.startswith("build") for p in parts) or not path.is_file():
            continue
        marked = path.suffix in MARKED or path.name in ("meson.build", "meson_options.txt")
        marked = marked or parts[0] in ("scripts", ".ci")
        if marked and "SPDX-License-Identifier: Apache-2.0" not in path.read_text(errors="replace")[:300]:
            yield f"{path.relative_to(root)}: no SPDX line"


def main():
    found = list(faults(pathlib.Path(sys.argv[1])))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
