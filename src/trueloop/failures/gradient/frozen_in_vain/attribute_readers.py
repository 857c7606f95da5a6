"""Lists misspellings of ``requires_grad``, and finds code that may read such an attribute."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any, Final, TypeGuard

from trueloop.analysis.queries.parameter_loops import loop_variables_of_parameters
from trueloop.core.findings import SourceLocation
from trueloop.core.source_text import read_source, walk
from trueloop.tracing.running_code import DYNAMIC, notebook_cells, refers_to, running_files
from trueloop.tracing.source_calls import tree_of
from trueloop.tracing.user_location import is_user_file

REQUIRES_GRAD: Final = "requires_grad"
MISSPELLINGS: Final = frozenset((
    "require_grad", "requires_grads", "require_grads", "required_grad", "requires_grad_", "requires_gradient",
    "require_gradient", "requires_gradients", "requries_grad", "requres_grad", "reqires_grad", "requiers_grad",
    "requires_gard", "required_grads", "requiresGrad", "require_grad_",
))  # fmt: skip
"""Common misspellings, none of which PyTorch reads."""
_EXCLUDED_PACKAGES: Final = ("torch", "trueloop")
"""Packages whose source code contains the attributes' names without reading them."""


def may_be_read(tree: ast.AST, attribute: str, *, of_modules: bool) -> bool:
    """Return True if source code may read an attribute of any object, or contains its name as a string.

    Args:
        tree: the syntax tree.
        attribute: name of the attribute; calls of a method of that name do not count.
        of_modules: whether the attribute is on modules, so that reading it on items of ``parameters()`` does not count.
    """
    nodes = list(walk(tree))
    ignored = {id(each.func) for each in nodes if isinstance(each, ast.Call)}
    ignored |= {id(each.args[1]) for each in nodes if _is_setattr(each)}
    if of_modules:
        ignored |= {
            id(read)
            for each in nodes
            for name in loop_variables_of_parameters(each)
            for read in _attribute_accesses(each, name)
        }
    for each in nodes:
        if id(each) in ignored:
            continue
        if isinstance(each, ast.Attribute) and each.attr == attribute and isinstance(each.ctx, ast.Load):
            return True
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and attribute in each.value.split("."):
            return True
    return False


def _is_setattr(node: ast.AST) -> TypeGuard[ast.Call]:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "setattr"
        and len(node.args) > 1
    )  # fmt: skip


def _attribute_accesses(scope: ast.AST, name: str) -> list[ast.Attribute]:
    """Return the attribute accesses on a variable; [] unless the scope binds the variable exactly once."""
    nodes = list(walk(scope))
    stored = sum(
        isinstance(each, ast.Name) and each.id == name and not isinstance(each.ctx, ast.Load) for each in nodes
    )
    if stored + sum(isinstance(each, ast.arg) and each.arg == name for each in nodes) != 1:
        return []
    attributes = [each for each in nodes if isinstance(each, ast.Attribute)]
    return [each for each in attributes if isinstance(each.value, ast.Name) and each.value.id == name]


def is_read_in_program(attribute: str, *, of_modules: bool) -> bool:
    """Return True if code of the program may read an attribute, in a file or in running code without source code.

    Libraries are not searched for ``requires_grad``, which they read only of tensors, but for other attributes.

    Cost: 0.1 ms for each imported file, and once 10 ms for each file that contains the attribute's name.
    """
    running = running_files(attribute)
    if running is None:
        return True
    files = {*_imported_files(libraries=attribute != REQUIRES_GRAD), *notebook_cells(), *running}
    return any(_may_read(file, attribute, of_modules) for file in files)


def find_assignment(attribute: str, value: bool) -> SourceLocation | None:
    """Return the line that sets the attribute of some object to the value; None if it is not exactly one.

    Files that contain running functions are searched first, then the imported ones.

    Cost: as `is_read_in_program`.
    """
    running = running_files(attribute) or frozenset()
    for files in (running, {*_imported_files(libraries=False), *notebook_cells()}):
        found = [SourceLocation(file, line) for file in files for line in _assignments(file, attribute, value)]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _assignments(file: str, attribute: str, value: bool) -> Iterator[int]:
    tree = tree_of(file, attribute)
    for node in () if tree is None else walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value is value:
            targets = [each for each in node.targets if isinstance(each, ast.Attribute) and each.attr == attribute]
            yield from (each.lineno for each in targets)


def _imported_files(*, libraries: bool) -> Iterator[str]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # may be anything
        if isinstance(file, str) and file.endswith(".py"):
            is_library = libraries and name.partition(".")[0] not in _EXCLUDED_PACKAGES
            if is_library or is_user_file(file):
                yield file


@lru_cache(maxsize=8192)
def _may_read(file: str, attribute: str, of_modules: bool) -> bool:
    text = read_source(file)
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
    if not refers_to(code, attribute):
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, TypeError, SyntaxError):
        return True  # unknown, so the code may use it
    own = code.co_varnames[0] if code.co_argcount else ""
    for each in walk(tree):
        if isinstance(each, ast.Attribute) and _is_name(each.value, own) and each.attr in (attribute, "__dict__"):
            return True
        if isinstance(each, ast.Constant) and each.value == attribute:
            return True
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id in DYNAMIC and each.args:
            is_constant = len(each.args) > 1 and isinstance(each.args[1], ast.Constant)
            if _is_name(each.args[0], own) and not is_constant:
                return True
    return False


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
