"""Five classic experiments: their runs, a common claim, and a check of the claim against the measurements.

This module does not import torch; `simulator.run_scenario` runs the experiments.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, quantiles
from typing import Any, Final, NamedTuple

from trueloop.core.learning import LearningSummary, summarise
from trueloop.lab.teaching.simulation import Simulation

SCENARIO_NAMES: Final = ("rate", "adam", "clearing", "no_grad", "cosine")
CHANCE_LOSS: Final = math.log(2)  # the loss of guessing between two classes
SMOOTHING_UPDATES: Final = 20  # number of updates over which losses are averaged before a comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One run of an experiment."""

    label: str
    simulation: Simulation
    bugs: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Record:
    """The curves of a complete run."""

    update: list[int] = field(default_factory=list[int])
    loss: list[float] = field(default_factory=list[float])
    norm: list[float] = field(default_factory=list[float])
    rate: list[float] = field(default_factory=list[float])
    evaluations: list[tuple[int, float, float]] = field(default_factory=list[tuple[int, float, float]])
    """(update, held-out loss, accuracy)."""
    sweep: list[float] = field(default_factory=list[float])
    """MiB allocated at each batch of the last evaluation, minus those at its start."""


class Verdict(NamedTuple):
    """A sentence with the measurements, and whether the claim holds."""

    measured: str
    holds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """An experiment."""

    title: str
    claim: str
    variants: tuple[Variant, ...]
    judge: Callable[[Sequence[Record]], Verdict]
    """Checks the claim with one record per variant."""


def update_reaching(record: Record, loss: float) -> int | None:
    """Return the update from which the mean loss of the latest `SMOOTHING_UPDATES` is below ``loss``; None = never."""
    for end in range(SMOOTHING_UPDATES, len(record.loss) + 1):
        if fmean(record.loss[end - SMOOTHING_UPDATES : end]) < loss:
            return end
    return None


def learning(record: Record) -> LearningSummary:
    """Return whether a run learned, as `trueloop run` says it."""
    return summarise("nll", record.update, record.loss, CHANCE_LOSS)


def _rate(records: Sequence[Record]) -> Verdict:
    low, high = map(learning, records)
    return Verdict(
        f"At 0.01 the loss went from {low.start:.3f} to {low.end:.3f}; at 1.0 from {high.start:.3f} to {high.end:.3f}, "
        f"with a maximum of {max(records[1].loss):.3g}. The loss of guessing is {CHANCE_LOSS:.3f}.",
        low.is_learning and high.is_failing,
    )


def _adam(records: Sequence[Record]) -> Verdict:
    target = 0.3
    adam, *others = (update_reaching(each, target) for each in records)
    if adam is None:
        return Verdict(f"Adam never reached a loss of {target}.", holds=False)
    results: list[str] = []
    for variant, update in zip(SCENARIOS["adam"].variants[1:], others, strict=True):
        optimizer = f"SGD at {variant.simulation.learning_rate:g}"
        result = f"at update {update}, {update / adam:.1f} times as many" if update else "never"
        results.append(f"{optimizer} {result}")
    best = min((update for update in others if update), default=None)
    return Verdict(
        f"Adam at 0.01 reached a loss of {target} at update {adam}; {'; '.join(results)}. "
        "The factor depends on SGD's learning rate; the claim is checked against the best of these rates.",
        best is not None and 3 <= best / adam <= 5,
    )


