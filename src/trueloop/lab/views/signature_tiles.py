"""Answer the wall of the page "Bug signatures": one small curve of each failure, from a short run on one seed."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from time import perf_counter
from typing import Annotated, Any, Final, NamedTuple

from trueloop.core.untrusted_input import Bounds
from trueloop.failures.load import find_failure
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.disk_cache import DiskCache, cache_folder
from trueloop.lab.teaching.signatures import Recording, ScriptPair, most_different, plots, record, write_pair
from trueloop.lab.teaching.simulation import Simulation
from trueloop.lab.views.signature import cache_key

NEEDS_TORCH = True
SLOW = True
TIME_PER_ANSWER_S: Final = 0.4  # the page then draws what it has, and requests the rest
EPOCHS: Final = 12  # half of those of the failure's page: a tile shows a shape, not numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The codes of the requested failures, in the order in which they are measured."""

    codes: Annotated[tuple[Annotated[str, Bounds(1, 60)], ...], Bounds(0, 400)] = ()


def answer(query: Query) -> dict[str, Any]:
    """Measure tiles for `TIME_PER_ANSWER_S`, at least one; None: the failure cannot be injected."""
    start_s = perf_counter()
    tiles: dict[str, dict[str, Any] | None] = {}
    disk = _cache()
    for code in query.codes:
        if tiles and perf_counter() - start_s > TIME_PER_ANSWER_S:
            break
        job = _find_job(code)
        tile = job and disk.get(job.key)
        if job and tile is None:
            disk.put(job.key, tile := _measure(job.scripts))
        tiles[code] = tile
    return {"tiles": tiles}


def cached_tiles(codes: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the tiles that were measured earlier on this machine, without torch."""
    disk = _cache()
    cached = {code: disk.get(job.key) for code in codes if (job := _find_job(code))}
    return {code: tile for code, tile in cached.items() if tile is not None}


def _cache() -> DiskCache:
    return DiskCache(cache_folder(os.environ) / "signatures")


class _Job(NamedTuple):
    scripts: ScriptPair
    key: str


@cache
def _find_job(code: str) -> _Job | None:
    """Write the scripts of a failure; None if it cannot be injected."""
    entry = find_failure(code)
    if entry is None or entry.failure.inject is None:
        return None
    try:
        scripts = write_pair(entry.failure.inject, epochs=EPOCHS)
    except CannotInject:
        return None
    return _Job(scripts, cache_key(entry, scripts, "tile"))


def _measure(scripts: ScriptPair) -> dict[str, Any]:
    """Run both scripts once, without the sanitizer, and return the curves of the quantity that differs most."""
    healthy, broken = _record_healthy(scripts.healthy, scripts.simulation), _record(scripts.broken, scripts.simulation)
    plot = most_different(plots([healthy], [broken]))
    curves = {which: plot[which] | {"least": [], "most": []} for which in ("healthy", "broken")}  # of one seed only
    return plot | curves


def _record(script: str, simulation: Simulation) -> Recording:
    return record(script, simulation, lambda script_run: script_run.run())


@lru_cache(maxsize=12)
def _record_healthy(script: str, simulation: Simulation) -> Recording:
    """Run a correct script, which most failures share."""
    if not _record_healthy.cache_info().currsize:
        _record(script, simulation)  # the first run of a process allocates more memory
    return _record(script, simulation)
