"""Write the teaching script with injected failures: those of the catalogue, and an error that PyTorch raises."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

from trueloop.failures.load import catalogue
from trueloop.failures.page import join_wrapped_lines, split_sections
from trueloop.failures.teaching_script import CannotInject, Piece, TeachingLoop
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation

Inject = Callable[[TeachingLoop], None]
_SENTENCE = re.compile(r"(?<=[.;])\s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injectable:
    """A failure that can be injected into the script."""

    code: str
    family: str
    title: str
    severity: str
    symptom: str
    """What one sees, as one sentence."""
    inject: Inject
    late: str = ""
    """Why its finding comes late, as a sentence; "" = it comes within a few epochs."""


AT_END = "The sanitizer reports it at the end of the run."
LATE: Mapping[str, tuple[int, str]] = {
    "GRD005": (5, AT_END),
    **dict.fromkeys(("LRN001", "LRN002", "LRN003", "LRN004", "LRN005", "LRN006", "LRN007"), (0, AT_END)),
    "LOS009": (0, "The sanitizer reports it after 2,048 updates."),
    "SCH002": (20, "It shows where the schedule ends, before the run does."),
    "SCH003": (20, "It shows after as many updates as the run has epochs."),
    "SCH006": (5, AT_END),
}
"""Failures whose finding comes late: the maximum number of epochs so that it comes soon (0 = any), and why."""


WRONG_DEVICE = Injectable(
    code="DEVICE",
    family="data",
    title="A batch is on the wrong device (simulated)",
    severity="error",
    symptom="PyTorch stops the run in its first forward pass.",
    inject=partial(
        TeachingLoop.replace,
        where=Piece.FORWARD,
        old="model(inputs)",
        new='model(inputs.to("meta"))  # in place of a GPU, which this machine may not have',
    ),
)


@cache
def injectables() -> dict[str, Injectable]:
    """Return every failure that can be injected, by code."""
    found = {
        entry.code: Injectable(
            code=entry.code,
            family=entry.family,
            title=entry.failure.title,
            severity=entry.failure.severity.value,
            symptom=_first_sentence(dict(split_sections(entry.failure.doc)).get("What you see", "")),
            inject=_in_short_run(entry.code, entry.failure.inject),
            late=LATE.get(entry.code, (0, ""))[1],
        )
        for entry in catalogue().values()
        if entry.failure.inject is not None
    }
    return found | {WRONG_DEVICE.code: WRONG_DEVICE}


def _in_short_run(code: str, inject: Inject) -> Inject:
    """Return an injection that needs a run as short as `LATE` says."""
    epochs, reason = LATE.get(code, (0, ""))
    if not epochs:
        return inject

    def inject_in_short_run(loop: TeachingLoop) -> None:
        loop.require(loop.settings["epochs"] <= epochs, reason, epochs=epochs)
        inject(loop)

    return inject_in_short_run


def _first_sentence(text: str) -> str:
    return _SENTENCE.split(join_wrapped_lines(text), maxsplit=1)[0].rstrip(".;") + "."


class InjectedScript(NamedTuple):
    """A script and the settings from which it was written."""

    loop: TeachingLoop
    simulation: Simulation


def inject_failures(
    simulation: Simulation, injects: Sequence[Inject] = (), added: Sequence[AddedPoint] = ()
) -> InjectedScript:
    """Write the script of a simulation and inject failures.

    Raises:
        CannotInject: a failure needs other settings; the error's ``settings`` lists them.
        InvalidConfig: the added points leave a batch of one for BatchNorm.
    """
    simulation.check_batches(len(added))
    loop = teaching_loop(simulation, added)
    for inject in injects:
        inject(loop)
    return InjectedScript(loop, simulation)


def write_script(simulation: Simulation, injects: Sequence[Inject], added: Sequence[AddedPoint] = ()) -> InjectedScript:
    """Write the script with failures, changing the settings that the failures need.

    Raises:
        CannotInject: the failures cannot be combined.
        InvalidConfig: the required settings cannot be trained.
    """
    for _ in range(3 * len(injects) + 1):
        try:
            return inject_failures(simulation, injects, added)
        except CannotInject as error:
            if not error.settings or replace(simulation, **error.settings) == simulation:
                raise
            simulation = replace(simulation, **error.settings)
    raise CannotInject("These failures need conflicting settings.")
