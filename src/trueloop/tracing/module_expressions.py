"""Finds the expressions with which the program refers to modules: "model.encoder", "self.heads[2]"."""

from collections.abc import Collection, Iterator
from types import FrameType
from typing import Any, Final

from torch import nn

from trueloop.tracing.frame_variables import variables
from trueloop.tracing.user_location import is_user_code

MAX_ITEMS: Final = 64  # modules in a list of the program that are inspected


def module_expressions(parameters: Collection[int], frame: FrameType | None) -> tuple[list[str], set[int]]:
    """Return expressions for the modules, or single parameters, that together have the given parameters and no others.

    Args:
        parameters: ids of the parameters.
        frame: the innermost frame whose variables are searched, before those of its callers.

    Returns:
        The expressions, and the ids of the parameters that no variable of the program leads to.
    """
    left, found = set(parameters), list[str]()
    while frame is not None and left:
        if is_user_code(frame.f_code):
            values = variables(frame)
            for name, value in list(values.items()):
                if id(value) in left:
                    found.append(name)
                    left.discard(id(value))
            for expression, module in _modules(values.items()):
                for part, ids in _parts(module, expression, left, depth=8):
                    if not ids.isdisjoint(left):
                        found.append(part)
                        left -= ids
        frame = frame.f_back
    return found, left


def _modules(values: Collection[tuple[str, Any]]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules in variables, in lists in variables, and in attributes of ``self``."""
    for name, value in list(values):
        # Not isinstance, which would unwrap proxies.
        if issubclass(type(value), nn.Module):
            yield name, value
        elif type(value) in (list, tuple):
            for index, item in enumerate(value[:MAX_ITEMS]):
                if issubclass(type(item), nn.Module):
                    yield f"{name}[{index}]", item
        elif name == "self":
            for attribute, item in list(getattr(value, "__dict__", {}).items()):
                if issubclass(type(item), nn.Module):
                    yield f"self.{attribute}", item


def _parts(module: nn.Module, path: str, wanted: set[int], depth: int) -> Iterator[tuple[str, set[int]]]:
    """Yield the largest parts of a module whose trainable parameters are all wanted, with the ids of these."""
    ids = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
    if ids.isdisjoint(wanted) or not depth:
        return
    if ids <= wanted:
        yield path, ids
        return
    for name, parameter in module.named_parameters(recurse=False):
        if id(parameter) in wanted:
            yield f"{path}.{name}", {id(parameter)}
    for name, child in module.named_children():
        yield from _parts(child, f"{path}[{name}]" if name.isdigit() else f"{path}.{name}", wanted, depth - 1)
