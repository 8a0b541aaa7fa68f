#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the unit tests (meson), and the end-to-end tests and those of the chart (pytest), and sums them up.

usage: run_tests.py BUILD [--unit-only | --gpu] [pytest arguments ...]

--gpu runs what needs a GPU, and nothing else.
Lists every skip and failure, then prints `N passed, N failed`. A skip is a failure where CI is set.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

CASE = re.compile(r"^\[\s*(OK|FAILED|SKIPPED|  ERROR  |ERROR)\s*\] (\S+)\s*$", re.M)


class Tally:
    def __init__(self):
        self.passed = 0
        self.failed = []
        self.skipped = []

    def finish(self):
        for name, why in self.skipped:
            print(f"skipped: {name}: {why}")
        for name in self.failed:
            print(f"FAILED: {name}")
        failed = len(self.failed)
        if os.environ.get("CI") and self.skipped:
            print("skips count as failures in CI")
            failed += len(self.skipped)
        print(f"{self.passed} passed, {failed} failed", flush=True)
        return 1 if failed or not self.passed else 0


def add_unit_program(tally, entry):
    """One test program of meson: its cmocka cases, or the program as one case if it has none."""
    name = entry["name"]
    cases = dict()
    for stream in ("stdout", "stderr"):
        for verdict, case in CASE.findall(entry.get(stream) or ""):
            if not case.isdigit():
                cases[case] = verdict.strip()
    program_failed = entry["result"] not in ("OK", "EXPECTEDFAIL", "SKIP")
    if not cases:
        if entry["result"] == "SKIP":
            tally.skipped.append((name, "the program skips itself"))
        elif program_failed:
            tally.failed.append(f"{name} ({entry['result']})")
        else:
            tally.passed += 1
    before = len(tally.failed)
    for case, verdict in cases.items():
        if verdict == "OK":
            tally.passed += 1
        elif verdict == "SKIPPED":
            tally.skipped.append((f"{name}: {case}", "needs what this machine or checkout lacks"))
        else:
            tally.failed.append(f"{name}: {case}")
    if cases and program_failed and len(tally.failed) == before:
        tally.failed.append(f"{name} ({entry['result']} after its cases)")
    if program_failed:
        print(f"--- {name}\n{entry.get('stdout', '')}{entry.get('stderr', '')}")


def run_unit(tally, build, gpu):
    log = build / "meson-logs" / "testlog.json"
    log.unlink(missing_ok=True)
    suite = ["--suite", "gpu"] if gpu else ["--no-suite", "gpu"]
    subprocess.run(["meson", "test", "-C", str(build), "--no-rebuild", "--timeout-multiplier", "10", *suite])
    if not log.exists():
        tally.failed.append("meson test gave no log")
        return
    for line in log.read_text().splitlines():
        add_unit_program(tally, json.loads(line))


def run_pytest(tally, root, build, folder, arguments):
    """What is in tests/FOLDER."""
    report = build / f"{folder}.xml"
    report.unlink(missing_ok=True)
    env = dict(os.environ, MILLRACE_BIN=str(build / "millrace"))
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
                    f"--junitxml={report}", str(root / "tests" / folder), *arguments],
                   env=env, cwd=root)
    if not report.exists():
        tally.failed.append(f"pytest gave no report of tests/{folder}")
        return
    for case in ET.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname')}.{case.get('name')}"
        skip = case.find("skipped")
        if skip is not None:
            tally.skipped.append((name, skip.get("message")))
        elif case.find("failure") is not None or case.find("error") is not None:
            tally.failed.append(name)
        else:
            tally.passed += 1


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    build = pathlib.Path(sys.argv[1]).resolve()
    arguments = sys.argv[2:]
    gpu = "--gpu" in arguments
    unit_only = "--unit-only" in arguments
    tally = Tally()
    run_unit(tally, build, gpu)
    if not unit_only and not gpu:
        for folder in ("e2e", "chart"):
            run_pytest(tally, root, build, folder, arguments)
    return tally.finish()


if __name__ == "__main__":
    sys.exit(main())
