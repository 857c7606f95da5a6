"""Correct runs of several processes or threads, each process watched and apart: what crashes must not take the tests along."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
WATCHING = HERE.parent / "watching.py"


def launch(forker: Any, processes: int, *words: str | Path) -> list[Any]:
    """Start `watching.py` in so many processes as torchrun would, and return what each of them tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    started = [
        forker.start(WATCHING, *words, cwd=HERE, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(processes)
    ]
    try:
        told = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, complaint) in zip(started, told, strict=True):
        assert process.returncode == 0, complaint
    return [json.loads(words.splitlines()[-1]) for words, _ in told]


@pytest.mark.slow(reason="starts several processes")
@pytest.mark.parametrize("script", ["spawned_ddp.py", "threads_in_parallel.py"])
def test_a_program_that_starts_others_is_not_disturbed(forker: Any, script: str):
    path = HERE / "distributed" / script
    compare(script, launch(forker, 1, "--bare", path)[0], launch(forker, 1, path)[0])


@pytest.mark.slow(reason="starts several processes")
def test_no_rank_has_findings(forker: Any):
    scripts = ["digits_ddp.py", "several_ways_ddp.py", "sharded_fsdp2.py", "checkpoints_of_rank_0.py"]
    for told in launch(forker, 2, "--both", *(HERE / "distributed" / script for script in scripts)):
        for script, (alone, seen) in zip(scripts, told, strict=True):
            compare(script, alone, seen)


def compare(script: str, alone: dict[str, Any], seen: dict[str, Any]) -> None:
    assert seen["printed"] == alone["printed"], script
    assert seen["randomness"] == alone["randomness"], script
    assert not seen["problems"], script
    assert not seen["words"], script
