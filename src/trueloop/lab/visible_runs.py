"""The runs that the lab may show: those of one folder, and the programs that tell how they are. Nothing else is read.

A run is asked for by a word such as "runs/digits-1" or "live/20261121-220301-4711". The part behind the stroke is
looked for among the names that are there, and is never made into a path by itself.
"""

from __future__ import annotations

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

MAX_READERS: Final = 24  # runs that are kept in memory, at a few MB each; the one not asked for longest goes
POLL_INTERVAL_MS: Final = 1000
READ_BUDGET_S: Final = 0.15  # of reading for one answer
CATCH_UP_INTERVAL_MS: Final = 30  # where a long journal is still being read
MAX_LISTED: Final = 100  # runs of a list: the newest, or those that a search leaves

Reader = JournalReader | FeedReader


class VisibleRuns:
    """What the watch page can ask for.

    Args:
        runs: a folder of runs, as `trueloop train` writes them, which need not exist yet; or one run's own.
        live: where watched programs tell how they are.
    """

    def __init__(self, runs: Path, live: Path) -> None:
        alone = is_file(runs / JOURNAL_NAME)
        self._runs, self._only = (runs.parent, runs.name) if alone else (runs, "")
        self._live = live
        self._readers: OrderedDict[str, tuple[Reader, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder of runs."""
        return self._runs

    def command(self, name: str) -> str:
        """Return what was called, behind `trueloop run`; "" where no watched program has this name."""
        known = live_folder.is_program_name(name) and name in live_folder.program_names(self._live)
        return " ".join(read_feed_listing(self._live / name).what.split()) if known else ""

    def list_runs(self, search: str) -> dict[str, Any]:
        """List what there is, the newest first.

        Cost: 0.2 ms for each run that is shown; 10 us for each other one.
        """
        feeds = [read_feed_listing(self._live / name) for name in live_folder.program_names(self._live)]
        found = [each for each in feeds if each.matches(search)]
        trained, all_trained = list_runs(self._runs, search, MAX_LISTED, only=self._only)
        return {
            "runs": [each.as_json() for each in _newest_first([*found[:MAX_LISTED], *trained])],
            "more": max(0, len(found) - MAX_LISTED) + all_trained - len(trained),
            "folder": str(self._runs),
        }

    def poll(self, words: Sequence[str], marks: Sequence[str]) -> dict[str, Any]:
        """Return each run as it is now; of one that has not changed since its mark, that it is the same."""
        marks = [*marks, *[""] * len(words)]
        told = [self._poll_run(word, mark) for word, mark in zip(words, marks, strict=False)]
        behind = any(each.get("behind") for each in told)
        return {"runs": told, "again_ms": CATCH_UP_INTERVAL_MS if behind else POLL_INTERVAL_MS}

    def _poll_run(self, word: str, mark: str) -> dict[str, Any]:
        found = self._find_reader(word)
        if found is None:
            return {"id": word, "mark": "", "missing": f"There is no run {word[:80]!r} here any more."}
        follower, lock = found
        with lock:
            until_s = perf_counter() + READ_BUDGET_S
            while follower.poll() and follower.has_more and perf_counter() < until_s:
                continue  # drawing takes as long as reading a piece
            now = _version(follower)
            if now == mark:
                return {"id": word, "mark": now, "same": True, "behind": follower.has_more}
            shown = run_page(follower) if isinstance(follower, JournalReader) else feed_page(follower)
        return {"id": word, "mark": now, **shown}

    def _find_reader(self, word: str) -> tuple[Reader, threading.Lock] | None:
        with self._lock:
            if word in self._readers:
                self._readers.move_to_end(word)
                return self._readers[word]
        made = self._open_reader(word)
        if made is None:
            return None
        with self._lock:
            found = self._readers.setdefault(word, (made, threading.Lock()))
            while len(self._readers) > MAX_READERS:
                self._readers.popitem(last=False)
        return found

    def _open_reader(self, word: str) -> Reader | None:
        kind, _, name = word.partition("/")
        if kind == "live" and live_folder.is_program_name(name) and name in live_folder.program_names(self._live):
            return FeedReader(self._live / name)
        if kind == "runs" and name in _folder_names(self._runs) and self._only in ("", name):
            return JournalReader(self._runs / name)
        return None


def _folder_names(root: Path) -> set[str]:
    """Return the names of real folders in a folder: no link, nothing hidden."""
    try:
        with os.scandir(root) as entries:
            return {e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)}
    except OSError:
        return set()


def _version(follower: Reader) -> str:
    tail = follower.tail
    told = f"{tail.offset}.{tail.restarts}.{tail.size}.{len(follower.problem)}"
    if isinstance(follower, FeedReader):
        now = read_position(follower.folder)
        return f"{told}.{now.get('s')}.{follower.status().state}"[:64]
    return f"{told}.{run_state(follower)}"[:64]


def _newest_first(found: Sequence[RunListing]) -> list[RunListing]:
    return sorted(found, key=lambda each: (each.state != "running", -each.changed))
