"""Measure the cost of a run's journal: time on the training thread, bytes per update, and the time to read it.

As in the training loop, all updates of a tenth of a second are reported together and share a line. The number of
updates per line therefore depends on the duration of an update, and three durations are measured. Losses and norms have
all digits of a float64, and the learning rate changes at every update.
"""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import Spread, console, options, table, verdict, write

from trueloop.core.protocols import RunStarted, UpdateRow, UpdatesDone
from trueloop.runs.journal import Journal

PACES = {"1 ms": 100, "10 ms": 10, "100 ms": 1}
"""Duration of an update -> number of updates that are reported together."""
UPDATES = 1_000_000
REPORT_US, SIZE_MB, READ_S = 20.0, 100.0, 5.0
READ = (
    "import json, resource, sys, time; from pathlib import Path\n"
    "from trueloop.runs.journal import read_journal\n"
    "start = time.perf_counter(); history = read_journal(Path(sys.argv[1])); seconds = time.perf_counter() - start\n"
    "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
    "print(json.dumps([len(history.updates), seconds, peak]))"
)


def synthetic_updates(together: int, updates: int) -> Iterator[UpdatesDone]:
    """Yield the updates of a synthetic run whose values resemble those of a real run."""
    generator = random.Random(0)
    rows: list[UpdateRow] = []
    for update in range(1, updates + 1):
        loss, norm = 2.3 * math.exp(-update / 2e5) + 0.1 * generator.random(), generator.lognormvariate(0, 0.4)
        rate = 1e-3 * (0.5 + 0.5 * math.cos(math.pi * update / updates))
        wait, total = 1e-5 * generator.random(), 0.1 / together * (1 + 0.1 * generator.random())
        rows.append(UpdateRow(update, update // 1000 + 1, loss, norm, rate, 64, wait, total, False))
        if len(rows) == together:
            yield UpdatesDone(rows=rows)
            rows = []


def write_journal(path: Path, together: int, updates: int) -> float:
    """Write a journal and return the microseconds per update that this takes."""
    journal = Journal(path)
    journal.report(RunStarted(name="benchmark", epochs=1, updates=updates, start_update=0, facts={}))
    spent = 0.0
    for event in synthetic_updates(together, updates):
        start = time.perf_counter()
        journal.report(event)
        spent += time.perf_counter() - start
    journal.close()
    return 1e6 * spent / updates


def read_back(path: Path, updates: int) -> tuple[float, float]:
    """Read a journal in a separate process; return the seconds and the peak memory in MiB."""
    completed = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    count, seconds, peak = json.loads(completed.stdout)
    assert count == updates
    return seconds, peak


def main() -> None:
    """Measure, print and save."""
    quick = options(__doc__).quick
    updates, rounds = (UPDATES // 20, 2) if quick else (UPDATES, 3)
    scale = UPDATES // updates
    found: dict[str, Any] = {}
    rows: list[list[str]] = []
    for pace, together in PACES.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "journal.jsonl"
            micros: list[float] = []
            for _ in range(rounds):
                path.unlink(missing_ok=True)
                micros.append(write_journal(path, together, updates))
            size = scale * path.stat().st_size / 1e6
            reads = [read_back(path, updates) for _ in range(rounds)]
        cost, seconds = Spread.of(micros), Spread.of([scale * each for each, _ in reads])
        peak = max(each for _, each in reads)
        found[pace] = {"report_us": cost, "megabytes": size, "read_s": seconds, "peak_mib": peak}
        rows.append([pace, str(together), f"{cost.median:.1f}", f"{size:.0f}", f"{seconds.median:.1f}", f"{peak:.0f}"])
    head = ["an update takes", "on a line", "µs per update", "MB per 10^6", "s to read 10^6", "MiB to read"]
    table("the journal of 10^6 updates", head, rows)
    for pace, measured in found.items():
        goals = (
            ("report_us", measured["report_us"].median, REPORT_US),
            ("megabytes", measured["megabytes"], SIZE_MB),
            ("read_s", measured["read_s"].median, READ_S),
        )
        for name, value, goal in goals:
            console.print(f"{verdict(value, goal)}  {pace} an update: {name} {value:.1f}, goal {goal:g}")
    write("journal", {"updates": updates, "found": found}, quick=quick)


if __name__ == "__main__":
    main()
