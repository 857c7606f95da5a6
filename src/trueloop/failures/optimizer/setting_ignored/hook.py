"""Traces settings that the program sets as attributes of a PyTorch optimizer, which does not read them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from trueloop.analysis.program_files import parse_program
from trueloop.failures.optimizer.setting_ignored import SETTINGS, OptimizerAttributeSet
from trueloop.tracing.attach import Hook
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.running_code import in_notebook, program_stack, user_files, user_modules
from trueloop.tracing.stream import EventStream

MAX_ATTRIBUTES: Final = 16  # attributes that are tracked


@dataclass(slots=True)
class _Candidate:
    """An attribute whose value differs from the setting in the parameter groups, as first found."""

    state: OptimizerState
    steps: int
    files: set[str]
    decided: bool = False


class OptimizerAttributes(Hook):
    """Emits `OptimizerAttributeSet`; checks at each start of a loader and when the watch ends.

    Cost: 2 us for each start of a loader; 5 ms for each file of the program, once, if such an attribute is found.
    """

    emits = (OptimizerAttributeSet,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._candidates: dict[tuple[int, str], _Candidate] = {}
        self._check = stream.isolated("settings of optimizers", self._check_optimizers)
        stream.on_detach.append(self._check)

    def install_always(self, patches: Patches) -> None:
        """Replace the method that starts a loader, to check at every start."""
        self._candidates.clear()
        patches.replace(DataLoader, "__iter__", self._iter)

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if self._stream.active and not self._program.is_other_thread():
                self._check()
            return original(loader)

        return __iter__

    def _check_optimizers(self) -> None:
        for optimizer, state in self._program.optimizers.items():
            if not SETTINGS.isdisjoint(vars(optimizer)) and type(optimizer).__module__.startswith("torch.optim."):
                for key in SETTINGS & vars(optimizer).keys() & optimizer.defaults.keys():
                    self._check_attribute(optimizer, state, key)

    def _check_attribute(self, optimizer: Optimizer, state: OptimizerState, key: str) -> None:
        value, group_values = vars(optimizer)[key], [group[key] for group in optimizer.param_groups]
        if any(each is value or repr(each) == repr(value) for each in group_values):
            self._candidates.pop((id(state), key), None)
            return
        candidate = self._candidates.get((id(state), key))
        files = user_files(program_stack())
        if candidate is None:
            if len(self._candidates) < MAX_ATTRIBUTES:
                self._candidates[id(state), key] = _Candidate(state, state.steps, files)
            return
        candidate.files |= files
        if candidate.decided or state.steps == candidate.steps:
            return
        candidate.decided = True
        trees = None if in_notebook() else parse_program(candidate.files, user_modules())
        if trees is not None:
            self._stream.emit(
                OptimizerAttributeSet(
                    optimizer=self._stream.registry.ref(optimizer), attribute=key, attribute_value=repr(value)[:40],
                    group_value=repr(group_values[0])[:40], trees=trees,
                )
            )  # fmt: skip


HOOK: Final = OptimizerAttributes
