"""What one silent failure looks like, really run: the teaching script as it is and broken, from several seeds."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlencode

from trueloop.catalogue.load import Entry, find
from trueloop.engines.report.as_json import finding_to_json
from trueloop.engines.teach.signatures import SEEDS, Pair, pair, plots, record
from trueloop.engines.teach.simulation import Simulation
from trueloop.faces.lab.code import highlighted
from trueloop.faces.lab.kept import Kept, cache_folder
from trueloop.faces.lab.wire import plain
from trueloop.ground.asked import Within
from trueloop.ground.errors import InvalidConfig
from trueloop.ground.teaching import CannotBreak
from trueloop.version import __version__

if TYPE_CHECKING:
    from trueloop.engines.teach.play import Play
    from trueloop.engines.teach.signatures import Recording

NEEDS_TORCH = True
TURN_S: Final = 4.0  # of computing for one question; what is missing then is asked for again


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which failure."""

    code: Annotated[str, Within(1, 60), "a code or name of the catalogue"]


def answer(asked: Asked) -> dict[str, Any]:
    """Return the curves and what the sanitizer said; "done" of "of" seeds where more time is needed."""
    entry = find(asked.code)
    if entry is None:
        raise InvalidConfig(f"There is no failure {asked.code!r}.", fix="trueloop failures lists all.")
    if entry.failure.inject is None:
        return {"code": entry.code, "curves": None}
    try:
        both = pair(entry.failure.inject)
    except CannotBreak as error:
        return {"code": entry.code, "curves": None, "why": error.what}
    kept = Kept(cache_folder(os.environ) / "signatures")
    known = kept.get(key := _key(entry, both))
    if known is None:
        known = _computed(entry, kept, key)
    if "plots" not in known:
        return {"code": entry.code, "done": known["done"], "of": len(SEEDS)}
    return {"code": entry.code, "curves": known, "address": _address(entry, both.simulation), **_text(both)}


def _key(entry: Entry, both: Pair) -> str:
    file = inspect.getsourcefile(entry.failure.inject) if entry.failure.inject else None
    source = ""
    if file:
        with open(file, encoding="utf-8") as text:  # noqa: PTH123 - as inspect names it
            source = text.read()
    return both.key(__version__, version("torch"), source)


_UNDER_WAY: dict[str, dict[int, tuple[Recording, Recording, Any]]] = {}
"""Seeds that were run for a question that was out of time, by key; of one failure at a time."""


def _computed(entry: Entry, kept: Kept, key: str) -> dict[str, Any]:
    start_s = perf_counter()
    if key not in _UNDER_WAY:
        _UNDER_WAY.clear()
    done = _UNDER_WAY.setdefault(key, {})
    for seed in SEEDS:
        if seed in done:
            continue
        done[seed] = _run(entry, seed)
        if perf_counter() - start_s > TURN_S and len(done) < len(SEEDS):
            return {"done": len(done)}
    recordings = [done[seed] for seed in SEEDS]
    told = {
        "plots": plots([healthy for healthy, _, _ in recordings], [broken for _, broken, _ in recordings]),
        "raised": recordings[0][1].raised,
        "finding": recordings[0][2],
        "found": sum(found is not None for _, _, found in recordings),
        "seeds": len(SEEDS),
        "updates": len(recordings[0][0].curves["loss"][0]),
    }
    strict: dict[str, Any] = plain(told)
    kept.put(key, strict)
    del _UNDER_WAY[key]
    return strict


def _run(entry: Entry, seed: int) -> tuple[Recording, Recording, Any]:
    """Run both scripts from one seed, the broken one watched for this failure."""
    from trueloop.engines.watch.judge import Watched
    from trueloop.engines.watch.watch import Watch

    assert entry.failure.inject is not None
    both = pair(entry.failure.inject, seed)
    healthy = _healthy(both.healthy, both.simulation)
    watch = Watch([Watched(entry.failure, entry.slug)])
    broken = record(both.broken, both.simulation, partial(_watched, watch))
    found = next((finding for finding in watch.report().findings if finding.code == entry.code), None)
    return healthy, broken, found and finding_to_json(replace(found, related=()))


@lru_cache(maxsize=12)
def _healthy(text: str, simulation: Simulation) -> Recording:
    """Run the script as it is: most failures share it. It is watched too, so that its memory can be compared."""
    from trueloop.engines.watch.watch import Watch

    return record(text, simulation, partial(_watched, Watch(())))


def _watched(watch: Any, play: Play) -> None:
    play.aside = watch.aside
    with watch:
        play.run()


def _address(entry: Entry, simulation: Simulation) -> str:
    """Return the simulator's page with the same settings, this failure in them, and its healthy twin beside."""
    usual: Mapping[str, Any] = asdict(Simulation())
    params = {name: _param(value) for name, value in asdict(simulation).items() if value != usual[name]}
    return f"#/simulator?{urlencode({**params, 'bugs': entry.code, 'twin': 1})}"


def _param(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _text(both: Pair) -> dict[str, Any]:
    return {
        "script": highlighted(both.broken),
        "lines": sorted({each.line for each in both.lines}),
        "changes": [each._asdict() for each in both.lines],
    }
