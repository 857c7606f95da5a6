"""Traces where ``torch.autograd.detect_anomaly`` and ``set_detect_anomaly`` are switched on."""

from collections.abc import Callable
from typing import Any, ClassVar

from torch.autograd import anomaly_mode

from trueloop.tracing.events import Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class Anomalies:
    """Records the line that switches anomaly detection on, for `BackwardStarted`.

    Cost: 1 us for each switch during full tracing.
    """

    emits: ClassVar[tuple[type[Event], ...]] = ()

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream, self._program = stream, program
        self._record = stream.isolated("anomaly detection", self._record_location)

    def install_always(self, patches: Patches) -> None:
        """Do nothing: only full tracing needs this hook."""

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace the constructors of both classes."""
        patches.replace(anomaly_mode.set_detect_anomaly, "__init__", self._replacement)
        patches.replace(anomaly_mode.detect_anomaly, "__init__", self._replacement)

    def _replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(switch: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(switch, *args, **options)
            if self._stream.active:
                self._record()

        return __init__

    def _record_location(self) -> None:
        self._program.anomaly_at = user_location()
