"""One flipped bit in a checkpoint, then the command that goes on from it: who notices?

Every system trains half a run and is killed. Then, again and again, one bit somewhere in the files of its newest
checkpoint is flipped (any bit of any byte, all alike) and the same command is started. It may say so and stop, it may
go on from an earlier checkpoint, the bit may not matter; or it ends as if nothing had happened, with other weights than
the same resume from the unharmed checkpoint. The last outcome is the one that goes unnoticed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from measure import console, installed, table, write
from resume import EVERY_UPDATES, KILLED_IN, NEEDS
from systems.resuming import EPOCHS, SYSTEMS, Job, weights

FLIPS = 200
SILENT = "silently other weights"
OUTCOMES = (SILENT, "stopped with an error", "named it, took the one before", "no effect")


def newest(system: str, folder: Path) -> list[Path]:
    """Return the files of the checkpoint that the system goes on from."""
    kinds: dict[str, Callable[[], Path]] = {
        "trueloop": lambda: max((folder / "checkpoints").glob("update-*")),
        "raw loop, state_dict checkpoint": lambda: folder / "checkpoint.pt",
        "Lightning": lambda: folder / "last.ckpt",
        "Accelerate": lambda: max(folder.glob("step_*"), key=lambda path: int(path.name[5:])),
        "HF Trainer": lambda: max(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:])),
    }
    found = kinds[system]()
    return sorted(path for path in found.rglob("*") if path.is_file()) if found.is_dir() else [found]


def flip(files: list[Path], seed: int) -> None:
    """Flip one bit of all the bits there are."""
    chance = random.Random(seed)
    [path] = chance.choices(files, weights=[path.stat().st_size for path in files])
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def resumed(system: str, folder: Path) -> tuple[int, str]:
    """Go on in a forked child, so that nothing of it stays; return its exit code and all it said.

    The imports are done already: a fork takes a tenth of a second, a new process six.
    """
    said = folder / "said.txt"
    child = os.fork()
    if child == 0:
        code = 1
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        try:
            job = Job(folder=folder, every_updates=EVERY_UPDATES)
            torch.save(weights(SYSTEMS[system](job)), folder / "weights.pt")
            code = 0
        except BaseException as error:  # noqa: BLE001 - whatever it is, the system noticed
            os.write(handle, f"{type(error).__name__}: {error}\n".encode())
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = said.read_text(errors="replace")
    journal = folder / "journal.jsonl"
    return code, text + (journal.read_text() if journal.exists() else "")


def outcome(system: str, folder: Path, expected: torch.Tensor) -> tuple[str, float]:
    """Say what a resume came to, and how far its weights are from the right ones, as a share of their norm."""
    code, said = resumed(system, folder)
    if code:
        return "stopped with an error", 0.0
    found = torch.load(folder / "weights.pt", weights_only=True)
    if not torch.equal(found, expected):
        return SILENT, float((found - expected).norm() / expected.norm())
    return ("named it, took the one before" if "is damaged" in said else "no effect"), 0.0


def judge(system: str, flips: int) -> dict[str, Any]:
    """Flip many bits, one at a time; first, two resumes from the unharmed checkpoint must agree."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        half = Path(scratch) / "half"
        half.mkdir()
        killed(system, half)
        unharmed = [shutil.copytree(half, Path(scratch) / f"unharmed-{turn}") for turn in range(2)]
        for folder in unharmed:
            code, said = resumed(system, folder)
            assert not code, said
        expected, again = (torch.load(folder / "weights.pt", weights_only=True) for folder in unharmed)
        assert torch.equal(expected, again), "two resumes from the unharmed checkpoint differ"
        found: list[tuple[str, float]] = []
        for seed in range(flips):
            folder = shutil.copytree(half, Path(scratch) / "flipped")
            flip(newest(system, folder), seed)
            found.append(outcome(system, folder, expected))
            shutil.rmtree(folder)
    counts = Counter(result for result, _ in found)
    off = [distance for result, distance in found if result == SILENT]
    finite = [distance for distance in off if math.isfinite(distance)]
    return {
        **{name: counts[name] for name in OUTCOMES},
        "of those, NaN or infinite": len(off) - len(finite),
        "off by, median": statistics.median(finite) if finite else None,
        "off by, at most": max(finite, default=None),
    }


def killed(system: str, folder: Path) -> None:
    """Train until the kill."""
    child = os.fork()
    if child == 0:
        SYSTEMS[system](Job(folder=folder, every_updates=EVERY_UPDATES, killed_in=KILLED_IN))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def in_a_process(system: str, flips: int) -> dict[str, Any]:
    """Judge one system in a process of its own, for the systems change torch's settings when imported."""
    words = [sys.executable, __file__, "--system", system, "--flips", str(flips)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def distance(seen: dict[str, Any]) -> str:
    """Say it in a cell, or what went wrong instead."""
    if "error" in seen:
        return f"[red]{seen['error'][:60]}[/]"
    median = seen["off by, median"]
    return "" if median is None else f"{100 * median:.2g} %"


def options() -> argparse.Namespace:
    """Read the command line, of the benchmark or of one of its children."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten flips; nothing kept")
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--flips", type=int, default=FLIPS)
    return parser.parse_args()


def preload(system: str) -> None:
    """Import once what the forked children need; nothing is computed before the fork."""
    import importlib

    trueloop = ("trueloop.app.training.trainer", "matplotlib.figure", "matplotlib.backends.backend_agg")
    for name in ("torch._dynamo", *((NEEDS[system],) if system in NEEDS else trueloop)):
        importlib.import_module(name)


def main() -> None:
    """Compare all systems that are installed, or judge one as a child."""
    given = options()
    flips = 10 if given.quick else given.flips
    if given.system:
        preload(given.system)
        print(json.dumps(judge(given.system, flips)))
        return
    systems = [name for name in SYSTEMS if "seedable" not in name and (name not in NEEDS or installed(NEEDS[name]))]
    found = {name: in_a_process(name, flips) for name in systems}
    rows = [
        [name, *(str(seen.get(result, "-")) for result in (*OUTCOMES, "of those, NaN or infinite")), distance(seen)]
        for name, seen in found.items()
    ]
    table(
        f"{flips} resumes, each after one flipped bit in the newest checkpoint",
        ["system", *OUTCOMES, "silent: NaN or infinite", "silent: weights off by, median"],
        rows,
    )
    safe = found["trueloop"].get(SILENT) == 0
    console.print(
        f"{'[green]PASS[/]' if safe else '[red]MISS[/]'}  trueloop never goes on from other weights in silence"
    )
    settings = {"every_updates": EVERY_UPDATES, "killed_in_step": KILLED_IN, "epochs": EPOCHS, "flips": flips}
    write("bitflip", {"settings": settings, "found": found}, quick=given.quick)


if __name__ == "__main__":
    main()
