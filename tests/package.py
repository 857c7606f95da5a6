"""Builds the wheel and the sdist, checks their contents, and uses them as a new user does. `make package` runs it.

The wheel is installed in an empty environment without torch for each Python from 3.11 to 3.13 on this machine, and in
an environment with the extras; the tests run from the unpacked sdist; pre-commit installs the hook from the last commit
of this repository. The measured sizes are written to docs/packaging.md, between its two marks.
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
    """A virtual environment that contains only what `install` has installed."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        subprocess.run([python, "-m", "venv", folder], check=True)
        self.bin, self.home = folder / "bin", folder
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "bad.py").write_text(BAD)

    def install(self, *arguments: str) -> None:
        command = [self.bin / "python", "-m", "pip", "install", "--quiet", *PINS, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def trueloop(self, arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(str(self.bin / "trueloop"), *arguments.split())

    def run(self, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=cwd or self.work, env=clean_environment(), capture_output=True, text=True, check=False
        )


class Packages(NamedTuple):
    """The built packages."""

    wheel: Path
    sdist: Path
    wheel_files: int
    """Number of files in the wheel."""
    sdist_files: int
    """Number of files in the sdist."""


def clean_environment() -> dict[str, str]:
    """Return this process's environment variables without those that would make these sources importable."""
    return {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}


def tracked_files() -> set[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.split("\0") if name and (ROOT / name).is_file()}


def build(folder: Path) -> Packages:
    """Build the sdist, build the wheel from it, and compare the contents of both with the files that git tracks."""
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, stdout=subprocess.DEVNULL)
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    assert f"-{__version__}-py3-none-any" in wheel.name
    assert sdist.name == f"trueloop-{__version__}.tar.gz"
    with zipfile.ZipFile(wheel) as opened:
        contents = set(opened.namelist())
        (metadata,) = (opened.read(name).decode() for name in contents if name.endswith(".dist-info/METADATA"))
    metadata_files = {name for name in contents if ".dist-info/" in name}
    sources = {name.removeprefix("src/") for name in tracked_files() if name.startswith("src/trueloop/")}
    assert contents - metadata_files == sources, (contents - metadata_files) ^ sources
    assert {"trueloop/py.typed", "trueloop/lab/static/index.html"} <= contents
    assert sum("/licenses/" in name for name in metadata_files) == 2, (
        "the license of trueloop and that of the shipped JavaScript library"
    )
    assert f"\nVersion: {__version__}\n" in metadata
    for entry in ("License-Expression: Apache-2.0", "Requires-Python: >=3.11", "Project-URL: Repository", "3.13"):
        assert entry in metadata, entry
    with tarfile.open(sdist) as opened:
        sdist_files = {name.partition("/")[2] for name in opened.getnames()}
    expected = {name for name in tracked_files() if not name.startswith(".ci/")}
    assert sdist_files - {"PKG-INFO"} == expected, (sdist_files - {"PKG-INFO"}) ^ expected
    return Packages(wheel, sdist, len(contents), len(sdist_files))


def check_without_torch(folder: Path, wheel: Path, python: str) -> float:
    """Install the wheel without torch and check its commands. Return the MiB that it takes with its dependencies."""
    core = Environment(folder, python)
    (packages,) = core.home.glob("lib/python*/site-packages")
    before = size_mib(packages)
    core.install(str(wheel))
    installed_mib = size_mib(packages) - before
    for command, (code, text) in WITHOUT_TORCH.items():
        done = core.trueloop(command)
        assert done.returncode == code, (command, done.stdout, done.stderr)
        assert text in done.stdout, (command, done.stdout)
    for command in NEED_TORCH:
        done = core.trueloop(command)
        output = re.sub(r"\s+", " ", done.stdout + done.stderr)
        assert done.returncode == 1, (command, output)
        assert re.search(r"pip install 'trueloop\[\w+\]'", output), (command, output)
        assert command.startswith("run") or "Traceback" not in output, (command, output)
    return installed_mib


def check_with_extras(folder: Path, wheel: Path) -> Environment:
    """Install torch and the extras, train, watch a script, and open the lab."""
    full = Environment(folder)
    full.install("torch")
    full.install(f"{wheel}[demo,lab]")
    done = full.trueloop("train digits --run-dir out --epochs 2")
    assert done.returncode == 0, done.stderr
    assert (full.work / "out" / "final" / "model.safetensors").is_file()
    done = full.trueloop("run --strict --json found.json bad.py")
    assert done.returncode == 3, done.stderr
    report = json.loads((full.work / "found.json").read_text())
    assert [finding["code"] for finding in report["findings"]] == ["GRD001"]
    assert report["tool"]["version"] == __version__
    check_lab(full)
    return full


def check_lab(full: Environment) -> None:
    """Start the lab and fetch its first page."""
    command = [str(full.bin / "trueloop"), "lab", "--no-browser", "--port", "0"]
    lab = subprocess.Popen(
        command, cwd=full.work, env={**clean_environment(), "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        assert lab.stdout
        output = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+\S*", output)):
            line = lab.stdout.readline()
            assert line, output
            output += line
        with urllib.request.urlopen(address[0], timeout=30) as response:
            assert response.status == 200
            assert b"app.js" in response.read()
    finally:
        lab.terminate()
        lab.wait(30)


def run_sdist_tests(folder: Path, sdist: Path, full: Environment) -> int:
    """Run tests from the unpacked sdist against the installed wheel. Return the number of tests that passed."""
    with tarfile.open(sdist) as opened:
        opened.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    full.install("pytest", "pytest-timeout", "hypothesis", "jsonschema", "pyyaml")
    files = ["tests/core", "tests/reporting", "tests/lint/test_check_file.py", "tests/cli/test_plan.py"]
    done = full.run(str(full.bin / "python"), "-m", "pytest", *files, "-p", "no:cacheprovider", cwd=unpacked)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout[-4000:]
    assert passed
    return int(passed[1])


def check_hook(folder: Path) -> None:
    """Let pre-commit install the hooks from this repository's last commit, and run them in a scratch repository."""
    folder.mkdir()
    run: Callable[..., str] = lambda *command: subprocess.run(  # noqa: E731
        command, cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    settings = f"repos:\n- repo: {ROOT}\n  rev: {run('git', 'rev-parse', 'HEAD')}\n  hooks: [{{id: trueloop-lint}}]\n"
    (folder / ".pre-commit-config.yaml").write_text(settings)
    (folder / "train.py").write_text(BAD)
    (folder / "notes.txt").write_text("optimizer.step()\n")
    environment = {**clean_environment(), "PRE_COMMIT_HOME": str(folder / "home"), "GIT_CONFIG_GLOBAL": os.devnull}
    for arguments in (["init", "-q"], ["add", "train.py", "notes.txt", ".pre-commit-config.yaml"]):
        subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True)

    def run_hooks() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)

    done = run_hooks()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "train.py" in done.stdout
    assert "GRD001" in done.stdout
    config = folder / ".pre-commit-config.yaml"
    config.write_text(settings.replace("trueloop-lint", "trueloop-lint-fix"))
    assert run_hooks().returncode == 1, "files were modified"
    assert "zero_grad" in (folder / "train.py").read_text()
    done = run_hooks()
    assert done.returncode == 0, done.stdout


def size_mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc") / 2**20


def interpreters() -> dict[str, str]:
    """Return the Python interpreters on the PATH and in pyenv, by version: "3.12" -> path."""
    paths: dict[str, str] = {f"{sys.version_info[0]}.{sys.version_info[1]}": sys.executable}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in ("3.11", "3.12", "3.13"):
        candidates = [*map(str, versions.glob(f"{version}.*/bin/python{version}")), shutil.which(f"python{version}")]
        for path in filter(None, candidates):
            check = subprocess.run([path, "-c", "import ensurepip"], capture_output=True, check=False)
            if check.returncode == 0:
                paths.setdefault(version, path)
    return dict(sorted(paths.items()))


def write_page(packages: Packages, core_mib: dict[str, float], passed: int) -> None:
    """Write the measured sizes between the marks of the page."""
    rows = [
        ("wheel", f"{packages.wheel.stat().st_size / 2**20:.1f} MiB, {packages.wheel_files} files"),
        ("sdist", f"{packages.sdist.stat().st_size / 2**20:.1f} MiB, {packages.sdist_files} files"),
        *(
            (f"core installed, Python {version}", f"{mib:.0f} MiB with what it needs")
            for version, mib in core_mib.items()
        ),
        (
            "with torch and the extras",
            f"Python {sys.version_info[0]}.{sys.version_info[1]}: trains, watches, opens the lab",
        ),
        ("tests run from the sdist", f"{passed} passed, Python {sys.version_info[0]}.{sys.version_info[1]}"),
    ]
    lines = ["| what | measured |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    text = PAGE.read_text()
    before, after = text.split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}" + "\n".join(lines) + f"\n{MARKS[1]}{after.partition(MARKS[1])[2]}")


def main() -> None:
    """Run all checks, print the progress, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core-only", action="store_true", help="skip the extras, the tests of the sdist and the hook")
    options = parser.parse_args()
    start_s = time.monotonic()

    def log(message: str) -> None:
        sys.stdout.write(f"{time.monotonic() - start_s:4.0f} s  {message}\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory(prefix="trueloop-package-") as name:
        scratch = Path(name)
        packages = build(scratch / "dist")
        log(f"built {packages.wheel.name} and {packages.sdist.name}: they contain exactly the expected files")
        core_mib: dict[str, float] = {}
        for version, python in interpreters().items():
            core_mib[version] = check_without_torch(scratch / f"core-{version}", packages.wheel, python)
            log(f"Python {version} without torch: lints, explains, and names the package to install for other commands")
        if options.core_only:
            return
        full = check_with_extras(scratch / "full", packages.wheel)
        log("with torch and the extras: trains, watches a script, opens the lab")
        passed = run_sdist_tests(scratch / "sdist", packages.sdist, full)
        log(f"from the sdist: {passed} tests passed")
        check_hook(scratch / "hook")
        log("pre-commit installs the hooks: lint reports the failure, lint --fix fixes it, and lint then passes")
        write_page(packages, core_mib, passed)


if __name__ == "__main__":
    main()
