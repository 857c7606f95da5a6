"""Fingerprint the user's source files, so that a resumed run can detect that its code has changed."""

import ast
import hashlib
import site
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

_HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
_TRUELOOP = Path(__file__).resolve().parents[1]
_RECIPES = _TRUELOOP / "recipes"


def fingerprint_sources(objects: Iterable[object]) -> dict[str, str]:
    """Fingerprint the files that define these objects, and the user's files that they import.

    Args:
        objects: models (with all submodules), functions, classes and other objects; None is skipped.

    Returns:
        File name -> fingerprint, sorted. Installed packages, the standard library and trueloop are left out, because
        their versions are recorded. Code without a file, such as a notebook cell, is left out, too.

    Cost: reads and parses each file once, about a millisecond each.
    """
    modules = [module for value in objects for module in _modules_of(value)]
    files: set[Path] = set()
    while modules:
        module = modules.pop()
        path = _user_file(module)
        if path is None or path in files:
            continue
        files.add(path)
        modules += [other for value in list(vars(module).values()) for other in _defining_modules(value)]
    fingerprints: dict[str, str] = {}
    files_per_name: Counter[str] = Counter()
    for path in sorted(files):
        # Files of the same name are numbered instead of named by folder, so that a project can be moved.
        number = files_per_name[path.name]
        fingerprints[f"{path.name}#{number}" if number else path.name] = fingerprint(path.read_bytes())
        files_per_name[path.name] += 1
    return dict(sorted(fingerprints.items()))


def fingerprint(source: bytes) -> str:
    """Hash a file's bytes and its syntax: "bytes/syntax".

    Two files are equivalent if either half matches: the bytes match even if another Python has other syntax trees; the
    syntax matches after changes to comments, docstrings or layout.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return _digest(source)
    for node in ast.walk(tree):
        if isinstance(node, _HasDocstring) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return f"{_digest(source)}/{_digest(ast.dump(tree).encode())}"


def _modules_of(value: object) -> Iterator[ModuleType]:
    """Yield the modules that define a value, its class and base classes, its submodules, and what a partial wraps."""
    if isinstance(value, partial):
        wrapped = cast("partial[Any]", value)
        yield from (module for part in (wrapped.func, *wrapped.args) for module in _modules_of(part))
    elif isinstance(value, nn.Module):
        yield from (module for class_ in {type(part) for part in value.modules()} for module in _modules_of(class_))
    elif isinstance(value, type):
        yield from (module for class_ in value.__mro__ for module in _defining_modules(class_))
    elif hasattr(value, "__code__") or hasattr(value, "__func__"):
        yield from _defining_modules(value)
    elif value is not None:
        yield from _modules_of(type(value))


def _defining_modules(value: object) -> Iterator[ModuleType]:
    if isinstance(value, ModuleType):
        yield value
    name = getattr(value, "__module__", None)
    if isinstance(name, str) and name in sys.modules:
        yield sys.modules[name]


def _user_file(module: ModuleType) -> Path | None:
    name = getattr(module, "__file__", None)
    if not isinstance(name, str) or not name.endswith(".py"):
        return None
    path = Path(name).resolve()
    is_trueloop = path.is_relative_to(_TRUELOOP) and not path.is_relative_to(_RECIPES)
    return None if is_trueloop or _is_installed(path) or not path.is_file() else path


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({Path(name).resolve() for name in (*names, *site.getsitepackages(), site.getusersitepackages())})


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
