"""The examples do what the documents say of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

BROKEN = Path(__file__).parents[1] / "examples" / "broken"


def test_four_mistakes_are_four_findings(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "trueloop", "run", "--strict", "--json", tmp_path / "report.json", "four_mistakes.py"],
        cwd=BROKEN, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert {(each["code"], each["line"]) for each in report["findings"] if each["severity"] != "note"} == {
        ("LOS001", 17), ("GRD001", 19), ("MEM001", 20), ("EVL001", 22)
    }  # fmt: skip
    assert "4 errors: this run is not training what you think" in done.stderr
    assert done.stdout.splitlines()[-1].startswith("epoch 7: accuracy 0.")
