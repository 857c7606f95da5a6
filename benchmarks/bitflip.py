"""Measure which systems detect one flipped bit in a checkpoint when they resume from it.

Every system trains half a run and is killed. Then one random bit in the files of its newest checkpoint is flipped, and
the same command is started; this is repeated many times. The system may report the damage and stop, it may resume from
an earlier checkpoint, or the bit may have no effect. In the worst outcome, the run ends without an error, but with
other weights than a resume from the intact checkpoint.
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
SILENT = "wrong weights, silently"
OUTCOMES = (SILENT, "stopped with an error", "reported; previous checkpoint used", "no effect")


def newest_checkpoint_files(system: str, folder: Path) -> list[Path]:
    """Return the files of the checkpoint from which the system resumes."""
    checkpoint_of: dict[str, Callable[[], Path]] = {
        "trueloop": lambda: max((folder / "checkpoints").glob("update-*")),
        "raw loop, state_dict checkpoint": lambda: folder / "checkpoint.pt",
        "Lightning": lambda: folder / "last.ckpt",
        "Accelerate": lambda: max(folder.glob("step_*"), key=lambda path: int(path.name[5:])),
        "HF Trainer": lambda: max(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:])),
    }
    checkpoint = checkpoint_of[system]()
    return sorted(path for path in checkpoint.rglob("*") if path.is_file()) if checkpoint.is_dir() else [checkpoint]


def flip(files: list[Path], seed: int) -> None:
    """Flip one random bit; all bits of all files are equally likely."""
    generator = random.Random(seed)
    [path] = generator.choices(files, weights=[path.stat().st_size for path in files])
    content = bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def resume(system: str, folder: Path) -> tuple[int, str]:
    """Resume in a forked child process; return its exit code and all its output, including the journal.

    The modules are imported before the fork: a fork takes a tenth of a second, a new process six seconds.
    """
    output_file = folder / "output.txt"
    child = os.fork()
    if child == 0:
        code = 1
        handle = os.open(output_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
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
    text = output_file.read_text(errors="replace")
    journal = folder / "journal.jsonl"
    return code, text + (journal.read_text() if journal.exists() else "")


def outcome(system: str, folder: Path, expected: torch.Tensor) -> tuple[str, float]:
    """Return the outcome of a resume, and the relative distance of its weights from the expected ones."""
    code, output = resume(system, folder)
    if code:
        return "stopped with an error", 0.0
    resumed_weights = torch.load(folder / "weights.pt", weights_only=True)
    if not torch.equal(resumed_weights, expected):
        return SILENT, float((resumed_weights - expected).norm() / expected.norm())
    return ("reported; previous checkpoint used" if "is damaged" in output else "no effect"), 0.0


def judge(system: str, flips: int) -> dict[str, Any]:
    """Resume from many copies of a checkpoint, each with one flipped bit; two resumes from intact copies must agree."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        half = Path(scratch) / "half"
        half.mkdir()
        train_until_kill(system, half)
        intact = [shutil.copytree(half, Path(scratch) / f"intact-{turn}") for turn in range(2)]
        for folder in intact:
            code, output = resume(system, folder)
            assert not code, output
        expected, repeated = (torch.load(folder / "weights.pt", weights_only=True) for folder in intact)
        assert torch.equal(expected, repeated), "two resumes from the intact checkpoint differ"
        outcomes: list[tuple[str, float]] = []
        for seed in range(flips):
            folder = shutil.copytree(half, Path(scratch) / "flipped")
            flip(newest_checkpoint_files(system, folder), seed)
            outcomes.append(outcome(system, folder, expected))
            shutil.rmtree(folder)
    counts = Counter(result for result, _ in outcomes)
    distances = [distance for result, distance in outcomes if result == SILENT]
    finite = [distance for distance in distances if math.isfinite(distance)]
    return {
        **{name: counts[name] for name in OUTCOMES},
        "wrong weights with NaN or infinity": len(distances) - len(finite),
        "median deviation": statistics.median(finite) if finite else None,
        "largest deviation": max(finite, default=None),
    }


def train_until_kill(system: str, folder: Path) -> None:
    """Train in a child process until it is killed."""
    child = os.fork()
    if child == 0:
        SYSTEMS[system](Job(folder=folder, every_updates=EVERY_UPDATES, killed_in=KILLED_IN))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9


def judge_in_process(system: str, flips: int) -> dict[str, Any]:
    """Judge one system in a separate process, because the systems change torch's settings when they are imported."""
    command = [sys.executable, __file__, "--system", system, "--flips", str(flips)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        return {"error": completed.stderr.strip().splitlines()[-1]}
    return json.loads(completed.stdout.strip().splitlines()[-1])


def distance_text(measured: dict[str, Any]) -> str:
    """Return the median distance for a table cell, or the error."""
    if "error" in measured:
        return f"[red]{measured['error'][:60]}[/]"
    median = measured["median deviation"]
    return "" if median is None else f"{100 * median:.2g} %"


def options() -> argparse.Namespace:
    """Parse the command line of the benchmark or of one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="ten flips; not saved")
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--flips", type=int, default=FLIPS)
    return parser.parse_args()


def preload(system: str) -> None:
    """Import the modules that the forked children need; nothing is computed before the fork."""
    import importlib

    trueloop = ("trueloop.app.training.trainer", "matplotlib.figure", "matplotlib.backends.backend_agg")
    for name in ("torch._dynamo", *((NEEDS[system],) if system in NEEDS else trueloop)):
        importlib.import_module(name)


def main() -> None:
    """Compare all installed systems, or judge one as a child process."""
    arguments = options()
    flips = 10 if arguments.quick else arguments.flips
    if arguments.system:
        preload(arguments.system)
        print(json.dumps(judge(arguments.system, flips)))
        return
    systems = [name for name in SYSTEMS if "seedable" not in name and (name not in NEEDS or installed(NEEDS[name]))]
    found = {name: judge_in_process(name, flips) for name in systems}
    rows = [
        [
            name,
            *(str(measured.get(result, "-")) for result in (*OUTCOMES, "wrong weights with NaN or infinity")),
            distance_text(measured),
        ]
        for name, measured in found.items()
    ]
    table(
        f"{flips} resumes, each after one flipped bit in the newest checkpoint",
        ["system", *OUTCOMES, "silent: NaN or infinite", "silent: weights median deviation"],
        rows,
    )
    safe = found["trueloop"].get(SILENT) == 0
    console.print(f"{'[green]PASS[/]' if safe else '[red]MISS[/]'}  trueloop never resumes with wrong weights silently")
    settings = {"every_updates": EVERY_UPDATES, "killed_in_step": KILLED_IN, "epochs": EPOCHS, "flips": flips}
    write("bitflip", {"settings": settings, "found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
