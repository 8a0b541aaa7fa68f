# SPDX-License-Identifier: Apache-2.0
"""values.schema.json is what the program says, and says what the program does."""
import json
import os
import subprocess
import sys

import pytest

from charts import CHART, PVC, REPOSITORY, SETS, Rendered, jsonschema, lack, load, refusal

sys.path.insert(0, str(REPOSITORY / "tests" / "tools"))
import make_chart_schema  # noqa: E402

PROGRAM = os.environ.get("MILLRACE_BIN") or lack("set MILLRACE_BIN: these tests ask the program")
WITHOUT_PREFIX = {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")}


def printed():
    run = subprocess.run([PROGRAM, "config", "--schema"], stdout=subprocess.PIPE, check=True, env=WITHOUT_PREFIX)
    return json.loads(run.stdout)


def accepts(folder, text, **env):
    """Whether the program takes it as its configuration file."""
    path = folder / "millrace.yaml"
    path.write_text(text)
    run = subprocess.run([PROGRAM, "config", "--config", str(path)], capture_output=True, text=True, check=False,
                         env={**WITHOUT_PREFIX, **env})
    assert run.returncode in (0, 2), run.stderr
    return run.returncode == 0


def test_values_schema_is_not_stale_N5():
    assert (CHART / "values.schema.json").read_text() == make_chart_schema.compose(PROGRAM), (
        "write it anew: tests/tools/make_chart_schema.py PROGRAM")


def test_schema_is_a_schema():
    jsonschema.Draft7Validator.check_schema(printed())
    jsonschema.Draft7Validator.check_schema(json.loads((CHART / "values.schema.json").read_text()))


def keys(schema, path=()):
    """(names, schema) of every setting that is no section."""
    for name, part in schema["properties"].items():
        if "properties" in part:
            yield from keys(part, (*path, name))
        else:
            yield (*path, name), part


def candidates(schema):
    """Values at and beyond every edge that the schema has, and some of other kinds."""
    for part in [schema, *schema.get("anyOf", [])]:
        for bound in [part[name] for name in ("minimum", "maximum") if name in part]:
            yield from (bound - 1, bound, bound + 1)
        yield from part.get("enum", [])
        if "maxLength" in part:
            yield from ("a" * part["maxLength"], "a" * (part["maxLength"] + 1))
    yield from ("auto", "sideways", "", "12MB", "12MiB", -1, 1.5, True, {"a": 1}, [1])


# A number that is no bound of its own but a rule across bits or keys, and texts with a form of their own.
OTHER_RULES = {("block_size",), ("gpu_memory_utilization",), ("redis", "url"), ("redis", "replica_id"),
               ("tls", "certificate"), ("tls", "private_key"), ("tls", "client_ca"), ("tls", "client_auth")}
# What acts only beside another.
BESIDE = {("random_seed",): "load_format: random\n",
          ("tls", "reload_interval_ms"): "tls.certificate: a\ntls.private_key: b\n"}


def nested(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize("path", [path for path, schema in keys(printed()) if schema.get("type") != "array"],
                         ids=".".join)
def test_schema_takes_what_the_program_takes_N1(path, tmp_path):
    schema = printed()
    part = dict(keys(schema))[path]
    env = {"MILLRACE_REDIS_URL": "redis://localhost"} if path[0] == "redis" and path[1] != "url" else {}
    taken = 0
    for value in candidates(part):
        valid = jsonschema.Draft7Validator(schema).is_valid(nested(path, value))
        if path in OTHER_RULES and valid:
            continue
        # A truth value is a text too to the program; the schema wants it in quotes, since YAML has more words for it.
        if "maxLength" in part and isinstance(value, bool):
            continue
        text = BESIDE.get(path, "") + f"{path[0]}: {json.dumps(nested(path, value)[path[0]])}\n"
        assert accepts(tmp_path, text, **env) == valid, (path, value)
        taken += valid
    assert taken > 0 or path in OTHER_RULES


@pytest.mark.parametrize("field, value, valid", [
    ("weight", 1000, True), ("weight", 1001, False), ("weight", 0, False),
    ("requests_per_s", 0.25, True), ("requests_per_s", 1000000, True), ("requests_per_s", 1000001, False),
    ("burst_requests", "auto", True), ("burst_requests", 0, False),
    ("tokens_per_min", 1000000000, True), ("tokens_per_min", 1000000001, False),
    ("keys", ["F" * 64, "e" * 64], True), ("keys", ["F" * 63], False), ("keys", [f"{i:064x}" for i in range(9)], False),
    ("colour", "red", False),
])
def test_schema_of_tenants_is_the_programs_N1(field, value, valid, tmp_path):
    tenant = {"name": "a", "keys": ["0" * 64], field: value}
    assert jsonschema.Draft7Validator(printed()).is_valid({"tenants": [tenant]}) == valid
    assert accepts(tmp_path, f"tenants: {json.dumps([tenant])}\n") == valid


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_program_takes_the_file_that_the_chart_writes_N5(path, tmp_path):
    rendered = Rendered(load(path))
    if not rendered.all("ConfigMap"):
        return  # the file is a Secret
    env = {entry["name"]: entry["value"] for entry in rendered.server.get("env", [])
           if entry["name"].startswith("MILLRACE_") and "value" in entry}
    text = rendered.one("ConfigMap", "-config")["data"]["millrace.yaml"]
    assert accepts(tmp_path, text, **env)
    assert rendered.config == (load(path).get("config") or None)


def test_numbers_are_written_in_digits(tmp_path):
    config = {"max_queue_requests": 1000000, "random_seed": 9007199254740991, "load_format": "random",
              "tenants": [{"name": "a", "keys": ["0" * 64], "requests_per_s": 0.00001, "tokens_per_min": 1000000000}]}
    text = Rendered(PVC, {"config": config}).one("ConfigMap", "-config")["data"]["millrace.yaml"]
    assert "1000000\n" in text and "9007199254740991\n" in text and "1000000000" in text and "e+" not in text
    assert accepts(tmp_path, text)


def test_what_the_program_lacks_is_no_value():
    for name, value in [("adapters", ["a"]), ("attention", {"sparse": True}), ("kv_cache_dtype", "fp4"),
                        ("tensor_parallel_size", 2)]:
        assert name in refusal(PVC, {"config": {name: value}})


def test_two_forms_at_once_are_refused():
    run = subprocess.run([PROGRAM, "config", "--schema", "--markdown"], capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "--markdown and --schema" in run.stderr and not run.stdout
