# SPDX-License-Identifier: Apache-2.0
"""The chart, rendered by Helm's own library."""
import os
import pathlib

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
CHART = REPOSITORY / "charts" / "millrace"
SETS = sorted((REPOSITORY / "tests" / "chart" / "values").glob("*.yaml"))
PVC = {"model": {"pvc": {"claimName": "models"}}}


def lack(what):
    """Fails in CI, and skips elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what, allow_module_level=True)


try:
    import helm_python as helm
    import jsonschema  # noqa: F401
    import kubernetes_validate.utils  # noqa: F401
    import spdx_tools  # noqa: F401
    import yaml
except ImportError as error:
    lack(f"{error}: scripts/test installs tests/requirements-chart.txt")

helm.disable_logging()  # lint reports every fail() that it passes over


def merged(*layers):
    """Mappings laid over each other, the last on top, as Helm does with files."""
    result = {}
    for layer in layers:
        for key, value in layer.items():
            under = result.get(key)
            both = isinstance(under, dict) and isinstance(value, dict)
            result[key] = merged(under, value) if both else value
    return result


def load(path):
    return yaml.safe_load(path.read_text())


class Rendered:
    """What the chart makes of values."""

    def __init__(self, *values, name="demo", namespace="prod"):
        with helm.Chart.load(str(CHART)) as chart:
            files = chart.render(merged(*values), name=name, namespace=namespace)
        self.notes = files.pop("millrace/templates/NOTES.txt", "")
        self.documents = [document for text in files.values() for document in yaml.safe_load_all(text) if document]

    def all(self, kind):
        return [document for document in self.documents if document["kind"] == kind]

    def one(self, kind, suffix=""):
        found = [document for document in self.all(kind) if document["metadata"]["name"].endswith(suffix)]
        assert len(found) == 1, f"{kind} {suffix}: {found}"
        return found[0]

    @property
    def pod(self):
        return self.one("Deployment")["spec"]["template"]

    @property
    def server(self):
        container, = self.pod["spec"]["containers"]
        return container

    @property
    def config(self):
        return yaml.safe_load(self.one("ConfigMap", "-config")["data"]["millrace.yaml"])


def refusal(*values):
    """The message with which Helm refuses them."""
    with pytest.raises(helm.HelmError) as caught:
        Rendered(*values)
    return str(caught.value)
