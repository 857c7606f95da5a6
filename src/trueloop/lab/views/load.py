"""Loads the views, which are the modules of this package; each answers the requests of one page."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import trueloop.lab.views as package


class View(NamedTuple):
    """The request type of a page, and the function that answers its requests."""

    query_type: type[Any]
    """A frozen dataclass that `trueloop.core.untrusted_input` parses."""
    answer: Callable[..., Mapping[str, Any]]
    needs_torch: bool
    """True to answer in a calculator process instead of the server."""
    needs_runs: bool = False
    """True to pass the visible runs to `answer`."""
    slow: bool = False
    """True if a request takes seconds; only one such request runs at a time."""


@cache
def views() -> Mapping[str, View]:
    """Return all views by the name of their page."""
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if module.name != "load"]
    modules = {name: importlib.import_module(f"{package.__name__}.{name}") for name in names}
    return {
        name: View(
            module.Query,
            module.answer,
            module.NEEDS_TORCH,
            getattr(module, "NEEDS_RUNS", False),
            getattr(module, "SLOW", False),
        )
        for name, module in modules.items()
    }
