"""Calls a function when a module is imported, so that programs without torch have no overhead."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def on_import(name: str, callback: Callable[[], None]) -> Callable[[], None]:
    """Call ``callback`` right after the first import of a top-level module, or now if it is already imported.

    ``importlib.util.find_spec`` alone does not count as an import.

    Returns:
        A function that cancels the callback.
    """
    if name in sys.modules:
        callback()
        return lambda: None
    finder = _Finder(name, callback)
    sys.meta_path.insert(0, finder)
    return finder.remove


class _Finder(MetaPathFinder):
    """Finds a module by the other finders, and wraps the ``exec_module`` of its loader."""

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self._name, self._callback = name, callback
        self._searching = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._searching:
            return None
        self._searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._searching = False
        if spec is not None and spec.loader is not None:
            self._wrap_loader(spec.loader)
        return spec

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _wrap_loader(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # restores the loader, which the module refers to
            load(module)
            self.remove()
            self._callback()

        loader.exec_module = exec_module
