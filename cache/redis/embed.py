#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes Lua scripts as C strings, each with its SHA-1, by which Redis knows them.

usage: embed.py OUTPUT SCRIPT...
"""
import hashlib
import pathlib
import sys


def main():
    out, scripts = pathlib.Path(sys.argv[1]), [pathlib.Path(name) for name in sys.argv[2:]]
    lines = ["/* SPDX-License-Identifier: Apache-2.0 */", '#include "cache/redis_script.h"', ""]
    for script in scripts:
        # Comments are for readers of the source.
        body = "".join(line for line in script.read_text().splitlines(keepends=True)
                       if line.strip() and not line.lstrip().startswith("--"))
        quoted = "\n".join('    "' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'
                           for line in body.splitlines())
        digest = hashlib.sha1(body.encode()).hexdigest()
        lines += [f"const mr_redis_script mr_redis_{script.stem} = {{",
                  f'    .name = "{script.stem}",', f'    .sha1 = "{digest}",', "    .body =", f"{quoted},", "};", ""]
    out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
