"""Run a sample of the fault campaign: a few cases of every fault, chosen with a fixed seed; `make faults` runs all."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
FAULTS = (
    "SIGKILL, 0 workers",
    "repeated SIGKILL, 0 workers",
    "SIGKILL, 2 workers",
    "repeated SIGKILL, 2 workers",
    "SIGKILL, slow disk",
    "SIGKILL at each disk access",
    "SIGINT",
    "SIGTERM",
    "checkpoint file truncated",
    "checkpoint bit flipped",
    "checkpoint file missing",
    "hostile pickle",
    "best checkpoint damaged",
    "every checkpoint damaged",
    "journal damaged",
    "disk full",
    "file size limit",
    "read-only folder",
    "path already taken",
    "two processes, one folder",
    "clock jumps by hours",
)

pytestmark = [
    pytest.mark.slow(reason="kills and damages dozens of runs"),
    pytest.mark.timeout(600),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the campaign forks its runs"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the sample once, in a separate interpreter, because a fork would lose the threads of this one."""
    out = tmp_path_factory.mktemp("faults") / "faults.json"
    others = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))  # have a core each
    jobs = max(1, (os.cpu_count() or 1) // others)
    done = subprocess.run(
        [sys.executable, CAMPAIGN, "--sample", "--jobs", str(jobs), "--out", out],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert out.exists(), done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_lost(found: dict[str, Any], fault: str):
    counts = found["found"][fault]
    failures = [f"{failure['case']}: {failure['detail']}" for failure in found["failures"] if failure["fault"] == fault]
    assert not failures
    if counts["not run"]:
        pytest.skip("mounting is not permitted here")
    assert counts["equal"] + counts["reported"] > 0


def test_every_fault_is_in_the_sample(found: dict[str, Any]):
    assert tuple(found["found"]) == FAULTS
    # The campaign as a whole is too long for a test, but the names of its faults stand in its source.
    names = set(re.findall(r'Case\(\s*f?"([^"{]+)', CAMPAIGN.with_name("cases.py").read_text()))
    assert len(names) > 10
    assert not {name for name in names if not any(fault.startswith(name.strip()) for fault in FAULTS)}
