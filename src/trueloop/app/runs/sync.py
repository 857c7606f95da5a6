"""Sync finished runs to a store one by one, so that a damaged journal does not prevent the sync of the others."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueloop.core.errors import InvalidConfig, RunFolderError, TrueloopError
from trueloop.runs.queries.index import run_names
from trueloop.runs.queries.resolve import find_run
from trueloop.runs.tracking import StoreRejected, StoreUnavailable, SyncResult, parse_target, sync_run
from trueloop.runs.tracking.target import ADDRESS_FORMS


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedRun:
    """The result of syncing one run."""

    run: Path
    store: str
    """Address of the store, without secrets."""
    result: SyncResult | None
    """Result of the sync; None if the sync failed."""
    problem: str = ""
    """Reason why the sync failed; "" if it did not fail."""


def sync_runs(names: Sequence[str], root: Path, store: str | None, *, rewrite: bool) -> Iterator[SyncedRun]:
    """Sync runs to a store, one after the other.

    Args:
        names: names or paths of runs, as for `find_run`; empty = all runs in the root.
        root: folder of the runs.
        store: address of the store.
        rewrite: True to delete each run in the store and write it from scratch.

    Raises:
        InvalidConfig: the address is missing or invalid.
        MissingExtra: the package for this kind of store is not installed.
        RunFolderError: there is no such run.
        StoreUnavailable: the store does not answer; the remaining runs are not tried.
    """
    if not store:
        raise InvalidConfig("No store is given.", fix=f"Pass --store or set TRUELOOP_STORE: {ADDRESS_FORMS}.")
    parse_target(store, root)
    runs = [find_run(name, root) for name in names] or [root / name for name in run_names(root)]
    if not runs:
        raise RunFolderError(f"There are no runs in {str(root)!r}.", fix="Pass their folder with --root.")
    return _sync_each(list(dict.fromkeys(runs)), store, rewrite=rewrite)


def _sync_each(runs: Sequence[Path], store: str, *, rewrite: bool) -> Iterator[SyncedRun]:
    for run in runs:
        target = parse_target(store, run.resolve().parent)
        try:
            yield SyncedRun(run=run, store=target.display, result=sync_run(run, target, rewrite=rewrite))
        except TrueloopError as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreRejected):
                raise
            yield SyncedRun(
                run=run, store=target.display, result=None, problem=" ".join((error.what, error.fix)).strip()
            )
