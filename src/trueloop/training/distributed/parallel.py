"""The protocol between the training loop and PyTorch's engines for several processes.

A window is one batch, whatever the number of processes: each process computes the sum over its own samples, gradients
and counts are summed over all processes, and then divided once.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from trueloop.training.distributed.processes import SINGLE_PROCESS, Numbers, Processes
from trueloop.training.objective import Loss, Objective


class Parallel(Protocol):
    """Runs a window on the processes of a run: `SingleProcess`, `ddp.DdpParallel` or `fsdp.FsdpParallel`."""

    processes: Processes
    sharded: bool
    """True if each process has only a part of the model."""
    collective_forward: bool
    """True if a forward pass is a collective operation: one process alone would wait for the others."""

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run the forward pass and the loss on this process's share of a micro-batch."""
        ...

    def sync_on_last_micro_batch(self, closes_window: bool) -> AbstractContextManager[Any]:
        """Return the context for one micro-batch; gradients are synchronised only if it ends the window."""
        ...

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Start summing numbers over all processes, together with the gradients.

        Args:
            numbers: the same quantities in the same order on every process; called before the last backward pass.

        Returns:
            A function that returns the sums, to be called once, after `wait_gradient_sync`.
        """
        ...

    def backward(self, root: Tensor) -> None:
        """Run a micro-batch's backward pass."""
        ...

    def wait_gradient_sync(self) -> None:
        """Wait until every gradient is summed over all processes, after the window's last backward pass."""
        ...

    def sync_buffers(self) -> None:
        """Make the buffers equal on all processes, before the model is evaluated or saved."""
        ...

    def close(self) -> None:
        """Release PyTorch's engine after the last window."""
        ...

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return ``divisor``, corrected for what the engine has already divided the synchronised gradients by."""
        ...


class SingleProcess:
    """Runs windows in a single process.

    Args:
        forward: the model, or its compiled version.
        objective: objective to minimise.
    """

    processes = SINGLE_PROCESS
    sharded = collective_forward = False

    def __init__(self, forward: nn.Module, objective: Objective) -> None:
        self._forward, self._objective = forward, objective
        self._no_context = nullcontext()

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run the forward pass and the loss."""
        return self._objective(self._forward, batch)

    def sync_on_last_micro_batch(self, closes_window: bool) -> AbstractContextManager[Any]:
        """Return an empty context."""
        return self._no_context

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Return a function that returns the numbers unchanged."""
        return lambda: list(numbers)

    def backward(self, root: Tensor) -> None:
        """Run backward."""
        root.backward()

    def wait_gradient_sync(self) -> None:
        """Do nothing: there is no other process."""

    def sync_buffers(self) -> None:
        """Do nothing: there is no other process."""

    def close(self) -> None:
        """Do nothing: there is no engine."""

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return the divisor unchanged."""
        return divisor
