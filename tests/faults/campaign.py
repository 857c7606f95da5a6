"""The fault campaign: damage a run in every way a machine can, and check that nothing was lost. `make faults` runs it.

Each case starts a run, causes one fault (a kill, a flipped bit, a full disk ...), and starts the same command again
until it finishes. Then the weights, the journal and the best evaluation must be bitwise those of the uninterrupted run.
Alternatively, the run may stop with one clear error, if it gives these results after the cause is removed.
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
from kinds import Baseline, Verdict
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from runs import CaseFolder, difference, preload, result_of

ROOT = Path(__file__).parents[2]
OUTCOMES = ("equal", "reported", "failed", "not run")


def prepare(scratch: Path) -> Baseline:
    """Run without faults: once as a user does, and in a fork with 0 and with 2 workers; all results must be equal."""
    as_user = CaseFolder(path=scratch / "uninterrupted")
    child = as_user.start_fresh()
    forked = {
        workers: CaseFolder(path=scratch / f"{workers} workers", arguments=("--workers", str(workers)))
        for workers in (0, 2)
    }
    seconds = {}
    for workers, folder in forked.items():
        started_at = time.monotonic()
        if (ended := folder.run()).code:
            sys.exit(f"The uninterrupted run with {workers} workers fails:\n{ended.err}")
        seconds[workers] = time.monotonic() - started_at
    if (ended := child.wait()).code:
        sys.exit(f"The uninterrupted run fails:\n{ended.err}")
    uninterrupted = result_of(as_user.run_dir)
    for workers, folder in forked.items():
        if wrong := difference(uninterrupted, result_of(folder.run_dir)):
            sys.exit(f"The uninterrupted run with {workers} workers: {wrong}")
    return Baseline(
        uninterrupted=uninterrupted, seconds=seconds, stopped=stopped_late(scratch, uninterrupted.rows[-1][0])
    )


def stopped_late(scratch: Path, updates: int) -> Path:
    """Return the folder of a run that was killed after a checkpoint in the last fifth of its updates."""
    folder = CaseFolder(path=scratch / "stopped")
    child = folder.start()
    child.wait_until(lambda: any(int(path.name[7:16]) > 0.8 * updates for path in folder.checkpoints.glob("update-*")))
    child.signal_at(0, 9)
    if not child.wait().killed or len(list(folder.checkpoints.glob("update-*"))) < 3:
        sys.exit("The run could not be killed late.")
    return folder.run_dir


def judge(case: Case, baseline: Baseline, path: Path) -> Verdict:
    """Run one case in its own folder."""
    folder = CaseFolder(path=path, arguments=case.arguments, draws_curves=case.draws_curves)
    try:
        verdict = case.act(folder, baseline)
    except Exception as error:  # noqa: BLE001 - any error in a case is its result
        verdict = Verdict("failed", f"{type(error).__name__}: {error}")
    if verdict.outcome != "failed":
        shutil.rmtree(path, ignore_errors=True)
    return verdict


def run_all(chosen: Sequence[Case], baseline: Baseline, scratch: Path, *, jobs: int, console: Console) -> list[Verdict]:
    """Run all cases in ``jobs`` processes, each of which forks the runs of its cases."""
    verdicts: list[Verdict] = [Verdict("not run")] * len(chosen)
    gc.freeze()  # otherwise reference counts would make the children copy memory pages
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("fork"))
    with pool, Progress(console=console) as progress:
        bar = progress.add_task("faults", total=len(chosen))
        futures = {
            pool.submit(judge, case, baseline, scratch / f"{number:04d}"): number for number, case in enumerate(chosen)
        }
        for future in as_completed(futures):
            number = futures[future]
            verdicts[number] = future.result()
            if verdicts[number].outcome == "failed":
                progress.console.print(f"[red]{number:04d} {chosen[number].fault}:[/] {verdicts[number].detail}")
            progress.advance(bar)
    return verdicts


def tally(chosen: Sequence[Case], verdicts: Sequence[Verdict]) -> dict[str, Counter[str]]:
    """Count the verdicts of each fault."""
    counts_by_fault: dict[str, Counter[str]] = {}
    for case, verdict in zip(chosen, verdicts, strict=True):
        counts_by_fault.setdefault(case.fault, Counter())[verdict.outcome] += 1
    return counts_by_fault


def show(counts_by_fault: dict[str, Counter[str]], console: Console) -> None:
    """Print the table."""
    table = Table(title="Faults", title_justify="left", title_style="bold")
    table.add_column("fault")
    for heading in ("cases", "bitwise equal", "clear error, then equal", "failures", "not run here"):
        table.add_column(heading, justify="right")
    total: Counter[str] = Counter()
    for fault, counts in counts_by_fault.items():
        total += counts
        table.add_row(fault, *cells(counts))
    table.add_section()
    table.add_row("all", *cells(total), style="bold")
    console.print(table)


def cells(counts: Counter[str]) -> list[str]:
    return [str(counts.total()), *(str(counts[outcome] or "") for outcome in OUTCOMES)]


def description(case: Case) -> str:
    options = getattr(case.act, "keywords", {})
    return ", ".join(f"{name}={getattr(value, 'keywords', value)}" for name, value in options.items())


def record(chosen: Sequence[Case], verdicts: Sequence[Verdict], **settings: Any) -> dict[str, Any]:
    """Return the content of the result file: the counts of each fault, and every failure with its detail."""
    sys.path.append(str(ROOT / "benchmarks"))
    from measure import machine

    return {
        "benchmark": "faults",
        "machine": machine(),
        "settings": settings,
        "found": {
            fault: {outcome: counts[outcome] for outcome in OUTCOMES}
            for fault, counts in tally(chosen, verdicts).items()
        },
        "failures": [
            {"fault": case.fault, "case": description(case), "detail": verdict.detail}
            for case, verdict in zip(chosen, verdicts, strict=True)
            if verdict.outcome == "failed"
        ],
    }


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", action="store_true", help="a few of each fault, in about a minute")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random instants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="where to write the JSON; else benchmarks/results, if all were run")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the failures")
    return parser.parse_args()


def main() -> int:
    arguments, console = options(), Console(width=max(120, Console().width), highlight=False)
    preload()
    started_at = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="trueloop-faults-"))
    try:
        baseline = prepare(scratch)
        files = sorted(path.name for path in max((baseline.stopped / "checkpoints").glob("update-*")).iterdir())
        everything = cases(files, seed=arguments.seed, sample=arguments.sample)
        chosen = [case for case in everything if arguments.only in case.fault]
        verdicts = run_all(chosen, baseline, scratch, jobs=arguments.jobs, console=console)
    finally:
        if arguments.keep:
            console.print(f"kept in {scratch}")
        else:
            shutil.rmtree(scratch, ignore_errors=True)
    show(tally(chosen, verdicts), console)
    minutes = round((time.monotonic() - started_at) / 60, 1)
    console.print(f"{len(chosen)} cases in {minutes} minutes")
    out = arguments.out or (
        None if arguments.sample or arguments.only else ROOT / "benchmarks" / "results" / "faults.json"
    )
    if out:
        found = record(chosen, verdicts, seed=arguments.seed, jobs=arguments.jobs, minutes=minutes)
        out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if any(verdict.outcome == "failed" for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
