#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fails when a threat in docs/security.md names no test, or one that does not exist: check_security.py ROOT."""
import pathlib
import re
import sys

NAMED = re.compile(r"`([\w./]+)`: ((?:`\w+`(?:, )?)+)")


def problems(root):
    """Each row of the tables whose last column is "Test"."""
    inside, rows = False, 0
    for line in (root / "docs" / "security.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[-1] == "Test":
            inside = True
        elif inside and set(cells[0]) != {"-"}:
            rows += 1
            found = NAMED.findall(cells[-1])
            if not found:
                yield f"no test: {cells[0]}"
            for file, names in found:
                path = root / "tests" / file
                text = path.read_text() if path.is_file() else ""
                for name in re.findall(r"`(\w+)`", names):
                    if not re.search(rf"\b{name}\b", text):
                        yield f"{file} has no {name}: {cells[0]}"
    if rows < 30:
        yield f"only {rows} threats were found: is the table as it was?"


def main(root):
    found = list(problems(pathlib.Path(root)))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
