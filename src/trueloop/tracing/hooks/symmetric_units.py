"""Layers whose units all compute the same, as they do for ever where they begin with the same weights.

Rows of a weight that are the same prove nothing: those of an output layer that begins at zero are, for a moment, and
those of outputs with the same targets always. So what leads on from the units has to be the same, too, and so have the
gradients of both, after updates that have changed the weight.
"""

from __future__ import annotations

import weakref
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from trueloop.tracing.accumulation_window import parameters_of
from trueloop.tracing.events import Event, SymmetricUnits
from trueloop.tracing.object_facts import WeakIdDict
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location

APART: Final = 8  # steps before the first look, and at least as many up to the second
MOST: Final = 8  # looks at one optimizer, where gradients are gone at the first of them
NARROW: Final = 16  # values of the first two rows that tell nearly every weight
ROUNDING: Final = 1e-5  # of the largest value; kernels sum up the units at a tile's edge in another order
NOISE: Final = 1e-3  # of the largest gradient, of which normalisation leaves a difference of larger ones


class _Seen(NamedTuple):
    """Weights whose units were the same at the first look."""

    steps: int
    looks: int
    units: tuple[tuple[weakref.ref[Tensor], Tensor], ...] = ()
    """A weight, and its first row as it was."""


class Units:
    """Tells `UnitsCompared`, also while watching lightly.

    Cost: 10 us for each weight, once; where all its rows are the same, that of a comparison of both layers, twice.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SymmetricUnits,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._seen = WeakIdDict[Optimizer, _Seen]()
        self._met, self._waiting = 0, False
        self._look = stream.isolated("units of layers", self._looked)

    def install_always(self, patches: Patches) -> None:
        """Begin anew, and look every few updates as long as there is an optimizer that was not looked at."""
        self._seen.clear()
        self._met, self._waiting = 0, True
        self._stream.periodic_checks.append(self._after_updates)
        patches.add_handle(self)

    def remove(self) -> None:
        """Look no more; called with the hooks that are taken off."""
        if self._after_updates in self._stream.periodic_checks:
            self._stream.periodic_checks.remove(self._after_updates)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _after_updates(self) -> None:
        if self._waiting or self._program.optimizers_seen != self._met:
            self._look()

    def _looked(self) -> None:
        self._met, self._waiting = self._program.optimizers_seen, False
        for optimizer, known in self._program.optimizers.items():
            seen = self._seen.get(optimizer) or _Seen(0, 0)
            if seen.looks < MOST:
                due = known.in_training_thread and known.steps >= seen.steps + APART
                if due:
                    seen = self._seen.put(optimizer, self._compared(optimizer, known, seen))
                self._waiting |= seen.looks < MOST

    def _compared(self, optimizer: Optimizer, known: OptimizerState, seen: _Seen) -> _Seen:
        """Return what there is to be looked at again."""
        weights = [p for p in parameters_of(optimizer) if p.requires_grad and _readable(p)]
        if not weights:
            return _Seen(0, MOST)
        if not seen.looks:
            units = _units(weights)
            if units:
                return _Seen(known.steps, 1, tuple((weakref.ref(unit), unit[0].detach().clone()) for unit in units))
            return self._tell(optimizer, [])
        left = [(unit, row) for held, row in seen.units if (unit := held()) is not None]
        if any(unit.grad is None for unit, _ in left):
            return seen._replace(looks=seen.looks + 1)
        graded = [weight for weight in weights if weight.grad is not None and _readable(weight.grad)]
        moved = {id(unit) for unit, row in left if not torch.equal(unit[0], row)}
        return self._tell(optimizer, [unit for unit in _units(graded, graded=True) if id(unit) in moved])

    def _tell(self, optimizer: Optimizer, alike: list[Tensor]) -> _Seen:
        registry = self._stream.registry
        found = tuple((registry.parameter_ref(unit), unit.shape[0]) for unit in alike)
        self._stream.emit(SymmetricUnits(location=user_location(), optimizer=registry.ref(optimizer), symmetric=found))
        return _Seen(0, MOST)


def _readable(values: Tensor) -> bool:
    """True for real numbers on the CPU, in a matrix or more."""
    plain = values.is_cpu and values.layout is torch.strided and values.is_floating_point()
    return plain and type(values) in (Tensor, Parameter) and values.dim() > 1 and values.numel() > 0


def _units(weights: list[Tensor], *, graded: bool = False) -> list[Tensor]:
    """Return the weights whose rows are the same, and so are the columns of another one that has one for each of them.

    Args:
        weights: two or more dimensions each; what comes in is on the second, in as many columns for each unit.
        graded: the same has to hold of their gradients.
    """
    found = [weight for weight in weights if weight.shape[0] > 1 and _alike(weight, graded)]
    return [
        weight
        for weight in found
        if any(
            after is not weight
            and after.shape[1] % weight.shape[0] == 0
            and _alike(after, graded, units=weight.shape[0])
            for after in weights
        )
    ]


def _alike(weight: Tensor, graded: bool, units: int = 0) -> bool:
    """True where the rows of a weight, or its columns by ``units``, are the same, and not zero."""
    for values, error in ((weight, ROUNDING), (weight.grad, NOISE)) if graded else ((weight, ROUNDING),):
        if values is None:
            return False
        given = values.detach()
        rows = given.transpose(0, 1).reshape(units, -1) if units else given.flatten(1)
        if not (_same(rows[:2, :NARROW], error, zero=True) and _same(rows, error)):
            return False
    return True


def _same(rows: Tensor, error: float, *, zero: bool = False) -> bool:
    """True for rows that are equal up to an error relative to the largest value; exactly, where numbers are short."""
    largest = rows.abs().max()
    allowed = error * largest if rows.dtype in (torch.float32, torch.float64) else 0
    return bool(zero or largest > 0) and bool((rows - rows[0]).abs().max() <= allowed)
