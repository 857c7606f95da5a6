"""Calls back when a module has been loaded, so that who never imports torch does not pay for it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def on_import(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` right after a top-level module was imported for the first time; at once where it is there.

    Looking for the module without importing it (``importlib.util.find_spec``) is not loading.

    Returns:
        What calls it off.
    """
    if name in sys.modules:
        then()
        return lambda: None
    finder = _Finder(name, then)
    sys.meta_path.insert(0, finder)
    return finder.leave


class _Finder(MetaPathFinder):
    """Lets the others find the module, and listens at its loader for the end of the loading."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then
        self._asking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            self._listen(spec.loader)
        return spec

    def leave(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _listen(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader stays in the module, as it would be without us
            load(module)
            self.leave()
            self._then()

        loader.exec_module = exec_module
