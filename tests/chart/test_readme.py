# SPDX-License-Identifier: Apache-2.0
"""The chart's README, followed word for word as far as a machine without a cluster allows: each of its commands is
held against what it would meet."""
import os
import re
import shlex
import subprocess

import pytest

from charts import CHART, PVC, REPOSITORY, Rendered, helm, lack, load, yaml

PROGRAM = os.environ.get("MILLRACE_BIN") or lack("set MILLRACE_BIN: these tests ask the program")
README = (CHART / "README.md").read_text()
BLOCKS = re.findall(r"^( *)```(\w*)\n(.*?)^ *```$", README, re.S | re.M)
COMMANDS = [shlex.split(line) for _, language, text in BLOCKS if not language for line in text.splitlines() if line.strip()]
EXAMPLES = [yaml.safe_load(text) for _, language, text in BLOCKS if language == "yaml"]
DEFAULTS = load(CHART / "values.yaml")


def option(command, name):
    """The value after `--name`, or in `--name=value`."""
    for i, word in enumerate(command):
        if word == name:
            return command[i + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    raise AssertionError(f"{name} is missing: {command}")


def of(*start):
    found = [command for command in COMMANDS if all(word in command for word in start)]
    assert found, start
    return found


def installed():
    command, = of("helm", "install")
    with helm.Chart.load(str(REPOSITORY / command[3])) as chart:
        chart.validate_schema(EXAMPLES[0])
    return Rendered(EXAMPLES[0], name=command[2], namespace=option(command, "--namespace"))


def test_every_command_is_one_that_is_checked_here():
    checked = [("docker", "build"), ("docker", "push"), ("helm", "install"), ("rollout", "status"),
               ("create", "secret", "tls"), ("create", "secret", "generic")]
    followed = [command for start in checked for command in of(*start)]
    assert sorted(followed) == sorted(COMMANDS)


def test_images_are_built_from_the_recipes_targets_and_then_used():
    pushed = {command[-1] for command in of("docker", "push")}
    used = set()
    for values in EXAMPLES:
        if "image" in values:
            used.add(Rendered(PVC, values).server["image"])
    stages = re.findall(r"^FROM .* AS (\w+)$", (REPOSITORY / "Containerfile").read_text(), re.M)
    for command in of("docker", "build"):
        assert option(command, "--file") == "Containerfile" and option(command, "--target") in stages
        assert command[-1] == "."
        assert option(command, "--tag") in used
    assert pushed <= used


def test_install_makes_what_the_next_command_waits_for():
    rendered = installed()
    command, = of("rollout", "status")
    kind, name = command[-2].split("/")
    assert kind == "deployment" and rendered.one("Deployment")["metadata"]["name"] == name
    assert command[command.index("-n") + 1] == rendered.one("Deployment")["metadata"]["namespace"]
    assert option(command, "--timeout") == f"{DEFAULTS['probes']['startBudgetSeconds']}s"
    # What the notes say next is about the same.
    assert f"deployment/{name}" in rendered.notes and f"service/{name}" in rendered.notes


def test_secret_for_tls_is_the_examples():
    command, = of("create", "secret", "tls")
    name = command[command.index("tls") + 1]
    examples = [values["tls"]["secretName"] for values in EXAMPLES if "tls" in values]
    assert examples and set(examples) == {name}
    # kubectl makes tls.crt and tls.key of these.
    assert {"--cert", "--key"} <= set(command)
    env = {entry["name"]: entry["value"] for entry in Rendered(PVC, {"tls": {"secretName": name}}).server["env"]}
    assert env["MILLRACE_TLS_CERTIFICATE"].endswith("/tls.crt") and env["MILLRACE_TLS_PRIVATE_KEY"].endswith("/tls.key")


def test_secret_for_administrators_is_what_the_program_takes():
    command, = of("create", "secret", "generic")
    key, value = option(command, "--from-literal").split("=", 1)
    name = command[command.index("generic") + 1]
    rendered = Rendered(PVC, {"adminSecret": {"name": name}})
    entry, = [entry for entry in rendered.server["env"] if entry["name"] == "MILLRACE_ADMIN_CALLERS"]
    assert entry["valueFrom"]["secretKeyRef"] == {"name": name, "key": key}
    env = {**os.environ, "MILLRACE_ADMIN_ENABLE": "true",
           "MILLRACE_ADMIN_CALLERS": value.replace("SHA256-OF-THE-KEY", "0123456789abcdef" * 4)}
    run = subprocess.run([PROGRAM, "config"], env=env, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "ops" in run.stdout, run.stderr


@pytest.mark.parametrize("values", EXAMPLES, ids=range(len(EXAMPLES)))
def test_configuration_in_the_examples_is_what_the_program_takes(values, tmp_path):
    rendered = Rendered(PVC, values)
    path = tmp_path / "millrace.yaml"
    path.write_text(rendered.one("ConfigMap", "-config")["data"]["millrace.yaml"])
    env = {entry["name"]: entry["value"] for entry in rendered.server.get("env", [])
           if entry["name"].startswith("MILLRACE_") and "value" in entry}
    run = subprocess.run([PROGRAM, "config", "--config", str(path)], env={**os.environ, **env}, capture_output=True,
                         text=True, check=False)
    assert run.returncode == 0, run.stderr
