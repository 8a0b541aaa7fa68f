# SPDX-License-Identifier: Apache-2.0
"""Commands of the program that run to their end."""
import subprocess


def run(binary, *arguments, stdin=None):
    return subprocess.run([binary, *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=600)


def output(binary, *arguments, stdin=None):
    """What it prints; a command that fails fails the test."""
    done = run(binary, *arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout
