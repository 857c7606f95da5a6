"""Where backward stops: state handed from one stretch of a sequence to the next without its graph."""

from __future__ import annotations

from collections.abc import MutableMapping
from copy import copy
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar, cast

from torch import Tensor

from trueloop.core.errors import InvalidData

State = TypeVar("State")
PLAIN = (int, float, complex, str, bytes, bool, type(None))


def detach(state: State) -> State:
    """Return the same state without its graph: truncated backpropagation through time, in one call.

    Tensors share memory with the originals. A tensor that occurs twice stays one tensor. What holds them is made anew,
    so that nothing of the old graph stays alive through it.

    Args:
        state: a tensor, or tuples, named tuples, lists, mappings and dataclasses of them, as deep as they go; an
            LSTM's ``(h, c)`` as well as a cache of keys and values. Numbers, text and None are passed on.

    Raises:
        InvalidData: it holds something else, through which a graph could pass unseen.

    Source: Williams and Peng, 1990, doi:10.1162/neco.1990.2.4.490.
    """
    return cast("State", _detached(state, "state", {}))


def _detached(value: Any, path: str, seen: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return seen.setdefault(id(value), value.detach())
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, tuple | list):
        parts = [_detached(each, f"{path}[{place}]", seen) for place, each in enumerate(cast("tuple[Any, ...]", value))]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, MutableMapping):
        made = copy(cast("MutableMapping[Any, Any]", value))  # a defaultdict keeps its default
        made.update({key: _detached(each, f"{path}[{key!r}]", seen) for key, each in made.items()})
        return made
    if is_dataclass(value) and not isinstance(value, type):
        named = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
        return replace(value, **{name: _detached(each, f"{path}.{name}", seen) for name, each in named.items()})
    raise InvalidData(
        f"{path} is a {type(value).__name__}, which cannot be looked into.",
        why="A tensor in it would keep the graph of every earlier step alive, and backward would go through all of it.",
        fix="Take out the tensors and give them as a tuple, a dict or a dataclass.",
    )
