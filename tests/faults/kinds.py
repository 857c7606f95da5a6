"""The faults: how each one damages a run, and what must be true of the run afterwards.

Each function causes one fault in a run in a `CaseFolder`, lets the same command finish, and returns the verdict.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from runs import CaseFolder, Ended, Result, difference, result_of, weights_of

TRUNCATIONS = 64
MARKER = "unpickled"  # name of the file that a hostile pickle creates


class Verdict(NamedTuple):
    """Result of one case."""

    outcome: Literal["equal", "reported", "failed", "not run"]
    """equal: the same result, bitwise. reported: one clear error, and the same result after its cause was removed."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """Results of the runs without faults, with which the cases are compared."""

    uninterrupted: Result
    seconds: Mapping[int, float]
    """Duration of the uninterrupted run by number of loader workers."""
    stopped: Path
    """Folder of a run that was killed late, with the best checkpoint and the two newest ones."""


Act = Callable[[CaseFolder, Baseline], Verdict]


# Kills and signals -----------------------------------------------------------------------------------------------


def killed(
    case: CaseFolder, baseline: Baseline, *, instants: Sequence[float], workers: int = 0, slow_s: float = 0.0
) -> Verdict:
    """Send SIGKILL at each instant, a share of the duration of the run, then run the same command until it finishes."""
    faults = {"FAULT_SLOW_S": str(slow_s)} if slow_s else {}
    span = baseline.seconds[workers] * (2.5 if slow_s else 1.0)
    for instant in instants:
        for attempt in range(6):  # an unusually fast run may end before its kill
            child = case.start(faults=faults)
            child.signal_at(span * instant * 0.7**attempt, signal.SIGKILL)
            ended = child.wait()
            if ended.killed or ended.code:
                break
            shutil.rmtree(case.run_dir)
        if not ended.killed:
            return Verdict("failed", f"never killed: {ended.failure_problem() or ended.code}")
    return finished(case, baseline, faults=faults)


def killed_at_disk_access(case: CaseFolder, baseline: Baseline, *, access: int) -> Verdict:
    """Send SIGKILL before the k-th disk access below the run folder, in the last fifth of a run."""
    shutil.copytree(baseline.stopped, case.run_dir)
    ended = case.run(faults={"FAULT_DIE_AT": str(access), "FAULT_BELOW": str(case.run_dir)})
    if ended.killed:
        return finished(case, baseline)
    return (
        Verdict("failed", ended.failure_problem())
        if ended.code
        else Verdict("not run", "the run accesses the disk less often")
    )


def signalled(
    case: CaseFolder, baseline: Baseline, *, number: int, instant: float, workers: int, group: bool
) -> Verdict:
    """Send SIGINT or SIGTERM to the process, or also to its workers (``group``), then run the same command."""
    child = case.start()
    child.signal_at(baseline.seconds[workers] * instant, number, group=group)
    ended = child.wait()
    if "Traceback" in ended.err:
        return Verdict("failed", ended.failure_problem())
    if ended.code == 0 and difference(baseline.uninterrupted, result_of(case.run_dir)):
        return Verdict("failed", "exit code 0 with another result")
    return finished(case, baseline)


# Damage ----------------------------------------------------------------------------------------------------------


def newest(case: CaseFolder) -> Path:
    return sorted(case.checkpoints.glob("update-*"))[-1]


def best(case: CaseFolder, baseline: Baseline) -> Path:
    return max(case.checkpoints.glob(f"update-{baseline.uninterrupted.best[0]:09d}*"))


def truncate(path: Path, sixty_fourths: int) -> None:
    os.truncate(path, path.stat().st_size * sixty_fourths // TRUNCATIONS)


def flip(path: Path, seed: int) -> None:
    generator, content = random.Random(seed), bytearray(path.read_bytes())
    content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    path.write_bytes(content)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


Harm = Callable[[Path], None]


def newest_damaged(case: CaseFolder, baseline: Baseline, *, file: str, harm: Harm) -> Verdict:
    """Damage a file of the newest checkpoint: the run must report it and resume from the previous checkpoint."""
    shutil.copytree(baseline.stopped, case.run_dir)
    victim = newest(case)
    harm(victim / file)
    verdict = finished(case, baseline)
    if verdict.outcome == "equal" and not is_reported(case, victim.name):
        return Verdict("failed", f"{victim.name}/{file} was not reported")
    return verdict


def best_damaged(case: CaseFolder, baseline: Baseline, *, file: str, harm: Harm) -> Verdict:
    """Damage the best checkpoint, whose weights become the final weights.

    The run may use the next best checkpoint if it reports the damage, and must use the best one when it is restored.
    """
    shutil.copytree(baseline.stopped, case.run_dir)
    victim = best(case, baseline)
    harm(victim / file)
    ended = case.run()
    cure = partial(restore, baseline.stopped, victim)
    if ended.code or weights_of(case.run_dir) == baseline.uninterrupted.weights:
        return judged(case, baseline, ended, cure)
    if not is_reported(
        case, victim.name[: len("update-000000000")]
    ):  # the name may have a suffix, if the update was saved twice
        return Verdict("failed", f"other final weights, without a report about {victim.name}")
    cure()
    after = finished(case, baseline)
    return Verdict("reported") if after.outcome == "equal" else after


def all_damaged(case: CaseFolder, baseline: Baseline, *, harm: Harm) -> Verdict:
    """Damage every checkpoint: the run must start over or report the damage, and never use one of them."""
    shutil.copytree(baseline.stopped, case.run_dir)
    for victim in case.checkpoints.glob("update-*"):
        harm(victim / "model.safetensors")
    return reported_or_finished(case, baseline, partial(restore, baseline.stopped / "checkpoints", case.checkpoints))


def journal_damaged(case: CaseFolder, baseline: Baseline, *, harm: Harm) -> Verdict:
    """Tear, change or remove the journal: training does not depend on it, so the weights must be the same."""
    shutil.copytree(baseline.stopped, case.run_dir)
    harm(case.run_dir / "journal.jsonl")
    ended = case.run()
    if weights_of(case.run_dir) != baseline.uninterrupted.weights:
        return Verdict("failed", "other final weights")
    if ended.code == 0:
        return Verdict("equal")
    return Verdict("failed", ended.failure_problem()) if ended.failure_problem() else Verdict("reported")


def restore(source: Path, target: Path) -> None:
    """Restore a folder from its original."""
    original = source if source.name == target.name else source / "checkpoints" / target.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(original, target)


def is_reported(case: CaseFolder, name: str) -> bool:
    records = map(json.loads, (case.run_dir / "journal.jsonl").read_text().splitlines())
    return any(record["event"] == "notice" and name in record["message"] for record in records)


class Hostile:
    """Creates a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def pickle_planted(case: CaseFolder, baseline: Baseline, *, file: str) -> Verdict:
    """Add a hostile pickle to the newest checkpoint, or replace one of its files by it."""
    shutil.copytree(baseline.stopped, case.run_dir)
    marker = case.path / MARKER
    planted = (case.run_dir / file[1:]) if file.startswith("/") else newest(case) / file
    planted.write_bytes(pickle.dumps(Hostile(marker)))
    verdict = finished(case, baseline)
    return Verdict("failed", "the pickle was executed") if marker.exists() else verdict


