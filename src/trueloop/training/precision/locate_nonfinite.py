"""Locate the first non-finite value of a window: in the batch, or in which module and operation.

The window is run again with the same weights, and the result of every tensor operation is checked. This
happens only after a non-finite update, so its cost (about ten forward passes) does not matter.

If the model is sharded or has SyncBatchNorm layers, a forward pass is a collective operation: every process runs its
window to the end. The backward pass is then not run again, because an error would end it in the middle, and the other
processes would wait indefinitely.
"""

import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode  # pyright: ignore[reportMissingTypeStubs]

from trueloop.core.protocols import MicroBatch
from trueloop.training.memory.device import move_to_device
from trueloop.training.objective import Loss, Objective
from trueloop.training.seeding import preserve_generators


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """The first non-finite value in a window."""

    stage: str
    """"batch", "forward", "backward", or "unknown" if the value was not found."""
    micro_batch: int
    """Index of the micro-batch in the window, from 0."""
    where: str
    """Path into the batch ("0"), the module ("encoder.norm", "" for the root), or the parameter."""
    operation: str
    """The torch operation ("aten.log"), the backward node ("LogBackward0") or "gradient". It is empty for a batch, and
    "backward" if the stage is unknown because the backward pass was not run again."""
    indices: tuple[int, ...]
    """Dataset indices of the non-finite samples, or of the whole micro-batch."""

    def __str__(self) -> str:
        samples = f" (dataset indices {_shorten(self.indices)})" if self.indices else ""
        if self.stage == "batch":
            return f"the batch itself: field {self.where or '0'} contains NaN or Inf{samples}"
        if self.stage == "unknown" and self.operation == "backward":
            return (
                "not found: the batches and a second forward pass were finite, and the backward pass is not run again "
                "if the forward pass is a collective operation"
            )
        if self.stage == "unknown":
            return "not reproduced: a second run of the same window was finite"
        if self.operation == "gradient":
            return f"the gradient of parameter {self.where!r} is infinite, micro-batch {self.micro_batch}{samples}"
        module = f"module {self.where!r}" if self.where else "the model's own forward or the loss"
        return f"first in the {self.stage} pass: {self.operation} in {module}, micro-batch {self.micro_batch}{samples}"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields, JSON-ready."""
        return asdict(self) | {"indices": list(self.indices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Everything needed to run a window again."""

    model: nn.Module
    objective: Objective
    device: torch.device
    autocast: Callable[[], AbstractContextManager[Any]]
    generator: Tensor | None
    """CPU generator state at the window's start, so that dropout draws the same masks; None = unknown."""
    collective_forward: bool = False
    """Whether the other processes have to run their shares of the window at the same time; see `parallel.Parallel`."""


def locate(replay: Replay, window: Sequence[MicroBatch]) -> Culprit:
    """Run the window again and return the first non-finite value.

    Args:
        replay: the model, with the weights with which the window failed, and how to call it.
        window: micro-batches of the window.

    The model's buffers, gradients and all random generators are restored.
    """
    if replay.collective_forward:
        return _locate_collectively(replay, window)
    culprit = locate_in_batches(window)
    if culprit:
        return culprit
    with preserve_generators(), _preserve_buffers_and_gradients(replay.model):
        if replay.generator is not None:
            torch.set_rng_state(replay.generator)
        for index, micro in enumerate(window):
            culprit = _check_micro_batch(replay, index, micro)
            if culprit:
                return culprit
    return Culprit(stage="unknown", micro_batch=0, where="", operation="", indices=())


def _locate_collectively(replay: Replay, window: Sequence[MicroBatch]) -> Culprit:
    """Check the batches and run all forward passes, even after the first non-finite value."""
    first_culprit = locate_in_batches(window)
    with preserve_generators(), _preserve_buffers(replay.model), torch.no_grad():
        if replay.generator is not None:
            torch.set_rng_state(replay.generator)
        for index, micro in enumerate(window):
            culprit, _ = _check_forward(replay, index, micro)
            first_culprit = first_culprit or culprit
    return first_culprit or Culprit(stage="unknown", micro_batch=0, where="", operation="backward", indices=())


def locate_in_batches(window: Sequence[MicroBatch]) -> Culprit | None:
    """Return the first field of a batch that contains NaN or Inf, without running the model."""
    return next(filter(None, (_check_batch(index, micro) for index, micro in enumerate(window))), None)


def _check_batch(index: int, micro: MicroBatch) -> Culprit | None:
    for path, tensor in _tensors(micro.data, ""):
        if not tensor.is_floating_point() or bool(tensor.isfinite().all()):
            continue
        nonfinite = ~tensor.isfinite()
        rows = nonfinite.reshape(len(tensor), -1).any(1).nonzero().flatten().tolist() if tensor.dim() else []
        indices = tuple(micro.indices[row] for row in rows if row < len(micro.indices)) if micro.indices else ()
        return Culprit(stage="batch", micro_batch=index, where=path, operation="", indices=indices)
    return None


