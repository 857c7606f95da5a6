"""Longer programs in the style of tutorials and well-known repositories, each with one mistake.

The faulty line ends in a mark such as ``# <- GRD001``: the run must find exactly this failure at this line. A folder is
a program of several modules, which is run by its ``main.py`` or ``train.py``.
"""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
watching = runpy.run_path(str(HERE.parent / "watching.py"), run_name="watching")
PROGRAMS = sorted(
    [path for path in HERE.glob("*.py") if not path.name.startswith("test_")]
    + [path for path in HERE.glob("*/*.py") if path.name in {"main.py", "train.py"}]
)

# Without a loader, batches that accumulate look like several tasks of one update, whose losses are correctly summed.
MISSED = {"nanogpt_accumulation_not_scaled"}


def name(path: Path) -> str:
    return path.stem if path.parent == HERE else path.parent.name


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_the_one_failure_is_found_at_its_line_and_nothing_else(program: Path):
    files = [program] if program.parent == HERE else list(program.parent.glob("*.py"))
    expected = watching["marked_lines"](*files)
    assert len(expected) == 1
    done = watching["run"](program, watched=True)
    assert not done.report.problems
    found = {
        (each.code, each.location and each.location.path, each.location and each.location.line)
        for each in done.findings
    }
    assert found == (set() if name(program) in MISSED else expected), done.messages


def test_they_are_of_different_families():
    files = [path for path in HERE.rglob("*.py") if path != Path(__file__) and path.parent.name != "frameworks"]
    codes = [code for path in files for code, _, _ in watching["marked_lines"](path)]
    assert len(codes) == len(set(codes)) == len(PROGRAMS)
