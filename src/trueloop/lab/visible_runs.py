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

FOLLOWED: Final = 24  # runs that are kept in memory, at a few MB each; the one not asked for longest goes
AGAIN_MS: Final = 1000
PIECE_S: Final = 0.15  # of reading for one answer
AT_ONCE_MS: Final = 30  # where a long journal is still being read
SHOWN: Final = 100  # runs of a list: the newest, or those that a search leaves

Follower = JournalReader | FeedReader


class RunsSeen:
    """What the watch page can ask for.

    Args:
        runs: a folder of runs, as `trueloop train` writes them, which need not exist yet; or one run's own.
        live: where watched programs tell how they are.
    """

    def __init__(self, runs: Path, live: Path) -> None:
        alone = is_file(runs / JOURNAL_NAME)
        self._runs, self._only = (runs.parent, runs.name) if alone else (runs, "")
        self._live = live
        self._followed: OrderedDict[str, tuple[Follower, threading.Lock]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        """The folder of runs."""
        return self._runs

    def command(self, name: str) -> str:
        """Return what was called, behind `trueloop run`; "" where no watched program has this name."""
        known = live_folder.is_program_name(name) and name in live_folder.program_names(self._live)
        return " ".join(read_feed_listing(self._live / name).what.split()) if known else ""

    def listed(self, search: str) -> dict[str, Any]:
        """List what there is, the newest first.

        Cost: 0.2 ms for each run that is shown; 10 us for each other one.
        """
        feeds = [read_feed_listing(self._live / name) for name in live_folder.program_names(self._live)]
        found = [each for each in feeds if each.matches(search)]
        trained, all_trained = list_runs(self._runs, search, SHOWN, only=self._only)
        return {
            "runs": [each.as_json() for each in _newest([*found[:SHOWN], *trained])],
            "more": max(0, len(found) - SHOWN) + all_trained - len(trained),
            "folder": str(self._runs),
        }

    def follow(self, words: Sequence[str], marks: Sequence[str]) -> dict[str, Any]:
        """Return each run as it is now; of one that has not changed since its mark, that it is the same."""
        marks = [*marks, *[""] * len(words)]
        told = [self._told(word, mark) for word, mark in zip(words, marks, strict=False)]
        behind = any(each.get("behind") for each in told)
        return {"runs": told, "again_ms": AT_ONCE_MS if behind else AGAIN_MS}

    def _told(self, word: str, mark: str) -> dict[str, Any]:
        found = self._follower(word)
        if found is None:
            return {"id": word, "mark": "", "missing": f"There is no run {word[:80]!r} here any more."}
        follower, lock = found
        with lock:
            until_s = perf_counter() + PIECE_S
            while follower.poll() and follower.has_more and perf_counter() < until_s:
                continue  # drawing takes as long as reading a piece
            now = _mark(follower)
            if now == mark:
                return {"id": word, "mark": now, "same": True, "behind": follower.has_more}
            shown = run_page(follower) if isinstance(follower, JournalReader) else feed_page(follower)
        return {"id": word, "mark": now, **shown}

    def _follower(self, word: str) -> tuple[Follower, threading.Lock] | None:
        with self._lock:
            if word in self._followed:
                self._followed.move_to_end(word)
                return self._followed[word]
        made = self._made(word)
        if made is None:
            return None
        with self._lock:
            found = self._followed.setdefault(word, (made, threading.Lock()))
            while len(self._followed) > FOLLOWED:
                self._followed.popitem(last=False)
        return found

    def _made(self, word: str) -> Follower | None:
        kind, _, name = word.partition("/")
        if kind == "live" and live_folder.is_program_name(name) and name in live_folder.program_names(self._live):
            return FeedReader(self._live / name)
        if kind == "runs" and name in _folders(self._runs) and self._only in ("", name):
            return JournalReader(self._runs / name)
        return None


def _folders(root: Path) -> set[str]:
    """Return the names of real folders in a folder: no link, nothing hidden."""
    try:
        with os.scandir(root) as entries:
            return {e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)}
    except OSError:
        return set()


def _mark(follower: Follower) -> str:
    tail = follower.tail
    told = f"{tail.offset}.{tail.restarts}.{tail.size}.{len(follower.problem)}"
    if isinstance(follower, FeedReader):
        now = read_position(follower.folder)
        return f"{told}.{now.get('s')}.{follower.status().state}"[:64]
    return f"{told}.{run_state(follower)}"[:64]


def _newest(found: Sequence[RunListing]) -> list[RunListing]:
    return sorted(found, key=lambda each: (each.state != "running", -each.changed))
