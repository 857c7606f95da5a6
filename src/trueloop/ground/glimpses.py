"""A few numbers of a model's parameters, by which a later look sees whether they have changed."""

from __future__ import annotations

from collections.abc import Set
from typing import Any


def glimpsed(model: Any, names: Set[str]) -> dict[str, tuple[Any, ...]]:
    """Return the version of each named parameter, and its first numbers where those need no waiting."""
    found: dict[str, tuple[Any, ...]] = {}
    for name, parameter in model.named_parameters():
        if name in names:
            first = parameter.detach().flatten()[:4].tolist() if parameter.device.type == "cpu" else ()
            found[name] = (parameter._version, *first)  # noqa: SLF001 - a tensor has no public count of its changes
    return found
