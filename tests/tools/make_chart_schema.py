#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes charts/millrace/values.schema.json: make_chart_schema.py PROGRAM.

Its part `config` is what `millrace config --schema` says, less the secrets: those do not belong in a ConfigMap.
All else is charts/millrace/values.base.schema.json, which is kept by hand.
"""
import json
import pathlib
import subprocess
import sys

CHART = pathlib.Path(__file__).resolve().parents[2] / "charts" / "millrace"
BASE = CHART / "values.base.schema.json"
SCHEMA = CHART / "values.schema.json"
OUTER = ("$schema", "title")


def without_secrets(schema):
    """The schema, and no property that is marked writeOnly."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: without_secrets(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict):
        kept["properties"] = {name: without_secrets(part) for name, part in schema["properties"].items()
                              if not part.get("writeOnly")}
    return kept


def compose(program):
    printed = subprocess.run([program, "config", "--schema"], stdout=subprocess.PIPE, check=True).stdout
    schema = json.loads(BASE.read_text())
    config = without_secrets(json.loads(printed))
    schema["properties"]["config"] = {name: part for name, part in config.items() if name not in OUTER}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(compose(sys.argv[1]))
