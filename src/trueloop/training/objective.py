"""The training objective as sums and counts, so that a window of micro-batches equals one batch."""

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidData, InvalidModel, TrueloopError
from trueloop.training.loss_reduction import KNOWN_LOSSES, check_output_and_target, mean_divisor, with_sum_reduction
from trueloop.training.memory.device_memory import is_out_of_memory

_LIBRARY_FOLDERS = (Path(__file__).parents[1], Path(torch.__file__).parent)  # trueloop and torch: not the user's code


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
    """Sum of the loss over the micro-batch, a 0-d tensor with its autograd graph."""
    count: Tensor | float | None
    """Divisor that turns the sum into the mean; None for a loss that is deliberately a sum."""
    weight: float = 1.0
    """Weight of this term among several."""
    name: str = "loss"
    """Name of this term in reports, where there are several."""
    output: Any = None
    """The model's output, which metrics compare with `target`; needed only if metrics are used."""
    target: Any = None
    """The expected output, in the form that the metrics take."""


class Objective(Protocol):
    """A callable of model and batch that returns one or several terms."""

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Run the forward pass and return the terms."""
        ...

    def check(self, terms: Sequence[Loss]) -> None:
        """Check output and target of the run's first window; raise for a mismatch that torch does not report."""
        ...

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Run the batch again after an error; if the cause is known, raise an error that explains it."""
        ...

    def to(self, device: Any) -> None:
        """Move tensors of the loss, such as class weights, to the device."""
        ...


def as_objective(objective: Any) -> Objective:
    """Convert what the user passed into an `Objective`.

    Args:
        objective: a ``torch.nn`` loss (the batch is then ``(inputs, target)``); any other module called as
            ``objective(output, target) -> mean``; or a function ``(model, batch)`` that returns a 0-d mean over the
            batch's items, a ``(sum, count)`` pair, a `Loss` or a list of `Loss`.

    Raises:
        InvalidModel: ``objective`` is none of these.
    """
    if isinstance(objective, (TorchLoss, Criterion, FunctionObjective)):
        return objective
    if isinstance(objective, KNOWN_LOSSES):
        return TorchLoss(objective)
    if isinstance(objective, nn.modules.loss._Loss) and hasattr(nn, type(objective).__name__):  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001 - torch has no public base class
        raise InvalidModel(
            f"{type(objective).__name__} takes more than an output and a target.",
            fix="Give a function (model, batch) -> (sum, count) that calls it.",
        )
    if isinstance(objective, nn.Module):
        return Criterion(objective)
    if callable(objective) and getattr(objective, "__module__", "") == "torch.nn.functional":
        raise InvalidModel(
            f"torch.nn.functional.{objective.__name__} is a loss of (output, target), not of (model, batch).",
            fix="Give the module instead, such as nn.CrossEntropyLoss(), or a function (model, batch) -> mean.",
        )
    if callable(objective):
        return FunctionObjective(objective)
    raise InvalidModel(
        f"The objective is {objective!r}, which is neither a torch.nn loss nor a function.",
        fix="Give nn.CrossEntropyLoss() or a function (model, batch) -> mean | (sum, count).",
    )


class TorchLoss:
    """A torch.nn loss over ``(inputs, target)`` batches; its count is derived from the target."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss
        self._sum_loss = with_sum_reduction(loss)

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term."""
        inputs, target = split_pair(batch)
        output = call_model(model, inputs)
        total = self._sum_loss(output, target)
        return (Loss(sum=total, count=mean_divisor(self._loss, total, output, target), output=output, target=target),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Check shapes, dtypes and label range."""
        check_output_and_target(self._loss, terms[0].output, terms[0].target)

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Check shapes, dtypes and label range of this batch."""
        inputs, target = split_pair(batch)
        check_output_and_target(self._loss, call_model(model, inputs), target)

    def to(self, device: Any) -> None:
        """Move the class weights to the device."""
        self._loss.to(device)
        self._sum_loss.to(device)


class Criterion:
    """A user's own loss module over ``(inputs, target)`` batches, assumed to return a mean over the batch's items."""

    def __init__(self, loss: nn.Module) -> None:
        self._loss = loss

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term."""
        inputs, target = split_pair(batch)
        output = call_model(model, inputs)
        term = _as_term(self._loss(output, target), batch)
        return (replace(term, output=output, target=target),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Do nothing, because it is unknown which inputs this loss accepts."""

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Do nothing, because it is unknown which inputs this loss accepts."""

    def to(self, device: Any) -> None:
        """Move the loss module's parameters and buffers to the device."""
        self._loss.to(device)


class FunctionObjective:
    """A user's function of model and batch."""

    def __init__(self, function: Callable[[nn.Module, Any], Any]) -> None:
        self._function = function

    def __call__(self, model: nn.Module, batch: Any) -> Sequence[Loss]:
        """Return one term, or as many as the function returned."""
        value = self._function(model, batch)
        if isinstance(value, list) or (isinstance(value, tuple) and value and isinstance(value[0], Loss)):
            return tuple(_as_term(part, batch) for part in cast("Sequence[Any]", value))
        return (_as_term(value, batch),)

    def check(self, terms: Sequence[Loss]) -> None:
        """Do nothing, because it is unknown which inputs this function accepts."""

    def explain(self, model: nn.Module, batch: Any) -> None:
        """Do nothing, because it is unknown which inputs this function accepts."""

    def to(self, device: Any) -> None:
        """Do nothing: a function holds no tensors."""


def _as_term(value: Any, batch: Any) -> Loss:
    if isinstance(value, Loss):
        return value
    if isinstance(value, tuple) and len(cast("tuple[Any, ...]", value)) == 2:
        total, count = cast("tuple[Any, Any]", value)
        return Loss(sum=_as_scalar(total), count=count.detach() if isinstance(count, Tensor) else float(count))
    items = count_items(batch)
    return Loss(sum=_as_scalar(value) * items, count=items)


def _as_scalar(value: Any) -> Tensor:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.reshape(())
    shape = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
    raise InvalidModel(
        f"The objective returned {shape}, not one number.",
        fix="Return a 0-d mean, a (sum, count) pair, a Loss or a list of Loss.",
    )


def check_graph(root: Tensor) -> None:
    """Check that the loss has an autograd graph.

    Raises:
        InvalidModel: the loss has no graph.
    """
    if not root.requires_grad:
        raise InvalidModel(
            "The loss does not depend on any trainable parameter.",
            why="backward() would have nothing to compute, and the model would never change.",
            fix="Check that the output reaches the loss without detach(), .data, .item() or no_grad(), and that not "
            "all parameters are frozen.",
        )


def split_pair(batch: Any) -> tuple[Any, Any]:
    """Return (inputs, target) of a batch.

    Raises:
        InvalidData: the batch is not a pair.
    """
    if isinstance(batch, (tuple, list)) and len(cast("Sequence[Any]", batch)) == 2:
        inputs, target = cast("tuple[Any, Any]", batch)
        return inputs, target
    raise InvalidData(
        f"A torch.nn loss needs batches (inputs, target), but this batch is {describe_batch(batch)}.",
        fix="Give a function (model, batch) -> mean | (sum, count) that knows the batch.",
    )


def call_model(model: nn.Module, inputs: Any) -> Any:
    """Call the model with the inputs: a tuple as positional arguments, a mapping as keyword arguments."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*cast("Sequence[Any]", inputs))
    if isinstance(inputs, Mapping):
        return model(**cast("Mapping[str, Any]", inputs))
    return model(inputs)


def count_items(batch: Any) -> int:
    """Return the number of items in a batch: the length of its first tensor.

    Raises:
        InvalidData: the batch contains no tensor.
    """
    items = count_items_if_known(batch)
    if items is None:
        raise InvalidData(
            f"The number of items in this batch is unknown: it is {describe_batch(batch)}.",
            fix="Return (sum, count) from the objective.",
        )
    return items


def count_items_if_known(batch: Any) -> int | None:
    """Return the length of the first tensor in a batch; None if the batch contains no tensor."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.dim() else 1
    if isinstance(batch, Mapping):
        batch = tuple(cast("Mapping[str, Any]", batch).values())
    if isinstance(batch, (tuple, list)):
        return next(filter(None, map(count_items_if_known, cast("Sequence[Any]", batch))), None)
    return None


def describe_batch(value: Any) -> str:
    """Describe the content of a batch: ``(tensor [32, 8, 8] float32, tensor [32] int64)``."""
    if isinstance(value, Tensor):
        return f"tensor {list(value.shape)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k!r}: {describe_batch(v)}" for k, v in cast("Mapping[Any, Any]", value).items()) + "}"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(describe_batch(part) for part in cast("Sequence[Any]", value)) + ")"
    return type(value).__name__


