"""Records the backward passes between two steps of an optimizer."""

from dataclasses import dataclass

from trueloop.tracing.events import (
    NO_REFS,
    BackwardEnded,
    OptimizerCreated,
    PartlyTracedStep,
    Ref,
    Refs,
    StepTaken,
    TracingGap,
)
from trueloop.tracing.tracker import Tracker
from trueloop.tracing.weak_id_dict import WeakIdDict


@dataclass(slots=True)
class AccumulationWindow:
    """The backward passes from one step of an optimizer to its next step."""

    parameters: Refs
    """Parameters of the optimizer."""
    start: int | None = None
    """Number of backward passes before the first of the two steps; None = there was none, or a gap in tracing."""
    backwards: int = 0
    """Number of backward passes that reached ``parameters``."""
    received: Refs = NO_REFS
    """Parameters of any optimizer or model that got gradients."""


class AccumulationWindows(Tracker):
    """The accumulation windows of all optimizers."""

    def __init__(self) -> None:
        self._open = WeakIdDict[Ref, AccumulationWindow]()
        self._ended = WeakIdDict[Ref, AccumulationWindow]()
        self.latest_backward: BackwardEnded | None = None
        """The latest backward pass; None after a gap in tracing."""

    def ended_by(self, optimizer: Ref) -> AccumulationWindow:
        """Return the window that the latest step of an optimizer has ended."""
        return self._ended.get(optimizer) or AccumulationWindow(NO_REFS)

    def on_optimizer_created(self, event: OptimizerCreated) -> None:
        """Begin the first window of the optimizer."""
        self._open.put(event.optimizer, AccumulationWindow(event.parameters))

    def on_backward_ended(self, event: BackwardEnded) -> None:
        """Record the backward pass in all open windows."""
        self.latest_backward, reached = event, event.reached_parameters
        for window in self._open.values():
            window.backwards += not window.parameters.isdisjoint(reached)
            window.received = window.received | reached if window.received else reached

    def on_step_taken(self, event: StepTaken | PartlyTracedStep) -> None:
        """End the window of the optimizer, and begin the next one."""
        ended = self._open.get(event.optimizer) or AccumulationWindow(event.parameters)
        self._ended.put(event.optimizer, ended)
        self._open.put(event.optimizer, AccumulationWindow(event.parameters, event.backward_count))

    on_partly_traced_step = on_step_taken

    def on_tracing_gap(self, event: TracingGap) -> None:
        """Discard what was recorded of the open windows."""
        self.latest_backward = None
        for optimizer, window in self._open.items():
            self._open.put(optimizer, AccumulationWindow(window.parameters))
