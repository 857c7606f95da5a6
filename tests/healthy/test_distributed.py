"""Correct runs of several processes or threads, each in separate processes, so that a crash does not end the tests."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WATCHING = HERE.parent / "watching.py"


def launch(forker: Any, processes: int, *arguments: str | Path) -> list[Any]:
    """Start `watching.py` in a number of processes as torchrun does, and return the result of each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    started = [
        forker.start(WATCHING, *arguments, cwd=HERE, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, stderr) in zip(started, outputs, strict=True):
        assert process.returncode == 0, stderr
    return [json.loads(stdout.splitlines()[-1]) for stdout, _ in outputs]


@pytest.mark.slow(reason="starts several processes")
@pytest.mark.parametrize("script", ["spawned_ddp.py", "threads_in_parallel.py"])
def test_a_program_that_starts_others_is_not_disturbed(forker: Any, script: str):
    path = HERE / "distributed" / script
    compare(script, launch(forker, 1, "--bare", path)[0], launch(forker, 1, path)[0])


@pytest.mark.slow(reason="starts several processes")
def test_no_rank_has_findings(forker: Any):
    scripts = ["digits_ddp.py", "several_ways_ddp.py", "sharded_fsdp2.py", "checkpoints_of_rank_0.py"]
    for results in launch(forker, 2, "--both", *(HERE / "distributed" / script for script in scripts)):
        for script, (bare, watched) in zip(scripts, results, strict=True):
            compare(script, bare, watched)


def compare(script: str, bare: dict[str, Any], watched: dict[str, Any]) -> None:
    assert watched["printed"] == bare["printed"], script
    assert watched["randomness"] == bare["randomness"], script
    assert not watched["problems"], script
    assert not watched["messages"], script
