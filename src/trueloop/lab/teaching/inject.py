"""A script with failures in it: `inject` of the catalogue on the teaching loop, given what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from trueloop.failures.teaching_script import CannotInject, TeachingLoop
from trueloop.lab.teaching.datasets import Added
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation

Inject = Callable[[TeachingLoop], None]


class InjectedScript(NamedTuple):
    """A loop, and what it was inject_failures from."""

    loop: TeachingLoop
    simulation: Simulation


def inject_failures(
    simulation: Simulation, injects: Sequence[Inject] = (), added: Sequence[Added] = ()
) -> InjectedScript:
    """Write the script of a simulation, and break it.

    Raises:
        CannotBreak: there is nothing in it that one of the failures could break; ``settings`` says what would.
        InvalidConfig: the points added leave a batch of one to a batch normalisation.
    """
    simulation.check_batches(len(added))
    loop = teaching_loop(simulation, added)
    for inject in injects:
        inject(loop)
    return InjectedScript(loop, simulation)


def write_script(simulation: Simulation, injects: Sequence[Inject], added: Sequence[Added] = ()) -> InjectedScript:
    """Do so, and change those settings of the simulation that the failures need.

    Raises:
        CannotBreak: they cannot be in one script.
        InvalidConfig: what they need cannot be trained.
    """
    for _ in range(2 * len(injects) + 1):
        try:
            return inject_failures(simulation, injects, added)
        except CannotInject as lack:
            if not lack.settings or replace(simulation, **lack.settings) == simulation:
                raise
            simulation = replace(simulation, **lack.settings)
    raise CannotInject("These failures need settings that rule each other out.")
