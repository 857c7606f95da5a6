"""Finds what every page can ask: the modules of this package."""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import trueloop.lab.views as package


class View(NamedTuple):
    """How one page's questions are answered."""

    query_type: type[Any]
    """A frozen dataclass that `trueloop.core.untrusted_input` reads."""
    answer: Callable[..., Mapping[str, Any]]
    needs_torch: bool
    """Answered in the calculator's process, and not in the server's."""
    needs_runs: bool = False
    """Answered with the runs that the lab may show."""
    slow: bool = False
    """One question at a time: it computes for seconds."""


@cache
def views() -> Mapping[str, View]:
    """Return every view by the name of its page."""
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
