"""Compares the attributes of a dataset when it is split with those when its parts are loaded."""

import ast
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from torch.utils.data import Subset

from trueloop.analysis.program_files import parse_files
from trueloop.core.findings import SourceLocation
from trueloop.core.source_text import nodes_in
from trueloop.failures.data.transform_shared import SharedAttributeSet
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event, LoaderStarted
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.running_code import program_stack, user_files, user_modules
from trueloop.tracing.stream import EventStream
from trueloop.tracing.weak_id_dict import WeakIdDict

MAX_ATTRIBUTES: Final = 64


@dataclass(slots=True)
class _Split:
    """A dataset that was split into subsets."""

    attributes: dict[str, Any]
    """Switches and functions among its attributes when the first subset was made."""
    loaded: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    """Changed attribute -> ids of its values while a subset was loaded."""
    subsets: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet[Any])
    """Subsets that were loaded with the changed attribute."""
    reported: bool = False


class SharedDatasets(Hook):
    """Emits `SharedAttributeSet`. Cost: 5 us for each subset, and for each start of a loader over one."""

    emits: ClassVar[tuple[type[Event], ...]] = (SharedAttributeSet,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._splits = WeakIdDict[Any, _Split]()
        self._on_subset = stream.isolated("subsets of datasets", self._record_subset)
        self._on_start = stream.isolated_inner("subsets of datasets", self._compare)

    def install_always(self, patches: Patches) -> None:
        """Replace the constructor of subsets, and receive the starts of loaders."""
        self._splits = WeakIdDict[Any, _Split]()
        patches.replace(Subset, "__init__", self._constructor)
        patches.add_undo(lambda: self._stream.unsubscribe(self._on_start))
        self._stream.subscribe(self._on_start, LoaderStarted)

    def _constructor(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(subset: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(subset, *args, **options)
            if self._stream.active:
                self._on_subset(subset)

        return __init__

    def _record_subset(self, subset: Any) -> None:
        if self._splits.get(subset.dataset) is None:
            self._splits.put(subset.dataset, _Split(_switches(subset.dataset)))

    def _compare(self, event: LoaderStarted) -> None:
        subset = event.live_loader.dataset
        split = self._splits.get(subset.dataset) if isinstance(subset, Subset) else None
        if split is None or split.reported:
            return
        now = _switches(subset.dataset)
        changed = {name: value for name, value in split.attributes.items() if now.get(name, value) is not value}
        for name in changed:
            split.loaded.setdefault(name, set()).add(id(now[name]))
        split.subsets.add(subset)
        if len(split.subsets) < 2:
            return
        split.reported = True
        for name, before in changed.items():
            if len(split.loaded[name]) == 1 and (found := _assignment(name)) is not None:
                self._stream.emit(
                    SharedAttributeSet(
                        name=name, set_at=found[0], target=found[1], before=_text(before), after=_text(now[name])
                    )
                )


def _switches(dataset: Any) -> dict[str, Any]:
    """Return the attributes of a dataset that are True, False, None or a function."""
    own = list(getattr(dataset, "__dict__", {}).items())[:MAX_ATTRIBUTES]
    return {name: value for name, value in own if value is None or type(value) is bool or callable(value)}


def _text(value: Any) -> str:
    return str(getattr(value, "__name__", None) or (value if value in (None, True, False) else type(value).__name__))


def _assignment(name: str) -> tuple[SourceLocation, str] | None:
    """Return the only value set through a part, as in ``val.dataset.transform = None``, with its line and target."""
    files = user_files(program_stack()) | set(user_modules().values())
    found = [each for file in files for each in _assignments(file, name)]
    return found[-1][:2] if found and (len(found) == 1 or len({text for *_, text in found}) > 1) else None


def _assignments(file: str, name: str) -> Iterator[tuple[SourceLocation, str, str]]:
    for tree in (parse_files([file]) or {}).values():
        for node in nodes_in(tree, ast.Assign):
            if isinstance(target := node.targets[0], ast.Attribute):
                through = target.value
                if target.attr == name and isinstance(through, ast.Attribute) and through.attr == "dataset":
                    yield SourceLocation(file, node.lineno), ast.unparse(target), ast.unparse(node.value)


HOOK: Final = SharedDatasets
