"""Correct programs that look like the failures: a run must find nothing and must not change their results."""

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
    assert bare.printed.strip(), "a script must print its result, which is compared"
    assert done.printed == bare.printed
    if done.randomness != bare.randomness:  # the first run imports libraries, some of which draw random numbers
        bare = watching["run"](script, watched=False)
    assert done.randomness == bare.randomness
    assert not done.report.problems
    assert not done.messages


def test_there_are_enough_scripts():
    assert len(SCRIPTS) >= 45
