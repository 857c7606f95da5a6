"""Traces what the name of a best model stands for while a model is trained."""

import sys
from types import CodeType, FrameType
from typing import Any, ClassVar, Final

from trueloop.core.findings import SourceLocation
from trueloop.failures.checkpoint.best_model_by_reference import BestModelNamed, best_assignments
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, ModelCalled
from trueloop.tracing.frame_variables import variables
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.source_calls import tree_of
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import is_user_code

MAX_FRAMES: Final = 16  # callers that are inspected
_Name = tuple[str, SourceLocation]


class BestModels(Hook):
    """Emits `BestModelNamed`.

    Cost: 2 us for each fully traced call of a model with a graph; 10 us for each line of a file with such a name.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (BestModelNamed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._names: dict[int, tuple[CodeType, list[_Name]]] = {}
        """Id of a code object -> the code, and the names of best models that it assigns."""
        program.on_model_called.append(stream.isolated_inner("names of best models", self._on_model_called))

    def install_always(self, patches: Patches) -> None:
        """Forget the code of earlier watches."""
        self._names.clear()

    def _on_model_called(self, event: ModelCalled) -> None:
        if not event.has_graph or event.recomputed:
            return
        frame: FrameType | None = sys._getframe(1)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        left = MAX_FRAMES
        while frame is not None and left:
            if is_user_code(frame.f_code):
                left -= 1
                for name, location in self._names_in(frame.f_code):
                    self._stream.emit(
                        BestModelNamed(
                            location=event.location,
                            model=event.model,
                            name=name,
                            assigned_at=location,
                            is_trained_model=_value(frame, name) is event.live_module,
                        )
                    )
            frame = frame.f_back

    def _names_in(self, code: CodeType) -> list[_Name]:
        known = self._names.get(id(code))
        if known is None:
            known = self._names[id(code)] = code, list(_assigned_names(code))
        return known[1]


def _assigned_names(code: CodeType) -> list[_Name]:
    words = (*code.co_varnames, *code.co_names, *code.co_cellvars, *code.co_freevars)
    tree = tree_of(code.co_filename) if any("best" in word.lower() for word in words) else None
    lines = {line for *_, line in code.co_lines() if line is not None}
    return [
        (each.name, SourceLocation(code.co_filename, each.statement.lineno))
        for each in (best_assignments(tree) if tree is not None else ())
        if each.statement.lineno in lines
    ]


def _value(frame: FrameType, name: str) -> Any:
    """Return the value of a name such as "self.best_model"; None if it has none, or if reading it may run code."""
    first, *attributes = name.split(".")
    value = variables(frame).get(first)
    for attribute in attributes:
        fields: dict[str, Any] = getattr(value, "__dict__", {})
        value = fields.get(attribute, fields.get("_modules", {}).get(attribute))
    return value


HOOK: Final = BestModels
