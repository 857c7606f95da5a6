"""Runs copied into a store after the fact: each by itself, so that one damaged journal does not keep back the rest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trueloop.core.errors import InvalidConfig, RunFolderError, TrueloopError
from trueloop.runs.queries.index import names
from trueloop.runs.queries.resolve import find_run
from trueloop.runs.tracking import Copied, StoreRejected, StoreUnavailable, copy_run, target_of
from trueloop.runs.tracking.target import FORMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """What became of one run."""

    run: Path
    store: str
    """The address, without what is secret."""
    copied: Copied | None
    """None where it could not be copied."""
    problem: str = ""
    """Why not."""


def sync_runs(words: Sequence[str], root: Path, store: str | None, *, again: bool) -> Iterator[Synced]:
    """Copy runs into a store, one after the other.

    Args:
        words: which runs, as `find_run` takes them; none = all below the root.
        root: where the runs lie.
        store: the address.
        again: write each anew, whatever the store has of it.

    Raises:
        InvalidConfig: no store is named, or no store is known by that address.
        MissingExtra: what speaks to it is not installed.
        RunFolderError: there is no such run.
        StoreDown: the store does not answer; then it would not for the next run either.
    """
    if not store:
        raise InvalidConfig(
            "No store is named.",
            fix=f"Say which with --store, or set TRUELOOP_STORE: {FORMS}.",
        )
    target_of(store, root)
    runs = [find_run(word, root) for word in words] or [root / name for name in names(root)]
    if not runs:
        raise RunFolderError(f"There are no runs in {str(root)!r}.", fix="Say where they are with --root.")
    return _synced(list(dict.fromkeys(runs)), store, again=again)


def _synced(runs: Sequence[Path], store: str, *, again: bool) -> Iterator[Synced]:
    for run in runs:
        target = target_of(store, run.resolve().parent)
        try:
            yield Synced(run=run, store=target.shown, copied=copy_run(run, target, again=again))
        except TrueloopError as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error, StoreRejected):
                raise
            yield Synced(run=run, store=target.shown, copied=None, problem=" ".join((error.what, error.fix)).strip())
