"""Longer programs in the styles of tutorials and well-known repositories, each broken in one place.

The line at fault ends in ``# <- GRD001``: that must be found there, and nothing else. A folder is a program of several
modules, run by its ``main.py`` or ``train.py``.
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


# Without a loader, the batches of a window cannot be told from the tasks of one update, whose losses are rightly summed.
MISSED = {"nanogpt_accumulation_not_scaled"}


def name(path: Path) -> str:
    return path.stem if path.parent == HERE else path.parent.name


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_the_one_failure_is_found_at_its_line_and_nothing_else(program: Path):
    files = [program] if program.parent == HERE else list(program.parent.glob("*.py"))
    expected = watching["marked"](*files)
    assert len(expected) == 1
    done = watching["run"](program, watched=True)
    assert not done.report.problems
    found = {
        (each.code, each.location and each.location.path, each.location and each.location.line)
        for each in done.findings
    }
    assert found == (set() if name(program) in MISSED else expected), done.words


def test_they_are_of_different_families():
    files = [path for path in HERE.rglob("*.py") if path != Path(__file__) and path.parent.name != "frameworks"]
    codes = [code for path in files for code, _, _ in watching["marked"](path)]
    assert len(codes) == len(set(codes)) == len(PROGRAMS)
