"""Data parallelism with torch's DistributedDataParallel (DDP), on sums instead of means.

DDP divides the summed gradients by the number of processes. The single division at the window's end undoes that, so
that the gradient is the sum over all samples divided by their count, even if processes have different numbers of them.
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
# Before torch 2.7, DDP always synchronises parameters when it is built.
_NO_INITIAL_SYNC: Final[dict[str, Any]] = {"init_sync": False} if "init_sync" in _DDP_PARAMETERS else {}


class DdpParallel:
    """Runs each window on all processes, with equal gradients on each at its end; implements `parallel.Parallel`.

    In the first window, gradients are summed without DDP, to learn which parameters a window uses; then DDP is built,
    and searches for unused parameters only if there are some. After every window, buffers that training changes
    (BatchNorm statistics) get the first process's values, as with plain DDP.

    Args:
        model: model on its device; its parameters and buffers get the first process's values.
        forward: the model, or its compiled version with the same parameters.
        objective: objective to minimise.
        processes: processes of the run, more than one.
        find_unused: whether to search for unused parameters even if the first window has none.

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
        """Run the forward pass and the loss on this process's share."""
        (self._ddp or self._step)(batch)
        return self._step.take_terms()

    def sync_on_last_micro_batch(self, closes_window: bool) -> AbstractContextManager[Any]:
        """Synchronise gradients only after the last micro-batch of the window."""
        return self._no_context if closes_window or self._ddp is None else self._ddp.no_sync()

    def start_all_reduce(self, numbers: Sequence[Tensor | float]) -> Callable[[], Numbers]:
        """Sum the numbers together with the gradients; separately in the first window, or if they are too many."""
        piggyback, message = self._step.piggyback, self.processes.append_stop_request(numbers)
        if self._ddp is None or piggyback is None or len(message) > MAX_NUMBERS:
            return self.processes.start_all_reduce(numbers)
        self._encoded = piggyback.encode([float(number) for number in message])
        return lambda: self.processes.pop_stop_request(piggyback.decode(len(message)))

    def backward(self, root: Tensor) -> None:
        """Run backward; numbers to sum are encoded as the gradient of an extra parameter in DDP's first bucket."""
        extra, encoded, self._encoded = self._step.result.extra, self._encoded, None
        if extra is None or self._ddp is None or not self._ddp.require_backward_grad_sync:
            root.backward()
        else:
            encoded = torch.zeros_like(extra) if encoded is None else encoded
            torch.autograd.backward((root, extra), (None, encoded))

    def wait_gradient_sync(self) -> None:
        """Sum the gradients of the first window, which DDP does in later ones; synchronise the tracked buffers."""
        if self._ddp is None:
            self._ddp = self._build_ddp()
        else:
            _check_reduced(self._ddp)
        self._buffers.sync_tracked()

    def sync_buffers(self) -> None:
        """Broadcast the first process's buffers, before the model is evaluated or saved."""
        self._buffers.track_and_sync()

    def close(self) -> None:
        """Release the DDP module: torch sometimes aborts the process if it exists longer than the process group."""
        self._ddp = None

    def gradient_divisor(self, divisor: Tensor | float) -> Tensor | float:
        """Return the divisor divided by the number of processes: DDP has already averaged over them."""
        return divisor / self.processes.size

    def _build_ddp(self) -> DistributedDataParallel:
        used = [float(p.grad is not None) for p in self._trained]
        user_counts = [float(users) for users in self.processes.all_reduce_sum(used)]
        for parameter, users in zip(self._trained, user_counts, strict=True):
            if users and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        _average([p.grad for p in self._trained if p.grad is not None], self.processes.size)
        self._step.finds_unused = any(users != self.processes.size for users in user_counts) or self._find_unused
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
            "Some parameters got a gradient in the first window of this run, but none in this micro-batch.",
            why=str(error).split("\n", 1)[0],
            fix='If the model does not always use all parameters, set parallel.find_unused_parameters = "always".',
        ) from error


class _Step(nn.Module):
    """Forward pass and loss as one module; backward starts at its outputs: the sums and the extra parameter."""

    def __init__(self, forward: nn.Module, objective: Objective, piggyback: PiggybackReduce | None) -> None:
        super().__init__()
        self.model = forward
        self.piggyback = piggyback
        if piggyback is not None:
            self.sums_and_counts = piggyback.parameter
        self._objective = objective
        self.result = _StepResult()
        self.finds_unused = False
        """Whether DDP searches for parameters on which no output depends."""

    def forward(self, batch: Any) -> tuple[Tensor, ...]:
        result = self.result
        result.terms = self._objective(self.model, batch)
        sums = tuple(term.sum for term in result.terms)
        if self.piggyback is None:
            return sums
        result.extra = self.piggyback.parameter
        if self.finds_unused:
            result.extra = result.extra.view(-1)  # the view has a graph node, by which DDP finds the parameter
        return (*sums, result.extra)

    def take_terms(self) -> Sequence[Loss]:
        terms, self.result.terms = self.result.terms, ()
        return terms


class _StepResult:
    """Results of a step, not stored as attributes of the module because its ``__setattr__`` is slow."""

    __slots__ = ("extra", "terms")

    def __init__(self) -> None:
        self.terms: Sequence[Loss] = ()
        self.extra: Tensor | None = None


def _average(tensors: Sequence[Tensor], processes: int) -> None:
    """Average the gradients of the first window, as DDP does from the second window on."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        same_dtype = [tensor for tensor in tensors if tensor.dtype == dtype]
        flat = torch.cat([tensor.reshape(-1) for tensor in same_dtype]).div_(processes)
        dist.all_reduce(flat)
        for tensor, values in zip(same_dtype, flat.split([tensor.numel() for tensor in same_dtype]), strict=True):
            tensor.copy_(values.view_as(tensor))
