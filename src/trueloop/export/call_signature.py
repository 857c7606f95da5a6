"""Convert a model's arguments and results to plain lists of tensors."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast, get_args

import torch
from torch import Tensor, nn

from trueloop.core.errors import InvalidModel
from trueloop.core.name_patterns import format_names
from trueloop.export.io_description import Dtype

Inputs = tuple[Tensor, ...]
CallModel = Callable[[Sequence[Tensor]], list[Tensor]]
"""Function that calls an original or an exported model on a list of tensors."""
DTYPES: Final[Mapping[torch.dtype, str]] = {getattr(torch, name): name for name in get_args(Dtype)}


def bind_tensors(model: nn.Module, args: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of a call of a model, by parameter name and in the order of parameters.

    Raises:
        InvalidModel: an argument is not a tensor, or the model takes a variable number of them.
    """
    signature = inspect.signature(model.forward)
    bound = signature.bind(*args, **options)
    tensors: dict[str, Tensor] = {}
    first_skipped = ""
    for name, parameter in signature.parameters.items():
        value = bound.arguments.get(name)
        if value is None:
            first_skipped = first_skipped or name
            continue
        positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        if not isinstance(value, Tensor) or not positional or first_skipped or value.dtype not in DTYPES:
            type_name = f"{value.dtype} tensor" if isinstance(value, Tensor) else type(value).__name__
            raise InvalidModel(
                f"{type(model).__name__} is called with an argument {name} of type {type_name}.",
                why="An exported model only takes positional tensors of common types.",
                fix="Wrap it in a module whose forward takes only such tensors.",
            )
        tensors[name] = value
    return tensors


def name_outputs(value: Any) -> dict[str, Tensor]:
    """Return a model's outputs by name: "output", "output_0" ... for several, or the keys of a mapping.

    Raises:
        InvalidModel: an output is not a tensor.
    """
    if isinstance(value, Mapping):
        outputs: dict[str, Any] = {str(key): item for key, item in cast("Mapping[Any, Any]", value).items()}
    elif isinstance(value, list | tuple):
        outputs = {f"output_{index}": item for index, item in enumerate(cast("Sequence[Any]", value))}
    else:
        outputs = {"output": value}
    invalid = {name: item for name, item in outputs.items() if not isinstance(item, Tensor) or item.dtype not in DTYPES}
    if invalid or not outputs:
        name, item = next(iter(invalid.items()), ("nothing", None))
        raise InvalidModel(
            f"The model returns {name} of type {getattr(item, 'dtype', type(item).__name__)}.",
            why="An exported model must return tensors of common types.",
            fix="Wrap it in a module that returns a tensor, or a tuple or dictionary of them.",
        )
    return outputs


def wrap_model(model: Callable[..., Any]) -> CallModel:
    """Return a function that calls a model on a list of tensors without gradients."""

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.inference_mode():
            return list(name_outputs(model(*inputs)).values())

    return run


def check_eval_mode(model: nn.Module) -> None:
    """Check that every module is in eval mode; otherwise dropout and batch statistics would be exported.

    Raises:
        InvalidModel: a module is in train mode; the message lists the modules.
    """
    in_train_mode = [name or type(model).__name__ for name, module in model.named_modules() if module.training]
    if in_train_mode:
        raise InvalidModel(
            f"{format_names(in_train_mode)} {'is' if len(in_train_mode) == 1 else 'are'} in train mode.",
            why="Dropout would be part of the exported model, and a sample's output would depend on other samples.",
            fix="Call model.eval() first. See trueloop explain CKP004.",
        )
