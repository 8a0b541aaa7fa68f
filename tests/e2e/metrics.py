# SPDX-License-Identifier: Apache-2.0
"""Reads /metrics with Prometheus' own parser."""
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families


def get(address, path):
    """Status, content type and body."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as reply:
            return reply.status, reply.headers["Content-Type"], reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


class Scrape:
    def __init__(self, address):
        status, self.content_type, self.text = get(address, "/metrics")
        assert status == 200
        self.families = {family.name: family for family in text_string_to_metric_families(self.text)}
        self.samples = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value
                        for family in self.families.values() for sample in family.samples}

    def value(self, name, **labels):
        return self.samples[name, tuple(sorted(labels.items()))]

    def all(self, name):
        """By labels."""
        return {labels: value for (found, labels), value in self.samples.items() if found == name}

    def total(self, name):
        return sum(self.all(name).values())
