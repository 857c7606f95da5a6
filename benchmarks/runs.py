"""Measure queries over many runs: `trueloop runs list` and `best` over 10,000 runs, each as a complete process.

The runs are journals of two epochs of 20 updates each, written with trueloop's `Journal`. Every query is a separate
process, as for a user; the time of a query over an empty folder (Python and imports) is measured too. The first query
has no index and reads every journal.
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
QUERIES = {
    "list": ["list"],
    "list --limit 0": ["list", "--limit", "0"],
    "list --json": ["list", "--json"],
    "list, filtered and sorted by a metric": ["list", "--filter", "val/loss<0.3", "--sort", "val/loss"],
    "list, filtered by a setting": ["list", "--filter", "config.optim.lr>0.05"],
    "best": ["best", "--metric", "val/loss"],
}


def write_journals(root: Path, runs: int) -> None:
    """Write the journals of ``runs`` runs."""
    generator = random.Random(0)
    for k in range(runs):
        name = f"digits-2026{1 + k // 2500:02}{1 + k % 28:02}-{k:06}"
        journal = Journal(root / name / "journal.jsonl", now=lambda k=k: 1_770_000_000.0 + k)
        for event in events(generator, k):
            journal.report(event)
        journal.close()


def events(generator: random.Random, k: int) -> Sequence[Any]:
    """Return the events of one run."""
    facts = {
        "recipe": "digits",
        "run_id": f"{generator.getrandbits(128):032x}",
        "config": {
            "epochs": EPOCHS, "effective_batch": 64,
            "optim": {"name": "adamw", "lr": generator.choice([0.001, 0.01, 0.1])},
            "monitor": {"metric": "val/loss", "mode": "min"}, "checkpoint": {"final": "best"},
        },
        "options": {"width": generator.choice([16, 32, 64])}, "sizes": {"train": 1257},
    }  # fmt: skip
    events: list[Any] = [
        RunStarted(name="digits", epochs=EPOCHS, updates=EPOCHS * PER_EPOCH, start_update=0, facts=facts)
    ]
    for epoch in range(1, EPOCHS + 1):
        first, last = (epoch - 1) * PER_EPOCH + 1, epoch * PER_EPOCH
        rows = [
            UpdateRow(u, epoch, generator.random(), 1.0, 0.001, 64, 0.0001, 0.01, False) for u in range(first, last + 1)
        ]
        metrics = {"loss": 0.2 + generator.random(), "accuracy": generator.random()}
        path = f"runs/x/checkpoints/update-{last:09}"
        events += [
            UpdatesDone(rows=rows),
            Evaluated(update=last, epoch=epoch, split="val", metrics=metrics, tables={}, seconds=0.1, best=True),
            CheckpointSaved(update=last, epoch=epoch, path=path, metrics={}, seconds=0.01),
        ]
    return [*events, RunEnded(update=last, reason="finished" if k % 10 else "failed", seconds=1.0)]


def time_query(arguments: Sequence[str], root: Path) -> float:
    """Run a query in a separate process and return its seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    completed = subprocess.run(
        [*TRUELOOP, *arguments, "--root", str(root)], capture_output=True, check=False, env=environment
    )
    seconds = time.perf_counter() - start
    assert completed.stdout or completed.returncode == 1, completed.stderr
    return seconds


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="rough numbers of fewer runs, not saved")
    arguments = parser.parse_args()
    runs, rounds = (500, 2) if arguments.quick else (RUNS, 9)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as empty:
        root = Path(folder)
        write_journals(root, runs)
        time_query(["list"], Path(empty))
        first = time_query(["list"], root)
        empty_folder_s: list[float] = []
        seconds: dict[str, list[float]] = {name: [] for name in QUERIES}
        index_s: list[float] = []
        for _ in range(rounds):
            empty_folder_s.append(time_query(["list"], Path(empty)))
            for name, query in QUERIES.items():
                seconds[name].append(time_query(query, root))
            start = time.perf_counter()
            assert len(load_overviews(root)) == runs
            index_s.append(time.perf_counter() - start)
        mib = (root / INDEX_NAME).stat().st_size / 2**20
    spreads = {name: Spread.of(durations) for name, durations in seconds.items()}
    rows = [[name, str(each), f"<= {GOAL_S}"] for name, each in spreads.items()]
    rows += [
        ["over an empty folder", str(Spread.of(empty_folder_s)), ""],
        ["loading from the index, without process start", str(Spread.of(index_s)), ""],
    ]
    rows.append(["first query: every journal is read", f"{first:.1f}", ""])
    table(f"{runs:,} runs, seconds of a whole process", ["", "measured", "goal"], rows)
    for name, each in spreads.items():
        console.print(f"{verdict(each.median, GOAL_S)}  {name}")
    found: dict[str, Any] = {
        "runs": runs, "updates_each": PER_EPOCH * EPOCHS, "seconds": spreads,
        "seconds_over_an_empty_folder": Spread.of(empty_folder_s),
        "seconds_of_the_index_inside": Spread.of(index_s), "seconds_first_time": first, "index_mib": mib,
    }  # fmt: skip
    write("runs", {"found": found}, quick=arguments.quick)


if __name__ == "__main__":
    main()
