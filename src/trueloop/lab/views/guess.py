"""Answer the page "Guess the bug": ten films of a run with one hidden failure, four answers each, and the evidence."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from importlib.metadata import version
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Final

from trueloop.app.web.wire_format import to_json_value
from trueloop.core.errors import InvalidConfig
from trueloop.core.untrusted_input import Bounds
from trueloop.failures.load import Entry, catalogue, find_failure
from trueloop.lab.disk_cache import DiskCache, cache_folder
from trueloop.lab.highlight import highlight
from trueloop.lab.teaching.film import film_run, join_runs, write_film_scripts
from trueloop.lab.teaching.signatures import ScriptPair
from trueloop.lab.views.signature import simulator_address
from trueloop.reporting.json_report import finding_to_json
from trueloop.version import __version__

if TYPE_CHECKING:
    from trueloop.lab.teaching.script_run import ScriptRun

NEEDS_TORCH = True
SLOW = True
ROUNDS: Final = 10
ANSWERS: Final = 4
FORMAT: Final = 2  # increased whenever films of the same scripts would differ, so that cached ones are not used
NOT_SEEN: Final = frozenset({
    "GRD011", "PRC002", "PRC006", "EVL003", "EVL008", "MEM002",
    "LOS009", "LRN006", "SCH001", "DAT002", "CKP001", "DST002", "ENV006",
})  # fmt: skip
"""Failures that no curve of a film shows, or that the sanitizer does not find in so short a run."""
LOOK_ALIKES: Final = (
    frozenset({"GRD002", "GRD009", "GRD013", "OPT006"}),  # no weight moves
    frozenset({"OPT004", "SCH006"}),  # the rate stays constant
    frozenset({"DAT004", "DST003"}),  # each epoch has the same order
    frozenset({"GRD005", "MDL001", "OPT001", "OPT003"}),  # a layer does not train
)
"""Failures that have the same curves: one of them is never a wrong answer for another."""
MAX_FIRST_RUN_S: Final = 5.0  # if the first run took longer, another request computes the second one
LINES_AROUND: Final = 4  # lines of code above and below that of a finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The requested round of a game, or the film of one failure."""

    seed: Annotated[int, Bounds(0, 999_999), "a game: the same ten rounds everywhere"] = 0
    round: Annotated[int, Bounds(1, ROUNDS), "the round"] = 1
    code: Annotated[str, Bounds(0, 60), "a code or name of the catalogue, instead of a game"] = ""
    reveal: Annotated[bool, "return the evidence instead of the film"] = False


def answer(query: Query) -> dict[str, Any]:
    """Return the film and the possible answers, or which of them is right and the sanitizer's evidence.

    If the film is None, more time is needed: the same query continues.
    """
    entry = _requested_failure(query.code) if query.code else game(query.seed)[query.round - 1]
    assert entry.failure.inject is not None
    scripts = write_film_scripts(entry.failure.inject)
    if query.reveal:
        return _reveal(entry, scripts)
    film = _film(scripts)
    if film is None:
        return {"film": None}
    answers = [] if query.code else possible_answers(entry, query.seed)
    return {
        "rounds": ROUNDS,
        "answers": [{"code": each.code, "title": each.failure.title} for each in answers],
        "films": [{"code": each.code, "title": each.failure.title} for each in candidates()] if query.code else [],
        "film": film,
    }


@cache
def candidates() -> Sequence[Entry]:
    """Return the failures that a game may hide."""
    return [entry for entry in catalogue().values() if entry.failure.inject and entry.code not in NOT_SEEN]


def game(seed: int) -> Sequence[Entry]:
    """Return the hidden failure of each round."""
    return random.Random(seed).sample(list(candidates()), ROUNDS)  # noqa: S311 - a game


def possible_answers(entry: Entry, seed: int) -> Sequence[Entry]:
    """Return the hidden failure and wrong answers of other families with other curves, in random order."""
    generator = random.Random(f"{seed} {entry.code}")  # noqa: S311 - a game
    excluded = {entry.code}.union(*(group for group in LOOK_ALIKES if entry.code in group))
    answers = {entry.family: entry}
    for other in generator.sample(list(candidates()), len(candidates())):
        if len(answers) < ANSWERS and other.code not in excluded:
            answers.setdefault(other.family, other)
    return generator.sample(list(answers.values()), ANSWERS)


def _requested_failure(code: str) -> Entry:
    entry = find_failure(code)
    if entry is None or entry.failure.inject is None:
        raise InvalidConfig(f"There is no film of {code!r}.", fix="The page Bug signatures lists failures with curves.")
    return entry


def _film(scripts: ScriptPair) -> dict[str, Any] | None:
    """Return the film; None if more time is needed for its second run."""
    start_s = perf_counter()
    healthy = _run(scripts.healthy, scripts)
    if perf_counter() - start_s > MAX_FIRST_RUN_S:
        return None
    return join_runs(scripts, healthy, _run(scripts.broken, scripts))


def _run(text: str, scripts: ScriptPair) -> dict[str, Any]:
    """Return the run of a script, from the cache if it is there; most films share the correct one."""
    cached = DiskCache(cache_folder(os.environ) / "films")
    key = sha256("\0".join([text, __version__, version("torch"), str(FORMAT)]).encode()).hexdigest()[:40]
    run = cached.get(key)
    if run is None:
        run = to_json_value(film_run(text, scripts))
        cached.put(key, run)
    return run


def _reveal(entry: Entry, scripts: ScriptPair) -> dict[str, Any]:
    finding = _find(entry, scripts)
    lines = highlight(scripts.broken)
    line = finding["line"] if finding else min(change.line for change in scripts.lines)
    start = max(1, line - LINES_AROUND)
    return {
        "code": entry.code,
        "title": entry.failure.title,
        "fix": entry.failure.fix,
        "finding": finding,
        "line": line,
        "start": start,
        "lines": lines[start - 1 : line + LINES_AROUND],
        "broken": sorted({change.line for change in scripts.lines}),
        "address": simulator_address(entry, scripts.simulation),
    }


def _find(entry: Entry, scripts: ScriptPair) -> dict[str, Any] | None:
    """Run the broken script under the sanitizer until it reports the failure; None if it does not."""
    from trueloop.core.findings import Finding
    from trueloop.lab.teaching.program import Program
    from trueloop.lab.teaching.script_run import ScriptRun, Stopped
    from trueloop.sanitizer.dispatch import WatchedFailure
    from trueloop.sanitizer.watch import Watch

    found: list[Finding] = []

    def stop_when_found(script_run: ScriptRun) -> None:
        if found:
            raise Stopped

    watch = Watch([WatchedFailure(entry.failure, entry.slug)], on_finding=found.append)
    program = Program(scripts.broken)
    with contextlib.suppress(Stopped), watch:
        ScriptRun(program, stop_when_found, clip=scripts.simulation.clip, isolated=watch.paused).run()
    findings = watch.report().findings
    return finding_to_json(replace(findings[0], related=())) if findings else None
