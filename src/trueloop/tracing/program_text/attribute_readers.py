"""Finds code of a running program that could read an attribute which PyTorch does not read."""

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

from trueloop.tracing.program_text.freezing import REQUIRES_GRAD, may_be_read
from trueloop.tracing.program_text.step_calls import imported_modules
from trueloop.tracing.user_location import is_user_code, is_user_file

_EXCLUDED_PACKAGES: Final = ("torch", "trueloop")
"""Packages whose source code contains the attributes' names without reading them."""
_DYNAMIC: Final = frozenset(("setattr", "vars", "__dict__"))
"""Names with which code can access attributes whose names it does not contain."""


def is_read_in_program(attribute: str, *, of_modules: bool) -> bool:
    """Return True if code of the program may read an attribute, in a file or in running code without source code.

    Libraries are not searched for ``requires_grad``, which they read only of tensors, but for other attributes.

    Cost: 0.1 ms for each imported file, and once 10 ms for each file that contains the attribute's name.
    """
    running = {code: bool(_source(code.co_filename)) for code in _running_code()}
    if any(_refers_to(code, attribute) for code, has_source in running.items() if not has_source):
        return True
    with_source = {code.co_filename for code, has_source in running.items() if has_source}
    files = {*_imported_files(libraries=attribute != REQUIRES_GRAD), *_notebook_cells(), *with_source}
    return any(_may_read(file, attribute, of_modules) for file in files)


def running_files() -> frozenset[str]:
    """Return the files of the running code; empty in a notebook or REPL, or if code without a file may step."""
    running = {code: bool(_source(code.co_filename)) for code in _running_code()}
    unread = any(_refers_to(code, "step") for code, has_source in running.items() if not has_source)
    if unread or hasattr(sys, "ps1") or hasattr(builtins, "get_ipython"):
        return frozenset()
    return frozenset(code.co_filename for code, has_source in running.items() if has_source)


def parse_files(files: Iterable[str], imports: bool) -> dict[str, ast.Module]:
    """Return the syntax tree of each of some files, by file name; empty if one of them cannot be parsed.

    Args:
        files: file names.
        imports: whether to add the user files that they import, directly or indirectly.

    Cost: 10 ms for each long file, once.
    """
    names = {getattr(module, "__file__", None): name for name, module in list(sys.modules.items())}
    found: dict[str, ast.Module] = {}
    queue = list(files)
    for file in queue:
        tree = _parse(file)
        if tree is None:
            return {}
        found[file] = tree
        for name in imported_modules(tree, names.get(file, "")) if imports else ():
            other = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(other, str) and other.endswith(".py") and is_user_file(other) and other not in queue:
                queue.append(other)
    return found


@lru_cache(maxsize=256)
def _parse(file: str) -> ast.Module | None:
    try:
        return ast.parse(_source(file))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _imported_files(*, libraries: bool) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # may be anything
        if isinstance(file, str) and file.endswith(".py"):
            is_library = libraries and name.partition(".")[0] not in _EXCLUDED_PACKAGES
            if is_library or is_user_file(file):
                yield file


def _notebook_cells() -> Iterator[str]:
    """Yield the pseudo files of notebook cells, which linecache stores without a modification time."""
    for name, entry in list(linecache.cache.items()):
        if len(entry) > 1 and entry[1] is None and is_user_file(name):
            yield name


def _running_code() -> Iterator[CodeType]:
    """Yield the code of running user functions, in any thread, and of ``python -c`` or ``exec``."""
    for innermost in sys._current_frames().values():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        frame = innermost
        while frame is not None:
            if is_user_code(frame.f_code) or frame.f_code.co_filename == "<string>":
                yield frame.f_code
            frame = frame.f_back


def _source(file: str) -> str:
    try:
        return Path(file).read_text("utf-8", errors="replace")
    except (OSError, ValueError):
        return "".join(linecache.getlines(file))


@lru_cache(maxsize=8192)
def _may_read(file: str, attribute: str, of_modules: bool) -> bool:
    text = _source(file)
    if attribute not in text:
        return False
    try:
        return may_be_read(ast.parse(text), attribute, of_modules=of_modules)
    except (SyntaxError, ValueError, RecursionError):
        return True  # unknown, so the file may read it


def uses_attribute(kind: type, attribute: str) -> bool:
    """Return True if a class or a base class, other than PyTorch's, declares an attribute or uses it on ``self``."""
    for each in kind.__mro__:
        if each is object or each.__module__.split(".")[0] == "torch":
            continue
        if (attribute in vars(each) or attribute in vars(each).get("__annotations__", ())) or any(
            _uses_on_self(code, attribute) for code in _methods(each)
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


def _uses_on_self(code: CodeType, attribute: str) -> bool:
    if not _refers_to(code, attribute):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return True  # unknown, so the code may use it
    own = code.co_varnames[0] if code.co_argcount else ""
    for each in ast.walk(tree):
        if isinstance(each, ast.Attribute) and _is_name(each.value, own) and each.attr in (attribute, "__dict__"):
            return True
        if isinstance(each, ast.Constant) and each.value == attribute:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in _DYNAMIC and each.args:
            is_constant = len(each.args) > 1 and isinstance(each.args[1], ast.Constant)
            if _is_name(each.args[0], own) and not is_constant:
                return True
    return False


def _refers_to(code: CodeType, attribute: str) -> bool:
    """Return True if code, or a function within it, refers to an attribute or may do so dynamically."""
    if attribute in code.co_names or attribute in code.co_consts or not _DYNAMIC.isdisjoint(code.co_names):
        return True
    return any(_refers_to(each, attribute) for each in code.co_consts if isinstance(each, CodeType))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
