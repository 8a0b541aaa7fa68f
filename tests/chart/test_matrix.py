# SPDX-License-Identifier: Apache-2.0
"""Every set of values: linted, rendered, and each document held against its schema, strictly."""
import functools
import re

import pytest

from charts import (CHART, PVC, REPOSITORY, SETS, Rendered, helm, jsonschema, kubernetes_validate, load, merged,
                    refusal, yaml)
from custom_kinds import SCHEMAS

OLDEST = "1.30.0"  # as Chart.yaml says
# Before 1.31 no volume could be an image.
TOO_NEW = {("image-volume", OLDEST)}
README = (CHART / "README.md").read_text()
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", README, re.S)]

# One set of definitions is 4 MB of JSON: read it once.
kubernetes_validate.utils.schema_contents = functools.lru_cache(maxsize=None)(
    kubernetes_validate.utils.schema_contents)


def check(document, version):
    """The schema's complaint is the failure."""
    own = SCHEMAS.get((document["apiVersion"], document["kind"]))
    if own is not None:
        jsonschema.validate(document, own)
    else:
        kubernetes_validate.validate(document, version, strict=True)


def test_there_are_sets_enough_N5():
    assert len(SETS) >= 8


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_set_is_linted_N5(path):
    result = helm.lint(str(CHART), load(path))
    assert result["errors"] == []
    assert [message for message in result["messages"] if message["severity"] > 1] == []


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_set_holds_against_the_schemas_N5(path, version):
    if (path.stem, version) in TOO_NEW:
        with pytest.raises(jsonschema.ValidationError, match="image"):
            for document in Rendered(load(path)).documents:
                check(document, version)
        return
    documents = Rendered(load(path)).documents
    assert {"Deployment", "Service"} <= {document["kind"] for document in documents}
    for document in documents:
        assert document["metadata"]["namespace"] == "prod"
        check(document, version)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


def test_every_kind_is_rendered_by_some_set_N5():
    made = {document["kind"] for path in SETS for document in Rendered(load(path)).documents}
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*.yaml"))
    assert made == set(re.findall(r"^kind: (\w+)", templates, re.M)) | {"PrometheusRule"}


@pytest.mark.parametrize("values", EXAMPLES, ids=range(len(EXAMPLES)))
def test_examples_of_the_readme_hold_N5(values):
    for document in Rendered(PVC, values).documents:
        check(document, kubernetes_validate.latest_version())


def test_names_in_the_readme_are_those_of_its_install_command():
    name, folder, namespace = re.search(r"helm install (\S+) (\S+) --namespace (\S+)", README).groups()
    assert REPOSITORY / folder == CHART
    rendered = Rendered(EXAMPLES[0], name=name, namespace=namespace)
    tag = re.search(r"docker push (\S+)", README).group(1)
    assert rendered.server["image"] == tag and f"--tag {tag} ." in README
    deployment = rendered.one("Deployment")["metadata"]
    assert deployment["namespace"] == namespace
    assert set(re.findall(r"deployment/(\S+?)[` ]", README)) == {deployment["name"]}
    budget = load(CHART / "values.yaml")["probes"]["startBudgetSeconds"]
    assert f"--timeout={budget}s" in README and f"--timeout={budget}s" in rendered.notes


def test_numbers_in_the_readme_are_the_defaults():
    values = load(CHART / "values.yaml")
    assert f"`shutdown.preStopSeconds` ({values['shutdown']['preStopSeconds']})" in README
    assert f"`terminationGracePeriodSeconds` ({values['terminationGracePeriodSeconds']})" in README
    assert f"--model-server-metrics-port={values['ports']['metrics']}" in README
    assert f"user {values['podSecurityContext']['runAsUser']}" in README
    for name in set(re.findall(r"`(\w+(?:\.\w+)+)`", README)):
        place = values
        for part in name.split("."):
            if name.endswith((".gguf", ".json", ".yaml", ".crt", ".key", ".v1")) or part in ("config", "tenants") or not isinstance(place, dict):
                break
            assert part in place, name
            place = place[part]


def test_a_strict_schema_minds_a_slip():
    deployment = Rendered(PVC).one("Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    with pytest.raises(jsonschema.ValidationError):
        check(deployment, kubernetes_validate.latest_version())


def leaves(values, path=()):
    """Names of all values, nested by dots; what is verbatim ends where the chart's default does."""
    if not isinstance(values, dict) or not values:
        return {".".join(path)}
    return {name for key, value in values.items() for name in leaves(value, (*path, key))}


def test_every_default_passes_the_schema_and_no_name_is_made_up_N1():
    defaults = load(CHART / "values.yaml")
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    jsonschema.validate(merged(defaults, {"podDisruptionBudget": {"minAvailable": 1}}), schema)
    assert set(schema["properties"]) - {"global"} == set(defaults)
    for name in ["replicacount", "podSecurityContexts"]:
        assert name in refusal(PVC, {name: 1})


def test_every_value_is_used_N1():
    """No value that nothing reads."""
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name in leaves(load(CHART / "values.yaml")):
        last = name.split(".")[-1]
        top = name.split(".")[0]
        verbatim = re.search(rf"toYaml \S*{top}\b|\.{top}\b", templates)
        assert re.search(rf"\.{last}\b|\"{last}\"", templates) or verbatim, name


def test_the_version_is_the_programs():
    project = re.search(r"version: '([^']+)'", (REPOSITORY / "meson.build").read_text()).group(1)
    chart = load(CHART / "Chart.yaml")
    assert (chart["appVersion"], chart["version"]) == (project, project)
