"""How the processes of a run share one window: the seam between the loop and torch's engines for it.

A window is one batch, on however many processes it is run: each contributes the sum over its own samples, gradients
and counts are added up over all, and the division happens once, behind that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from trueloop.training.distributed.processes import SINGLE_PROCESS, Numbers, Processes
from trueloop.training.objective import Loss, Objective


class Parallel(Protocol):
    """One of: `SingleProcess`, `ddp.Replicas`, `fsdp.Sharded`."""

    processes: Processes
    sharded: bool
    """Each process holds a part of the model only."""
    collective_forward: bool
    """Running the model is something all processes do at the same time: one alone would wait for the others."""

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run forward pass and loss on this process's share of a micro-batch."""
        ...

    def sync_on_last_micro_batch(self, closes: bool) -> AbstractContextManager[Any]:
        """Enclose forward and backward of one micro-batch; gradients travel only where it ``closes`` the window."""
        ...

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Add what a window sums and counts up over all processes, beside its gradients.

        Args:
            numbers: as many on every process, in the same order; known before the window's last backward pass.

        Returns:
            What gives the sums, to be called once, after `wait_gradient_sync`.
        """
        ...

    def backward(self, root: Tensor) -> None:
        """Run a micro-batch's backward pass."""
        ...

    def wait_gradient_sync(self) -> None:
        """See to it that every gradient is that of all processes, after the window's last backward."""
        ...

    def sync_buffers(self) -> None:
        """See to it that the model is the same on all processes, buffers included: it is to be measured or saved."""
        ...

    def close(self) -> None:
        """Let go of torch's engine, after the last window."""
        ...

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return what the gradients must be divided by, as they are after `wait_gradient_sync`, to be divided by ``divisor``."""
        ...


class SingleProcess:
    """A single process.

    Args:
        forward: the model, or its compiled twin.
        objective: what is minimised.
    """

    processes = SINGLE_PROCESS
    sharded = collective_forward = False

    def __init__(self, forward: nn.Module, objective: Objective) -> None:
        self._forward, self._objective = forward, objective
        self._nothing = nullcontext()

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run forward pass and loss."""
        return self._objective(self._forward, batch)

    def sync_on_last_micro_batch(self, closes: bool) -> AbstractContextManager[Any]:
        """Enclose nothing."""
        return self._nothing

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Return what gives the numbers themselves."""
        return lambda: list(numbers)

    def backward(self, root: Tensor) -> None:
        """Run backward."""
        root.backward()

    def wait_gradient_sync(self) -> None:
        """Nothing to wait for."""

    def sync_buffers(self) -> None:
        """Nothing can differ."""

    def close(self) -> None:
        """Nothing to let go of."""

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return the divisor itself."""
        return divisor
