"""Data parallelism with torch's DistributedDataParallel, which is given sums instead of means.

DDP divides the reduced gradients by the number of processes. The one division at the window's end reverts that, so
that the gradient is the sum over all samples divided by the count of all, however unevenly they are distributed.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from trueloop.core.errors import InvalidModel
from trueloop.training.distributed.piggyback_reduce import MAX_NUMBERS, PiggybackReduce, piggyback_dtype
from trueloop.training.distributed.processes import Numbers, Processes
from trueloop.training.distributed.replica_sync import BufferSync, broadcast_state
from trueloop.training.objective import Loss, Objective

_DDP_PARAMETERS: Final = signature(DistributedDataParallel.__init__).parameters
_HAS_FORWARD_SYNC: Final = "forward_sync_buffers" in _DDP_PARAMETERS  # since torch 2.13
_NO_BUFFER_SYNC: Final[dict[str, Any]] = {"forward_sync_buffers" if _HAS_FORWARD_SYNC else "broadcast_buffers": False}
_NO_INITIAL_SYNC: Final[dict[str, Any]] = (
    {"init_sync": False} if "init_sync" in _DDP_PARAMETERS else {}
)  # before 2.7 it syncs once more


class DdpParallel:
    """Runs each window on all processes and leaves the same gradients on each; implements `parallel.Parallel`.

    The first window's gradients are added up by one collective call, which shows what parameters a window uses; DDP is
    built from that, and looks for unused ones only where there are some. Buffers that training changes (statistics of
    BatchNorm) are the first process's after every window, as with plain DDP.

    Args:
        model: on its device; its parameters and buffers become the first process's.
        forward: the model, or its compiled twin over the same parameters.
        objective: what is minimised.
        processes: more than one.
        find_unused: in every window; otherwise where the first one leaves a parameter unused.

    Raises:
        InvalidModel: the processes have built different models.
    """

    sharded = False

    def __init__(
        self,
        model: nn.Module,
        forward: nn.Module,
        objective: Objective,
        processes: Processes,
        *,
        find_unused: bool = False,
    ) -> None:
        self.processes = processes
        self.collective_forward = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
        self._find_unused = find_unused
        broadcast_state(model, processes)
        self._trained = [p for p in model.parameters() if p.requires_grad]
        dtype = piggyback_dtype(self._trained)
        self._step = _Step(forward, objective, PiggybackReduce(dtype, processes.size) if dtype else None)
        self._encoded: Tensor | None = None
        self._ddp: DistributedDataParallel | None = None
        self._buffers = BufferSync(model, processes)
        self._no_context = nullcontext()

    def __call__(self, batch: Any) -> Sequence[Loss]:
        """Run forward pass and loss on this process's share."""
        (self._ddp or self._step)(batch)
        return self._step.take()

    def sync_on_last_micro_batch(self, closes: bool) -> AbstractContextManager[Any]:
        """Keep DDP from synchronising after every micro-batch but the last."""
        return self._no_context if closes or self._ddp is None else self._ddp.no_sync()

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Reduce the numbers with the gradients; separately in the first window, or where they do not fit."""
        piggyback, message = self._step.piggyback, self.processes.append_stop_request(numbers)
        if self._ddp is None or piggyback is None or len(message) > MAX_NUMBERS:
            return self.processes.start_all_reduce(numbers)
        self._encoded = piggyback.encode([float(number) for number in message])
        return lambda: self.processes.pop_stop_request(piggyback.decode(len(message)))

    def backward(self, root: Tensor) -> None:
        """Run backward; encoded numbers are the gradient of an extra parameter in DDP's first bucket."""
        extra, encoded, self._encoded = self._step.result.extra, self._encoded, None
        if extra is None or self._ddp is None or not self._ddp.require_backward_grad_sync:
            root.backward()
        else:
            encoded = torch.zeros_like(extra) if encoded is None else encoded
            torch.autograd.backward((root, extra), (None, encoded))

    def wait_gradient_sync(self) -> None:
        """Reduce the gradients of the first window, as DDP does in later ones; synchronise the tracked buffers."""
        if self._ddp is None:
            self._ddp = self._build()
        else:
            _check_reduced(self._ddp)
        self._buffers.sync_tracked()

    def sync_buffers(self) -> None:
        """Broadcast the first process's buffers, before the model is evaluated or saved."""
        self._buffers.track_and_sync()

    def close(self) -> None:
        """Drop DDP: torch sometimes aborts the process if DDP outlives the process group."""
        self._ddp = None

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Divide by the number of processes, by which DDP has divided already."""
        return divisor / self.processes.size

    def _build(self) -> DistributedDataParallel:
        used = [float(p.grad is not None) for p in self._trained]
        using = [float(users) for users in self.processes.all_reduce_sum(used)]
        for parameter, users in zip(self._trained, using, strict=True):
            if users and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        _average([p.grad for p in self._trained if p.grad is not None], self.processes.size)
        self._step.finds_unused = any(users != self.processes.size for users in using) or self._find_unused
        return DistributedDataParallel(
            self._step,
            **_NO_BUFFER_SYNC,
            **_NO_INITIAL_SYNC,
            gradient_as_bucket_view=True,
            find_unused_parameters=self._step.finds_unused,
        )


def _check_reduced(ddp: DistributedDataParallel) -> None:
    try:
        ddp._check_reducer_finalized()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - documented there
    except RuntimeError as error:
        raise InvalidModel(
            "Some parameters got a gradient in the first window of this run, and none in this micro-batch.",
            why=str(error).split("\n", 1)[0],
            fix='Set parallel.find_unused_parameters = "always", if the model does not always use all parameters.',
        ) from error


class _Step(nn.Module):
    """Forward pass and loss as one module, whose outputs backward starts from: the sums and the extra parameter."""

    def __init__(self, forward: nn.Module, objective: Objective, piggyback: PiggybackReduce | None) -> None:
        super().__init__()
        self.model = forward
        self.piggyback = piggyback
        if piggyback is not None:
            self.sums_and_counts = piggyback.parameter
        self._objective = objective
        self.result = _StepResult()
        self.finds_unused = False
        """DDP searches for parameters that no output depends on."""

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        result = self.result
        result.terms = self._objective(self.model, batch)
        sums = tuple(term.sum for term in result.terms)
        if self.piggyback is None:
            return sums
        result.extra = self.piggyback.parameter
        if self.finds_unused:
            result.extra = result.extra.view(-1)  # DDP finds it by a node in the graph
        return (*sums, result.extra)

    def take(self) -> Sequence[Loss]:
        terms, self.result.terms = self.result.terms, ()
        return terms


class _StepResult:
    """Results of a step; not attributes of the module, whose ``__setattr__`` is slow."""

    __slots__ = ("extra", "terms")

    def __init__(self) -> None:
        self.terms: Sequence[Loss] = ()
        self.extra: Tensor | None = None


def _average(tensors: Sequence[Tensor], processes: int) -> None:
    """Average gradients in the first window, as DDP does from the second window on."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same_dtype]).div_(processes)
        dist.all_reduce(flat)
        for tensor, values in zip(same_dtype, flat.split([tensor.numel() for tensor in same_dtype]), strict=True):
            tensor.copy_(values.view_as(tensor))
