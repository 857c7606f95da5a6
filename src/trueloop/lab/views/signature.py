"""Answer the page "Bug signatures" with curves of the correct and the broken teaching script from several seeds."""

from __future__ import annotations

import inspect
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple
from urllib.parse import urlencode

from trueloop.app.web.wire_format import to_json_value
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds
from trueloop.failures.load import Entry, find_failure
from trueloop.failures.teaching_script import CannotInject
from trueloop.lab.disk_cache import DiskCache, cache_folder
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.signatures import SEEDS, Recording, ScriptPair, parse_recording, plots, record, write_pair
from trueloop.lab.teaching.simulation import Simulation
from trueloop.reporting.json_report import finding_to_json
from trueloop.version import __version__

if TYPE_CHECKING:
    from trueloop.lab.teaching.script_run import ScriptRun

NEEDS_TORCH = True
SLOW = True
"""At most one such request is computed at a time, so that a process is free for quick requests."""
TIME_PER_ANSWER_S: Final = 1.5  # time to compute per request; the page then requests the rest
MAX_RECENT: Final = 12  # number of results that are kept in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The code of the requested failure."""

    code: Annotated[str, Bounds(1, 60), "a code or name of the catalogue"]


def answer(query: Query) -> dict[str, Any]:
    """Return the curves and the finding, or the number of finished seeds as "done" if more time is needed."""
    entry = find_failure(query.code)
    if entry is None:
        raise InvalidConfig(f"There is no failure {query.code!r}.", fix="trueloop failures lists all.")
    if entry.failure.inject is None:
        return {"code": entry.code, "curves": None}
    try:
        scripts = write_pair(entry.failure.inject)
    except CannotInject as error:
        return {"code": entry.code, "curves": None, "why": error.what}
    cache = DiskCache(cache_folder(os.environ) / "signatures")
    curves = cache.get(key := cache_key(entry, scripts))
    if curves is None:
        curves = _compute(entry, cache, key)
    if "plots" not in curves:
        return {"code": entry.code, "done": curves["done"], "of": len(SEEDS)}
    return {
        "code": entry.code,
        "curves": curves,
        "address": simulator_address(entry, scripts.simulation),
        **_script_json(scripts),
    }


def cache_key(entry: Entry, scripts: ScriptPair, *more: str) -> str:
    """Return the key of a measurement: it changes with both scripts, the detector and the versions."""
    function = entry.failure.detector or entry.failure.inject
    function = getattr(function, "func", function)  # an inject function may be a functools.partial
    path = inspect.getsourcefile(function) if function else None
    source = ""
    if path:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - inspect returns a string
            source = file.read()
    return scripts.key(__version__, version("torch"), source, *more)


def _compute(entry: Entry, cache: DiskCache, key: str) -> dict[str, Any]:
    """Run missing seeds for `TIME_PER_ANSWER_S`, at least one; return the result or the number of finished seeds."""
    start_s, has_run_seed = perf_counter(), False
    seeds: list[_SeedResult] = []
    for seed in SEEDS:
        assert entry.failure.inject is not None
        scripts = write_pair(entry.failure.inject, seed)
        result = _load_seed(entry, scripts, cache)
        if result is None:
            if has_run_seed and perf_counter() - start_s > TIME_PER_ANSWER_S:
                return {"done": len(seeds)}
            result, has_run_seed = _run_and_store(entry, scripts, cache), True
        seeds.append(result)
    data = {
        "plots": plots([seed.healthy for seed in seeds], [seed.broken for seed in seeds]),
        "raised": seeds[0].broken.raised,
        "finding": seeds[0].finding,
        "found": sum(seed.finding is not None for seed in seeds),
        "seeds": len(seeds),
        "updates": len(seeds[0].healthy.curves["loss"][0]),
    }
    json_data: dict[str, Any] = to_json_value(data)
    cache.put(key, json_data)
    return json_data


class _SeedResult(NamedTuple):
    """The recordings of both scripts from one seed."""

    healthy: Recording
    broken: Recording
    finding: dict[str, Any] | None


_RECENT: OrderedDict[str, _SeedResult] = OrderedDict()
"""The newest results by key, used if the disk cache cannot be written."""


def _load_seed(entry: Entry, scripts: ScriptPair, cache: DiskCache) -> _SeedResult | None:
    """Return the stored result of a seed, from this process or another one."""
    key = cache_key(entry, scripts, "one seed")
    if key in _RECENT:
        return _RECENT[key]
    data = cache.get(key)
    if data is None:
        return None
    try:
        return _SeedResult(parse_recording(data["healthy"]), parse_recording(data["broken"]), data["finding"])
    except (KeyError, TypeError, ValueError):
        return None


def _run_and_store(entry: Entry, scripts: ScriptPair, cache: DiskCache) -> _SeedResult:
    key, seed = cache_key(entry, scripts, "one seed"), _record_seed(entry, scripts)
    cache.put(key, to_json_value(seed._asdict() | {"healthy": asdict(seed.healthy), "broken": asdict(seed.broken)}))
    _RECENT[key] = seed
    while len(_RECENT) > MAX_RECENT:
        _RECENT.popitem(last=False)
    return seed


def _record_seed(entry: Entry, scripts: ScriptPair) -> _SeedResult:
    """Run both scripts; the sanitizer watches the broken one for this failure."""
    from trueloop.sanitizer.dispatch import WatchedFailure
    from trueloop.sanitizer.watch import Watch

    healthy = _record_healthy(scripts.healthy, scripts.simulation)
    watch = Watch([WatchedFailure(entry.failure, entry.slug)])
    broken = record(scripts.broken, scripts.simulation, partial(_run_watched, watch))
    finding = next((each for each in watch.report().findings if each.code == entry.code), None)
    return _SeedResult(healthy, broken, finding_to_json(replace(finding, related=())) if finding else None)


@lru_cache(maxsize=12)
def _record_healthy(text: str, simulation: Simulation) -> Recording:
    """Run the correct script, which most failures share; also under the sanitizer, so that memory is comparable."""
    from trueloop.sanitizer.watch import Watch

    return record(text, simulation, partial(_run_watched, Watch(())))


def _run_watched(watch: Any, script_run: ScriptRun) -> None:
    script_run.isolated = watch.paused
    with watch:
        script_run.run()


def simulator_address(entry: Entry, simulation: Simulation) -> str:
    """Return the address of the simulator page with these settings, this failure, and a twin run without it."""
    defaults: Mapping[str, Any] = asdict(Simulation())
    params = {name: _format_param(value) for name, value in asdict(simulation).items() if value != defaults[name]}
    return f"#/simulator?{urlencode({**params, 'bugs': entry.code, 'twin': 1})}"


def _format_param(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _script_json(scripts: ScriptPair) -> dict[str, Any]:
    return {
        "script": highlight(scripts.broken),
        "lines": sorted({change.line for change in scripts.lines}),
        "changes": [change._asdict() for change in scripts.lines],
    }
