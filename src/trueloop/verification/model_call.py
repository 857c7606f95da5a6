"""Call a model through its loss, compute the mean loss, and capture the arguments of the model."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidConfig, InvalidData
from trueloop.verification.batch_tree import describe_batch, tensors
from trueloop.verification.evidence import NotApplicable
from trueloop.verification.proof_target import ProofTarget
from trueloop.verification.rng_state import seed_all


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """Positional and keyword arguments of a model call."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tree(self) -> tuple[Any, Any]:
        """Positional and keyword arguments as one tree of tensors."""
        return (self.args, dict(self.kwargs))

    @classmethod
    def from_tree(cls, tree: tuple[Any, Any]) -> ModelCall:
        """Return the call that has this `tree`."""
        return cls(args=tree[0], kwargs=tree[1])


def is_criterion(loss: Any) -> bool:
    """Return True for a loss that takes (output, target), False for a function that takes (model, batch)."""
    return isinstance(loss, nn.Module) or getattr(loss, "__module__", "") == "torch.nn.functional"


def mean_loss(loss: Any, model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss over a batch as a 0-d tensor with its autograd graph.

    Raises:
        NotApplicable: there is no loss.
        InvalidConfig, InvalidData: the loss is not one number, or the batch is not a pair.
    """
    if loss is None:
        raise NotApplicable("There is no loss.")
    if not is_criterion(loss):
        return _as_scalar(loss(model, batch))
    inputs, target = split_pair(batch)
    return _as_scalar(loss(call_model(model, inputs), target))


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Return inputs and target of a batch.

    Raises:
        InvalidData: the batch is not a pair.
    """
    if isinstance(batch, (tuple, list)) and len(cast("list[Any]", batch)) == 2:
        return batch[0], batch[1]
    raise InvalidData(
        f"A torch.nn loss needs batches (inputs, target), but this batch is {describe_batch(batch)}.",
        fix="Pass a function (model, batch) -> mean as the loss, which unpacks the batch.",
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model with inputs: a tuple or list of arguments, a mapping of keywords, or else a single argument."""
    call = _as_call(inputs)
    return model(*call.args, **call.kwargs)


def _as_call(inputs: Any) -> ModelCall:
    if isinstance(inputs, (tuple, list)):
        return ModelCall(args=tuple(cast("list[Any]", inputs)), kwargs={})
    if isinstance(inputs, Mapping):
        return ModelCall(args=(), kwargs=dict(cast("Mapping[str, Any]", inputs)))
    return ModelCall(args=(inputs,), kwargs={})


def capture_call(target: ProofTarget, model: nn.Module, batch: Any) -> ModelCall:
    """Return the arguments of the first call of the model for this batch.

    Raises:
        NotApplicable: the loss does not call ``model(...)``.
    """
    if target.inputs is not None:
        return _as_call(target.inputs(batch))
    if target.loss is None:
        return _as_call(batch)
    if is_criterion(target.loss):
        return _as_call(split_pair(batch)[0])
    calls: list[ModelCall] = []

    def record(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(ModelCall(args=args, kwargs=dict(kwargs)))

    handle = model.register_forward_pre_hook(record, with_kwargs=True)
    try:
        seed_all(target.seed)
        mean_loss(target.loss, model, batch)
    finally:
        handle.remove()
    if not calls:
        raise NotApplicable("The loss does not call model(...), so its inputs cannot be captured.")
    return calls[0]


def model_outputs(model: nn.Module, call: ModelCall, seed: int, *, reset: bool = True) -> list[Tensor]:
    """Call a model without recording a graph and return all its output tensors.

    Args:
        model: the model, in any mode.
        call: arguments of the call.
        seed: seed of all random generators, so that dropout is repeatable.
        reset: True to restore the model's buffers: a spectral norm, for example, changes its buffers in every call.
    """
    seed_all(seed)
    with torch.no_grad(), _buffers_restored(model) if reset else nullcontext():
        return [leaf.detach().clone() for leaf in tensors(model(*call.args, **call.kwargs))]


def graph_nodes(root: Tensor) -> Iterator[Any]:
    """Yield the nodes of the autograd graph of a tensor."""
    visited: set[Any] = set()
    pending: list[Any] = [root.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        pending += [function for function, _ in node.next_functions]


@contextmanager
def _buffers_restored(model: nn.Module) -> Generator[None]:
    saved_buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in saved_buffers:
            buffer.copy_(value)
            setattr(module, name, buffer)  # the forward pass may have replaced the buffer


def _as_scalar(value: Any) -> Tensor:
    if isinstance(value, Mapping) and "loss" in value:
        value = cast("Mapping[str, Any]", value)["loss"]
    elif not isinstance(value, (Tensor, tuple)) and isinstance(getattr(value, "loss", None), Tensor):
        value = getattr(value, "loss")  # noqa: B009 - a Hugging Face output, whose class is not known here
    if isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2:
        total, count = cast("tuple[Any, Any]", value)
        value = total / count
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    shape = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise InvalidConfig(
        f"The loss returned {shape}, not one number.", fix='Return a mean or (sum, count), not reduction="none".'
    )
