"""Which version of the user's own code a run was made with: a word per file that changes when its meaning does."""

from __future__ import annotations

import ast
import hashlib
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

_OWN = Path(__file__).resolve().parents[2]
_RECIPES = _OWN / "recipes"


def source_code(things: Iterable[object]) -> dict[str, str]:
    """Fingerprint the files that these things come from, and the user's files that those import.

    Args:
        things: models, functions, classes, objects; None is passed over. Of a module, all of its submodules count.

    Returns:
        File name -> fingerprint, sorted. Installed packages, the standard library and trueloop itself are not in it:
        their versions are. Nor is what has no file, such as a notebook's cell.

    Cost: reads and parses each file once, about a millisecond each.
    """
    modules = [module for thing in things for module in _modules_of(thing)]
    files: set[Path] = set()
    while modules:
        module = modules.pop()
        path = _user_file(module)
        if path is None or path in files:
            continue
        files.add(path)
        modules += [other for value in list(vars(module).values()) for other in _defined_in(value)]
    named: dict[str, list[str]] = {}
    for path in sorted(files):
        named.setdefault(path.name, []).append(fingerprint(path.read_bytes()))
    # The same name in two folders is numbered: a project that is moved as a whole is still the same.
    return {f"{name}#{i}" if i else name: word for name, words in sorted(named.items()) for i, word in enumerate(words)}


def fingerprint(source: bytes) -> str:
    """Hash a file's bytes and its syntax: "bytes/syntax".

    Two files mean the same where either half agrees: the bytes under another Python, whose syntax trees differ; the
    syntax after an edit of comments, docstrings or layout only.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return _digest(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and _documented(node):
            node.body = node.body[1:] or [ast.Pass()]
    return f"{_digest(source)}/{_digest(ast.dump(tree).encode())}"


def _documented(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return ast.get_docstring(node, clean=False) is not None


def _modules_of(thing: object) -> Iterator[ModuleType]:
    """Find where the code of a thing lies: its class and the classes above it, its parts, what a partial wraps."""
    if isinstance(thing, partial):
        wrapped = cast("partial[Any]", thing)
        yield from (module for part in (wrapped.func, *wrapped.args) for module in _modules_of(part))
    elif isinstance(thing, nn.Module):
        yield from (module for kind in {type(part) for part in thing.modules()} for module in _modules_of(kind))
    elif isinstance(thing, type):
        yield from (module for kind in thing.__mro__ for module in _defined_in(kind))
    elif hasattr(thing, "__code__") or hasattr(thing, "__func__"):
        yield from _defined_in(thing)
    elif thing is not None:
        yield from _modules_of(type(thing))


def _defined_in(value: object) -> Iterator[ModuleType]:
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
    if path.is_relative_to(_RECIPES) and not _is_installed(path):
        return path
    return path if path.is_file() and not path.is_relative_to(_OWN) and not _is_installed(path) else None


def _is_installed(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _installed_folders())


@cache
def _installed_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    names = [paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple({Path(name).resolve() for name in (*names, *site.getsitepackages(), site.getusersitepackages())})


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
