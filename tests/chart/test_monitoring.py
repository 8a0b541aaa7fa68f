# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alert rules, read by Debian's promtool."""
import json
import re
import shutil
import subprocess

from charts import CHART, PVC, REPOSITORY, Rendered, lack, yaml
from dashboards import DASHBOARD, panels, queries

ALERTS = CHART / "files" / "alerts.yaml"
UNIT_TESTS = REPOSITORY / "tests" / "chart" / "alerts_test.yaml"
TABLE = (REPOSITORY / "service" / "metrics.def").read_text()
FAMILIES = dict((name, kind) for kind, name in re.findall(r'^MR_FAMILY\(\w+, "(\w+)", "([\w:]+)"', TABLE, re.M))


def promtool(*arguments):
    program = shutil.which("promtool") or lack("promtool is missing: scripts/setup --tests installs Debian's prometheus")
    run = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def known(query):
    """Every family that the query names is one of the program's, as its kind spells samples."""
    for name in re.findall(r"\b((?:millrace|process)_\w+)", query):
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert name in FAMILIES or FAMILIES.get(base) == "histogram", name


def test_promtool_takes_the_rules():
    assert f"SUCCESS: {ALERTS.read_text().count('- alert:')} rules found" in promtool("check", "rules", str(ALERTS))


def test_rules_fire_when_they_should_and_only_then():
    promtool("test", "rules", str(UNIT_TESTS))


def test_every_alert_is_tested_both_ways():
    """Firing with its labels, and not firing."""
    tests = yaml.safe_load(UNIT_TESTS.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    for rule in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]:
        outcomes = {bool(case.get("exp_alerts")) for case in cases if case["alertname"] == rule["alert"]}
        assert outcomes == {True, False}, rule["alert"]
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        known(rule["expr"])


def test_promtool_parses_every_query_of_the_dashboard(tmp_path):
    """As recording rules: their expressions are parsed."""
    found = list(queries("5m", namespace="prod", pod="a|b"))
    assert len(found) > 35
    rules = [{"record": f"dashboard:query:{i}", "expr": query} for i, (_, query) in enumerate(found)]
    path = tmp_path / "rules.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(found)} rules found" in promtool("check", "rules", str(path))
    for title, query in found:
        known(query)
        assert query.count('namespace=~"prod",pod=~"a|b"') >= 1, title


def test_dashboard_is_well_formed():
    dashboard = json.loads(DASHBOARD.read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                 for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    titles = [panel["title"] for panel in panels()]
    assert len(set(titles)) == len(titles)
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}" and panel["fieldConfig"]["defaults"]["unit"]
    groups = [panel["title"] for panel in dashboard["panels"] if panel["type"] == "row"]
    assert {"Throughput", "Latency", "Memory", "Utilisation"} <= set(groups)


def test_configmaps_hold_the_files_as_they_are():
    on = {"dashboard": {"enabled": True, "labels": {"a": "b"}}, "alerts": {"enabled": True}}
    rendered = Rendered(PVC, on)
    dashboard = rendered.one("ConfigMap", "-dashboard")
    assert json.loads(dashboard["data"]["millrace.json"]) == json.loads(DASHBOARD.read_text())
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1" and dashboard["metadata"]["labels"]["a"] == "b"
    rules = yaml.safe_load(ALERTS.read_text())
    assert yaml.safe_load(rendered.one("ConfigMap", "-alerts")["data"]["millrace.rules.yaml"]) == rules
    for_operator = Rendered(PVC, {"alerts": {"enabled": True, "kind": "PrometheusRule"}})
    assert for_operator.one("PrometheusRule")["spec"] == rules


def test_service_monitor_finds_the_metrics_port():
    rendered = Rendered(PVC, {"serviceMonitor": {"enabled": True}})
    spec = rendered.one("ServiceMonitor")["spec"]
    matching = [service for service in rendered.all("Service")
                if spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()]
    service, = matching
    port, = service["spec"]["ports"]
    assert port["name"] == spec["endpoints"][0]["port"]
    named = {entry["name"]: entry["containerPort"] for entry in rendered.server["ports"]}
    assert named[port["targetPort"]] == 9090
