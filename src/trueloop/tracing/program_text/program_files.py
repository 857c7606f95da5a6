"""Finds the source files of a program: those that are running, and all user files that they import."""

import ast
import linecache
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, ModuleType
from typing import Final

import torch

from trueloop.tracing.user_location import is_trueloop_code, is_user_code, is_user_file

_TRUELOOP: Final = Path(__file__).parents[2]
_INNER: Final = (
    os.path.dirname(torch.__file__) + os.sep,  # noqa: PTH120
    f"{_TRUELOOP / 'tracing'}{os.sep}",
    f"{_TRUELOOP / 'sanitizer'}{os.sep}",
    "<trueloop",
)
_RUNPY: Final = re.compile(r"<frozen runpy>|[/\\]runpy\.py$")
_INSTALLED: Final = re.compile(r"[/\\](site|dist)-packages[/\\]")

_BY_NAME: Final = frozenset((
    "import_module", "exec_module", "run_path", "run_module", "instantiate", "locate", "import_string",
))  # fmt: skip
_BUILT_IN: Final = frozenset(("__import__", "exec", "eval"))


def program_stack() -> list[FrameType]:
    """Return the program's frames, outermost first, without those of PyTorch and of code that started the program."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
    found: list[FrameType] = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_INNER):
            pass
        elif is_trueloop_code(code) or _RUNPY.search(code.co_filename):
            break
        elif not code.co_filename.startswith("<"):
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


def user_files(stack: Iterable[FrameType]) -> set[str]:
    """Return the files of the user's frames."""
    return {each.f_code.co_filename for each in stack if is_user_code(each.f_code)}


def is_library_frame(frame: FrameType) -> bool:
    """Return True for a frame of an installed library."""
    return _INSTALLED.search(frame.f_code.co_filename) is not None


def in_notebook() -> bool:
    """Return True in a notebook or IPython shell, where the user may run another cell."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None


def parse_program(files: Iterable[str]) -> dict[str, ast.Module] | None:
    """Return the syntax tree of each of a program's own files, by file name.

    None if a file cannot be parsed, or may run code by name or from a string.

    Args:
        files: some files of the program; the user files that they import are added.

    Cost: 5 ms for each file.
    """
    modules = _user_modules()
    by_file = {str(module.__file__): module for module in modules.values()}
    pending, seen = list(files), set[str]()
    found: dict[str, ast.Module] = {}
    while pending:
        file = pending.pop()
        if file in seen:
            continue
        seen.add(file)
        linecache.checkcache(file)
        text = "".join(linecache.getlines(file))
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return None
        if not (text or Path(file).exists()) or any(_runs_dynamic_code(each) for each in ast.walk(tree)):
            return None
        found[file] = tree
        names = _imported_names(tree, by_file.get(file))
        pending += [str(modules[name].__file__) for name in names if name in modules]
    return found


def _user_modules() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # may be anything
        if isinstance(file, str) and file.endswith(".py") and is_user_file(file):
            found[name] = module
    return found


def _imported_names(tree: ast.Module, module: ModuleType | None) -> Iterator[str]:
    """Yield the modules that a source file imports, and their packages."""
    package = getattr(module, "__package__", None) or ""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                yield from _with_packages(each.name)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".") if node.level else []
            parent = parts[: len(parts) - node.level + 1] if node.level else []
            origin = ".".join([*parent, *([node.module] if node.module else [])])
            yield from _with_packages(origin)
            for each in node.names:
                yield f"{origin}.{each.name}"


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _runs_dynamic_code(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in _BY_NAME
    return isinstance(called, ast.Name) and called.id in _BY_NAME | _BUILT_IN
