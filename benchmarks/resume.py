"""Measure whether a run that is killed in the middle of an epoch and resumed ends with the same weights.

The run trains a small network with BatchNorm and dropout, with a shuffling loader and random augmentation. Every run is
a separate process, and it is resumed with the same command. Each system is used as its documentation says, with
checkpoints every few updates or after each epoch, and with 0 or 2 loader workers. If two uninterrupted runs of a system
differ, its resume cannot be judged.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from measure import console, installed, table, write
from systems.resuming import BATCH, EPOCHS, SAMPLES, SYSTEMS, Job, weights

EVERY_UPDATES = 6
KILLED_IN = 51  # the 11th of the third epoch's 20 steps, three after a checkpoint
CASES = [(workers, every) for workers in (0, 2) for every in (EVERY_UPDATES, None)]
NEEDS = {"Lightning": "lightning", "Accelerate": "accelerate", "Accelerate, seedable sampler": "accelerate",
         "HF Trainer": "transformers"}  # fmt: skip


def train(arguments: argparse.Namespace) -> None:
    """Train one system in this process and save its final weights."""
    torch.use_deterministic_algorithms(True)
    job = Job(
        folder=arguments.folder, workers=arguments.workers, every_updates=arguments.every, killed_in=arguments.kill
    )
    torch.save(weights(SYSTEMS[arguments.system](job)), arguments.folder / "weights.pt")


def start(system: str, folder: Path, *, workers: int, every: int | None, kill: int | None = None) -> str:
    """Train in a new process; return its last error line, or "" if it succeeded or was killed as requested."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--system", system, "--folder", str(folder), "--workers", str(workers)]
    arguments += ["--every", str(every)] if every else []
    arguments += ["--kill", str(kill)] if kill else []
    completed = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=False)
    if kill and completed.returncode == -9:
        return ""
    return (
        (completed.stderr.strip() or f"exit code {completed.returncode}").splitlines()[-1]
        if completed.returncode
        else ""
    )


def judge(system: str, workers: int, every: int | None) -> dict[str, Any]:
    """Train twice without interruption and once with a kill and a resume, and compare the final weights."""
    with tempfile.TemporaryDirectory() as scratch:
        first, second, killed = (Path(scratch) / name for name in ("first", "second", "killed"))
        errors = [start(system, folder, workers=workers, every=every) for folder in (first, second)]
        errors += [start(system, killed, workers=workers, every=every, kill=KILLED_IN)]
        errors += [start(system, killed, workers=workers, every=every)]
        if any(errors):
            return {"error": next(filter(None, errors))}
        expected, repeated, resumed = (
            torch.load(folder / "weights.pt", weights_only=True) for folder in (first, second, killed)
        )
    return {
        "repeatable": torch.equal(expected, repeated),
        "equal": torch.equal(expected, resumed),
        "difference": float((resumed - expected).norm() / expected.norm()),
    }


def verdict(measured: dict[str, Any]) -> str:
    """Return the result for a table cell."""
    if "error" in measured:
        return f"[red]{measured['error'][:60]}[/]"
    if not measured["repeatable"]:
        return "[yellow]not repeatable[/]"
    return "[green]bitwise equal[/]" if measured["equal"] else f"[red]differs by {measured['difference']:.1%}[/]"


def options() -> argparse.Namespace:
    """Parse the command line of the benchmark or of one of its child processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0 workers and one kind of checkpoint; not saved")
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--every", type=int)
    parser.add_argument("--kill", type=int)
    return parser.parse_args()


def main() -> None:
    """Compare all installed systems, or train one as a child process."""
    arguments = options()
    if arguments.system:
        train(arguments)
        return
    cases = CASES[:1] if arguments.quick else CASES
    systems = [name for name in SYSTEMS if name not in NEEDS or installed(NEEDS[name])]
    found = {
        name: {f"{workers} workers, every {every or 'epoch'}": judge(name, workers, every) for workers, every in cases}
        for name in systems
    }
    heads = [
        f"{workers} workers, checkpoint every {f'{every} updates' if every else 'epoch'}" for workers, every in cases
    ]
    rows = [[name, *map(verdict, measured.values())] for name, measured in found.items()]
    table(
        "Weights after SIGKILL in an epoch and the same command, against the uninterrupted run",
        ["system", *heads],
        rows,
    )
    exact = all(measured.get("equal") for measured in found["trueloop"].values())
    console.print(f"{'[green]PASS[/]' if exact else '[red]MISS[/]'}  trueloop ends bitwise equal in every case")
    settings = {"samples": SAMPLES, "batch": BATCH, "epochs": EPOCHS, "killed_in_step": KILLED_IN}
    write("resume", {"settings": settings, "found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
