"""Programs that use training frameworks, each with one mistake in its own code, under `trueloop run`.

The faulty line ends in a mark such as ``# <- GRD001``: the run must find exactly this failure at this line of the program,
and nothing in the framework.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
marked_lines = runpy.run_path(str(HERE.parents[1] / "watching.py"), run_name="watching")["marked_lines"]
FRAMEWORKS = {"accelerate": "accelerate", "hf": "transformers", "ignite": "ignite.engine", "lightning": "lightning"}
PROGRAMS = sorted(path for path in HERE.glob("*.py") if path.stem.partition("_")[0] in FRAMEWORKS)
MISSED: dict[str, str] = {}  # program -> the reason why its failure is not found
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1"}


def found_lines(report: Path) -> list[tuple[str, str, int]]:
    findings = json.loads(report.read_text())["findings"]
    return [(each["code"], each["path"], each["line"]) for each in findings if each["severity"] != "note"]


@pytest.mark.slow(reason="runs programs of whole frameworks")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_one_failure_is_found_at_the_authors_line(program: Path, forker_with: Any, tmp_path: Path):
    framework = FRAMEWORKS[program.stem.partition("_")[0]]
    pytest.importorskip(framework, exc_type=ImportError)
    arguments = ["-m", "trueloop", "run", "--json", tmp_path / "report.json", program]
    done = forker_with(framework).run(*arguments, cwd=tmp_path, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    expected = [] if program.stem in MISSED else sorted(marked_lines(program))
    assert found_lines(tmp_path / "report.json") == expected, done.stderr


@pytest.mark.slow(reason="runs programs of whole frameworks")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_imported_during_the_watch_is_traced_too(name: str, tmp_path: Path):
    pytest.importorskip(FRAMEWORKS[name], exc_type=ImportError)
    program = next(path for path in PROGRAMS if path.stem.startswith(f"{name}_graph_kept"))
    command = [sys.executable, "-m", "trueloop", "run", "--json", str(tmp_path / "report.json"), str(program)]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert found_lines(tmp_path / "report.json") == sorted(marked_lines(program))


def test_each_has_one_failure_and_each_framework_several():
    assert all(len(marked_lines(program)) == 1 for program in PROGRAMS)
    assert all(sum(path.stem.startswith(f"{name}_") for path in PROGRAMS) >= 7 for name in FRAMEWORKS)
    assert {path.stem for path in PROGRAMS} >= set(MISSED)
