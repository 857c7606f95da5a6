"""SIGKILL in the middle of an epoch, then the same command: does the run end with the weights it would have had?

A small network with BatchNorm and dropout, a shuffling loader and a random augmentation. Every run is a process of its
own and the second start is the very command of the first. Each system does what its own documentation tells its users
to do, checkpoints every few updates or after each epoch, with 0 and 2 loader workers. First, two uninterrupted runs
must agree with each other; where they do not, there is nothing to compare with.
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


def train(given: argparse.Namespace) -> None:
    """Train one system in this process and write down the weights it ends with."""
    torch.use_deterministic_algorithms(True)
    job = Job(folder=given.folder, workers=given.workers, every_updates=given.every, killed_in=given.kill)
    torch.save(weights(SYSTEMS[given.system](job)), given.folder / "weights.pt")


def start(system: str, folder: Path, *, workers: int, every: int | None, kill: int | None = None) -> str:
    """Start a process that trains; return its last words where it failed, and nothing where it was killed."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--system", system, "--folder", str(folder), "--workers", str(workers)]
    words += ["--every", str(every)] if every else []
    words += ["--kill", str(kill)] if kill else []
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=False)
    if kill and done.returncode == -9:
        return ""
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1] if done.returncode else ""


def judge(system: str, workers: int, every: int | None) -> dict[str, Any]:
    """Run twice uninterrupted and once killed; compare bit for bit, and as a share of what was learned."""
    with tempfile.TemporaryDirectory() as scratch:
        first, second, killed = (Path(scratch) / name for name in ("first", "second", "killed"))
        said = [start(system, folder, workers=workers, every=every) for folder in (first, second)]
        said += [start(system, killed, workers=workers, every=every, kill=KILLED_IN)]
        said += [start(system, killed, workers=workers, every=every)]
        if any(said):
            return {"error": next(filter(None, said))}
        expected, again, found = (
            torch.load(folder / "weights.pt", weights_only=True) for folder in (first, second, killed)
        )
    return {
        "repeatable": torch.equal(expected, again),
        "equal": torch.equal(expected, found),
        "difference": float((found - expected).norm() / expected.norm()),
    }


def verdict(seen: dict[str, Any]) -> str:
    """Say it in a cell."""
    if "error" in seen:
        return f"[red]{seen['error'][:60]}[/]"
    if not seen["repeatable"]:
        return "[yellow]not repeatable[/]"
    return "[green]bitwise equal[/]" if seen["equal"] else f"[red]differs by {seen['difference']:.1%}[/]"


def options() -> argparse.Namespace:
    """Read the command line, of the benchmark or of one of its children."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="0 workers and one kind of checkpoint; nothing kept")
    parser.add_argument("--system", choices=SYSTEMS)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--every", type=int)
    parser.add_argument("--kill", type=int)
    return parser.parse_args()


def main() -> None:
    """Compare all systems that are installed, or train one as a child."""
    given = options()
    if given.system:
        train(given)
        return
    cases = CASES[:1] if given.quick else CASES
    systems = [name for name in SYSTEMS if name not in NEEDS or installed(NEEDS[name])]
    found = {
        name: {f"{workers} workers, every {every or 'epoch'}": judge(name, workers, every) for workers, every in cases}
        for name in systems
    }
    heads = [
        f"{workers} workers, checkpoint every {f'{every} updates' if every else 'epoch'}" for workers, every in cases
    ]
    rows = [[name, *map(verdict, seen.values())] for name, seen in found.items()]
    table(
        "Weights after SIGKILL in an epoch and the same command, against the uninterrupted run",
        ["system", *heads],
        rows,
    )
    exact = all(seen.get("equal") for seen in found["trueloop"].values())
    console.print(f"{'[green]PASS[/]' if exact else '[red]MISS[/]'}  trueloop ends bitwise equal in every case")
    settings = {"samples": SAMPLES, "batch": BATCH, "epochs": EPOCHS, "killed_in_step": KILLED_IN}
    write("resume", {"settings": settings, "found": found}, quick=given.quick)


if __name__ == "__main__":
    main()
