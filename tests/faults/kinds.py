"""The faults: what is done to a run, and what must be true of it afterwards.

Each function takes a `Place`, does one thing to a run in it, lets the same command finish, and says how that went.
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

from runs import Ended, Place, Result, difference, result_of, weights_of

TRUNCATIONS = 64
MARKER = "unpickled"  # the file that a hostile pickle makes


class Verdict(NamedTuple):
    """How one case went."""

    how: Literal["equal", "reported", "failed", "not run"]
    """equal: bitwise, at once. reported: one clear error, and bitwise equal after its cause was removed."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What the cases start from and are compared with."""

    uninterrupted: Result
    seconds: Mapping[int, float]
    """How long the uninterrupted run takes, by number of loader workers."""
    stopped: Path
    """A run folder whose process was killed late, with the best checkpoint and the two newest ones."""


Act = Callable[[Place, Known], Verdict]


# Kills and signals -----------------------------------------------------------------------------------------------


def killed(place: Place, known: Known, *, instants: Sequence[float], workers: int = 0, slow_s: float = 0.0) -> Verdict:
    """SIGKILL at each instant, a share of what the run takes, then the same command until it finishes."""
    faults = {"FAULT_SLOW_S": str(slow_s)} if slow_s else {}
    span = known.seconds[workers] * (2.5 if slow_s else 1.0)
    for instant in instants:
        for attempt in range(6):  # a run that was faster than ever is over before its kill
            child = place.start(faults=faults)
            child.signal_at(span * instant * 0.7**attempt, signal.SIGKILL)
            ended = child.wait()
            if ended.killed or ended.code:
                break
            shutil.rmtree(place.run_dir)
        if not ended.killed:
            return Verdict("failed", f"never killed: {ended.trouble() or ended.code}")
    return finished(place, known, faults=faults)


def killed_at_touch(place: Place, known: Known, *, touch: int) -> Verdict:
    """SIGKILL before the k-th touch of the file system below the run folder, of the last fifth of a run."""
    shutil.copytree(known.stopped, place.run_dir)
    ended = place.run(faults={"FAULT_DIE_AT": str(touch), "FAULT_BELOW": str(place.run_dir)})
    if ended.killed:
        return finished(place, known)
    return Verdict("failed", ended.trouble()) if ended.code else Verdict("not run", "it does not touch it so often")


def signalled(place: Place, known: Known, *, number: int, instant: float, workers: int, group: bool) -> Verdict:
    """SIGINT or SIGTERM, to the process or to all its workers as well, then the same command."""
    child = place.start()
    child.signal_at(known.seconds[workers] * instant, number, group=group)
    ended = child.wait()
    if "Traceback" in ended.err:
        return Verdict("failed", ended.trouble())
    if ended.code == 0 and difference(known.uninterrupted, result_of(place.run_dir)):
        return Verdict("failed", "exit code 0 with another result")
    return finished(place, known)


# Damage ----------------------------------------------------------------------------------------------------------


def newest(place: Place) -> Path:
    return sorted(place.checkpoints.glob("update-*"))[-1]


def best(place: Place, known: Known) -> Path:
    return max(place.checkpoints.glob(f"update-{known.uninterrupted.best[0]:09d}*"))


