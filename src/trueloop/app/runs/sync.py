"""Runs copied into a store after the fact: each by itself, so that one damaged journal does not keep back the rest."""

from __future__ import annotations

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
    """What became of one run."""

    run: Path
    store: str
    """The address, without what is secret."""
    result: SyncResult | None
    """None where it could not be copied."""
    problem: str = ""
    """Why not."""


def sync_runs(words: Sequence[str], root: Path, store: str | None, *, rewrite: bool) -> Iterator[SyncedRun]:
    """Copy runs into a store, one after the other.

    Args:
        words: which runs, as `find_run` takes them; none = all below the root.
        root: where the runs lie.
        store: the address.
        rewrite: write each anew, whatever the store has of it.

    Raises:
        InvalidConfig: no store is named, or no store is known by that address.
        MissingExtra: what speaks to it is not installed.
        RunFolderError: there is no such run.
        StoreDown: the store does not answer; then it would not for the next run either.
    """
    if not store:
        raise InvalidConfig(
            "No store is named.",
            fix=f"Say which with --store, or set TRUELOOP_STORE: {ADDRESS_FORMS}.",
        )
    parse_target(store, root)
    runs = [find_run(word, root) for word in words] or [root / name for name in run_names(root)]
    if not runs:
        raise RunFolderError(f"There are no runs in {str(root)!r}.", fix="Say where they are with --root.")
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
