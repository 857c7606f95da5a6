"""Settings that the program gives to an optimizer of torch's in an attribute, which it does not read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from trueloop.core.findings import SourceLocation
from trueloop.tracing.events import Event, IneffectiveOptimizerAttribute
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import OptimizerState, ProgramState
from trueloop.tracing.program_text.optimizer_settings import (
    KEYS,
    read_of_optimizer,
    sets_in_groups,
    written_to_optimizer,
)
from trueloop.tracing.program_text.program_files import files_of, in_notebook, program_stack, reached
from trueloop.tracing.stream import EventStream

MOST: Final = 16  # settings that are followed
_NOTHING: Final = frozenset[int]()


@dataclass(slots=True)
class _Seen:
    """An attribute, when it was first seen to be another than what the groups have."""

    known: OptimizerState
    steps: int
    files: set[str]
    judged: bool = False


class Settings:
    """Tells `SettingIgnored`: looks whenever a loader is started and when the watch ends.

    Cost: 2 us for each start of a loader; 5 ms for each file of the program, once, where there is such an attribute.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (IneffectiveOptimizerAttribute,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._seen: dict[tuple[int, str], _Seen] = {}
        self._look = stream.isolated("settings of optimizers", self._looked)
        stream.on_detach.append(self._look)

    def install_always(self, patches: Patches) -> None:
        """See every start of a loader."""
        self._seen.clear()
        patches.replace(DataLoader, "__iter__", self._iter)

    def install_full_tracing(self, patches: Patches) -> None:
        """Nothing more is needed."""

    def _iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def __iter__(loader: Any) -> Any:  # noqa: N807
            if self._stream.active and not self._program.is_other_thread():
                self._look()
            return original(loader)

        return __iter__

    def _looked(self) -> None:
        for optimizer, known in self._program.optimizers.items():
            if not KEYS.isdisjoint(vars(optimizer)) and type(optimizer).__module__.startswith("torch.optim."):
                for key in KEYS & vars(optimizer).keys() & optimizer.defaults.keys():
                    self._met(optimizer, known, key)

    def _met(self, optimizer: Optimizer, known: OptimizerState, key: str) -> None:
        value, used = vars(optimizer)[key], [group[key] for group in optimizer.param_groups]
        if any(each is value or repr(each) == repr(value) for each in used):
            self._seen.pop((id(known), key), None)
            return
        seen = self._seen.get((id(known), key))
        files = files_of(program_stack())
        if seen is None:
            if len(self._seen) < MOST:
                self._seen[id(known), key] = _Seen(known, known.steps, files)
            return
        seen.files |= files
        if seen.judged or known.steps == seen.steps:
            return
        seen.judged = True
        written = None if in_notebook() else _written(seen.files, key)
        if written is not None:
            self._stream.emit(
                IneffectiveOptimizerAttribute(
                    optimizer=self._stream.registry.ref(optimizer), attribute=key, attribute_value=repr(value)[:40],
                    group_value=repr(used[0])[:40], assigned_at=written,
                )
            )  # fmt: skip


def _written(files: set[str], key: str) -> SourceLocation | None:
    """Return the line that sets an attribute which nothing reads; None where something may, or no line is known."""
    texts = reached(files)
    if texts is None or any(
        read_of_optimizer(each, key) or sets_in_groups(each, key, _NOTHING) for each in texts.values()
    ):
        return None
    lines = [SourceLocation(file, line) for file, tree in texts.items() for line in written_to_optimizer(tree, key)]
    return lines[0] if lines else None
