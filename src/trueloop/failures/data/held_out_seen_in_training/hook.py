"""Traces the creation of each ``Subset``, to find the part of a split that the program does not use."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

from torch.utils.data import Subset

from trueloop.failures.data.held_out_seen_in_training import SubsetCreated
from trueloop.tracing.attach import Hook
from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream


class Subsets(Hook):
    """Emits `SubsetCreated`."""

    emits: ClassVar[tuple[type[Event], ...]] = (SubsetCreated,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream

    def install_always(self, patches: Patches) -> None:
        """Replace ``Subset.__init__``."""
        patches.replace(Subset, "__init__", self._replacement)

    def _replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        stream = self._stream
        report = stream.isolated("subsets", self._report)

        def __init__(subset: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(subset, *args, **options)
            if stream.active:
                report(subset)

        return __init__

    def _report(self, subset: Any) -> None:
        self._stream.emit(SubsetCreated(subset=self._stream.registry.ref(subset), live_subset=subset))


HOOK: Final = Subsets
