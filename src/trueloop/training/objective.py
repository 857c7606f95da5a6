"""What is minimised, as sums and counts: the form in which a window of micro-batches is exactly one batch."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidData, InvalidModel, TrueloopError
from trueloop.training.loss_reduction import KNOWN_LOSSES, check_pair, divisor, summed
from trueloop.training.memory.device_memory import is_out_of_memory

_OURS = (Path(__file__).parents[2], Path(torch.__file__).parent)
"""Where code is not the user's: trueloop and torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One term of the objective over one micro-batch.

    Example:
        >>> import torch
        >>> from trueloop import Loss
        >>> def objective(model, batch):
        ...     error = (model(batch["x"]) - batch["y"]).square() * batch["mask"]
        ...     return Loss(sum=error.sum(), count=batch["mask"].sum())
        >>> batch = {"x": torch.ones(3, 1), "y": torch.zeros(3, 1), "mask": torch.tensor([[1.0], [1.0], [0.0]])}
        >>> term = objective(torch.nn.Identity(), batch)
        >>> float(term.sum), float(term.count)
        (2.0, 2.0)
    """

    sum: Tensor
    """0-d, with its graph: the loss added up over the micro-batch."""
    count: Tensor | float | None
    """What the sum would be divided by to give the mean; None for a loss that is a sum by intent."""
    weight: float = 1.0
    """Of this term among several."""
    name: str = "loss"
    """For people, where there are several."""
    output: Any = None
    """What metrics compare with `target`; only needed where metrics are asked for."""
    target: Any = None
    """What the output should have been, as the metrics take it."""


class Objective(Protocol):
    """Model and batch in, one or several terms out."""

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Run the forward pass and return the terms."""
        ...

    def check(self, terms: Sequence[Loss]) -> None:
        """Raise where output and target of the run's first window do not fit, though torch would not say so."""
        ...

    def explain(self, model: nn.Module, batch: Any) -> None:
        """After an error: run the batch again and raise the lesson behind it, where one is known."""
        ...

    def to(self, device: Any) -> None:
        """Move whatever the loss holds (class weights) to the device."""
        ...


def as_objective(given: Any) -> Objective:
    """Turn what the user gave into an `Objective`.

    Args:
        given: a ``torch.nn`` loss (the batch is then ``(inputs, target)``); any other module called as
            ``given(output, target) -> mean``; or a function ``(model, batch)`` that returns a 0-d mean over the
            batch's items, a ``(sum, count)`` pair, a `Loss` or a list of `Loss`.

    Raises:
        InvalidModel: ``given`` is none of these.
    """
    if isinstance(given, (TorchLoss, Criterion, FunctionObjective)):
        return given
    if isinstance(given, KNOWN_LOSSES):
        return TorchLoss(given)
    if isinstance(given, nn.modules.loss._Loss) and hasattr(nn, type(given).__name__):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - torch has no public base class
        raise InvalidModel(
            f"{type(given).__name__} takes more than an output and a target.",
            fix="Give a function (model, batch) -> (sum, count) that calls it.",
        )
    if isinstance(given, nn.Module):
        return Criterion(given)
    if callable(given) and getattr(given, "__module__", "") == "torch.nn.functional":
        raise InvalidModel(
            f"torch.nn.functional.{given.__name__} is a loss of (output, target), not of (model, batch).",
            fix="Give the module instead, such as nn.CrossEntropyLoss(), or a function (model, batch) -> mean.",
        )
    if callable(given):
        return FunctionObjective(given)
    raise InvalidModel(
        f"The objective is {given!r}, which is neither a torch.nn loss nor a function.",
        fix="Give nn.CrossEntropyLoss() or a function (model, batch) -> mean | (sum, count).",
    )


