"""Traces optimizers that never step although backward passes compute gradients for their parameters.

Only optimizers without a step are checked, from the second backward pass on, so normal training has no overhead.
"""

import weakref
from functools import partial
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueloop.core.findings import CodePosition
from trueloop.tracing.accumulation_window import AccumulationWindows, parameters_of
from trueloop.tracing.events import Event, Ref, StepMissing
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.program_text.attribute_readers import parse_files, running_files
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_called_by_user

MIN_BACKWARDS: Final = 8  # backward passes without a step, by which a program that updates weights itself is recognised
MAX_VALUES: Final = 4  # values of each parameter that are compared


class _Pending:
    """One optimizer that has not stepped."""

    __slots__ = ("backwards", "called_by_user", "changed", "files", "location", "ref", "snapshots", "state")

    def __init__(self, ref: Ref, state: OptimizerState, parameters: list[Tensor]) -> None:
        self.ref, self.state = ref, state
        self.backwards = 1
        self.called_by_user = self.changed = False
        self.location: CodePosition | None = None
        self.files: frozenset[str] = frozenset()
        self.snapshots = [(weakref.ref(each), _snapshot(each)) for each in parameters]

    def compare(self) -> None:
        """Record whether the parameters that are still in memory have changed."""
        self.changed |= any(
            (parameter := reference()) is not None and _snapshot(parameter) != snapshot
            for reference, snapshot in self.snapshots
        )


class NeverStepped:
    """Emits `StepMissing`.

    Cost: for an optimizer without a step 0.2 us per backward pass, and twice 1 us for each parameter.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (StepMissing,)

    def __init__(self, stream: EventStream, program: ProgramState, windows: AccumulationWindows) -> None:
        self._stream, self._program = stream, program
        self._pending: dict[int, _Pending] = {}
        """Id of an `OptimizerState` -> its optimizer, which has not stepped."""
        windows.on_missing_step = stream.isolated("optimizers that never step", self._on_backward)
        stream.on_detach.append(stream.isolated("optimizers that never step", self._on_detach))

    def install_always(self, patches: Patches) -> None:
        """Forget earlier watches."""
        self._pending = {}

    def install_full_tracing(self, patches: Patches) -> None:
        """Do nothing: the gradient windows report backward passes."""

    def _on_backward(self, optimizer: Optimizer, state: OptimizerState, location: CodePosition | None) -> None:
        pending = self._pending.get(id(state))
        if pending is None:
            self._pending = {key: each for key, each in self._pending.items() if not each.state.steps}
            ref = self._stream.registry.ref(optimizer)
            pending = self._pending[id(state)] = _Pending(ref, state, parameters_of(optimizer))
        pending.backwards += 1
        if pending.backwards != MIN_BACKWARDS:
            return
        pending.compare()
        if pending.changed or self._is_shared(optimizer):
            pending.changed = True
            return
        pending.location, pending.called_by_user = location, is_called_by_user()
        pending.files = running_files()
        self._report(pending, ended=False)

    def _on_detach(self) -> None:
        for pending in self._pending.values():
            if (
                pending.backwards >= MIN_BACKWARDS
                and not pending.state.steps
                and not pending.changed
                and self._stream.active
            ):
                pending.compare()
                if not pending.changed:
                    self._report(pending, ended=True)

    def _report(self, pending: _Pending, *, ended: bool) -> None:
        self._stream.emit(
            StepMissing(
                location=pending.location,
                optimizer=pending.ref,
                backwards=pending.backwards,
                called_by_user=pending.called_by_user,
                watch_ended=ended,
                read_modules=partial(parse_files, pending.files),
            )
        )

    def _is_shared(self, optimizer: Optimizer) -> bool:
        """Return True if another optimizer has some of the same parameters, and may step them."""
        own_ids = set(map(id, parameters_of(optimizer)))
        others = [each for each, _ in self._program.optimizers.items() if each is not optimizer]
        return any(id(parameter) in own_ids for other in others for parameter in parameters_of(other))


def _snapshot(parameter: Tensor) -> tuple[Any, ...]:
    version = parameter._version  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    plain = type(parameter) in (Tensor, nn.Parameter) and parameter.is_cpu and parameter.layout is torch.strided
    return (version, *(parameter.detach().flatten()[:MAX_VALUES].tolist() if plain else ()))
