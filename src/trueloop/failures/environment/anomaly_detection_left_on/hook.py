"""Traces backward passes with anomaly detection, and the line that switched it on."""

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch.autograd import anomaly_mode

from trueloop.core.findings import CodePosition
from trueloop.failures.environment.anomaly_detection_left_on import AnomalyDetectionUsed
from trueloop.tracing.events import BackwardStarted, Event
from trueloop.tracing.patch import Patches
from trueloop.tracing.program_state import ProgramState
from trueloop.tracing.stream import EventStream
from trueloop.tracing.user_location import user_location


class Anomalies:
    """Emits `AnomalyDetectionUsed`.

    Cost: 0.2 us for each fully traced backward pass, and 1 us for each switch during full tracing.
    """

    emits: ClassVar[tuple[type[Event], ...]] = (AnomalyDetectionUsed,)

    def __init__(self, stream: EventStream, program: ProgramState) -> None:
        self._stream = stream
        self._switched_at: CodePosition | None = None
        """The line that last switched anomaly detection during full tracing."""
        self._locate = stream.isolated("anomaly detection", user_location)

    def install_always(self, patches: Patches) -> None:
        """Check each fully traced backward pass."""
        self._switched_at = None
        patches.add_undo(lambda: self._stream.unsubscribe(self._on_backward_started))
        self._stream.subscribe(self._on_backward_started, BackwardStarted)

    def install_full_tracing(self, patches: Patches) -> None:
        """Replace the constructors of both classes."""
        patches.replace(anomaly_mode.set_detect_anomaly, "__init__", self._replacement)
        patches.replace(anomaly_mode.detect_anomaly, "__init__", self._replacement)

    def _replacement(self, original: Callable[..., None]) -> Callable[..., None]:
        def __init__(switch: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            original(switch, *args, **options)
            if self._stream.active:
                self._switched_at = self._locate()

        return __init__

    def _on_backward_started(self, event: BackwardStarted) -> None:
        if torch.is_anomaly_enabled():
            self._stream.emit(AnomalyDetectionUsed(location=self._switched_at or event.location))


HOOK: Final = Anomalies
