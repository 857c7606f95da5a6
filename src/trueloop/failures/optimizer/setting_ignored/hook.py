"""Traces settings that the program sets as attributes or defaults of an optimizer, which does not read them."""

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
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_ATTRIBUTES: Final = 16  # attributes and defaults that are tracked
MAX_CHECKED_STEP: Final = 64  # steps after which only starts of loaders are checked


@dataclass(slots=True)
class _Candidate:
    """An attribute or default whose value differs from the setting in the parameter groups, as first found."""

    state: OptimizerState
    steps: int
    files: set[str]
    decided: bool = False


class OptimizerAttributes(Hook):
    """Emits `OptimizerAttributeSet`; checks at starts of loaders, after 2, 4, 8 ... steps and when the watch ends.

    Cost: 2 us for each start of a loader; 5 ms for each file of the program, once, if such an attribute is found.
    """

    emits = (OptimizerAttributeSet,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._candidates: dict[tuple[int, str, bool], _Candidate] = {}
        self._defaults = WeakIdDict[Optimizer, dict[str, Any]]()
        """The settings among the defaults of each optimizer when it was created."""
        self._steps = 0
        self._remember = stream.isolated("settings of optimizers", self._on_created)
        self._check = stream.isolated("settings of optimizers", self._check_optimizers)
        stream.on_detach.append(self._check)

    def install_always(self, patches: Patches) -> None:
        """Replace the method that starts a loader, to check at every start."""
        self._candidates.clear()
        self._defaults.clear()
        self._steps = 0
        self._program.after_step.append(self._after_step)
        patches.add_undo(self._stop)
        patches.replace(Optimizer, "__init__", self._init)
        patches.replace(DataLoader, "__iter__", self._iter)

    def _stop(self) -> None:
        if self._after_step in self._program.after_step:
            self._program.after_step.remove(self._after_step)

    def _init(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __init__(optimizer: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(optimizer, *args, **options)
            if self._stream.active:
                self._remember(optimizer)

        return __init__

    def _on_created(self, optimizer: Optimizer) -> None:
        if type(optimizer).__module__.startswith("torch.optim."):
            self._defaults.put(
                optimizer, {key: optimizer.defaults[key] for key in SETTINGS & optimizer.defaults.keys()}
            )

    def _after_step(self) -> None:
        self._steps += 1
        if self._steps.bit_count() == 1:
            self._check()
        if self._steps >= MAX_CHECKED_STEP:
            self._stop()

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
                    self._check_setting(optimizer, state, key, vars(optimizer)[key], is_default=False)
            for key, value in (self._defaults.get(optimizer) or {}).items():
                if optimizer.defaults.get(key) is not value:
                    self._check_setting(optimizer, state, key, optimizer.defaults.get(key), is_default=True)

    def _check_setting(
        self, optimizer: Optimizer, state: OptimizerState, key: str, value: Any, *, is_default: bool
    ) -> None:
        group_values, identity = [group[key] for group in optimizer.param_groups], (id(state), key, is_default)
        if any(each is value or repr(each) == repr(value) for each in group_values):
            self._candidates.pop(identity, None)
            return
        candidate = self._candidates.get(identity)
        files = user_files(program_stack())
        if candidate is None:
            if len(self._candidates) < MAX_ATTRIBUTES:
                self._candidates[identity] = _Candidate(state, state.steps, files)
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
                    group_value=repr(group_values[0])[:40], trees=trees, is_default=is_default,
                )
            )  # fmt: skip


HOOK: Final = OptimizerAttributes
