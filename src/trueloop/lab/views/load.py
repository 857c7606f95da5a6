"""Load the views, which are the other modules of this package; each answers one kind of request of the pages."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import trueloop.lab.views as package


class View(NamedTuple):
    """The type of a request, and the function that answers such requests."""

    query_type: type[Any]
    """A frozen dataclass that `trueloop.core.untrusted_input` parses."""
    answer: Callable[..., Mapping[str, Any]]
    needs_torch: bool
    """True to answer in a `trueloop.lab.calculator` process, because the server does not import PyTorch."""
    needs_runs: bool = False
    """True to pass the `VisibleRuns`, which page "Watch a run" lists, to `answer`."""
    slow: bool = False
    """True if a request takes seconds; only one such request runs at a time."""


@cache
def views() -> Mapping[str, View]:
    """Return all views by the name of their module, which a page names in its requests."""
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
