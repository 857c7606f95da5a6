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


def launch(forker: Any, script: Path, processes: int, *options: str) -> list[dict]:
    """Start the script in so many processes as torchrun would, and return what each of them tells."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    started = [
        forker.start(WATCHING, *options, script, cwd=HERE, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "processes"), [("digits_ddp.py", 2), ("spawned_ddp.py", 1), ("threads_in_parallel.py", 1)]
)
def test_every_rank_is_left_in_peace(forker: Any, script: str, processes: int):
    path = HERE / "distributed" / script
    bare, watched = launch(forker, path, processes, "--bare"), launch(forker, path, processes)
    for alone, seen in zip(bare, watched, strict=True):
        assert seen["printed"] == alone["printed"]
        assert seen["randomness"] == alone["randomness"]
        assert not seen["problems"]
        assert not seen["words"]
