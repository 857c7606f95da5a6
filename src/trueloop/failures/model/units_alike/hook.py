"""Traces layers whose units all compute the same, which training cannot change if they start with equal weights.

Equal rows of a weight prove nothing: an output layer has them at first if it starts at zero, and always if its outputs
have the same targets. So the following layer must be symmetric too, and so must the gradients of both layers, after
updates that have changed the weight. Weights of zero that get gradients of zero never change, as where two layers in a
row start at zero.
"""

import weakref
from collections.abc import Callable
from typing import ClassVar, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from trueloop.core.findings import CodePosition
from trueloop.failures.model.units_alike import SymmetricUnits
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.gradients import parameters_of
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location
from trueloop.tracing.weak_id_dict import WeakIdDict

STEPS_BETWEEN_CHECKS: Final = 8  # optimizer steps before the first check and between checks
MAX_CHECKS: Final = 8  # checks of one optimizer; a check is repeated if the gradients are already cleared
FEW_COLUMNS: Final = 16  # columns in which two rows are compared first: they differ in nearly every weight
ROUNDING: Final = 1e-5  # of the largest value; kernels sum the units at a tile's edge in another order
MAX_FILLED: Final = 4096  # weights whose constant initialisation is remembered
NOISE: Final = 1e-3  # of the largest gradient; normalisation causes small differences


class _Candidates(NamedTuple):
    """Weights whose units were equal at the first check."""

    steps: int
    checks: int
    units: tuple[tuple[weakref.ref[Tensor], Tensor], ...] = ()
    """Weights, each with its first row at the first check."""
    zeros: tuple[weakref.ref[Tensor], ...] = ()
    """Weights that were zero at the first check."""


