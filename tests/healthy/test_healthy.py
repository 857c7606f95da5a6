"""Correct programs of many people's hands, written to look like the failures: none may be accused, none changed."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

HERE = Path(__file__).parent
watching = runpy.run_path(str(HERE.parent / "watching.py"), run_name="watching")
SCRIPTS = sorted(path for path in HERE.glob("*.py") if not path.name.startswith("test_"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_correct_program_has_no_findings(script: Path):
    bare = watching["run"](script, watched=False)
    done = watching["run"](script, watched=True)
    assert bare.printed.strip(), "a script prints its result, or there is nothing to compare"
    assert done.printed == bare.printed
    if done.randomness != bare.randomness:  # the first run of all imports libraries, and some draw numbers meanwhile
        bare = watching["run"](script, watched=False)
    assert done.randomness == bare.randomness
    assert not done.report.problems
    assert not done.words


def test_there_are_enough_scripts():
    assert len(SCRIPTS) >= 45
