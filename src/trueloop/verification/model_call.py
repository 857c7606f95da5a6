"""How a model is called by its loss: the mean over a batch, and the call itself, caught on its way."""

from __future__ import annotations

from collections.abc import Generator, Mapping
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
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tree(self) -> tuple[Any, Any]:
        """Both, as a tree of tensors."""
        return (self.args, dict(self.kwargs))

    @classmethod
    def from_tree(cls, tree: tuple[Any, Any]) -> ModelCall:
        """Return a call from such a tree."""
        return cls(args=tree[0], kwargs=tree[1])


def is_criterion(loss: Any) -> bool:
    """True for a loss of (output, target); false for a function of (model, batch)."""
    return isinstance(loss, nn.Module) or getattr(loss, "__module__", "") == "torch.nn.functional"


def mean_loss(loss: Any, model: nn.Module, batch: Any) -> Tensor:
    """Return the loss over a batch, 0-d, with its graph.

    Raises:
        NotApplicable: there is no loss.
        InvalidConfig, InvalidData: what it gives is not one number, or the batch is no pair.
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
        InvalidData: it is no pair.
    """
    if isinstance(batch, (tuple, list)) and len(cast("list[Any]", batch)) == 2:
        return batch[0], batch[1]
    raise InvalidData(
        f"A torch.nn loss needs batches (inputs, target), but this batch is {describe_batch(batch)}.",
        fix="Give a function (model, batch) -> mean as the loss, which knows the batch.",
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call a model: a tuple or list as positional, a mapping as keyword arguments, anything else as it is."""
    call = _as_call(inputs)
    return model(*call.args, **call.kwargs)


def _as_call(inputs: Any) -> ModelCall:
    if isinstance(inputs, (tuple, list)):
        return ModelCall(args=tuple(cast("list[Any]", inputs)), kwargs={})
    if isinstance(inputs, Mapping):
        return ModelCall(args=(), kwargs=dict(cast("Mapping[str, Any]", inputs)))
    return ModelCall(args=(inputs,), kwargs={})


def capture_call(subject: ProofTarget, model: nn.Module, batch: Any) -> ModelCall:
    """Return what the model is called with for this batch, the first time.

    Raises:
        NotApplicable: the loss does not call the model as ``model(...)``.
    """
    if subject.inputs is not None:
        return _as_call(subject.inputs(batch))
    if subject.loss is None:
        return _as_call(batch)
    if is_criterion(subject.loss):
        return _as_call(split_pair(batch)[0])
    calls: list[ModelCall] = []

    def hear(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append(ModelCall(args=args, kwargs=dict(kwargs)))

    handle = model.register_forward_pre_hook(hear, with_kwargs=True)
    try:
        seed_all(subject.seed)
        mean_loss(subject.loss, model, batch)
    finally:
        handle.remove()
    if not calls:
        raise NotApplicable("The loss does not call the model as model(...), so its inputs are not seen.")
    return calls[0]


def model_outputs(model: nn.Module, call: ModelCall, seed: int, *, reset: bool = True) -> list[Tensor]:
    """Call a model without a graph and return every tensor it gave; the same seed, the same dropout.

    Args:
        model: in whatever mode it is.
        call: what with.
        seed: of everything random.
        reset: put its buffers back: the power iteration of a spectral norm goes on with every call.
    """
    seed_all(seed)
    with torch.no_grad(), _buffers_restored(model) if reset else nullcontext():
        return [leaf.detach().clone() for leaf in tensors(model(*call.args, **call.kwargs))]


@contextmanager
def _buffers_restored(model: nn.Module) -> Generator[None]:
    before = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, name, buffer, value in before:
            buffer.copy_(value)
            setattr(module, name, buffer)  # where the forward has put another one in its place


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
        f"The loss gave {shape}, not one number.",
        fix='Return a mean or (sum, count); leave reduction="none" out.',
    )
