# SPDX-License-Identifier: Apache-2.0
"""The recipe of the image, as far as it can be judged without a container engine, and the SBOM."""
import json
import os
import pathlib
import re
import shlex
import subprocess

import pytest

from charts import PVC, REPOSITORY, Rendered, lack

PROGRAM = os.environ.get("MILLRACE_BIN") or lack("set MILLRACE_BIN: these tests read the program")
SBOM = REPOSITORY / "scripts" / "sbom"
FINAL = ["cpu", "cuda"]


class Stage:
    def __init__(self, base, name):
        self.base = base
        self.name = name
        self.steps = []  # (instruction, text)

    def all(self, instruction):
        return [text for found, text in self.steps if found == instruction]

    def one(self, instruction):
        text, = self.all(instruction)
        return text


def read_recipe():
    """Stages by name, and the arguments before them."""
    text = re.sub(r"(?m)^#.*\n", "", (REPOSITORY / "Containerfile").read_text())
    stages, arguments = {}, {}
    stage = None
    for line in re.sub(r"\\\n", " ", text).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(base, name)
        elif instruction == "ARG" and stage is None:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif instruction:
            stage.steps.append((instruction, rest.strip()))
    return stages, arguments


STAGES, ARGUMENTS = read_recipe()


def test_targets_and_the_default_is_the_last():
    assert set(FINAL) <= set(STAGES) and list(STAGES)[-1] == "cpu"
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
    for stage in STAGES.values():
        assert {instruction for instruction, _ in stage.steps} <= known


def test_bases_are_arguments_with_a_tag():
    for stage in STAGES.values():
        name = re.fullmatch(r"\$\{(\w+)\}", stage.base).group(1)
        assert re.fullmatch(r"docker\.io/\S+:\S+", ARGUMENTS[name]) and not ARGUMENTS[name].endswith(":latest")


@pytest.mark.parametrize("name", FINAL)
def test_image_does_not_run_as_root_and_is_the_charts_N2(name):
    stage = STAGES[name]
    assert [instruction for instruction, _ in stage.steps].index("USER") > [
        instruction for instruction, _ in stage.steps].index("COPY")
    rendered = Rendered(PVC)
    context = rendered.pod["spec"]["securityContext"]
    assert stage.one("USER") == f"{context['runAsUser']}:{context['runAsGroup']}" != "0:0"
    ports = [str(port["containerPort"]) for port in rendered.server["ports"]]
    assert stage.one("EXPOSE").split() == ports
    # The chart gives arguments only.
    assert json.loads(stage.one("ENTRYPOINT")) == ["/usr/local/bin/millrace"]
    assert "command" not in rendered.server and rendered.server["args"][0] == "serve"


@pytest.mark.parametrize("name", FINAL)
def test_image_takes_from_its_build_and_leaves_compilers_behind(name):
    stage = STAGES[name]
    assert stage.one("COPY") == f"--from={name}-build /out/usr/local /usr/local"
    command = stage.one("RUN")
    assert command.startswith(f"--mount=type=bind,from={name}-build,source=/packages,target=/packages ")
    assert "scripts/setup" not in command and "gcc" not in command
    built = " ".join(STAGES[f"{name}-build"].all("RUN"))
    assert "> /packages" in built and "/out/usr/local/share/millrace/sbom.spdx.json" in built


@pytest.mark.parametrize("stage", STAGES.values(), ids=list(STAGES))
def test_commands_stop_at_an_error_and_leave_no_lists(stage, tmp_path):
    for text in stage.all("RUN"):
        command = re.sub(r"^(--\S+ )+", "", text)
        assert "||" not in command and ";" not in command and "| " not in command
        if "apt-get" in command or "scripts/setup" in command:
            assert "rm -rf /var/lib/apt/lists/*" in command
        if "apt-get install" in command:
            assert "--no-install-recommends" in command
        script = tmp_path / "run.sh"
        script.write_text(command)
        subprocess.run(["sh", "-n", str(script)], check=True)
        for path in re.findall(r"\bscripts/\w+", command):
            assert os.access(REPOSITORY / path, os.X_OK), path


def test_options_of_the_build_exist():
    known = set(re.findall(r"^option\('(\w+)'", (REPOSITORY / "meson_options.txt").read_text(), re.M)) | {"strip"}
    for stage in STAGES.values():
        for command in stage.all("RUN"):
            assert set(re.findall(r" -D(\w+)=", command)) <= known


def test_what_is_not_needed_stays_out_of_the_build():
    ignored = {line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")}
    assert {".git", "build*", "models"} <= ignored


# The SBOM.

def sbom(*arguments, **env):
    return subprocess.run([str(SBOM), *arguments], stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, **env}).stdout


@pytest.fixture(scope="module")
def printed():
    return sbom(PROGRAM, SOURCE_DATE_EPOCH="0")


def linked():
    """Names of libraries, as the loader tells them."""
    run = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True,
                         env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"})
    return {line.split()[0].rsplit("/", 1)[-1] for line in run.stdout.splitlines() if "linux-vdso" not in line}


def test_sbom_is_valid_spdx(printed, tmp_path):
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
    path = tmp_path / "sbom.spdx.json"
    path.write_text(printed)
    assert [message.validation_message for message in validate_full_spdx_document(parse_file(str(path)))] == []


def test_sbom_has_every_library_and_dpkgs_version_of_it(printed):
    document = json.loads(printed)
    packages = {entry["name"]: entry for entry in document["packages"]}
    own = packages.pop("millrace")
    named = {name for entry in packages.values() for name in entry["comment"].removeprefix("links ").split(", ")}
    assert named == linked() and "libgrpc.so.29" in named
    digest = subprocess.run(["sha256sum", PROGRAM], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[0]
    assert own["checksums"] == [{"algorithm": "SHA256", "checksumValue": digest}]
    installed = pathlib.Path("/var/lib/dpkg/status").read_text().split("\n\n")
    statuses = {text.split("\n")[0].removeprefix("Package: "): text + "\n" for text in installed}
    for name, entry in packages.items():
        status = statuses[name]
        assert f"Version: {entry['versionInfo']}\n" in status
        assert f"@{entry['versionInfo']}?arch=" in entry["externalRefs"][0]["referenceLocator"]
        source = re.search(r"^Source: (\S+)", status, re.M)
        assert entry["sourceInfo"].split()[2] == (source.group(1) if source else name)
    links = {(found["spdxElementId"], found["relatedSpdxElement"]) for found in document["relationships"]
             if found["relationshipType"] == "DYNAMIC_LINK"}
    assert links == {(own["SPDXID"], entry["SPDXID"]) for entry in packages.values()}


def test_sbom_is_the_same_again_and_its_packages_can_be_installed(printed):
    assert sbom(PROGRAM, SOURCE_DATE_EPOCH="0") == printed
    document = json.loads(printed)
    wanted = {f"{entry['name']}={entry['versionInfo']}" for entry in document["packages"]} - {
        f"millrace={document['packages'][0]['versionInfo']}"}
    assert set(shlex.split(sbom("--packages", PROGRAM))) == wanted


@pytest.mark.parametrize("arguments, word", [(["/nowhere"], "/nowhere"), ([], "PROGRAM")])
def test_sbom_says_what_is_missing(arguments, word):
    run = subprocess.run([str(SBOM), *arguments], capture_output=True, text=True, check=False)
    assert run.returncode != 0 and word in run.stderr and "Traceback" not in run.stderr
