"""Which branches the tests have taken, floor by floor; `make coverage` fails where they are too few.

    python tests/covered.py

reads what `pytest --cov` has left in `.coverage`. A branch is one way out of a line that has several; what a process
had taken until it was killed is not known, and counts as not taken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from coverage import Coverage
from rich.console import Console
from rich.table import Table

LEAST = {"ground": 95.0, "catalogue": 95.0, "": 90.0}
"""Percent of branches, by the folder in the package; "" is the whole package."""
WORST = 12


def counted(files: dict[str, dict[str, int]]) -> float:
    """Return the percentage of the branches of some files that were taken; 100 where there are none."""
    branches = sum(file["num_branches"] for file in files.values())
    return 100 * sum(file["covered_branches"] for file in files.values()) / branches if branches else 100.0


def within(folder: str, files: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the files of one folder of the package."""
    part = f"src/trueloop/{folder}".rstrip("/") + "/"
    return {path: file for path, file in files.items() if part in f"/{path}"}


def main() -> int:
    """Print the floors and the files in which most is missing; return 1 where a floor has too little."""
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(path))
        files = {name: each["summary"] for name, each in json.loads(path.read_text())["files"].items()}
    out = Console()
    table = Table("package", "branches", "taken", "least")
    short = []
    for folder, least in LEAST.items():
        taken = counted(within(folder, files))
        short += [folder or "the whole"] if taken < least else []
        branches = sum(file["num_branches"] for file in within(folder, files).values())
        table.add_row(f"trueloop/{folder}", str(branches), f"{taken:.1f} %", f"{least:g} %")
    out.print(table)
    worst = sorted(files, key=lambda name: files[name]["covered_branches"] - files[name]["num_branches"])[:WORST]
    for name in worst:
        out.print(f"{name}: {files[name]['missing_branches']} of {files[name]['num_branches']} branches not taken")
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
