"""Write the teaching script with injected failures of the catalogue."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from trueloop.failures.teaching_script import CannotInject, TeachingLoop
from trueloop.lab.teaching.datasets import AddedPoint
from trueloop.lab.teaching.script import teaching_loop
from trueloop.lab.teaching.simulation import Simulation

Inject = Callable[[TeachingLoop], None]


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
    for _ in range(2 * len(injects) + 1):
        try:
            return inject_failures(simulation, injects, added)
        except CannotInject as error:
            if not error.settings or replace(simulation, **error.settings) == simulation:
                raise
            simulation = replace(simulation, **error.settings)
    raise CannotInject("These failures need conflicting settings.")
