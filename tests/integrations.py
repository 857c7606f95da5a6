"""Runs programs of training frameworks under `trueloop run`, and writes a table of the results.

`make integrations` installs the frameworks and runs this. A program of tests/healthy/frameworks must have
no finding; one of tests/guilty/frameworks must have the expected finding at its own line. The table goes into
docs/integrations.md, between its marks.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "integrations.md"
MARKS = "<!-- measured: begin (tests/integrations.py) -->\n", "<!-- measured: end -->"
PACKAGES = {"lightning": "lightning", "hf": "transformers", "accelerate": "accelerate", "ignite": "pytorch-ignite"}
NAMES = {"lightning": "Lightning", "hf": "Hugging Face Trainer", "accelerate": "Accelerate", "ignite": "Ignite"}


def run(folder: Path) -> dict[str, str]:
    """Run the tests; return "passed", "skipped" or "failure" by the name of the program."""
    report = folder / "report.xml"
    suites = [str(HERE / kind / "frameworks") for kind in ("healthy", "guilty")]
    command = [sys.executable, "-m", "pytest", *suites, "-p", "no:randomly", f"--junitxml={report}"]
    code = subprocess.run(command, cwd=HERE.parent, check=False).returncode
    if code:
        raise SystemExit(code)
    outcomes: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        _, _, name = case.attrib["name"].partition("[")
        outcomes[name.rstrip("]")] = next(
            (child.tag for child in case if child.tag in {"skipped", "failure"}), "passed"
        )
    return outcomes


def render_table(outcomes: dict[str, str]) -> str:
    """Return the table as Markdown; exit if a program was skipped."""
    marked_lines = runpy.run_path(str(HERE / "watching.py"), run_name="watching")["marked_lines"]
    guilty: dict[str, Any] = runpy.run_path(str(HERE / "guilty" / "frameworks" / "test_frameworks.py"))
    lines = [
        "| framework | correct programs without a finding | found at the program's line | missed |",
        "|---|---|---|---|",
    ]
    for name, package in PACKAGES.items():
        correct = [path.stem for path in (HERE / "healthy" / "frameworks").glob(f"{name}_*.py")]
        broken = [path for path in guilty["PROGRAMS"] if path.stem.startswith(f"{name}_")]
        not_run = {stem for stem in (*correct, *(path.stem for path in broken)) if outcomes.get(stem) != "passed"}
        if not_run:
            raise SystemExit(f"not run: {', '.join(sorted(not_run))}")
        codes = {path.stem: next(iter(marked_lines(path)))[0] for path in broken}
        found = sorted({code for stem, code in codes.items() if stem not in guilty["MISSED"]})
        missed = sorted({code for stem, code in codes.items() if stem in guilty["MISSED"]})
        names = ", ".join(f"`{stem}`" for stem in sorted(correct))
        lines.append(
            f"| {NAMES[name]} {version(package)} | {names} | {', '.join(found)} | {', '.join(missed) or 'none'} |"
        )
    return (
        "\n".join([*lines, "", f"With torch {version('torch')}, on Python {sys.version.split()[0]}, on a CPU."]) + "\n"
    )


def main() -> None:
    """Run the programs and write the table into the page."""
    with tempfile.TemporaryDirectory() as folder:
        table = render_table(run(Path(folder)))
    before, after = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + table + MARKS[1] + after.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
