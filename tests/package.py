"""Builds the wheel and the sdist, looks into both, and uses them as a stranger would. `make package` runs it.

The wheel is installed in an empty environment without torch, for each Python from 3.11 to 3.13 that is found here, and
in one with the extras; the tests are run from the unpacked sdist; pre-commit installs the hook from this repository's
last commit. What was measured is written into docs/packaging.md, between its two marks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trueloop.failures.load import catalogue
from trueloop.version import __version__

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "packaging.md"
MARKS = "<!-- measured: begin (tests/package.py) -->\n", "<!-- measured: end -->"
BAD = catalogue()["GRD001"].failure.bad
PINS = ["-c", str(ROOT / "constraints.txt")]
WITHOUT_TORCH = {
    "--version": (0, __version__), "--help": (0, "train"), "lint bad.py": (1, "GRD001"), "failures": (0, "GRD001"),
    "explain GRD001": (0, "zero_grad"), "recipes": (0, "digits"), "runs list": (0, "0 runs"),
    "template slurm digits": (0, "sbatch"), "arena tracks": (0, "updates"),
}  # fmt: skip
NEED_TORCH = (
    "train digits", "profile digits", "tune digits", "graph bad.py", "verify digits", "lab --no-browser", "doctor",
    "run bad.py",
)  # fmt: skip


class Environment:
    """A virtual environment of its own, with nothing in it but what is installed here."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        subprocess.run([python, "-m", "venv", folder], check=True)
        self.bin, self.home = folder / "bin", folder
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "bad.py").write_text(BAD)

    def install(self, *words: str) -> None:
        command = [self.bin / "python", "-m", "pip", "install", "--quiet", *PINS, *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def trueloop(self, words: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bin / "trueloop"), *words.split())

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd or self.work, env=clean_environment(), capture_output=True, text=True, check=False
        )


class Measured(NamedTuple):
    wheel: Path
    sdist: Path
    files: int
    listed: int


def clean_environment() -> dict[str, str]:
    """This process's, without what would let an environment see our sources."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def tracked() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def build(folder: Path) -> Measured:
    """Build both, the wheel from the sdist, and compare what is in them with what git tracks."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    assert f"-{__version__}-py3-none-any" in wheel.name
    assert sdist.name == f"trueloop-{__version__}.tar.gz"
    with zipfile.ZipFile(wheel) as opened:
        inside = set(opened.namelist())
        (metadata,) = (opened.read(name).decode() for name in inside if name.endswith(".dist-info/METADATA"))
    about = {name for name in inside if ".dist-info/" in name}
    sources = {name.removeprefix("src/") for name in tracked() if name.startswith("src/trueloop/")}
    assert inside - about == sources, (inside - about) ^ sources
    assert {"trueloop/py.typed", "trueloop/lab/static/index.html"} <= inside
    assert sum("/licenses/" in name for name in about) == 2, "ours, and that of what we ship"
    assert f"\nVersion: {__version__}\n" in metadata
    for wanted in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11", "Project-URL: Repository", "3.13"):
        assert wanted in metadata, wanted
    with tarfile.open(sdist) as opened:
        listed = {name.partition("/")[2] for name in opened.getnames()}
    expected = {name for name in tracked() if not name.startswith(".ci/")}
    assert listed - {"PKG-INFO"} == expected, (listed - {"PKG-INFO"}) ^ expected
    return Measured(wheel, sdist, len(inside), len(listed))


def without_torch(folder: Path, wheel: Path, python: str) -> float:
    """Use the core alone. Returns the MiB that it and what it needs take."""
    core = Environment(folder, python)
    (packages,) = core.home.glob("lib/python*/site-packages")
    before = size_mib(packages)
    core.install(str(wheel))
    taken = size_mib(packages) - before
    for words, (code, shown) in WITHOUT_TORCH.items():
        done = core.trueloop(words)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        assert shown in done.stdout, (words, done.stdout)
    for words in NEED_TORCH:
        done = core.trueloop(words)
        told = re.sub(r"\s+", " ", done.stdout + done.stderr)
        assert done.returncode == 1, (words, told)
        assert re.search(r"pip install 'trueloop\[\w+\]'", told), (words, told)
        assert words.startswith("run") or "Traceback" not in told, (words, told)
    return taken


def with_extras(folder: Path, wheel: Path) -> Environment:
    """Install torch and the extras, train, watch a script, and open the lab."""
    full = Environment(folder)
    full.install("torch")
    full.install(f"{wheel}[demo,lab]")
    done = full.trueloop("train digits --run-dir out --epochs 2")
    assert done.returncode == 0, done.stderr
    assert (full.work / "out" / "final" / "model.safetensors").is_file()
    done = full.trueloop("run --strict --json found.json bad.py")
    assert done.returncode == 3, done.stderr
    found = json.loads((full.work / "found.json").read_text())
    assert [each["code"] for each in found["findings"]] == ["GRD001"]
    assert found["tool"]["version"] == __version__
    ask_the_lab(full)
    return full


