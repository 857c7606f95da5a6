"""Parses the source files of a program: some files, and all files that they import."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from trueloop.core.source_text import nodes_in, read_source, walk

_BY_NAME: Final = frozenset((
    "import_module", "exec_module", "run_path", "run_module", "instantiate", "locate", "import_string",
))  # fmt: skip
_BUILT_IN: Final = frozenset(("__import__", "exec", "eval"))
NO_MODULES: Final[Mapping[str, str]] = {}


def parse_program(files: Iterable[str], modules: Mapping[str, str]) -> dict[str, ast.Module] | None:
    """Return the syntax tree of each file of a program, by file name.

    None if a file cannot be parsed, or may run code by name or from a string.

    Args:
        files: some files of the program; the files that they import are added.
        modules: file of each module that may be imported, by the module's name.

    Cost: 5 ms for each file, once.
    """
    trees = parse_files(files, modules)
    if trees is None or any(_runs_dynamic_code(each) for tree in trees.values() for each in walk(tree)):
        return None
    return trees


def parse_files(files: Iterable[str], modules: Mapping[str, str] = NO_MODULES) -> dict[str, ast.Module] | None:
    """Return the syntax tree of each of some files, by file name; None if one of them cannot be parsed.

    Args:
        files: file names.
        modules: modules to add if one of the files imports them, directly or indirectly: name -> file.
    """
    names = {file: name for name, file in modules.items()}
    found: dict[str, ast.Module] = {}
    pending = list(files)
    while pending:
        file = pending.pop()
        if file in found:
            continue
        text = read_source(file)
        tree = _parse(text) if text or Path(file).exists() else None
        if tree is None:
            return None
        found[file] = tree
        name = names.get(file, "")
        package = name if Path(file).name == "__init__.py" else name.rpartition(".")[0]
        pending += [modules[each] for each in imported_modules(tree, package) if each in modules] if modules else ()
    return found


@lru_cache(maxsize=256)
def _parse(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def imported_modules(tree: ast.Module, package: str = "") -> set[str]:
    """Return the modules that a source file imports, with their packages and with imported names that may be modules.

    Args:
        tree: the syntax tree.
        package: package of the importing module, to which relative imports refer.
    """
    found: set[str] = set()
    for node in nodes_in(tree, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            found.update(part for each in node.names for part in _with_packages(each.name))
        else:
            origin = absolute_module(node, package)
            found.update(_with_packages(origin))
            found.update(f"{origin}.{each.name}".strip(".") for each in node.names)
    return found


def absolute_module(node: ast.ImportFrom, package: str) -> str:
    """Return the absolute name of the module from which a statement imports; "" for the folder of the program."""
    parts = package.split(".") if node.level and package else []
    parent = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join((*parent, *filter(None, [node.module])))


def _with_packages(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    for length in range(1, len(parts) + 1):
        yield ".".join(parts[:length])


def _runs_dynamic_code(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in _BY_NAME
    return isinstance(called, ast.Name) and called.id in _BY_NAME | _BUILT_IN
