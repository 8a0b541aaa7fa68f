# SPDX-License-Identifier: Apache-2.0
"""Queries of the dashboard, as Grafana would ask them."""
import json

from charts import CHART

DASHBOARD = CHART / "files" / "dashboard.json"


def panels():
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def queries(interval, namespace=".*", pod=".*"):
    """(panel, query) with all variables put in."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"].replace("$__rate_interval", interval)
            query = query.replace("$namespace", namespace).replace("$pod", pod)
            assert "$" not in query, query
            yield panel["title"], query
