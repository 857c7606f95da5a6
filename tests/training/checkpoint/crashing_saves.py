"""A script that kills a saving process again and again, and checks each time which checkpoints remain.

It forks: the child saves, the parent kills it (or the child kills itself at its k-th touch of the file system), and
reads the folder. A sentence on standard error and exit code 1 for the first thing lost; a JSON count on success.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from trueloop.training.checkpoint.checkpoints import CheckpointFolder

TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}


def state_of(stamp: int) -> dict[str, Any]:
    """Return a state with the same number in every part, so that a mixture of two saves is detected."""
    weights = {f"layer{index}": torch.full((50, 100), float(stamp)) for index in range(8)}
    return {"model": weights, "optimizer": {"state": {0: torch.full((3,), stamp)}}, "position": {"stamp": stamp}}


def stamp_in(state: dict[str, Any]) -> int:
    stamps = {int(value) for tensor in state["model"].values() for value in tensor.unique()}
    stamps |= {int(value) for value in state["optimizer"]["state"][0]} | {state["position"]["stamp"]}
    assert len(stamps) == 1, f"a mixture of saves {stamps}"
    return stamps.pop()


def look(root: Path) -> tuple[int, int]:
    """Return update and stamp of the newest checkpoint, after checking that no partial files remain."""
    folder = CheckpointFolder(root, keep_last=1)
    assert folder.problems() == []
    hidden = [name for name in os.listdir(root) if name.startswith(".")]
    assert not hidden, f"not swept: {hidden}"
    found = folder.load_latest()
    assert found is not None, "every checkpoint is gone"
    return found[0].update, stamp_in(found[1])


def in_child(work: Callable[[int], None], wait_s: float) -> tuple[int, list[int]]:
    """Run work in a child that is killed after wait_s; return its exit status and the numbers it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        work(writing)
        os._exit(0)
    os.close(writing)
    if wait_s < float("inf"):
        time.sleep(wait_s)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    with os.fdopen(reading) as pipe:
        return status, [int(line) for line in pipe.read().split()]


def save(root: Path, update: int, stamp: int) -> None:
    folder = CheckpointFolder(root, keep_last=1)
    folder.save(state_of(stamp), update=update, epoch=0, metrics={"val/loss": -stamp})


def killed_at_random(root: Path, times: int, seed: int) -> dict[str, int]:
    """Kill a process that saves without end, at random instants."""
    save(root, 0, 0)
    chance, saved = random.Random(seed), 0
    for _ in range(times):
        first = look(root)[1] + 1

        def work(pipe: int, first: int = first) -> None:
            for number in itertools.count(first):
                save(root, number, number)
                os.write(pipe, f"{number}\n".encode())

        reported = in_child(work, chance.uniform(0, 0.15))[1]
        acknowledged = max(reported, default=first - 1)
        update, stamp = look(root)
        assert update == stamp
        assert acknowledged <= stamp <= acknowledged + 1, f"{acknowledged} was saved, {stamp} is left"
        saved += len(reported)
    return {"killed": times, "saved": saved}


def killed_at_every_touch(root: Path, same_update: int) -> dict[str, int]:
    """End the process before its k-th file operation within one save, for every k."""
    before = root.with_name("before")
    save(before, 7, 1)
    goal = 7 if same_update else 8

    def work(stop: int) -> None:
        touches = itertools.count(1)

        def touched(event: str = "os.rename", *_: Any) -> None:
            if event in TOUCHES and next(touches) == stop:
                os._exit(9)

        sync = os.fsync
        os.fsync = lambda handle: (touched(), sync(handle))[1]
        sys.addaudithook(touched)
        save(root, goal, 2)

    for stop in itertools.count(1):
        shutil.copytree(before, root)
        status, _ = in_child(lambda _, stop=stop: work(stop), float("inf"))
        finished = os.waitstatus_to_exitcode(status) == 0
        assert look(root) in ({(goal, 2)} if finished else {(7, 1), (goal, 2)})
        if finished:
            return {"touches": stop - 1}
        shutil.rmtree(root)
    raise AssertionError


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = globals()[sys.argv[1]](Path(sys.argv[2]), *map(int, sys.argv[3:]))
    sys.stdout.write(json.dumps(result))