# Disk and folder -------------------------------------------------------------------------------------------------


def disk_full(case: CaseFolder, baseline: Baseline, *, kib: int) -> Verdict:
    """Run on a disk of this size; after the error, enlarge the disk."""
    disk = case.path / "disk"
    disk.mkdir()
    if not mounted("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)):
        return Verdict("not run", "mounting is not permitted here")
    case.run_dir = disk / "run"
    try:
        return reported_or_finished(
            case, baseline, lambda: mounted("-o", "remount,size=64m", str(disk)) or 1 / 0, nothing_partial=True
        )
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def file_limit(case: CaseFolder, baseline: Baseline, *, limit: int) -> Verdict:
    """Limit the size of files, as by a quota; then lift the limit."""
    ended = case.start(file_bytes=limit).wait()
    return judged(case, baseline, ended, lambda: None, nothing_partial=True)


def read_only(case: CaseFolder, baseline: Baseline, *, below: str, stopped: bool) -> Verdict:
    """Make the run folder, or a folder in it, read-only; then make it writable again."""
    if stopped:
        shutil.copytree(baseline.stopped, case.run_dir)
    folder = case.run_dir / below
    folder.mkdir(parents=True, exist_ok=True)
    as_root = os.geteuid() == 0  # root ignores permissions
    if as_root and not mounted("--bind", str(folder), str(folder)):
        return Verdict("not run", "mounting is not permitted here")
    if as_root:
        assert mounted("-o", "remount,bind,ro", str(folder))
    else:
        folder.chmod(0o555)

    def writable() -> None:
        subprocess.run(["umount", "--lazy", str(folder)], check=True) if as_root else folder.chmod(0o755)

    return reported_or_finished(case, baseline, writable)


def in_the_way(case: CaseFolder, baseline: Baseline, *, name: str, kind: Literal["file", "folder"]) -> Verdict:
    """Put a file at the path of a folder of the run, or a folder at the path of a file; then remove it."""
    obstacle = case.run_dir / name if name else case.run_dir
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.mkdir() if kind == "folder" else obstacle.write_text("in the way")
    return reported_or_finished(case, baseline, partial(remove, obstacle))


def mounted(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


# Two processes, and the clock ------------------------------------------------------------------------------------


def two_processes(case: CaseFolder, baseline: Baseline, *, argument: str) -> Verdict:
    """Start the same command while it runs: the second process must report this and change nothing."""
    first = case.start()
    if not first.wait_until(lambda: any(case.checkpoints.glob("update-*"))):
        return Verdict("failed", f"the first process saved no checkpoint: {first.wait().failure_problem()}")
    first.signal_at(0, signal.SIGSTOP)  # so that it does not end before the second one starts
    second = case.start(*([argument] if argument else [])).wait()
    first.signal_at(0, signal.SIGCONT)
    ended = first.wait()
    if ended.code:
        return Verdict("failed", f"the first process was disturbed: {ended.failure_problem()}")
    if wrong := difference(baseline.uninterrupted, result_of(case.run_dir)):
        return Verdict("failed", f"the first process was disturbed: {wrong}")
    if second.failure_problem():
        return Verdict("failed", f"the second process: {second.failure_problem()}")
    return Verdict("reported")


def clock_jumps(case: CaseFolder, baseline: Baseline, *, seed: int, kill: bool) -> Verdict:
    """Let the wall clock jump by hours in both directions; with ``kill``, also kill and resume the run."""
    if kill:
        child = case.start_fresh(faults={"FAULT_CLOCK": str(seed + 1)})
        child.wait_until(lambda: len(list(case.checkpoints.glob("update-*"))) > 2)
        child.signal_at(0, signal.SIGKILL)
        child.wait()
    ended = case.start_fresh(faults={"FAULT_CLOCK": str(seed)}).wait()
    if ended.code:
        return Verdict("failed", ended.failure_problem())
    records = map(json.loads, (case.run_dir / "journal.jsonl").read_text().splitlines())
    lines = [record for record in records if "time" in record]
    times = [record["time"] for record in lines]
    if all(abs(after - before) < 60 for before, after in pairwise(times)):
        return Verdict("failed", "the clock did not jump, so the case proves nothing")
    spans = [record["seconds"] for record in lines if "seconds" in record]
    if not all(0 <= seconds < 120 for seconds in spans):
        return Verdict("failed", f"durations are off: {max(spans)} s, {min(spans)} s")
    if re.search(r"(?<![\w/])-\d[\d.]* (?:s|min|h)\b", ended.out):
        return Verdict("failed", "the output contains a negative time")
    wrong = difference(baseline.uninterrupted, result_of(case.run_dir))
    return Verdict("failed", wrong) if wrong else Verdict("equal")


# What must be true afterwards ------------------------------------------------------------------------------------


def finished(case: CaseFolder, baseline: Baseline, *, faults: Mapping[str, str] | None = None) -> Verdict:
    """Run the same command: it must finish with bitwise the same result as the uninterrupted run."""
    ended = case.run(faults=faults)
    if ended.code:
        return Verdict("failed", ended.failure_problem() or f"the command failed: {ended.err.strip()[:300]}")
    wrong = difference(baseline.uninterrupted, result_of(case.run_dir)) or leftovers(case)
    return Verdict("failed", wrong) if wrong else Verdict("equal")


def reported_or_finished(
    case: CaseFolder, baseline: Baseline, cure: Callable[[], object], *, nothing_partial: bool = False
) -> Verdict:
    """Run the same command: it must finish, or fail with one clear error and finish after ``cure()``."""
    try:
        ended = case.run()
    except BaseException:
        cure()
        raise
    return judged(case, baseline, ended, cure, nothing_partial=nothing_partial)


def judged(
    case: CaseFolder, baseline: Baseline, ended: Ended, cure: Callable[[], object], *, nothing_partial: bool = False
) -> Verdict:
    """Judge a run that may have failed, then remove the cause with ``cure()`` and finish the run."""
    problem = ended.failure_problem() if ended.code else ""
    if ended.code and not problem and nothing_partial:
        problem = leftovers(case)
    cure()
    if ended.code == 0:
        wrong = difference(baseline.uninterrupted, result_of(case.run_dir))
        return Verdict("failed", f"exit code 0, but {wrong}") if wrong else Verdict("equal")
    after = finished(case, baseline)
    if problem or after.outcome == "failed":
        return Verdict(
            "failed",
            "; ".join(filter(None, (problem, after.detail and f"after the cause was removed: {after.detail}"))),
        )
    return Verdict("reported")


def leftovers(case: CaseFolder) -> str:
    """Return the name of an incomplete file that a save left; "" if there is none."""
    hidden = [path.name for path in case.checkpoints.glob(".*")] if case.checkpoints.is_dir() else []
    return f"left behind: {hidden[0]}" if hidden else ""
