"""List runs by reading only the first and last bytes of their journals."""

import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

from trueloop.core.formatting import to_single_line
from trueloop.core.json_text import parse_json_object
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.folder import FEED_NAME, READ_FLAGS, program_names
from trueloop.runs.live.position_file import is_running, read_position
from trueloop.runs.queries.running import is_training

FIRST_LINE_BYTES: Final = 2**16  # the beginning of a longer line is enough
TAIL_BYTES: Final = 2**14  # bytes to read at the end of a journal
MAX_TEXT_CHARS: Final = 120
MAX_COUNT: Final = 2**52  # larger times and updates are ignored


@dataclass(frozen=True, slots=True, kw_only=True)
class RunListing:
    """One entry of a list of runs."""

    id: str
    kind: str
    """Kind of the run: "trained" or "watched"."""
    name: str
    what: str
    """Name of the recipe of a trained run, or command line of a watched program."""
    state: str
    changed: float
    """Time of the last change, in seconds since 1970."""
    update: int | None

    def matches(self, search: str) -> bool:
        """Return True if every word of a search occurs in this entry."""
        text = f"{self.id} {self.name} {self.what} {self.state}".lower()
        return all(word in text for word in search.lower().split())

    def as_json(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def read_feed_listing(folder: Path) -> RunListing:
    """Read the entry of a watched program."""
    program = parse_json_object(_read_bytes(folder / FEED_NAME, 0, FIRST_LINE_BYTES).partition(b"\n")[0])
    status, position = FeedReader(folder).status(), read_position(folder)
    started, seconds = program.get("time"), position.get("s")
    changed = sum(value for value in (started, seconds) if isinstance(value, int | float) and abs(value) < MAX_COUNT)
    return RunListing(
        id=f"live/{folder.name}",
        kind="watched",
        name=_text(program.get("name")) or folder.name,
        what=_text(program.get("command")) + (f", rank {rank}" if type(rank := program.get("rank")) is int else ""),
        state=status.state,
        changed=float(changed),
        update=status.updates,
    )


def any_running(folder: Path) -> bool:
    """Return True if any program of a live folder is running."""
    return any(is_running(read_position(folder / name)) for name in program_names(folder))


def list_runs(root: Path, search: str, max_listed: int, *, only: str = "") -> tuple[list[RunListing], int]:
    """List the newest runs below a folder.

    Args:
        root: folder of the runs: each direct subfolder with a journal is a run, except links and hidden folders.
        search: words that must occur in the name, recipe or state of a run; "" = all runs.
        max_listed: largest number of entries.
        only: name of the only run that may be listed; "" = all runs.

    Returns:
        The newest matching runs, and the number of all matches; after ``max_listed`` entries, only names are searched.
    """
    journals = {name: stamp for name, stamp in _journal_stats(root).items() if only in ("", name)}
    stamps = sorted(journals.items(), key=lambda item: -item[1][0])
    words = search.lower().split()
    listed: list[RunListing] = []
    count = 0
    for index, (name, (changed, size)) in enumerate(stamps):
        if index < 3 * max_listed and len(listed) < max_listed:
            run = _read_run_listing(root / name, changed, size)
            if run.matches(search):
                listed.append(run)
                count += 1
        elif all(word in name.lower() for word in words):
            count += 1
    return listed, count


def _read_run_listing(run_dir: Path, changed: float, size: int) -> RunListing:
    journal = run_dir / JOURNAL_NAME
    started = parse_json_object(_read_bytes(journal, 0, FIRST_LINE_BYTES).partition(b"\n")[0])
    facts = started.get("facts")
    recipe = cast("dict[str, Any]", facts).get("recipe") if isinstance(facts, dict) else None
    update, end = None, ""
    for line in reversed(_read_bytes(journal, max(0, size - TAIL_BYTES), TAIL_BYTES).split(b"\n")):
        record = parse_json_object(line)
        event = record.get("event")
        if event == "run_started" and not end:  # resumed
            break
        end = end or (_text(record.get("reason")) if event == "run_ended" else "")
        if type(record.get("update")) is int:
            rows = record.get("rows", 1)
            update = record["update"] + (rows - 1 if event == "updates" and type(rows) is int else 0)
            break
    return RunListing(
        id=f"runs/{run_dir.name}",
        kind="trained",
        name=run_dir.name,
        what=_text(recipe or started.get("name")),
        state=end or {True: "running", False: "killed"}.get(cast("bool", is_training(run_dir)), "unknown"),
        changed=changed,
        update=update,
    )


def _journal_stats(root: Path) -> dict[str, tuple[float, int]]:
    """Return the modification time and size of each journal."""
    stats: dict[str, tuple[float, int]] = {}
    try:
        with os.scandir(root) as entries:
            folders = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # the folder does not exist yet
        return stats
    for name in folders:
        if name.startswith("."):
            continue
        try:
            info = (root / name / JOURNAL_NAME).lstat()
        except OSError:
            continue
        if stat.S_ISREG(info.st_mode):
            stats[name] = (info.st_mtime, info.st_size)
    return stats


def _read_bytes(path: Path, start: int, count: int) -> bytes:
    """Return up to ``count`` bytes from an offset; fewer or none if they cannot be read."""
    try:
        file = os.open(path, READ_FLAGS)
        try:
            return os.pread(file, count, start)
        finally:
            os.close(file)
    except OSError:
        return b""


def _text(value: object) -> str:
    return to_single_line(value[:MAX_TEXT_CHARS]) if isinstance(value, str) else ""