class TorchLoss:
    """A torch.nn loss over ``(inputs, target)`` batches; its count is derived from the target."""

    def __init__(self, loss: nn.Module) -> None:
        self._mean = loss
        self._sum = summed(loss)

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term."""
        inputs, target = split_pair(batch)
        output = call_model(model, inputs)
        total = self._sum(output, target)
        return (Loss(sum=total, count=divisor(self._mean, total, output, target), output=output, target=target),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Check shapes, dtypes and label range."""
        check_pair(self._mean, terms[0].output, terms[0].target)

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Check shapes, dtypes and label range of this batch."""
        inputs, target = split_pair(batch)
        check_pair(self._mean, call_model(model, inputs), target)

    def to(self, device: Any) -> None:
        """Move the class weights."""
        self._mean.to(device)
        self._sum.to(device)


class Criterion:
    """A user's own loss module over ``(inputs, target)``, taken as a mean over the batch's items."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term."""
        inputs, target = split_pair(batch)
        output = call_model(model, inputs)
        value = self._loss(output, target)
        term = _term(value, batch)
        return (Loss(sum=term.sum, count=term.count, output=output, target=target),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Nothing is known of what this loss takes."""

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Nothing is known of what this loss takes."""

    def to(self, device: Any) -> None:
        """Move the loss's own buffers."""
        self._loss.to(device)


class FunctionObjective:
    """A function of model and batch."""

    def __init__(self, function: Callable[[nn.Module, Any], Any]) -> None:
        self._function = function

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term, or as many as the function gave."""
        value = self._function(model, batch)
        if isinstance(value, list) or (isinstance(value, tuple) and value and isinstance(value[0], Loss)):
            return tuple(_term(part, batch) for part in cast("Sequence[Any]", value))
        return (_term(value, batch),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Nothing is known of what this function takes."""

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Nothing is known of what this function takes."""

    def to(self, device: Any) -> None:
        """Nothing to move."""


def _term(value: Any, batch: Any) -> Loss:
    if isinstance(value, Loss):
        return value
    if isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2:
        total, count = cast("tuple[Any, Any]", value)
        return Loss(sum=_scalar(total), count=count.detach() if isinstance(count, Tensor) else float(count))
    items = batch_items(batch)
    return Loss(sum=_scalar(value) * items, count=items)


def _scalar(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise InvalidModel(
        f"The objective returned {shape}, not one number.",
        fix="Return a 0-d mean, a (sum, count) pair, a Loss or a list of Loss.",
    )


def check_graph(root: Tensor) -> None:
    """Refuse a loss that backward could not start from.

    Raises:
        InvalidModel: it has no graph.
    """
    if not root.requires_grad:
        raise InvalidModel(
            "The loss does not depend on any trainable parameter.",
            why="backward() would have nothing to compute, and the model would never change.",
            fix="Check that the output reaches the loss without detach(), .data, .item() or no_grad(), and that not "
            "everything is frozen.",
        )


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Return (inputs, target) of a batch, or say why it has none.

    Raises:
        InvalidData: the batch is not a pair.
    """
    if isinstance(batch, (tuple, list)) and len(cast("Sequence[Any]", batch)) == 2:
        inputs, target = cast("tuple[Any, Any]", batch)
        return inputs, target
    raise InvalidData(
        f"A torch.nn loss needs batches (inputs, target), but this batch is {describe(batch)}.",
        fix="Give a function (model, batch) -> mean | (sum, count) that knows the batch.",
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model: a tensor as it is, a tuple as positional, a mapping as keyword arguments."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*cast("Sequence[Any]", inputs))
    if isinstance(inputs, Mapping):
        return model(**cast("Mapping[str, Any]", inputs))
    return model(inputs)


def batch_items(batch: Any) -> int:
    """Return the number of items in a batch: the length of its first tensor.

    Raises:
        InvalidData: there is no tensor in it.
    """
    items = items_if_known(batch)
    if items is None:
        raise InvalidData(
            f"Cannot tell how many items this batch holds: it is {describe(batch)}.",
            fix="Return (sum, count) from the objective, so that nothing has to be guessed.",
        )
    return items


def items_if_known(batch: Any) -> int | None:
    """Return the length of the first tensor found in a batch; None where there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = tuple(cast("Mapping[str, Any]", batch).values())
    if isinstance(batch, (tuple, list)):
        return next(filter(None, map(items_if_known, cast("Sequence[Any]", batch))), None)
    return None


def describe(value: Any) -> str:
    """Say what a batch is made of, in a few words: ``(tensor [32, 8, 8] float32, tensor [32] int64)``."""
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {describe(v)}" for k, v in cast("Mapping[Any, Any]", value).items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe(part) for part in cast("Sequence[Any]", value)) + ")"
    return type(value).__name__


def _raised_at(error: BaseException) -> str:
    """Where in the user's own code: the innermost frame outside of torch and trueloop."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "inside torch"


def _is_ours(path: str) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in _OURS)


def explain_failure(
    error: Exception, objective: Objective, model: nn.Module | None, batch: Any
) -> TrueloopError | None:
    """Return the lesson behind an error that torch raised in the forward pass or the loss, where one is known.

    Args:
        error: what was raised; a lesson already is returned as None.
        objective: the objective that raised it.
        model: the model it was called with, to be run again; None where all processes would have to run it.
        batch: the batch it was called with.
    """
    if isinstance(error, TrueloopError) or is_out_of_memory(error):
        return None
    if isinstance(error, ValueError) and "Expected more than 1 value per channel" in str(error):
        return InvalidData(
            f"BatchNorm in train mode met a batch of one: {describe(batch)}.",
            why="One value has no variance to normalise by.",
            fix="Choose a batch size that leaves no single example at the end, or set drop_last.",
        )
    if model is None:
        return None
    try:
        objective.explain(model, batch)
    except TrueloopError as lesson:
        return lesson
    except RuntimeError as again:  # torch's word for shapes and dtypes that do not fit
        return InvalidData(
            f"The model cannot take this batch, which is {describe(batch)}.",
            why=f"{str(again).split(chr(10), 1)[0]} ({_raised_at(again)})",
            fix="Check the input shape and dtype that the model expects.",
        )
    except type(error):  # the same again: a mistake in the user's own code, whose traceback says more than we can
        pass
    return None
