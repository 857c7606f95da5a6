"""Containerfiles keep the rules that hadolint and others have for good reasons; no engine is needed to read them."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
OURS = (ROOT / "Containerfile", ROOT / "Containerfile.cuda")
FILES = (*OURS, ROOT / "deploy" / "Containerfile.mlflow")
APT = ("apt-get update", "--yes", "--no-install-recommends", "rm -rf /var/lib/apt/lists/*")
EXEC_FORM = ("CMD", "ENTRYPOINT", "VOLUME")


class Instruction(NamedTuple):
    word: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """Join continued lines, leave out comments, and take the first word of each."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    split = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [Instruction(word.upper(), re.sub(r"\s+", " ", rest.strip())) for word, _, rest in split]


def faults(text: str) -> Iterator[str]:
    """Yield what is wrong with a Containerfile, by the names of hadolint's rules where it has one."""
    found = instructions(text)
    stages = [index for index, each in enumerate(found) if each.word == "FROM"]
    last = found[stages[-1] :] if stages else []
    yield from _bases(found)
    yield from _running(found, text)
    words = [each.word for each in last]
    user = next((each.rest for each in reversed(last) if each.word == "USER"), "root")
    if user.split(":")[0] in ("root", "0"):
        yield "DL3002: the last USER is root"
    if not re.fullmatch(r"\d+(:\d+)?", user):
        yield "the USER is no number, and Kubernetes' runAsNonRoot cannot tell it from root"
    if "HEALTHCHECK" not in words:
        yield "there is no HEALTHCHECK"
    for each in last:
        form = re.sub(r".*? (?=CMD )", "", f" {each.rest}") if each.word == "HEALTHCHECK" else each.rest
        if each.word in EXEC_FORM and not is_list(form):
            yield f"DL3025: {each.word} is not in exec form: a shell stays in between"
        if each.word == "HEALTHCHECK" and not is_list(form.removeprefix("CMD ")):
            yield "DL3025: HEALTHCHECK is not in exec form"
    if words.count("CMD") > 1 or words.count("ENTRYPOINT") > 1:
        yield "DL4003, DL4004: CMD or ENTRYPOINT twice"
    environment = " ".join(each.rest for each in last if each.word == "ENV")
    if "PYTHONUNBUFFERED=1" not in environment:
        yield "Python keeps its output back"


def _bases(found: list[Instruction]) -> Iterator[str]:
    given = dict(each.rest.partition("=")[::2] for each in found if each.word == "ARG")
    for each in found:
        if each.word == "FROM":
            image = re.sub(r"\$\{?(\w+)\}?", lambda name: given.get(name[1], ""), each.rest.split(" ")[0])
            tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
            if tag in ("", "latest") or not re.search(r"\d+\.\d+", tag):
                yield f"DL3006, DL3007: {image!r} is not a version"
        if each.word == "ADD":
            yield "DL3020: ADD unpacks and downloads; COPY does not"
        if each.word == "COPY" and each.rest.split(" ")[0] in (".", "./"):
            yield "all of the folder is copied, with whatever lies in it"
        if each.word in ("ENV", "ARG") and re.search(r"(?i)(password|secret|token|api_?key)\w*=\S", each.rest):
            yield "a secret is kept in a layer"


def _running(found: list[Instruction], text: str) -> Iterator[str]:
    if any(each.word == "WORKDIR" and not each.rest.startswith("/") for each in found):
        yield "DL3000: WORKDIR is not absolute"
    for rest in (each.rest for each in found if each.word == "RUN"):
        if re.search(r"\b(sudo|chmod 777|curl [^|]*\| *(ba)?sh)\b", rest):
            yield "DL3004: sudo, or a script from the network"
        if re.search(r"\bcd ", rest):
            yield "DL3003: cd instead of WORKDIR"
        if re.search(r"pip install (?!.*-c \S*constraints.txt)", rest):
            yield "DL3013: pip install without the constraints"
        if "pip install" in rest and "PIP_NO_CACHE_DIR=1" not in text:
            yield "DL3042: pip keeps its cache in the layer"
        for needed in APT if "apt-get install" in rest else ():
            if needed not in rest:
                yield f"DL3009, DL3014, DL3015: apt-get install without {needed}"


