"""What linting costs: files per second, the time to the first finding, memory; next to TorchFix where it is installed.

The tree is the installed torch package. TorchFix is measured in an environment of its own:
``python -m venv X && X/bin/pip install torchfix``, then ``python benchmarks/lint.py --torchfix X``, or
``TORCHFIX=X make bench``. It reads the same files, or, since it takes long, every so manieth of them.
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
    """Run a command; return its seconds."""
    start = time.perf_counter()
    subprocess.run(command, cwd=cwd, capture_output=True, check=False, env=environment())
    return time.perf_counter() - start


def environment() -> dict[str, str]:
    """Return the environment of a user: compiled modules are kept."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def whole_tree(files: int) -> float:
    """Return the seconds for the whole tree; it is looked at indeed."""
    start = time.perf_counter()
    done = subprocess.run([*LINT, str(TREE)], capture_output=True, check=False, text=True, env=environment())
    seconds = time.perf_counter() - start
    assert f"{files:,} files" in done.stderr or f"{files} files" in done.stderr, done.stderr
    return seconds


def several(rounds: int, once: Callable[[], float]) -> Spread:
    """Measure several times, after once for the disk's cache."""
    once()
    return Spread.of([once() for _ in range(rounds)])


def first_finding(folder: Path) -> float:
    """Return the seconds from the start of the process to the first line it prints."""
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
    """Return the largest memory of a process that lints these files alone, in MiB."""
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from trueloop.lint.check_tree import LintJob, lint_files\n"
        "from trueloop.app.lint.lint_command import active_rules\n"
        "from trueloop.failures.selection import FailureSelection\n"
        "paths = [Path(line) for line in sys.stdin.read().split('\\n')]\n"
        "for _ in lint_files(paths, LintJob(active_rules(FailureSelection())), jobs=1): pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(map(str, paths)), capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def python_files(root: Path) -> list[Path]:
    """List the Python files below a folder."""
    return sorted(path for path in root.rglob("*.py") if path.is_file())


def with_torchfix(venv: Path, files: Sequence[Path]) -> dict[str, Any]:
    """Time TorchFix over some files, and trueloop over the same ones, in turns."""
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
            name: Spread.of([len(sample) / each for each in taken]) for name, taken in seconds.items()
        },
    }


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough numbers, nothing kept")
    parser.add_argument(
        "--torchfix",
        type=Path,
        default=os.environ.get("TORCHFIX"),
        help="a virtual environment with torchfix in it; also by the variable TORCHFIX",
    )
    asked = parser.parse_args()
    rounds = 2 if asked.quick else 7
    files = python_files(TREE)
    cores = len(os.sched_getaffinity(0))
    whole = several(rounds, lambda: whole_tree(len(files)))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(catalogue()["GRD001"].failure.bad)
        first = several(rounds * 3, lambda: first_finding(Path(folder)))
    few, many = peak_mib(files[::8]), peak_mib(files)
    rate = Spread.of([len(files) / whole.median])
    rules = sum(entry.failure.rule is not None for entry in catalogue().values())
    rows = [
        [f"files per second, {len(files):,} files, {cores} processes", f"{rate.median:,.0f}", f">= {FILES_PER_S:.0f}"],
        ["seconds to the first finding of a single file", f"{first.median:.3f}", f"<= {FIRST_S}"],
        [f"peak memory, {len(files) // 8:,} files / {len(files):,} files", f"{few:.0f} / {many:.0f} MiB", "flat"],
    ]
    table(f"trueloop lint, {rules} rules, over torch {torch.__version__}'s own package", ["", "measured", "goal"], rows)
    goals = ((FILES_PER_S / rate.median, 1.0, "speed"), (first.median, FIRST_S, "start"), (many / few, FLAT, "memory"))
    for value, goal, name in goals:
        console.print(f"{verdict(value, goal)}  {name}")
    found: dict[str, Any] = {
        "files": len(files), "rules": rules, "processes": cores, "seconds": whole,
        "files_per_second": len(files) / whole.median, "seconds_to_first_finding": first,
        "peak_mib": {"an_eighth_of_the_files": few, "all": many},
        "children_peak_mib": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
    }  # fmt: skip
    if asked.torchfix:
        peer = found["torchfix"] = with_torchfix(asked.torchfix.resolve(), files)
        rates = peer["files_per_second_one_process"]
        title = f"next to TorchFix {peer['version']}, {peer['files']} of the files, one process each"
        table(title, ["", "files per second"], [[name, f"{each.median:,.1f}"] for name, each in rates.items()])
    else:
        console.print("TorchFix is left out: it was not installed for this (--torchfix).")
    write("lint", {"found": found}, quick=asked.quick)


if __name__ == "__main__":
    main()
