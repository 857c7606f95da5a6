"""A run and the process that copies its journal into a store: joined here, for as long as the run is trained."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from trueloop.core.errors import InvalidConfig
from trueloop.core.protocols import Notice, Reporter
from trueloop.runs.journal import Journal
from trueloop.runs.tracking import SyncClient, Target, parse_target


@contextmanager
def reporters_with_sync(
    journal: Journal | None, target: Target | None, *, observers: Sequence[Reporter]
) -> Generator[list[Reporter]]:
    """Have a run's journal followed into a store, for a ``with`` block.

    Args:
        journal: of the run; None where nothing is written.
        target: the store; None = none.
        observers: those who look on; they hear of a store that is down, like the journal, and of one that is behind.

    Yields:
        The reporters to give the run: all these, and the follower behind them.

    Cost: at the end, up to 5 s for the store to have everything; then its process goes on alone.
    """
    reporters = [*observers, *([journal] if journal else [])]
    if journal is None or target is None:
        yield reporters
        return

    def tell(noted: Notice) -> None:
        for reporter in reporters:
            reporter.report(noted)

    follower = SyncClient(journal.path.parent, target, tell)
    try:
        yield [*reporters, follower]
    finally:
        if lacking := follower.wait():  # the journal is closed by now
            for watcher in observers:
                watcher.report(lacking)


def validate_store(store: str | None, run_dir: object) -> None:
    """Refuse a store that cannot be meant, before data are read.

    Args:
        store: its address; None = none.
        run_dir: where the run is written, or what chooses it; None = nowhere.

    Raises:
        InvalidConfig: no store is known by such an address, or there is no journal to copy.
        MissingExtra: what speaks to it is not installed.
    """
    if store is None:
        return
    target = parse_target(store, Path())
    if run_dir is None:
        raise InvalidConfig(
            f"The store {target.display} is to be written, but there is no run folder.",
            why="A store is a copy of the journal, which lies in the run's folder.",
            fix="Give a run_dir, or no store.",
        )