def _user_location(error: BaseException) -> str:
    """Return file:line of the innermost frame outside of torch and trueloop."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not any(Path(frame.filename).is_relative_to(folder) for folder in _LIBRARY_FOLDERS):
            return f"{frame.filename}:{frame.lineno}"
    return "inside torch"


def explain_failure(
    error: Exception, objective: Objective, model: nn.Module | None, batch: Any
) -> TrueloopError | None:
    """Return an error that explains what torch raised in the forward pass or the loss; None if the cause is unknown.

    Args:
        error: the exception that was raised; a `TrueloopError` needs no explanation.
        objective: the objective that raised it.
        model: the model that the objective was called with, to be run again; None if running it needs all processes.
        batch: the batch that the objective was called with.
    """
    if isinstance(error, TrueloopError) or is_out_of_memory(error):
        return None
    if isinstance(error, ValueError) and "Expected more than 1 value per channel" in str(error):
        return InvalidData(
            f"BatchNorm in train mode got a batch of one example: {describe_batch(batch)}.",
            why="One value has no variance to normalise by.",
            fix="Choose a batch size that leaves no single example at the end, or set drop_last.",
        )
    if model is None:
        return None
    try:
        objective.explain(model, batch)
    except TrueloopError as explanation:
        return explanation
    except RuntimeError as same_error:  # what torch raises for shapes and dtypes that do not match
        return InvalidData(
            f"The model cannot take this batch, which is {describe_batch(batch)}.",
            why=f"{str(same_error).split(chr(10), 1)[0]} ({_user_location(same_error)})",
            fix="Check the input shape and dtype that the model expects.",
        )
    except type(error):  # the same error: the mistake is in the user's own code, and its traceback explains it better
        pass
    return None
