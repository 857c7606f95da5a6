"""The fault campaign: hurt a run in every way a machine can, and see that nothing was lost. `make faults` runs it.

Each case starts a run, does one thing to it (a kill, a flipped bit, a full disk ...), and starts the same command
again until it finishes. Then the trained weights, the journal of every update and the best evaluation must be bitwise
those of the uninterrupted run; or there was one clear error, and they are once its cause is gone.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from cases import Case, cases
from kinds import Known, Verdict
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from runs import Place, difference, preload, result_of

ROOT = Path(__file__).parents[2]
HOWS = ("equal", "reported", "failed", "not run")


def prepare(scratch: Path) -> Known:
    """Run uninterrupted: once as a user does, and once for each number of workers in a fork; all must agree."""
    as_user = Place(path=scratch / "uninterrupted")
    child = as_user.start_fresh()
    forked = {
        workers: Place(path=scratch / f"{workers} workers", words=("--workers", str(workers))) for workers in (0, 2)
    }
    seconds = {}
    for workers, place in forked.items():
        began = time.monotonic()
        if (ended := place.run()).code:
            sys.exit(f"The uninterrupted run with {workers} workers fails:\n{ended.err}")
        seconds[workers] = time.monotonic() - began
    if (ended := child.wait()).code:
        sys.exit(f"The uninterrupted run fails:\n{ended.err}")
    uninterrupted = result_of(as_user.run_dir)
    for workers, place in forked.items():
        if wrong := difference(uninterrupted, result_of(place.run_dir)):
            sys.exit(f"The uninterrupted run with {workers} workers: {wrong}")
    return Known(uninterrupted=uninterrupted, seconds=seconds, stopped=stopped_late(scratch, uninterrupted.rows[-1][0]))


def stopped_late(scratch: Path, updates: int) -> Path:
    """Return the folder of a run that was killed when four fifths of its updates were saved."""
    place = Place(path=scratch / "stopped")
    child = place.start()
    child.wait_until(lambda: any(int(path.name[7:16]) > 0.8 * updates for path in place.checkpoints.glob("update-*")))
    child.signal_at(0, 9)
    if not child.wait().killed or len(list(place.checkpoints.glob("update-*"))) < 3:
        sys.exit("The run could not be killed late.")
    return place.run_dir


def judge(case: Case, known: Known, path: Path) -> Verdict:
    """Run one case in its own folder, in one lane."""
    place = Place(path=path, words=case.words, pictures=case.pictures)
    try:
        verdict = case.act(place, known)
    except Exception as error:  # noqa: BLE001 - whatever a case trips over is its finding
        verdict = Verdict("failed", f"{type(error).__name__}: {error}")
    if verdict.how != "failed":
        shutil.rmtree(path, ignore_errors=True)
    return verdict


def run_all(chosen: Sequence[Case], known: Known, scratch: Path, *, jobs: int, console: Console) -> list[Verdict]:
    """Run all cases on as many lanes as there are cores; each lane forks its own children."""
    verdicts: list[Verdict] = [Verdict("not run")] * len(chosen)
    gc.freeze()  # the children shall not copy pages only to count references
    lanes = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))
    with lanes, Progress(console=console) as progress:
        bar = progress.add_task("faults", total=len(chosen))
        waiting = {
            lanes.submit(judge, case, known, scratch / f"{number:04d}"): number for number, case in enumerate(chosen)
        }
        for done in as_completed(waiting):
            number = waiting[done]
            verdicts[number] = done.result()
            if verdicts[number].how == "failed":
                progress.console.print(f"[red]{number:04d} {chosen[number].fault}:[/] {verdicts[number].detail}")
            progress.advance(bar)
    return verdicts


def tally(chosen: Sequence[Case], verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    """Count the verdicts of each fault."""
    found: dict[str, Counter[str]] = {}
    for case, verdict in zip(chosen, verdicts, strict=True):
        found.setdefault(case.fault, Counter())[verdict.how] += 1
    return found


def show(found: dict[str, Counter[str]], console: Console) -> None:
    """Print the table."""
    table = Table(title="Faults", title_justify="left", title_style="bold")
    table.add_column("fault")
    for head in ("cases", "bitwise equal", "clear error, then equal", "failures", "not run here"):
        table.add_column(head, justify="right")
    total: Counter[str] = Counter()
    for fault, counts in found.items():
        total += counts
        table.add_row(fault, *cells(counts))
    table.add_section()
    table.add_row("all", *cells(total), style="bold")
    console.print(table)


def cells(counts: Counter[str]) -> list[str]:
    return [str(counts.total()), *(str(counts[how] or "") for how in HOWS)]


def description(case: Case) -> str:
    options = getattr(case.act, "keywords", {})
    return ", ".join(f"{name}={getattr(value, 'keywords', value)}" for name, value in options.items())


def record(chosen: Sequence[Case], verdicts: Sequence[Verdict], **settings: Any) -> dict[str, Any]:
    """What is written down: the counts of each fault, and every failure in words."""
    sys.path.append(str(ROOT / "benchmarks"))
    from measure import machine

    return {
        "benchmark": "faults",
        "machine": machine(),
        "settings": settings,
        "found": {fault: {how: counts[how] for how in HOWS} for fault, counts in tally(chosen, verdicts).items()},
        "failures": [
            {"fault": case.fault, "case": description(case), "detail": verdict.detail}
            for case, verdict in zip(chosen, verdicts, strict=True)
            if verdict.how == "failed"
        ],
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", action="store_true", help="a few of each fault, in about a minute")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; else benchmarks/results, if all were run")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the failures")
    return parser.parse_args()


def main() -> int:
    given, console = options(), Console(width=max(120, Console().width), highlight=False)
    preload()
    began = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="trueloop-faults-"))
    try:
        known = prepare(scratch)
        files = sorted(path.name for path in max((known.stopped / "checkpoints").glob("update-*")).iterdir())
        everything = cases(files, seed=given.seed, sample=given.sample)
        chosen = [case for case in everything if given.only in case.fault]
        verdicts = run_all(chosen, known, scratch, jobs=given.jobs, console=console)
    finally:
        if given.keep:
            console.print(f"kept in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    show(tally(chosen, verdicts), console)
    minutes = round((time.monotonic() - began) / 60, 1)
    console.print(f"{len(chosen)} cases in {minutes} minutes")
    out = given.out or (None if given.sample or given.only else ROOT / "benchmarks" / "results" / "faults.json")
    if out:
        found = record(chosen, verdicts, seed=given.seed, jobs=given.jobs, minutes=minutes)
        out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(verdict.how == "failed" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
