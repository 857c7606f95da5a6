"""Runs the programs of other people's frameworks under `trueloop run`, and writes down what came of it.

`make integrations` installs the frameworks and runs this. A program of tests/healthy/frameworks must be left in peace,
one of tests/guilty/frameworks found at its author's line; the table goes into docs/integrations.md, between its marks.
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
    """Run the tests; return for each program "passed", or what happened to it instead."""
    report = folder / "report.xml"
    suites = [str(HERE / kind / "frameworks") for kind in ("healthy", "guilty")]
    command = [sys.executable, "-m", "pytest", *suites, "-p", "no:randomly", f"--junitxml={report}"]
    code = subprocess.run(command, cwd=HERE.parent, check=False).returncode
    if code:
        raise SystemExit(code)
    told: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):
        _, _, name = case.attrib["name"].partition("[")
        told[name.rstrip("]")] = next((child.tag for child in case if child.tag in {"skipped", "failure"}), "passed")
    return told


def table(told: dict[str, str]) -> str:
    """Return the table, of programs that were really run only."""
    marked = runpy.run_path(str(HERE / "watching.py"), run_name="watching")["marked"]
    guilty: dict[str, Any] = runpy.run_path(str(HERE / "guilty" / "frameworks" / "test_frameworks.py"))
    lines = [
        "| framework | correct programs without a finding | found at the author's line | missed |",
        "|---|---|---|---|",
    ]
    for name, package in PACKAGES.items():
        quiet = [path.stem for path in (HERE / "healthy" / "frameworks").glob(f"{name}_*.py")]
        broken = [path for path in guilty["PROGRAMS"] if path.stem.startswith(f"{name}_")]
        unseen = {stem for stem in (*quiet, *(path.stem for path in broken)) if told.get(stem) != "passed"}
        if unseen:
            raise SystemExit(f"not run: {', '.join(sorted(unseen))}")
        codes = {path.stem: next(iter(marked(path)))[0] for path in broken}
        found = sorted({code for stem, code in codes.items() if stem not in guilty["MISSED"]})
        missed = sorted({code for stem, code in codes.items() if stem in guilty["MISSED"]})
        which = ", ".join(f"`{stem}`" for stem in sorted(quiet))
        lines.append(
            f"| {NAMES[name]} {version(package)} | {which} | {', '.join(found)} | {', '.join(missed) or 'none'} |"
        )
    return (
        "\n".join([*lines, "", f"With torch {version('torch')}, on Python {sys.version.split()[0]}, on a CPU."]) + "\n"
    )


def main() -> None:
    """Run, and write."""
    with tempfile.TemporaryDirectory() as folder:
        made = table(run(Path(folder)))
    before, rest = PAGE.read_text().split(MARKS[0])
    PAGE.write_text(before + MARKS[0] + made + MARKS[1] + rest.partition(MARKS[1])[2])


if __name__ == "__main__":
    main()
