"""Finds the options of the command line that the program overwrites before anything reads them."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.command_line_options import destination, parsed_arguments, parsing_function
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_OF_LAUNCHER: Final = re.compile(r"environ|getenv|\brank\b|get_rank|world_size", re.IGNORECASE)
_LAUNCHER_OPTIONS: Final = re.compile(r"rank|world_size|distributed|dist_\w+|n_?gpus?|gpus?|gpu_ids?|local_\w+|device")


def overwritten_options(source: SourceFile) -> Iterator[Hit]:
    """Yield each assignment that replaces an option, or the variable that got it, before it is read."""
    options = {destination(each): each for each in definitions(source).calls.get("add_argument", [])}
    if not options:
        return
    for parsed, arguments in parsed_arguments(source):
        following, own = source.following(parsed), _options_of(source, parsed)
        for number, statement in enumerate(following):
            name = _overwritten(statement, arguments)
            if name not in own or not _is_free(statement, name):
                continue
            if not any(_reads(each, arguments, name) for each in [*following[:number], _value(statement)]):
                yield _hit(statement, own[name], f"{arguments}.{name}")
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[ast.Name(id=copy)], value=ast.Attribute(value=ast.Name(), attr=name)):
                found = _overwritten_copy(source, statement, copy, name) if name in options else None
                if found is not None and _is_free(found, name):
                    yield _hit(found, options[name], copy)
            case _:
                pass


def _options_of(source: SourceFile, parsed: ast.Assign) -> dict[str, ast.Call]:
    """Return the options that are added where arguments are parsed: another parser may have others."""
    own = parsing_function(source, parsed.value)
    scope, module = own or function_of(source, parsed), source.module_of((own or parsed).lineno)
    added = definitions(source).calls.get("add_argument", [])
    found = [e for e in added if function_of(source, e) is scope and source.module_of(e.lineno) is module]
    return {destination(each): each for each in found}


def _overwritten(statement: ast.stmt, arguments: str) -> str:
    """Return the option that a statement replaces; "" if it replaces none."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=owner), attr=name)]) if owner == arguments:
            return name
        case _:
            return ""


def _is_free(statement: Any, name: str) -> bool:
    """Return False for options that a launcher of several processes passes, and for values from the environment."""
    return not _LAUNCHER_OPTIONS.fullmatch(name) and not _OF_LAUNCHER.search(ast.unparse(statement.value))


def _value(statement: Any) -> ast.expr:
    return statement.value


def _reads(node: ast.AST, arguments: str, name: str) -> bool:
    """Return True if a node reads an option, or all of them at once other than to print them."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and last_name(node.value.func) == "print":
        return False
    known = {
        id(each.value) for each in nodes_in(node, ast.Attribute) if each.attr != name or isinstance(each.ctx, ast.Store)
    }
    return any(each.id == arguments and id(each) not in known for each in nodes_in(node, ast.Name))


def _overwritten_copy(source: SourceFile, copied: ast.Assign, copy: str, name: str) -> ast.Assign | None:
    """Return the assignment that replaces a copy of an option that nothing else reads; None if there is none."""
    is_single = sum(isinstance(each.ctx, ast.Load) for each in definitions(source).attributes.get(name, [])) == 1
    if not is_single or source.is_in_other_file(f".{name}"):
        return None
    for each in source.following(copied):
        names = [one for one in nodes_in(each, ast.Name) if one.id == copy]
        match each:
            case ast.Assign(targets=[ast.Name(id=target)]) if target == copy and len(names) == 1:
                reads = [one.lineno for one in source.nodes_of(ast.Name) if one.id == copy]
                between = any(copied.lineno < line < each.lineno for line in reads)
                return None if between else each
            case _:
                if names:
                    return None
    return None


def _hit(statement: Any, option: ast.Call, target: str) -> Hit:
    flag = next((each.value for each in option.args if isinstance(each, ast.Constant)), "the option")
    return Hit(
        message=f"`{target}` is overwritten before anything reads it: the option `{flag}` has no effect.",
        node=statement,
        related=((option, "the option"),),
    )
