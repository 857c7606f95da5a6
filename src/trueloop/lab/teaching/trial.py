"""Runs the variants of an experiment, one after the other, as fast as they go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from trueloop.lab.teaching.inject import Inject, fitted
from trueloop.lab.teaching.player import Play
from trueloop.lab.teaching.program import Program
from trueloop.lab.teaching.scenarios import Record, Scenario, Variant


def tried(
    scenario: Scenario, injects: Mapping[str, Inject], hear: Callable[[float], None] = lambda progress: None
) -> Sequence[Record]:
    """Run all variants.

    Args:
        scenario: the experiment.
        injects: what breaks a script, by its code.
        hear: told before every batch how far all is, 0..1; may raise `Stopped`.

    Returns:
        A record of each, in their order.
    """
    total = sum(variant.simulation.updates for variant in scenario.variants)
    done = 0
    records: list[Record] = []
    for variant in scenario.variants:
        records.append(_run(variant, injects, lambda play, done=done: hear((done + play.update) / total)))
        done += variant.simulation.updates
    return records


def _run(variant: Variant, injects: Mapping[str, Inject], hear: Callable[[Play], None]) -> Record:
    loop, simulation = fitted(variant.simulation, [injects[code] for code in variant.bugs])
    play = Play(Program(loop.text()), hear, clip=simulation.clip, memory_share=1.0)
    play.run()
    curves = play.take()
    return Record(
        update=curves.update, loss=curves.loss, norm=curves.norm, rate=curves.rate, evaluations=curves.evaluations,
        sweep=play.sweep,
    )  # fmt: skip
