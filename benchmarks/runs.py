"""What a question over many runs costs: `trueloop runs list` and `best` over 10,000 runs, as whole processes.

The runs are journals of two epochs of 20 updates each, made with the journal itself. Every question is asked in a
process of its own, as a user does; the time that process needs over an empty folder, which is Python and the imports,
is measured too. "First time" is without the index, when every journal is read.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measure import Spread, console, table, verdict, write

from trueloop.core.protocols import CheckpointSaved, Evaluated, RunEnded, RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal
from trueloop.runs.queries.index import INDEX_NAME, load_overviews

RUNS, GOAL_S = 10_000, 0.5
PER_EPOCH, EPOCHS = 20, 2
TRUELOOP = [sys.executable, "-m", "trueloop", "runs"]
QUESTIONS = {
    "list": ["list"],
    "list --limit 0": ["list", "--limit", "0"],
    "list --json": ["list", "--json"],
    "list, filtered and sorted by a metric": ["list", "--filter", "val/loss<0.3", "--sort", "val/loss"],
    "list, filtered by a setting": ["list", "--filter", "config.optim.lr>0.05"],
    "best": ["best", "--metric", "val/loss"],
}


def make(root: Path, runs: int) -> None:
    """Write so many journals."""
    draw = random.Random(0)
    for k in range(runs):
        name = f"digits-2026{1 + k // 2500:02}{1 + k % 28:02}-{k:06}"
        journal = Journal(root / name / "journal.jsonl", now=lambda k=k: 1_770_000_000.0 + k)
        for event in events(draw, k):
            journal.report(event)
        journal.close()


def events(draw: random.Random, k: int) -> Sequence[Any]:
    """Return one run's events."""
    facts = {
        "recipe": "digits",
        "run_id": f"{draw.getrandbits(128):032x}",
        "config": {
            "epochs": EPOCHS, "effective_batch": 64, "optim": {"name": "adamw", "lr": draw.choice([0.001, 0.01, 0.1])},
            "monitor": {"metric": "val/loss", "mode": "min"}, "checkpoint": {"final": "best"},
        },
        "options": {"width": draw.choice([16, 32, 64])}, "sizes": {"train": 1257},
    }  # fmt: skip
    events: list[Any] = [
        RunStarted(name="digits", epochs=EPOCHS, updates=EPOCHS * PER_EPOCH, start_update=0, facts=facts)
    ]
    for epoch in range(1, EPOCHS + 1):
        first, last = (epoch - 1) * PER_EPOCH + 1, epoch * PER_EPOCH
        rows = [UpdateRow(u, epoch, draw.random(), 1.0, 0.001, 64, 0.0001, 0.01, False) for u in range(first, last + 1)]
        metrics = {"loss": 0.2 + draw.random(), "accuracy": draw.random()}
        path = f"runs/x/checkpoints/update-{last:09}"
        events += [
            UpdatesDone(rows=rows),
            Evaluated(update=last, epoch=epoch, split="val", metrics=metrics, tables={}, seconds=0.1, best=True),
            CheckpointSaved(update=last, epoch=epoch, path=path, metrics={}, seconds=0.01),
        ]
    return [*events, RunEnded(update=last, reason="finished" if k % 10 else "failed", seconds=1.0)]


def ask(words: Sequence[str], root: Path) -> float:
    """Ask in a process of its own; return its seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run([*TRUELOOP, *words, "--root", str(root)], capture_output=True, check=False, env=environment)
    seconds = time.perf_counter() - start
    assert done.stdout or done.returncode == 1, done.stderr
    return seconds


def main() -> None:
    """Measure, print, and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough numbers of fewer runs, nothing kept")
    asked = parser.parse_args()
    runs, rounds = (500, 2) if asked.quick else (RUNS, 9)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        root = Path(folder)
        make(root, runs)
        ask(["list"], Path(empty))
        first = ask(["list"], root)
        bare: list[float] = []
        seconds: dict[str, list[float]] = {name: [] for name in QUESTIONS}
        inside: list[float] = []
        for _ in range(rounds):
            bare.append(ask(["list"], Path(empty)))
            for name, words in QUESTIONS.items():
                seconds[name].append(ask(words, root))
            start = time.perf_counter()
            assert len(load_overviews(root)) == runs
            inside.append(time.perf_counter() - start)
        mib = (root / INDEX_NAME).stat().st_size / 2**20
    spreads = {name: Spread.of(taken) for name, taken in seconds.items()}
    rows = [[name, str(each), f"<= {GOAL_S}"] for name, each in spreads.items()]
    rows += [
        ["over an empty folder", str(Spread.of(bare)), ""],
        ["the index alone, inside", str(Spread.of(inside)), ""],
    ]
    rows.append(["first time: every journal is read", f"{first:.1f}", ""])
    table(f"{runs:,} runs, seconds of a whole process", ["", "measured", "goal"], rows)
    for name, each in spreads.items():
        console.print(f"{verdict(each.median, GOAL_S)}  {name}")
    found: dict[str, Any] = {
        "runs": runs, "updates_each": PER_EPOCH * EPOCHS, "seconds": spreads,
        "seconds_over_an_empty_folder": Spread.of(bare),
        "seconds_of_the_index_inside": Spread.of(inside), "seconds_first_time": first, "index_mib": mib,
    }  # fmt: skip
    write("runs", {"found": found}, quick=asked.quick)


if __name__ == "__main__":
    main()