def _clearing(records: Sequence[Record]) -> Verdict:
    quarter = len(records[0].norm) // 4
    (first, last), (broken_first, broken_last) = (
        (fmean(each.norm[:quarter]), fmean(each.norm[-quarter:])) for each in records
    )
    spread, broken_spread = (_spread(each.loss[len(each.loss) // 2 :]) for each in records)
    return Verdict(
        f"With zero_grad, the gradient norm went from {first:.2f} to {last:.2f} (means of the first and the last "
        f"quarter); without it, from {broken_first:.2f} to {broken_last:.2f}. In the second half, the losses of 80 % "
        f"of the batches spread over {spread:.2f}; without zero_grad, over {broken_spread:.2f}.",
        broken_last > 2 * broken_first and broken_last > 2 * last and broken_spread > 2 * spread,
    )


def _spread(losses: Sequence[float]) -> float:
    """Return the width of the range of the middle 80 % of the values."""
    tenths = quantiles(losses, n=10)
    return tenths[-1] - tenths[0]


def _no_grad(records: Sequence[Record]) -> Verdict:
    with_no_grad, without = (each.sweep[-1] - each.sweep[0] for each in records)
    batches = len(records[0].sweep) - 1
    growing = sum(later > sooner for sooner, later in zip(records[1].sweep, records[1].sweep[1:], strict=False))
    return Verdict(
        f"Over the {batches} batches of an evaluation that adds up its losses, memory grew by {1024 * without:.0f} KiB "
        f"without no_grad, at {growing} of the batches, and by {1024 * with_no_grad:.0f} KiB with no_grad. The memory "
        "is freed with the sum of the losses, at the end of the evaluation.",
        without > 10 * max(with_no_grad, 0.001) and growing > 0.9 * batches,
    )


def _cosine(records: Sequence[Record]) -> Verdict:
    constant, cosine = (fmean(each.loss[-2 * SMOOTHING_UPDATES :]) for each in records)
    held_out_constant, held_out_cosine = (each.evaluations[-1][1] for each in records)
    return Verdict(
        f"The final training loss is {constant:.3f} at a constant rate and {cosine:.3f} with cosine; on held-out "
        f"points {held_out_constant:.3f} and {held_out_cosine:.3f}.",
        cosine < constant and held_out_cosine < held_out_constant,
    )


_SPIRAL: Final = Simulation(dataset="spiral", hidden=(16, 16), epochs=60)
_CIRCLES: Final = Simulation(dataset="circles", hidden=(16, 16), epochs=80)
_NOISY: Final = replace(_SPIRAL, noise=0.1, optimizer="momentum", learning_rate=0.1)
_MANY_BATCHES: Final = Simulation(dataset="moons", samples=1000, batch=4, hidden=(16, 16), epochs=1)


def _variant(simulation: Simulation, label: str, *bugs: str, **changes: Any) -> Variant:
    return Variant(label=label, simulation=replace(simulation, **changes), bugs=bugs)


SCENARIOS: Final[Mapping[str, Scenario]] = {
    "rate": Scenario(
        title="Too high a learning rate",
        claim="Training works at a learning rate of 0.01 and diverges at 1.0.",
        variants=(
            _variant(_SPIRAL, "rate 0.01", optimizer="momentum", learning_rate=0.01),
            _variant(_SPIRAL, "rate 1.0", optimizer="momentum", learning_rate=1.0),
        ),
        judge=_rate,
    ),
    "adam": Scenario(
        title="Adam against SGD",
        claim="Adam reaches a given loss in 3 to 5 times fewer updates than SGD.",
        variants=(
            _variant(_CIRCLES, "Adam, 0.01", optimizer="adam"),
            _variant(_CIRCLES, "SGD, 0.01", optimizer="sgd"),
            _variant(_CIRCLES, "SGD, 0.1", optimizer="sgd", learning_rate=0.1),
            _variant(_CIRCLES, "SGD, 0.3", optimizer="sgd", learning_rate=0.3),
        ),
        judge=_adam,
    ),
    "clearing": Scenario(
        title="zero_grad left out",
        claim="Without zero_grad the loss oscillates and the gradient norm grows.",
        variants=(
            _variant(_CIRCLES, "cleared", optimizer="sgd", learning_rate=0.1, epochs=40),
            _variant(_CIRCLES, "never cleared", "GRD001", optimizer="sgd", learning_rate=0.1, epochs=40),
        ),
        judge=_clearing,
    ),
    "no_grad": Scenario(
        title="Evaluation without no_grad",
        claim="Memory grows during an evaluation without no_grad, and stays constant with it.",
        variants=(_variant(_MANY_BATCHES, "no_grad"), _variant(_MANY_BATCHES, "without", no_grad=False)),
        judge=_no_grad,
    ),
    "cosine": Scenario(
        title="Cosine against a constant rate",
        claim="With a cosine schedule the loss ends lower than at a constant rate.",
        variants=(_variant(_NOISY, "constant"), _variant(_NOISY, "cosine", schedule="cosine")),
        judge=_cosine,
    ),
}
