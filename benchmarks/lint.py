"""Measure the cost of linting: files per second, time to the first finding, memory; compared with TorchFix.

The linted files are those of the installed torch package. TorchFix is measured if it is installed in a separate
environment: ``python -m venv X && X/bin/pip install torchfix``, then ``python benchmarks/lint.py --torchfix X``, or
``TORCHFIX=X make bench``. Because TorchFix is slow, it is compared on about 60 of the files.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from measure import Spread, console, table, verdict, write

from trueloop.failures.load import catalogue

TREE = Path(torch.__file__).parent
LINT = [str(Path(sys.executable).parent / "trueloop"), "lint", "--format", "concise"]
FILES_PER_S, FIRST_S, FLAT = 250.0, 0.15, 1.15


def timed(command: Sequence[str], cwd: Path) -> float:
    """Run a command and return its duration in seconds."""
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, capture_output=True, check=False, env=environment())
    return time.perf_counter() - start


def environment() -> dict[str, str]:
    """Return the environment of a user, in which Python caches compiled modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def lint_all_files(files: int) -> float:
    """Lint all files and return the seconds; the reported number of files must be ``files``."""
    start = time.perf_counter()
    completed = subprocess.run([*LINT, str(TREE)], capture_output=True, check=False, text=True, env=environment())
    seconds = time.perf_counter() - start
    assert f"{files:,} files" in completed.stderr or f"{files} files" in completed.stderr, completed.stderr
    return seconds


def repeat(rounds: int, measure_once: Callable[[], float]) -> Spread:
    """Measure several times, after one run that fills the disk cache."""
    measure_once()
    return Spread.of([measure_once() for _ in range(rounds)])


def first_finding_s(folder: Path) -> float:
    """Return the seconds from the start of the process to its first line of output."""
    start = time.perf_counter()
    with subprocess.Popen(
        [*LINT, "train.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment()
    ) as process:
        assert process.stdout is not None
        assert b"GRD001" in process.stdout.readline()
        seconds = time.perf_counter() - start
        process.stdout.read()
    return seconds


def peak_mib(paths: Sequence[Path]) -> float:
    """Return the peak memory in MiB of a single process that lints these files."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from trueloop.analysis.project import Project\n"
        "from trueloop.lint.check_tree import LintJob, lint_files\n"
        "from trueloop.lint.files import read_text\n"
        "from trueloop.app.lint.lint_command import active_rules\n"
        "from trueloop.failures.selection import FailureSelection\n"
        "paths = [Path(line) for line in sys.stdin.read().split('\\n')]\n"
        "job = LintJob(active_rules(FailureSelection()), project=Project(map(str, paths), read_text))\n"
        "for _ in lint_files(paths, job, jobs=1): pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(map(str, paths)), capture_output=True, text=True, check=True
    )
    return float(completed.stdout)


def python_files(root: Path) -> list[Path]:
    """List the Python files below a folder."""
    return sorted(path for path in root.rglob("*.py") if path.is_file())


def compare_with_torchfix(venv: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Time TorchFix and trueloop alternately on the same sample of files."""
    sample = files[:: max(1, len(files) // 60)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number, path in enumerate(sample):
            shutil.copy(path, root / f"{number:04}_{path.name}")
        commands = {
            "trueloop lint": [*LINT, "--jobs", "1", "."],
            "TorchFix": [str(venv / "bin" / "torchfix"), "--select", "ALL", "--jobs", "1", "."],
        }
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(3):
            for name, command in commands.items():
                seconds[name].append(timed(command, root))
    version = subprocess.run(
        [str(venv / "bin" / "python"), "-c", "import importlib.metadata as m; print(m.version('torchfix'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    return {
        "version": version,
        "files": len(sample),
        "files_per_second_one_process": {
            name: Spread.of([len(sample) / each for each in durations]) for name, durations in seconds.items()
        },
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough numbers, not saved")
    parser.add_argument(
        "--torchfix",
        type=Path,
        default=os.environ.get("TORCHFIX"),
        help="a virtual environment with torchfix in it; also by the variable TORCHFIX",
    )
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else 7
    files = python_files(TREE)
    cores = len(os.sched_getaffinity(0))
    total = repeat(rounds, lambda: lint_all_files(len(files)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(catalogue()["GRD001"].failure.bad)
        first_s = repeat(rounds * 3, lambda: first_finding_s(Path(folder)))
    eighth_mib, all_mib = peak_mib(files[::8]), peak_mib(files)
    rate = Spread.of([len(files) / total.median])
    rules = sum(entry.failure.rule is not None for entry in catalogue().values())
    rows = [
        [f"files per second, {len(files):,} files, {cores} processes", f"{rate.median:,.0f}", f">= {FILES_PER_S:.0f}"],
        ["seconds to the first finding of a single file", f"{first_s.median:.3f}", f"<= {FIRST_S}"],
        [
            f"peak memory, {len(files) // 8:,} files / {len(files):,} files",
            f"{eighth_mib:.0f} / {all_mib:.0f} MiB",
            "flat",
        ],
    ]
    table(f"trueloop lint, {rules} rules, over torch {torch.__version__}'s own package", ["", "measured", "goal"], rows)
    goals = (
        (FILES_PER_S / rate.median, 1.0, "speed"),
        (first_s.median, FIRST_S, "start"),
        (all_mib / eighth_mib, FLAT, "memory"),
    )
    for value, goal, name in goals:
        console.print(f"{verdict(value, goal)}  {name}")
    found: dict[str, Any] = {
        "files": len(files), "rules": rules, "processes": cores, "seconds": total,
        "files_per_second": len(files) / total.median, "seconds_to_first_finding": first_s,
        "peak_mib": {"an_eighth_of_the_files": eighth_mib, "all": all_mib},
        "children_peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }  # fmt: skip
    if arguments.torchfix:
        peer = found["torchfix"] = compare_with_torchfix(arguments.torchfix.resolve(), files)
        rates = peer["files_per_second_one_process"]
        title = f"next to TorchFix {peer['version']}, {peer['files']} of the files, one process each"
        table(title, ["", "files per second"], [[name, f"{each.median:,.1f}"] for name, each in rates.items()])
    else:
        console.print("TorchFix was not measured: pass its environment with --torchfix.")
    write("lint", {"found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
