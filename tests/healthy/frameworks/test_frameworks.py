"""Loops that others have written: Lightning, Accelerate, the HF Trainer; each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEEDS = {
    "accelerate_loop": "accelerate",
    "hf_trainer": "transformers",
    "lightning_digits": "lightning",
    "lightning_manual_gan": "lightning",
}


def run(script: Path, *options: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(HERE.parents[1] / "watching.py"), *options, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS)
def test_a_loop_of_a_framework_is_left_in_peace(name: str):
    pytest.importorskip(NEEDS[name], exc_type=ImportError)
    bare, watched = (run(HERE / f"{name}.py", *options) for options in (["--bare"], []))
    assert watched["printed"] == bare["printed"]
    assert watched["randomness"] == bare["randomness"]
    assert not watched["problems"]
    assert not watched["words"]


def test_every_script_is_run():
    assert set(NEEDS) == {path.stem for path in HERE.glob("*.py")} - {"test_frameworks"}