class UnitSymmetry(Hook):
    """Emits `SymmetricUnits`, also during sampled tracing.

    Cost: 10 us for each weight, once; if all its rows are equal, two comparisons of both layers.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (SymmetricUnits,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._candidates = WeakIdDict[Optimizer, _Candidates]()
        self._optimizers_checked, self._pending = 0, False
        self._filled_at = dict[int, CodePosition]()
        """Id of a weight -> line that filled it with a constant; not weakly referenced, as in `Registry`."""
        self._check = stream.isolated("units of layers", self._check_optimizers)

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches, and check every few updates while some optimizer is unchecked."""
        self._candidates.clear()
        self._optimizers_checked, self._pending = 0, True
        self._stream.periodic_checks.append(self._periodic_check)
        patches.add_handle(self)
        self._filled_at.clear()
        for name in ("constant_", "zeros_", "ones_"):
            patches.replace(torch.nn.init, name, self._fill)

    def remove(self) -> None:
        """Stop checking; called when the hooks are removed."""
        if self._periodic_check in self._stream.periodic_checks:
            self._stream.periodic_checks.remove(self._periodic_check)

    def _fill(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        stream, filled_at = self._stream, self._filled_at

        def fill(tensor: Tensor, *args: float) -> Tensor:
            if stream.active and (line := user_location(2)) is not None:
                if len(filled_at) >= MAX_FILLED:
                    del filled_at[next(iter(filled_at))]
                filled_at[id(tensor)] = line
            return original(tensor, *args)

        return fill

    def _initialised_at(self, weight: Tensor) -> CodePosition | None:
        """Return the line that filled a weight with a constant, or else the one that created its layer."""
        created = self._stream.registry.registered_at(weight)
        return self._filled_at.get(id(weight)) or (created[0] if created else None)

    def _periodic_check(self) -> None:
        if self._pending or self._program.optimizers_seen != self._optimizers_checked:
            self._check()

    def _check_optimizers(self) -> None:
        self._optimizers_checked, self._pending = self._program.optimizers_seen, False
        for optimizer, state in self._program.optimizers.items():
            candidates = self._candidates.get(optimizer) or _Candidates(0, 0)
            if candidates.checks < MAX_CHECKS:
                due = state.in_training_thread and state.steps >= candidates.steps + STEPS_BETWEEN_CHECKS
                if due:
                    candidates = self._candidates.put(optimizer, self._check_optimizer(optimizer, state, candidates))
                self._pending |= candidates.checks < MAX_CHECKS

    def _check_optimizer(self, optimizer: Optimizer, state: OptimizerState, candidates: _Candidates) -> _Candidates:
        """Check an optimizer, and return the state that the next check needs."""
        weights = [p for p in parameters_of(optimizer) if p.requires_grad and _readable(p)]
        if not weights:
            return _Candidates(0, MAX_CHECKS)
        if not candidates.checks:
            units = tuple((weakref.ref(unit), unit[0].detach().clone()) for unit in _symmetric_weights(weights))
            zeros = tuple(weakref.ref(weight) for weight in weights if not weight.any())
            return _Candidates(state.steps, 1, units, zeros) if units or zeros else self._report(optimizer, [], [])
        remaining = [(unit, row) for reference, row in candidates.units if (unit := reference()) is not None]
        zeros = [weight for reference in candidates.zeros if (weight := reference()) is not None]
        if any(weight.grad is None for weight in (*zeros, *(unit for unit, _ in remaining))):
            return candidates._replace(checks=candidates.checks + 1)
        with_grad = [weight for weight in weights if weight.grad is not None and _readable(weight.grad)]
        changed = {id(unit) for unit, row in remaining if not torch.equal(unit[0], row)}
        symmetric = _symmetric_weights(with_grad, check_gradients=True)
        stuck = [weight for weight in zeros if weight.grad is not None and not weight.any() and not weight.grad.any()]
        return self._report(optimizer, [unit for unit in symmetric if id(unit) in changed], stuck)

    def _report(self, optimizer: Optimizer, symmetric: list[Tensor], stuck: list[Tensor]) -> _Candidates:
        registry = self._stream.registry
        found = tuple((registry.parameter_ref(unit), unit.shape[0]) for unit in symmetric)
        location = self._program.hand_written_at or user_location()
        initialised = next((at for unit in (*stuck, *symmetric) if (at := self._initialised_at(unit))), None)
        zeros = tuple(registry.parameter_ref(weight) for weight in stuck)
        self._stream.emit(
            SymmetricUnits(
                location=location,
                optimizer=registry.ref(optimizer),
                symmetric=found,
                stuck_at_zero=zeros,
                initialised_at=initialised,
            )
        )
        return _Candidates(0, MAX_CHECKS)


def _readable(values: Tensor) -> bool:
    """Return True for real numbers on the CPU, in a matrix or more dimensions."""
    plain = values.is_cpu and values.layout is torch.strided and values.is_floating_point()
    return plain and type(values) in (Tensor, Parameter) and values.dim() > 1 and values.numel() > 0


def _symmetric_weights(weights: list[Tensor], *, check_gradients: bool = False) -> list[Tensor]:
    """Return the weights with equal rows for which another weight has equal blocks of columns, one for each row.

    Args:
        weights: weights of two or more dimensions, inputs on the second, with equally many columns for each unit.
        check_gradients: whether the gradients must be symmetric too.
    """
    found = [weight for weight in weights if weight.shape[0] > 1 and _is_symmetric(weight, check_gradients)]
    return [
        weight
        for weight in found
        if any(
            after is not weight
            and after.shape[1] % weight.shape[0] == 0
            and _is_symmetric(after, check_gradients, units=weight.shape[0])
            for after in weights
        )
    ]


def _is_symmetric(weight: Tensor, check_gradients: bool, units: int = 0) -> bool:
    """Return True if the rows of a weight, or its blocks of columns for each of ``units``, are equal and not zero."""
    for values, error in ((weight, ROUNDING), (weight.grad, NOISE)) if check_gradients else ((weight, ROUNDING),):
        if values is None:
            return False
        detached = values.detach()
        rows = detached.transpose(0, 1).reshape(units, -1) if units else detached.flatten(1)
        if not (_are_equal(rows[:2, :FEW_COLUMNS], error, zero=True) and _are_equal(rows, error)):
            return False
    return True


def _are_equal(rows: Tensor, error: float, *, zero: bool = False) -> bool:
    """Return True for rows that are equal up to a relative error; rows of 16-bit types must be exactly equal."""
    largest = rows.abs().max()
    allowed = error * largest if rows.dtype in (torch.float32, torch.float64) else 0
    return bool(zero or largest > 0) and bool((rows - rows[0]).abs().max() <= allowed)


HOOK: Final = UnitSymmetry
