"""The distributed program trains on one process and on two, and every process has the same weights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trueloop.failures.load import catalogue
from trueloop.lab.teaching.production.distributed import distributed_program
from trueloop.lint.check_file import ActiveRule, lint_text


def run(tmp_path: Path, processes: int, text: str) -> list[str]:
    """The lines that the processes printed: each wrote to a file of its own, so that no line stands within another."""
    script = tmp_path / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["--redirects=3", f"--log-dir={tmp_path / 'logs'}", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    completed = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    logs = sorted((tmp_path / "logs").rglob("stdout.log"))
    return [line for log in logs for line in log.read_text().splitlines()]


@pytest.mark.slow(reason="starts processes that import torch")
@pytest.mark.parametrize("processes", [1, 2])
def test_the_program_trains_and_one_process_prints(tmp_path: Path, processes: int):
    # The wrapper goes before its process group: gloo may abort if one of its threads outlives the group.
    shown = """
print("weights", next(model.parameters()).sum().item())
distributed.barrier()
del model, optimizer
__import__("gc").collect()
distributed.destroy_process_group()
""".strip()
    text = distributed_program().text.replace("distributed.destroy_process_group()", shown)
    printed = run(tmp_path, processes, text)
    epochs = [line for line in printed if line.startswith("epoch")]
    assert [line.partition(":")[0] for line in epochs] == [f"epoch {number}" for number in range(1, 11)]
    assert float(epochs[-1].rpartition(" ")[2]) < 0.6
    weights = [line for line in printed if line.startswith("weights")]
    assert len(weights) == processes
    assert len(set(weights)) == 1


def test_the_program_is_formatted_and_has_no_finding(tmp_path: Path):
    program = distributed_program().text
    (tmp_path / "train.py").write_text(program)
    for arguments in (("check", "--select", "E,F,W,I,N,B,UP"), ("format", "--check")):
        command = [sys.executable, "-m", "ruff", arguments[0], "--isolated", "--no-cache", *arguments[1:], "."]
        completed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert completed.returncode == 0, completed.stdout + completed.stderr
    rules = [ActiveRule(e.failure, e.slug, e.failure.rule) for e in catalogue().values() if e.failure.rule]
    assert lint_text(program, "train.py", rules).findings == ()
