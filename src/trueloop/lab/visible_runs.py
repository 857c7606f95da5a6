"""List and poll the runs that the lab may show: runs of one folder, and programs under `trueloop run --lab`.

A run id is "runs/digits-1" or "live/20260121-220301-4711". The part after the slash must be one of the existing
names before it becomes part of a path.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from trueloop.core.paths import is_file
from trueloop.runs.journal import JOURNAL_NAME
from trueloop.runs.live import folder as live_folder
from trueloop.runs.live.feed import FeedReader
from trueloop.runs.live.journal import JournalReader
from trueloop.runs.live.page_data import feed_page, run_page, run_state
from trueloop.runs.live.position_file import read_position
from trueloop.runs.live.run_list import RunListing, list_runs, read_feed_listing

MAX_READERS: Final = 24  # largest number of open readers, a few MB each; the least recently used is closed
POLL_INTERVAL_MS: Final = 1000
READ_BUDGET_S: Final = 0.15  # time for reading per answer
CATCH_UP_INTERVAL_MS: Final = 30  # time between two polls while a long journal is still being read
MAX_LISTED: Final = 100  # largest number of listed runs: the newest, or those that match a search

Reader = JournalReader | FeedReader


class VisibleRuns:
    """The runs that page "Watch a run" may list.

    Args:
        runs: a folder of runs, as `trueloop train` writes them, which need not exist yet; or the folder of one run.
        live: folder of the feeds of watched programs.
    """

    def __init__(self, runs: Path, live: Path) -> None:
        is_single_run = is_file(runs / JOURNAL_NAME)
        self._runs, self._only = (runs.parent, runs.name) if is_single_run else (runs, "")
        self._live = live
        self._readers: OrderedDict[str, tuple[Reader, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """Folder of the runs."""
        return self._runs

    def command(self, name: str) -> str:
        """Return the command line after `trueloop run`; "" if no watched program has this name."""
        exists = live_folder.is_program_name(name) and name in live_folder.program_names(self._live)
        return " ".join(read_feed_listing(self._live / name).what.split()) if exists else ""

    def list_runs(self, search: str) -> dict[str, Any]:
        """List runs and programs: running ones first, then the others by age, the newest first.

        Cost: 0.2 ms for each listed run; 10 us for each run that is not listed.
        """
        feeds = [read_feed_listing(self._live / name) for name in live_folder.program_names(self._live)]
        programs = [each for each in feeds if each.matches(search)]
        listed_runs, run_count = list_runs(self._runs, search, MAX_LISTED, only=self._only)
        return {
            "runs": [each.as_json() for each in _newest_first([*programs[:MAX_LISTED], *listed_runs])],
            "more": max(0, len(programs) - MAX_LISTED) + run_count - len(listed_runs),
            "folder": str(self._runs),
        }

    def poll(self, ids: Sequence[str], versions: Sequence[str], smoothing: float = 1.0) -> dict[str, Any]:
        """Return the state of each run, or ``same`` if it has not changed since the given version.

        Args:
            ids: the runs.
            versions: the version of each run that the page has; "" = none.
            smoothing: factor of the default smoothing of the curves.
        """
        versions = [*versions, *[""] * len(ids)]
        states = [self._poll_run(run_id, version, smoothing) for run_id, version in zip(ids, versions, strict=False)]
        any_behind = any(each.get("behind") for each in states)
        return {"runs": states, "poll_interval_ms": CATCH_UP_INTERVAL_MS if any_behind else POLL_INTERVAL_MS}

    def _poll_run(self, run_id: str, version: str, smoothing: float) -> dict[str, Any]:
        entry = self._find_reader(run_id)
        if entry is None:
            return {"id": run_id, "version": "", "missing": f"The run {run_id[:80]!r} no longer exists."}
        reader, lock = entry
        with lock:
            until_s = perf_counter() + READ_BUDGET_S
            while reader.poll() and reader.has_more and perf_counter() < until_s:
                continue  # read several chunks per answer, because drawing takes as long as reading one
            current = f"{_version(reader)[:56]}.{smoothing:g}"
            if current == version:
                return {"id": run_id, "version": current, "same": True, "behind": reader.has_more}
            page = run_page(reader, smoothing) if isinstance(reader, JournalReader) else feed_page(reader, smoothing)
        return {"id": run_id, "version": current, **page}

    def _find_reader(self, run_id: str) -> tuple[Reader, threading.Lock] | None:
        with self._lock:
            if run_id in self._readers:
                self._readers.move_to_end(run_id)
                return self._readers[run_id]
        reader = self._open_reader(run_id)
        if reader is None:
            return None
        with self._lock:
            entry = self._readers.setdefault(run_id, (reader, threading.Lock()))
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
        return entry

    def _open_reader(self, run_id: str) -> Reader | None:
        kind, _, name = run_id.partition("/")
        if kind == "live" and live_folder.is_program_name(name) and name in live_folder.program_names(self._live):
            return FeedReader(self._live / name)
        if kind == "runs" and name in _folder_names(self._runs) and self._only in ("", name):
            return JournalReader(self._runs / name)
        return None


def _folder_names(root: Path) -> set[str]:
    """Return the names of the folders in ``root``, without links and hidden folders."""
    try:
        with os.scandir(root) as entries:
            return {e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)}
    except OSError:
        return set()


def _version(reader: Reader) -> str:
    tail = reader.tail
    version = f"{tail.offset}.{tail.restarts}.{tail.size}.{len(reader.problem)}"
    if isinstance(reader, FeedReader):
        position = read_position(reader.folder)
        return f"{version}.{position.get('s')}.{reader.status().state}"[:64]
    return f"{version}.{run_state(reader)}"[:64]


def _newest_first(listings: Sequence[RunListing]) -> list[RunListing]:
    return sorted(listings, key=lambda each: (each.state != "running", -each.changed))
