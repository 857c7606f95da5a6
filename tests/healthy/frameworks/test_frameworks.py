"""Correct loops of installed training frameworks: a run must find nothing and must not change their results."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WATCHING = HERE.parents[1] / "watching.py"
FRAMEWORKS = {"accelerate": "accelerate", "hf": "transformers", "ignite": "ignite.engine", "lightning": "lightning"}
SCRIPTS = sorted(path for path in HERE.glob("*.py") if path != Path(__file__))


def run(forker: Any, script: Path, *options: str) -> dict[str, Any]:
    done = forker.run(WATCHING, *options, script, cwd=HERE, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow(reason="runs programs of whole frameworks")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_framework_loop_has_no_findings(script: Path, forker_with: Any):
    framework = FRAMEWORKS[script.stem.partition("_")[0]]
    pytest.importorskip(framework, exc_type=ImportError)
    bare, watched = (run(forker_with(framework), script, *options) for options in (["--bare"], []))
    assert watched["printed"] == bare["printed"]
    assert watched["randomness"] == bare["randomness"]
    assert watched["updates"]
    assert not watched["problems"]
    assert not watched["messages"]


def test_every_framework_has_scripts():
    assert {path.stem.partition("_")[0] for path in SCRIPTS} == set(FRAMEWORKS)
