"""Connect a run in progress to the process that syncs its journal to a store."""

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
    """Sync the journal of a run to a store during a ``with`` block.

    Args:
        journal: journal of the run; None = nothing is written.
        target: the store; None = no sync.
        observers: further reporters. If the store is down, the observers and the journal are notified; if the sync is
            incomplete at the end, only the observers.

    Yields:
        The reporters for the run: the observers, then the journal, then the sync client.

    Cost: up to 5 s at the end to finish the sync; after that, the sync process continues in the background.
    """
    reporters = [*observers, *([journal] if journal else [])]
    if journal is None or target is None:
        yield reporters
        return

    def report_problem(notice: Notice) -> None:
        for reporter in reporters:
            reporter.report(notice)

    client = SyncClient(journal.path.parent, target, report_problem)
    try:
        yield [*reporters, client]
    finally:
        if notice := client.wait():  # the journal is closed by now
            for observer in observers:
                observer.report(notice)


def validate_store(store: str | None, run_dir: object) -> None:
    """Validate the address of a store before data is read.

    Args:
        store: the address; None = no store.
        run_dir: the run folder, or a function that chooses it; None = nothing is written.

    Raises:
        InvalidConfig: the address is invalid, or there is no journal to sync.
        MissingExtra: the package for this kind of store is not installed.
    """
    if store is None:
        return
    target = parse_target(store, Path())
    if run_dir is None:
        raise InvalidConfig(
            f"store is {target.display}, but there is no run folder.",
            why="A store is a copy of the journal, which is in the run folder.",
            fix="Pass run_dir=..., or omit the store.",
        )
