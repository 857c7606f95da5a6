"""Find recipes: built-in recipes in this package, a user's recipe by its path.

A module of this package is a recipe if it defines ``build() -> Recipe``; there is no list to edit. Listing only reads
the source code, so that it is fast and does not need torch.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from trueloop import recipes
from trueloop.core.errors import InvalidConfig, MissingExtra
from trueloop.core.paths import is_file

if TYPE_CHECKING:
    from trueloop.recipes.recipe import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Entry of `trueloop recipes`, read from the docstring of the recipe's module."""

    name: str
    summary: str
    """First line of the docstring."""
    model: str
    """Text after "Model:" in the docstring."""
    data: str
    """Text after "Data:" in the docstring."""
    time: str
    """Text after "Time:" in the docstring."""


def listings() -> list[Listing]:
    """Return the built-in recipes, sorted by name, without importing them."""
    entries: list[Listing] = []
    for module in pkgutil.iter_modules(recipes.__path__):
        tree = ast.parse((Path(recipes.__path__[0]) / f"{module.name}.py").read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "build" for node in tree.body):
            entries.append(_listing(module.name, ast.get_docstring(tree) or ""))
    return sorted(entries, key=lambda listing: listing.name)


def _listing(name: str, doc: str) -> Listing:
    def field(label: str) -> str:
        match = re.search(rf"^{label}: (.+)$", doc, re.MULTILINE)
        return match[1] if match else ""

    summary = doc.partition("\n")[0]
    return Listing(name=name, summary=summary, model=field("Model"), data=field("Data"), time=field("Time"))


def load(spec: str) -> Recipe:
    """Return the recipe that ``spec`` names.

    Args:
        spec: name of a built-in recipe, or ``path/to/recipe.py:build`` (``:build`` may be omitted) with a function
            without arguments that returns a `Recipe`.

    Raises:
        InvalidConfig: there is no such recipe, file or function, or the function did not return a `Recipe`.
        MissingExtra: torch is not installed.

    Cost: imports torch, and runs the user's file.
    """
    return _require_recipe(build_from_spec(spec), spec)


def build_from_spec(spec: str) -> Any:
    """Call the function that ``spec`` names and return its result; for a built-in name, that is a `Recipe`.

    Args:
        spec: see `load`.

    Raises:
        InvalidConfig: there is no such recipe, file or function.
        MissingExtra: torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("torch", "train")
    path, _, function = spec.rpartition(":") if ".py:" in spec else (spec, "", "build")
    if not path.endswith(".py"):
        return _build_builtin(spec)
    module = _import_file(Path(path))
    build = getattr(module, function, None)
    if not callable(build):
        functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        close = difflib.get_close_matches(function, functions, n=1)
        raise InvalidConfig(
            f"{path} has no function {function!r}.",
            fix=f"Did you mean {path}:{close[0]}?" if close else f"Define def {function}() -> Recipe in it.",
        )
    try:
        inspect.signature(build).bind()
    except TypeError as error:
        raise InvalidConfig(
            f"{path}:{function} cannot be called without arguments: {error}.",
            fix="Name a function without parameters, or with a default for each parameter.",
        ) from None
    except ValueError:  # raised for a callable without a signature
        pass
    return build()


def _build_builtin(name: str) -> Recipe:
    names = [listing.name for listing in listings()]
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        raise InvalidConfig(
            f"There is no recipe {name!r}." + (f" Did you mean {close[0]!r}?" if close else ""),
            fix=f"The built-in recipes are {', '.join(names)}; for your own recipe, pass path/to/recipe.py:build.",
        )
    return importlib.import_module(f"{recipes.__name__}.{name}").build()


def _import_file(path: Path) -> ModuleType:
    """Import a file with its folder first on ``sys.path``, so that its imports work as with ``python path``."""
    if not is_file(path):
        raise InvalidConfig(f"There is no recipe file {str(path)!r}.", fix="Pass the path of a Python file.")
    if not os.access(path, os.R_OK):
        raise InvalidConfig(f"The recipe file {str(path)!r} cannot be read.", fix="Allow reading it.")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = path.stem if path.stem not in sys.modules else f"{path.stem}_recipe"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and loader workers look up their module by name
    spec.loader.exec_module(module)
    return module


def _require_recipe(recipe: Any, spec: str) -> Recipe:
    from trueloop.recipes.recipe import Recipe

    if not isinstance(recipe, Recipe):
        raise InvalidConfig(
            f"{spec} returned {type(recipe).__name__}, not a Recipe.",
            fix="Return trueloop.recipes.recipe.Recipe(name=..., summary=..., train=..., options=..., assemble=...).",
        )
    return recipe