def ask_the_lab(full: Environment) -> None:
    command = [str(full.bin / "trueloop"), "lab", "--no-browser", "--port", "0"]
    lab = subprocess.Popen(
        command, cwd=full.work, env={**clean_environment(), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert lab.stdout
        said = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+\S*", said)):
            line = lab.stdout.readline()
            assert line, said
            said += line
        with urllib.request.urlopen(address[0], timeout=30) as answer:
            assert answer.status == 200
            assert b"app.js" in answer.read()
    finally:
        lab.terminate()
        lab.wait(30)


def from_sdist(folder: Path, sdist: Path, full: Environment) -> int:
    """Run tests from the unpacked sdist against the installed wheel. Returns how many passed."""
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    full.install("pytest", "pytest-timeout", "hypothesis", "jsonschema", "pyyaml")
    files = ["tests/ground", "tests/reporting", "tests/lint/test_check_file.py", "tests/cli/test_plan.py"]
    done = full.run(str(full.bin / "python"), "-m", "pytest", *files, "-p", "no:cacheprovider", cwd=unpacked)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
    assert passed
    return int(passed[1])


def as_a_hook(folder: Path) -> None:
    """Have pre-commit install the hooks from the last commit of this repository, and run them on a scratch one."""
    folder.mkdir()
    run: Callable[..., str] = lambda *words: subprocess.run(  # noqa: E731
        words, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    settings = f"repos:\n- repo: {ROOT}\n  rev: {run('git', 'rev-parse', 'HEAD')}\n  hooks: [{{id: trueloop-lint}}]\n"
    (folder / ".pre-commit-config.yaml").write_text(settings)
    (folder / "train.py").write_text(BAD)
    (folder / "notes.txt").write_text("optimizer.step()\n")
    environment = {**clean_environment(), "PRE_COMMIT_HOME": str(folder / "home"), "GIT_CONFIG_GLOBAL": os.devnull}
    for words in (["init", "-q"], ["add", "train.py", "notes.txt", ".pre-commit-config.yaml"]):
        subprocess.run(["git", *words], cwd=folder, env=environment, check=True)

    def commit() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    done = commit()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "train.py" in done.stdout
    assert "GRD001" in done.stdout
    config = folder / ".pre-commit-config.yaml"
    config.write_text(settings.replace("trueloop-lint", "trueloop-lint-fix"))
    assert commit().returncode == 1, "files were modified"
    assert "zero_grad" in (folder / "train.py").read_text()
    done = commit()
    assert done.returncode == 0, done.stdout


def size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc") / 2**20


def interpreters() -> dict[str, str]:
    """Return the Pythons of this machine by version: "3.12" -> its path; those of pyenv and of the PATH."""
    found: dict[str, str] = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.11", "3.12", "3.13"):
        places = [*map(str, versions.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
        for place in filter(None, places):
            works = subprocess.run([place, "-c", "import ensurepip"], capture_output=True, check=False)
            if works.returncode == 0:
                found.setdefault(version, place)
    return dict(sorted(found.items()))


def write(measured: Measured, cores: dict[str, float], passed: int) -> None:
    """Put what was measured between the marks of the page."""
    rows = [
        ("wheel", f"{measured.wheel.stat().st_size / 2**20:.1f} MiB, {measured.files} files"),
        ("sdist", f"{measured.sdist.stat().st_size / 2**20:.1f} MiB, {measured.listed} files"),
        *((f"core installed, Python {version}", f"{mib:.0f} MiB with what it needs") for version, mib in cores.items()),
        (
            "with torch and the extras",
            f"Python {sys.version_info[0]}.{sys.version_info[1]}: trains, watches, opens the lab",
        ),
        ("tests run from the sdist", f"{passed} passed, Python {sys.version_info[0]}.{sys.version_info[1]}"),
    ]
    lines = ["| what | measured |", "|---|---|", *(f"| {what} | {value} |" for what, value in rows)]
    text = PAGE.read_text()
    before, rest = text.split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}" + "\n".join(lines) + f"\n{MARKS[1]}{rest.partition(MARKS[1])[2]}")


def main() -> None:
    """Do all of it, and tell how far it is."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core-only", action="store_true", help="leave out the extras, the sdist's tests and the hook")
    options = parser.parse_args()
    start_s = time.monotonic()

    def say(words: str) -> None:
        sys.stdout.write(f"{time.monotonic() - start_s:4.0f} s  {words}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="trueloop-package-") as name:
        scratch = Path(name)
        measured = build(scratch / "dist")
        say(f"built {measured.wheel.name} and {measured.sdist.name}: nothing is missing, nothing is there by accident")
        cores: dict[str, float] = {}
        for version, python in interpreters().items():
            cores[version] = without_torch(scratch / f"core-{version}", measured.wheel, python)
            say(f"Python {version} without torch: lints, explains, and says what to install for the rest")
        if options.core_only:
            return
        full = with_extras(scratch / "full", measured.wheel)
        say("with torch and the extras: trains, watches a script, opens the lab")
        passed = from_sdist(scratch / "sdist", measured.sdist, full)
        say(f"from the sdist: {passed} tests passed")
        as_a_hook(scratch / "hook")
        say("pre-commit installs the hook, which finds, fixes and then lets pass")
        write(measured, cores, passed)


if __name__ == "__main__":
    main()