def truncate(path: Path, sixty_fourths: int) -> None:
    os.truncate(path, path.stat().st_size * sixty_fourths // TRUNCATIONS)


def flip(path: Path, seed: int) -> None:
    chance, content = random.Random(seed), bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


Harm = Callable[[Path], None]


def newest_damaged(place: Place, known: Known, *, file: str, harm: Harm) -> Verdict:
    """A file of the newest checkpoint is harmed: it must be named, and the one before taken."""
    shutil.copytree(known.stopped, place.run_dir)
    victim = newest(place)
    harm(victim / file)
    verdict = finished(place, known)
    if verdict.how == "equal" and not passed_over(place, victim.name):
        return Verdict("failed", f"{victim.name}/{file} was not named")
    return verdict


def best_damaged(place: Place, known: Known, *, file: str, harm: Harm) -> Verdict:
    """The best checkpoint, whose weights are to be shipped, is harmed.

    The next best may be shipped in its place, but not without a word; and the best once it is back.
    """
    shutil.copytree(known.stopped, place.run_dir)
    victim = best(place, known)
    harm(victim / file)
    ended = place.run()
    cure = partial(restore, known.stopped, victim)
    if ended.code or weights_of(place.run_dir) == known.uninterrupted.weights:
        return judged(place, known, ended, cure)
    if not passed_over(place, victim.name[: len("update-000000000")]):  # it may be the second save of its update
        return Verdict("failed", f"other weights are shipped, and nothing is said of {victim.name}")
    cure()
    after = finished(place, known)
    return Verdict("reported") if after.how == "equal" else after


def all_damaged(place: Place, known: Known, *, harm: Harm) -> Verdict:
    """Every checkpoint is harmed: start over or say so, but never from one of them."""
    shutil.copytree(known.stopped, place.run_dir)
    for victim in place.checkpoints.glob("update-*"):
        harm(victim / "model.safetensors")
    return reported_or_finished(place, known, partial(restore, known.stopped / "checkpoints", place.checkpoints))


def journal_damaged(place: Place, known: Known, *, harm: Harm) -> Verdict:
    """The journal is torn, changed or gone: it is for reading only, so the weights must come out the same."""
    shutil.copytree(known.stopped, place.run_dir)
    harm(place.run_dir / "journal.jsonl")
    ended = place.run()
    if weights_of(place.run_dir) != known.uninterrupted.weights:
        return Verdict("failed", "other final weights")
    if ended.code == 0:
        return Verdict("equal")
    return Verdict("failed", ended.trouble()) if ended.trouble() else Verdict("reported")


def restore(source: Path, target: Path) -> None:
    """Restore a folder."""
    original = source if source.name == target.name else source / "checkpoints" / target.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(original, target)


def passed_over(place: Place, name: str) -> bool:
    records = map(json.loads, (place.run_dir / "journal.jsonl").read_text().splitlines())
    return any(record["event"] == "notice" and name in record["message"] for record in records)


class Hostile:
    """Unpickled, it makes a file."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def pickle_planted(place: Place, known: Known, *, file: str) -> Verdict:
    """A hostile pickle lies in the newest checkpoint, next to the regular files or instead of one."""
    shutil.copytree(known.stopped, place.run_dir)
    marker = place.path / MARKER
    planted = (place.run_dir / file[1:]) if file.startswith("/") else newest(place) / file
    planted.write_bytes(pickle.dumps(Hostile(marker)))
    verdict = finished(place, known)
    return Verdict("failed", "the pickle was executed") if marker.exists() else verdict


# Disk and folder -------------------------------------------------------------------------------------------------


def disk_full(place: Place, known: Known, *, kib: int) -> Verdict:
    """The run is on a disk of this size; after the error the disk grows."""
    disk = place.path / "disk"
    disk.mkdir()
    if not mounted("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(disk)):
        return Verdict("not run", "mounting is not permitted here")
    place.run_dir = disk / "run"
    try:
        return reported_or_finished(
            place, known, lambda: mounted("-o", "remount,size=64m", str(disk)) or 1 / 0, nothing_partial=True
        )
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def file_limit(place: Place, known: Known, *, limit: int) -> Verdict:
    """No file may grow beyond a limit, as by a quota; then it is lifted."""
    ended = place.start(file_bytes=limit).wait()
    return judged(place, known, ended, lambda: None, nothing_partial=True)


def read_only(place: Place, known: Known, *, below: str, stopped: bool) -> Verdict:
    """The run folder, or a folder in it, cannot be written; then it can."""
    if stopped:
        shutil.copytree(known.stopped, place.run_dir)
    folder = place.run_dir / below
    folder.mkdir(parents=True, exist_ok=True)
    as_root = os.geteuid() == 0  # whom permissions do not hold back
    if as_root and not mounted("--bind", str(folder), str(folder)):
        return Verdict("not run", "mounting is not permitted here")
    if as_root:
        assert mounted("-o", "remount,bind,ro", str(folder))
    else:
        folder.chmod(0o555)

    def writable() -> None:
        subprocess.run(["umount", "--lazy", str(folder)], check=True) if as_root else folder.chmod(0o755)

    return reported_or_finished(place, known, writable)


def in_the_way(place: Place, known: Known, *, name: str, kind: Literal["file", "folder"]) -> Verdict:
    """Where the run wants a folder lies a file, or the other way round; then it is gone."""
    obstacle = place.run_dir / name if name else place.run_dir
    obstacle.parent.mkdir(parents=True, exist_ok=True)
    obstacle.mkdir() if kind == "folder" else obstacle.write_text("in the way")
    return reported_or_finished(place, known, partial(remove, obstacle))


def mounted(*words: str) -> bool:
    return subprocess.run(["mount", *words], capture_output=True, check=False).returncode == 0


# Two processes, and the clock ------------------------------------------------------------------------------------


def two_processes(place: Place, known: Known, *, word: str) -> Verdict:
    """A second process with the same command while the first one runs: it must say so and leave everything alone."""
    first = place.start()
    if not first.wait_until(lambda: any(place.checkpoints.glob("update-*"))):
        return Verdict("failed", f"the first process did not even save: {first.wait().trouble()}")
    first.signal_at(0, signal.SIGSTOP)  # so that it has not ended before the second begins
    second = place.start(*([word] if word else [])).wait()
    first.signal_at(0, signal.SIGCONT)
    ended = first.wait()
    if ended.code:
        return Verdict("failed", f"the first process was disturbed: {ended.trouble()}")
    if wrong := difference(known.uninterrupted, result_of(place.run_dir)):
        return Verdict("failed", f"the first process was disturbed: {wrong}")
    if second.trouble():
        return Verdict("failed", f"the second process: {second.trouble()}")
    return Verdict("reported")


def clock_jumps(place: Place, known: Known, *, seed: int, kill: bool) -> Verdict:
    """The wall clock jumps by hours, back and forth; with a kill on the way."""
    if kill:
        child = place.start_fresh(faults={"FAULT_CLOCK": str(seed + 1)})
        child.wait_until(lambda: len(list(place.checkpoints.glob("update-*"))) > 2)
        child.signal_at(0, signal.SIGKILL)
        child.wait()
    ended = place.start_fresh(faults={"FAULT_CLOCK": str(seed)}).wait()
    if ended.code:
        return Verdict("failed", ended.trouble())
    records = map(json.loads, (place.run_dir / "journal.jsonl").read_text().splitlines())
    lines = [record for record in records if "time" in record]
    times = [record["time"] for record in lines]
    if all(abs(after - before) < 60 for before, after in pairwise(times)):
        return Verdict("failed", "the clock did not jump: the case proves nothing")
    spans = [record["seconds"] for record in lines if "seconds" in record]
    if not all(0 <= seconds < 120 for seconds in spans):
        return Verdict("failed", f"durations are off: {max(spans)} s, {min(spans)} s")
    if re.search(r"(?<![\w/])-\d[\d.]* (?:s|min|h)\b", ended.out):
        return Verdict("failed", "a negative time is shown")
    wrong = difference(known.uninterrupted, result_of(place.run_dir))
    return Verdict("failed", wrong) if wrong else Verdict("equal")


# What must be true afterwards ------------------------------------------------------------------------------------


def finished(place: Place, known: Known, *, faults: Mapping[str, str] | None = None) -> Verdict:
    """Run the same command: it must finish, bitwise as the uninterrupted run."""
    ended = place.run(faults=faults)
    if ended.code:
        return Verdict("failed", ended.trouble() or f"it refused: {ended.err.strip()[:300]}")
    wrong = difference(known.uninterrupted, result_of(place.run_dir)) or leftovers(place)
    return Verdict("failed", wrong) if wrong else Verdict("equal")


def reported_or_finished(
    place: Place, known: Known, cure: Callable[[], object], *, nothing_partial: bool = False
) -> Verdict:
    """Run the same command: it finishes, or says clearly why not and finishes once that is cured."""
    try:
        ended = place.run()
    except BaseException:
        cure()
        raise
    return judged(place, known, ended, cure, nothing_partial=nothing_partial)


def judged(
    place: Place, known: Known, ended: Ended, cure: Callable[[], object], *, nothing_partial: bool = False
) -> Verdict:
    """Judge a run that may have failed, then cure what ails it and finish it."""
    trouble = ended.trouble() if ended.code else ""
    if ended.code and not trouble and nothing_partial:
        trouble = leftovers(place)
    cure()
    if ended.code == 0:
        wrong = difference(known.uninterrupted, result_of(place.run_dir))
        return Verdict("failed", f"exit code 0, but {wrong}") if wrong else Verdict("equal")
    after = finished(place, known)
    if trouble or after.how == "failed":
        return Verdict("failed", "; ".join(filter(None, (trouble, after.detail and f"once cured: {after.detail}"))))
    return Verdict("reported")


def leftovers(place: Place) -> str:
    """Name what a save left half-done."""
    hidden = [path.name for path in place.checkpoints.glob(".*")] if place.checkpoints.is_dir() else []
    return f"left behind: {hidden[0]}" if hidden else ""
