"""How a model is called: its arguments as a plain list of tensors, and its result as another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast, get_args

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidModel
from trueloop.export.io_description import Dtype

Inputs = tuple[Tensor, ...]
Run = Callable[[Sequence[Tensor]], list[Tensor]]
"""Calls a model, or what was made of it."""
DTYPES: Final[Mapping[torch.dtype, str]] = {getattr(torch, name): name for name in get_args(Dtype)}


def arguments(model: nn.Module, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what a model was called with, by the names of its parameters, in their order.

    Raises:
        InvalidModel: something other than tensors was given to it, or it takes any number of them.
    """
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **options)
    given: dict[str, Tensor] = {}
    skipped = ""
    for name, parameter in signature.parameters.items():
        value = bound.arguments.get(name)
        if value is None:
            skipped = skipped or name
            continue
        positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not isinstance(value, Tensor) or not positional or skipped or value.dtype not in DTYPES:
            told = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
            raise InvalidModel(
                f"{type(model).__name__} is called with {name} = {told}.",
                why="An exported model takes tensors of common types, one after the other, and nothing else.",
                fix="Wrap it in a module whose forward takes just those tensors.",
            )
        given[name] = value
    return given


def results(value: Any) -> dict[str, Tensor]:
    """Return what a model gave, by name: "output", or "output_0" ... of several, or its own keys.

    Raises:
        InvalidModel: it gave something other than tensors.
    """
    if isinstance(value, Tensor):
        found: dict[str, Any] = {"output": value}
    elif isinstance(value, Mapping):
        found = {str(key): part for key, part in cast("Mapping[Any, Any]", value).items()}
    elif isinstance(value, list | tuple):
        found = {f"output_{place}": part for place, part in enumerate(cast("Sequence[Any]", value))}
    else:
        found = {"output": value}
    wrong = {name: part for name, part in found.items() if not isinstance(part, Tensor) or part.dtype not in DTYPES}
    if wrong or not found:
        name, part = next(iter(wrong.items()), ("nothing", None))
        raise InvalidModel(
            f"The model gives {name} of type {getattr(part, 'dtype', type(part).__name__)}.",
            why="What is exported has to give tensors of common types.",
            fix="Wrap it in a module that returns a tensor, or a tuple or dictionary of them.",
        )
    return found


def live(model: Callable[..., Any]) -> Run:
    """Return a model as something that runs on a list of tensors."""

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            return list(results(model(*inputs)).values())

    return run


def refuse_train_mode(model: nn.Module) -> None:
    """Refuse a model of which any part is in train mode: dropout and batch statistics would be exported with it.

    Raises:
        InvalidModel: naming the modules.
    """
    training = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if training:
        more = f" and {len(training) - 3} more" if len(training) > 3 else ""
        raise InvalidModel(
            f"{', '.join(training[:3])}{more} {'is' if len(training) == 1 else 'are'} in train mode.",
            why="Dropout would be part of the exported model, and one sample's answer would hang on the others.",
            fix="Call model.eval() first. See trueloop explain CKP004.",
        )
