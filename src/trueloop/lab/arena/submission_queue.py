"""The arena's desk in the lab: practice runs and replays go on behind it, and entries are handed in at it.

What goes on is kept in memory, bounded, and forgotten with the server; entries are on the board alone.
"""

from __future__ import annotations

import secrets
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from trueloop.core.errors import BoardError, TrueloopError
from trueloop.lab.arena.entry import Entry
from trueloop.lab.arena.judge_client import Referee, check_installed
from trueloop.lab.arena.judging import Replay, Replayed, hand_in, replay
from trueloop.lab.arena.leaderboard import Board, usual_board
from trueloop.lab.arena.queue_worker import Clerk
from trueloop.lab.arena.tracks import Track
from trueloop.lab.arena.trial import Job, Point, Trial

GOING: Final = 8  # practice runs and replays that run or wait, of all who look at the page
KEPT: Final = 64


@dataclass(slots=True, kw_only=True)
class Going:
    """A practice run or a replay; written by its thread, read by whoever asks."""

    id: int
    curve: list[Point] = field(default_factory=list[Point])
    trial: Trial | None = None
    seeds: list[Replayed] = field(default_factory=list[Replayed])
    replay: Replay | None = None
    trouble: TrueloopError | None = None
    done: bool = False
    number: int | None = None
    """Under which the referee can be asked to stop it; None until it has it."""
    unwanted: bool = False
    """It was asked to stop."""


class Desk:
    """One for each server.

    Args:
        path: of the board; None = the user's own.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._referee = Referee()
        self._going: OrderedDict[int, Going] = OrderedDict()
        self._board: Board | None = None
        self._clerk: Clerk | None = None

    @property
    def board(self) -> Board:
        """The board, opened when it is asked for.

        Raises:
            BoardError: it cannot be.
        """
        with self._lock:
            if self._board is None:
                self._board = Board(self._path or usual_board())
                self._clerk = Clerk(self._board, self._referee)
            return self._board

    def hand_in(self, track: Track, entry: Entry, name: str) -> int:
        """Put an entry into the queue, and see that it is judged; return its number.

        Raises:
            BoardError, InvalidConfig, MissingExtra: it cannot be.
        """
        check_installed(track)
        number = hand_in(self.board, track, entry, name)
        self.wake()
        return number

    def wake(self) -> None:
        """See that somebody judges, where entries wait."""
        if self.board.waiting() and self._clerk is not None:
            self._clerk.wake()

    def practise(self, track: Track, entry: Entry, seed: int) -> int:
        """Begin a practice run; return the number to look at it with.

        Raises:
            BoardError, MissingExtra: it cannot be begun.
        """
        check_installed(track)
        job = Job(id=0, track=track.name, entry=entry, seed=seed, practice=True, once=True)

        def run(going: Going) -> None:
            def began(number: int) -> None:
                going.number = number
                if going.unwanted:
                    self._referee.stop(number)

            going.trial = self._referee.run(job, going.curve.extend, began=began)

        return self._begin(run)

    def replay(self, entry: int) -> int:
        """Begin to run an entry again; return the number to look at it with.

        Raises:
            BoardError: there is no such entry, or it cannot be begun.
        """
        row = self.board.entry(entry)

        def run(going: Going) -> None:
            going.replay = replay(row, self._referee, going.seeds.append)

        return self._begin(run)

    def look(self, number: int) -> Going:
        """Return what goes on, or has ended, under a number.

        Raises:
            BoardError: nothing does: it was forgotten.
        """
        found = self._going.get(number)
        if found is None:
            raise BoardError("This run is no longer known.", fix="Begin it again.")
        return found

    def stop(self, number: int) -> None:
        """End a practice run; nothing happens where there is none."""
        found = self._going.get(number)
        if found is None:
            return
        found.unwanted = True
        if not found.done and found.number is not None:
            self._referee.stop(found.number)

    def close(self) -> None:
        """End everything that goes on."""
        if self._clerk is not None:
            self._clerk.close()
        self._referee.close()

    def _begin(self, run: Callable[[Going], Any]) -> int:
        with self._lock:
            if sum(not each.done for each in self._going.values()) >= GOING:
                raise BoardError(f"{GOING} runs go on already.", fix="Try again when one has ended.")
            going = Going(id=secrets.randbelow(1 << 40))  # not to be guessed by who did not begin it
            self._going[going.id] = going
            for old in [each.id for each in self._going.values() if each.done][: max(0, len(self._going) - KEPT)]:
                del self._going[old]
        threading.Thread(target=self._work, args=(going, run), daemon=True).start()
        return going.id

    def _work(self, going: Going, run: Callable[[Going], Any]) -> None:
        try:
            run(going)
        except TrueloopError as error:
            going.trouble = error
        except Exception as error:  # noqa: BLE001 - whoever waits hears it
            what = f"{type(error).__name__}: {error}"[:400]
            going.trouble = BoardError(
                f"This run ended in an error that nobody expected: {what}.", fix="Begin it again."
            )
            traceback.print_exc()  # the page says what, the server's terminal where
        finally:
            going.done = True