def is_list(text: str) -> bool:
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_keeps_the_rules(path: Path):
    assert list(faults(path.read_text())) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("python:3.11-slim-bookworm", "python:latest", "DL3006"),
        ("python:3.11-slim-bookworm", "python", "DL3006"),
        ("USER 1000:1000\n", "", "DL3002"),
        ("USER 1000:1000", "USER trueloop", "no number"),
        ("HEALTHCHECK", "# HEALTHCHECK", "no HEALTHCHECK"),
        ('CMD ["trueloop-healthcheck"]', "CMD trueloop-healthcheck", "HEALTHCHECK is not in exec form"),
        (
            'ENTRYPOINT ["tini", "--", "trueloop-entrypoint"]',
            "ENTRYPOINT trueloop-entrypoint",
            "ENTRYPOINT is not in exec",
        ),
        ("PYTHONUNBUFFERED=1", "PYTHONUNBUFFERED=0", "keeps its output back"),
        ("    && rm -rf /var/lib/apt/lists/*\n", "    && true\n", "without rm -rf"),
        ("install -c constraints.txt --no-deps", "install --no-deps", "DL3013"),
        ("PIP_NO_CACHE_DIR=1 ", "", "DL3042"),
        ("COPY src ./src", "COPY . .", "all of the folder"),
        ("COPY src ./src", "ADD src ./src", "DL3020"),
        ("WORKDIR /project", "WORKDIR project", "DL3000"),
        ("ENV PATH=", "ENV WANDB_API_KEY=abc PATH=", "a secret"),
        ("useradd --uid", "sudo useradd --uid", "DL3004"),
    ],
)
def test_a_rule_that_is_broken_is_seen(before: str, after: str, fault: str):
    text = OURS[0].read_text()
    assert before in text
    assert any(fault in each for each in faults(text.replace(before, after))), fault


def test_what_is_copied_is_there_and_is_sent_to_the_builder():
    sent = {
        line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }
    for path in FILES:
        for each in instructions(path.read_text()):
            if each.word == "COPY" and "--from=" not in each.rest:
                *sources, _ = [word for word in shlex.split(each.rest) if not word.startswith("--")]
                assert all((ROOT / source).exists() for source in sources)
                assert {Path(source).parts[0] for source in sources} <= sent


def test_the_two_differ_in_what_a_gpu_needs_only():
    cpu, cuda = (instructions(path.read_text()) for path in OURS)
    assert [each.word for each in cpu] == [each.word for each in cuda]
    differing = [(one.rest, other.rest) for one, other in zip(cpu, cuda, strict=True) if one != other]
    assert len(differing) == 2
    (cpu_index, cuda_index), (cpu_env, cuda_env) = differing
    assert (cpu_index.endswith("/whl/cpu"), cuda_index.endswith("//pypi.org/simple")) == (True, True)
    added = set(cuda_env.split()) - set(cpu_env.split())
    assert added == {
        "NVIDIA_VISIBLE_DEVICES=all",
        "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        "TRUELOOP_REQUIRE_GPU=1",
    }


def test_the_extras_and_the_user_are_those_of_the_project():
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    manifest = (ROOT / "src" / "trueloop" / "cli" / "templates" / "kubernetes.yaml").read_text()
    for path in OURS:
        text = path.read_text()
        [extras] = re.findall(r"ARG EXTRAS=(\S+)", text)
        assert set(extras.split(",")) <= set(known)
        [user] = re.findall(r"USER (\d+):", text)
        assert f"runAsUser: {user}" in manifest, "the pod runs as the user the image has"


@pytest.mark.parametrize("script", sorted((ROOT / "deploy").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_for_a_plain_shell_and_can_be_run(script: Path):
    assert script.read_text().startswith("#!/bin/sh\n")
    assert script.stat().st_mode & 0o111
    subprocess.run(["sh", "-n", script], check=True)