def _check_forward(replay: Replay, index: int, micro: MicroBatch) -> tuple[Culprit | None, Sequence[Loss]]:
    """Run the forward pass and the loss; return the first non-finite value, if any, and the loss."""
    batch = move_to_device(micro.data, replay.device)
    with _module_path(replay.model) as path, _FirstNonFinite(path) as recorder, replay.autocast():
        terms = replay.objective(replay.model, batch)
    if not recorder.operation:
        return None, terms
    indices = tuple(micro.indices or ())
    return Culprit(
        stage="forward", micro_batch=index, where=recorder.where, operation=recorder.operation, indices=indices
    ), terms


def _check_micro_batch(replay: Replay, index: int, micro: MicroBatch) -> Culprit | None:
    indices = tuple(micro.indices or ())
    culprit, terms = _check_forward(replay, index, micro)
    if culprit:
        return culprit
    where, node = _failing_backward(replay.model, torch.stack([term.sum for term in terms]).sum())
    if node:
        return Culprit(stage="backward", micro_batch=index, where=where, operation=node, indices=indices)
    return None


def _failing_backward(model: nn.Module, root: Tensor) -> tuple[str, str]:
    """Run backward; return ("", node) of the first NaN, (name, "gradient") of an infinite gradient, or ("", "")."""
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")  # anomaly mode prints its own stack
        try:
            root.backward()
        except RuntimeError as error:
            return "", str(error).split("'")[1] if "'" in str(error) else str(error)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name, "gradient"
    return "", ""


class _FirstNonFinite(TorchDispatchMode):
    """Records the first operation with a non-finite floating-point result, and the module that ran it."""

    def __init__(self, path: list[str]) -> None:
        super().__init__()
        self._path = path
        self.operation = ""
        self.where = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.operation and not _is_transport(func) and _has_nonfinite(result) and not _is_fill(func):
            self.operation, self.where = str(func).rsplit(".", 1)[0], self._path[-1]
        return result


def _is_fill(func: Any) -> bool:
    """Return True for operations that write constants, as in masks, which contain -inf on purpose."""
    return any(word in str(func) for word in ("fill", "full", "empty", "scalar_tensor", "where", "detach", "view"))


def _is_transport(func: Any) -> bool:
    """Return True for operations with which FSDP gathers parameters: their results may be uninitialised memory."""
    return str(func).startswith(("c10d.", "fsdp.", "_c10d_functional."))


def _has_nonfinite(result: Any) -> bool:
    """Return True for a NaN or +inf in a floating-point tensor; -inf without these is a mask."""
    parts = cast("Sequence[Any]", result) if isinstance(result, (tuple, list)) else (result,)
    return any(
        isinstance(part, Tensor) and part.is_floating_point() and bool((part.isnan() | (part == torch.inf)).any())
        for part in parts
    )


@contextmanager
def _module_path(model: nn.Module) -> Generator[list[str]]:
    """Track the dotted names of the modules that are running, innermost last."""
    path = [""]
    handles: list[Any] = []

    def push(name: str) -> Callable[..., None]:
        return lambda *_: path.append(name)

    def pop(*_: Any) -> None:
        path.pop()

    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(push(name)))
        handles.append(module.register_forward_hook(pop, always_call=True))
    try:
        yield path
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _preserve_buffers(model: nn.Module) -> Generator[None]:
    """Restore buffers on leaving: a forward pass changes BatchNorm's statistics."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    try:
        yield
    finally:
        for buffer, saved in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(saved)


@contextmanager
def _preserve_buffers_and_gradients(model: nn.Module) -> Generator[None]:
    """Restore buffers and gradients on leaving."""
    gradients = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    try:
        with _preserve_buffers(model):
            yield
    finally:
        for parameter, saved in zip(model.parameters(), gradients, strict=True):
            parameter.grad = saved


def _tensors(data: Any, path: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(data, Tensor):
        yield path, data
    elif isinstance(data, Mapping):
        for key, part in cast("Mapping[str, Any]", data).items():
            yield from _tensors(part, f"{path}.{key}".strip("."))
    elif isinstance(data, (tuple, list)):
        for number, part in enumerate(cast("Sequence[Any]", data)):
            yield from _tensors(part, f"{path}.{number}".strip("."))


def _shorten(indices: Sequence[int]) -> str:
    first_five = ", ".join(map(str, indices[:5]))  # five are enough for an inspection
    return first_five if len(indices) <= 5 else f"{first_five}, … {len(indices)} in all"
