"""Who in a running program could read an attribute that torch does not: the texts of its classes, and of all of it."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, Final

from trueloop.tracing.program_text.freezing import RIGHT, may_be_read
from trueloop.tracing.program_text.step_calls import imported
from trueloop.tracing.user_location import is_user_code, is_user_file

_KNOWN: Final = ("torch", "trueloop")
"""Have these words only in texts about the mistake."""
_ANY_WORD: Final = frozenset(("setattr", "vars", "__dict__"))
"""With these a method sets attributes whose names do not stand in it."""


def read_in_program(word: str, *, of_modules: bool) -> bool:
    """Return True where anything in the program may read an attribute, in a text or in running code that has none.

    No library reads a module's ``requires_grad``, which is a tensor's, but one may read another word of its own.

    Cost: 0.1 ms for each file that was imported and 10 ms for each that has the word in it, once.
    """
    running = {code: bool(_text(code.co_filename)) for code in _running()}
    if any(_names(code, word) for code, has_text in running.items() if not has_text):
        return True
    written = {code.co_filename for code, has_text in running.items() if has_text}
    files = {*_imported(libraries=word != RIGHT), *_cells(), *written}
    return any(_may_read(file, word, of_modules) for file in files)


def running_files() -> frozenset[str]:
    """Return the files whose code runs now; none where some of it has no text and may step, or is yet to be written."""
    running = {code: bool(_text(code.co_filename)) for code in _running()}
    unread = any(_names(code, "step") for code, has_text in running.items() if not has_text)
    if unread or hasattr(sys, "ps1") or hasattr(builtins, "get_ipython"):
        return frozenset()
    return frozenset(code.co_filename for code, has_text in running.items() if has_text)


def trees(files: Iterable[str], imports: bool) -> dict[str, ast.Module]:
    """Return the trees of some files; none where one of them has none.

    Args:
        files: by their names.
        imports: those of the user's that they import, directly or not, as well.

    Cost: 10 ms for each file that is long, once.
    """
    names = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    found: dict[str, ast.Module] = {}
    queue = list(files)
    for file in queue:
        tree = _tree(file)
        if tree is None:
            return {}
        found[file] = tree
        for name in imported(tree, names.get(file, "")) if imports else ():
            other = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(other, str) and other.endswith(".py") and is_user_file(other) and other not in queue:
                queue.append(other)
    return found


@lru_cache(maxsize=256)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse(_text(file))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _imported(*, libraries: bool) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # anything may stand there
        if isinstance(file, str) and file.endswith(".py"):
            foreign = libraries and name.partition(".")[0] not in _KNOWN
            if foreign or is_user_file(file):
                yield file


def _cells() -> Iterator[str]:
    """Yield what stands for the files of a notebook's cells: texts without a time at which they were written."""
    for name, entry in list(linecache.cache.items()):
        if len(entry) > 1 and entry[1] is None and is_user_file(name):
            yield name


def _running() -> Iterator[CodeType]:
    """Yield the program's functions that are running, in any thread, and what ``python -c`` or ``exec`` was given."""
    for innermost in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        frame = innermost
        while frame is not None:
            if is_user_code(frame.f_code) or frame.f_code.co_filename == "<string>":
                yield frame.f_code
            frame = frame.f_back


def _text(file: str) -> str:
    try:
        return Path(file).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return "".join(linecache.getlines(file))


@lru_cache(maxsize=8192)
def _may_read(file: str, word: str, of_modules: bool) -> bool:
    text = _text(file)
    if word not in text:
        return False
    try:
        return may_be_read(ast.parse(text), word, of_modules=of_modules)
    except (SyntaxError, ValueError, RecursionError):
        return True  # nobody can say what it reads


def kept(kind: type, word: str) -> bool:
    """Return True where a class that is not torch's own declares the attribute, or uses it of ``self``."""
    for each in kind.__mro__:
        if each is object or each.__module__.split(".")[0] == "torch":
            continue
        if (word in vars(each) or word in vars(each).get("__annotations__", ())) or any(
            _uses(code, word) for code in _methods(each)
        ):
            return True
    return False


def _methods(kind: type) -> Iterator[CodeType]:
    for value in vars(kind).values():
        for part in ("__func__", "fget", "fset", "func", None):
            function: Any = getattr(value, part, None) if part else value
            code = getattr(inspect.unwrap(function), "__code__", None)
            if isinstance(code, CodeType):
                yield code


def _uses(code: CodeType, word: str) -> bool:
    if not _names(code, word):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return True  # nobody can say what it does with it
    own = code.co_varnames[0] if code.co_argcount else ""
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and _is(each.value, own) and each.attr in (word, "__dict__"):
            return True
        if isinstance(each, ast.Constant) and each.value == word:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _ANY_WORD and each.args:
            written = len(each.args) > 1 and isinstance(each.args[1], ast.Constant)
            if _is(each.args[0], own) and not written:
                return True
    return False


def _names(code: CodeType, word: str) -> bool:
    """Return True where code, or a function within it, has to do with an attribute."""
    if word in code.co_names or word in code.co_consts or not _ANY_WORD.isdisjoint(code.co_names):
        return True
    return any(_names(each, word) for each in code.co_consts if isinstance(each, CodeType))


def _is(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
