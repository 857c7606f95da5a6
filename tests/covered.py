"""Reports the share of branches that the tests have taken, by package; `make coverage` fails if it is too low.

    python tests/covered.py

reads what `pytest --cov` has left in `.coverage`. A branch is one of several lines that can
follow a line. Branches that only a killed process has taken are not recorded and count as not taken.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from coverage import Coverage
from rich.console import Console
from rich.table import Table

MIN_PERCENT = {"core": 95.0, "failures": 95.0, "": 90.0}
"""Required percentage of branches, by folder of the package; "" is the whole package."""
LISTED_FILES = 12


def branch_percent(files: dict[str, dict[str, int]]) -> float:
    """Return the percentage of branches taken in some files; 100 if they have no branches."""
    branches = sum(file["num_branches"] for file in files.values())
    return 100 * sum(file["covered_branches"] for file in files.values()) / branches if branches else 100.0


def files_in(folder: str, files: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """Return the files of one folder of the package."""
    part = f"src/trueloop/{folder}".rstrip("/") + "/"
    return {path: file for path, file in files.items() if part in f"/{path}"}


def main() -> int:
    """Print the packages and the files with most branches not taken; return 1 if a package has too few taken."""
    measured = Coverage()
    measured.load()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(path))
        files = {name: report["summary"] for name, report in json.loads(path.read_text())["files"].items()}
    out = Console()
    table = Table("package", "branches", "taken", "required")
    too_few = False
    for folder, required in MIN_PERCENT.items():
        taken = branch_percent(files_in(folder, files))
        too_few |= taken < required
        branches = sum(file["num_branches"] for file in files_in(folder, files).values())
        table.add_row(f"trueloop/{folder}", str(branches), f"{taken:.1f} %", f"{required:g} %")
    out.print(table)
    worst = sorted(files, key=lambda name: files[name]["covered_branches"] - files[name]["num_branches"])[:LISTED_FILES]
    for name in worst:
        out.print(f"{name}: {files[name]['missing_branches']} of {files[name]['num_branches']} branches not taken")
    return 1 if too_few else 0


if __name__ == "__main__":
    sys.exit(main())
