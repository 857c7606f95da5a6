"""Reverse, scale or cut gradients: forward returns the input, backward changes the gradient."""

import math
from collections.abc import MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.autograd import Function

from trueloop.autograd.precision import to_compute_precision
from trueloop.core.errors import InvalidConfig, InvalidData

State = TypeVar("State")
PLAIN = (int, float, complex, str, bytes, bool, type(None))


def detach(state: State) -> State:
    """Return the same state without its graph, for truncated backpropagation through time.

    Tensors share memory with the originals. A tensor that occurs twice stays one tensor. Containers are copied, so that
    they do not keep the old graph alive.

    Args:
        state: a tensor, or nested tuples, named tuples, lists, mappings and dataclasses of tensors, such as an LSTM's
            ``(h, c)`` or a cache of keys and values. Numbers, strings and None are returned unchanged.

    Raises:
        InvalidData: the state contains an object of another type, which could contain a graph.

    Source: Williams and Peng, 1990, doi:10.1162/neco.1990.2.4.490.
    """
    return cast("State", _detach(state, "state", {}))


def _detach(value: Any, path: str, clones: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return clones.setdefault(id(value), value.detach())
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple | list):
        parts = [_detach(each, f"{path}[{index}]", clones) for index, each in enumerate(cast("tuple[Any, ...]", value))]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, MutableMapping):
        clone = copy(cast("MutableMapping[Any, Any]", value))  # copy() preserves the default of a defaultdict
        clone.update({key: _detach(each, f"{path}[{key!r}]", clones) for key, each in clone.items()})
        return clone
    if is_dataclass(value) and not isinstance(value, type):
        values = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return replace(value, **{name: _detach(each, f"{path}.{name}", clones) for name, each in values.items()})
    raise InvalidData(
        f"{path} is a {type(value).__name__}, which cannot be traversed.",
        why="A tensor in it would keep the graph of every earlier step alive, and backward would go through all of it.",
        fix="Put its tensors into a tuple, a dict or a dataclass.",
    )


def reverse_gradient(x: Tensor, strength: float = 1.0) -> Tensor:
    """Return x; backward multiplies its gradient by -strength.

    Layers that compute x learn to maximise the loss: for a domain classifier, features that do not show the domain.

    Args:
        x: tensor of any shape, floating-point.
        strength: number of at least 0; the paper increases it from 0 to 1 over the run.

    Raises:
        InvalidConfig: ``strength`` is negative or not finite.

    Source: Ganin and Lempitsky, 2015, arXiv:1409.7495.
    """
    to_compute_precision(x, "reverse_gradient")
    if not 0 <= strength < math.inf:
        raise InvalidConfig(
            f"strength is {strength}.", fix="Set a finite number of at least 0; reverse_gradient changes the sign."
        )
    return _ScaleGradient.apply(x, -float(strength))


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x; backward multiplies its gradient by a factor.

    Layers that compute x get ``factor`` times the gradient; layers that use x are not affected. With 0, the gradients
    are zeros; after ``detach`` there are none.

    Args:
        x: tensor of any shape, floating-point.
        factor: finite number.

    Raises:
        InvalidConfig: ``factor`` is not finite.
    """
    to_compute_precision(x, "scale_gradient")
    if not math.isfinite(factor):
        raise InvalidConfig(f"factor is {factor}.", fix="Set a finite number.")
    return _ScaleGradient.apply(x, float(factor))


class _ScaleGradient(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, factor: float) -> Tensor:
        return x.view_as(x)  # a view without a copy, because a Function must not return its input

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad_output * ctx.factor, None
