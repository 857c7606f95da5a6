"""Finds out what source files do with one optimizer, and whether they may step it, by tracing all of its names."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from trueloop.analysis.program_files import imported_modules
from trueloop.analysis.queries.parameter_loops import loop_variables_of_parameters
from trueloop.core.source_text import nodes_in, walk

Trees = Mapping[str, ast.Module]
"""File name -> syntax tree of the file."""
Nodes = list[tuple[str, ast.AST]]
"""All syntax nodes, each with its file name."""

_HARMLESS_ATTRIBUTES: Final = frozenset((
    "zero_grad", "state_dict", "load_state_dict", "param_groups", "add_param_group", "state", "defaults",
))  # fmt: skip
"""Optimizer attributes whose use does not step the optimizer."""
_HARMLESS_FUNCTIONS: Final = frozenset(("print", "len", "isinstance", "type", "id", "str", "repr", "unscale_"))
"""Functions that do not step an optimizer that is passed to them."""
_DYNAMIC_ACCESS: Final = frozenset(("globals", "locals", "eval", "exec"))
"""Functions that access names which do not appear in the source code."""
_DYNAMIC_IMPORT: Final = frozenset(("import_module", "__import__", "instantiate", "locate"))
"""Functions that load code without an import statement."""
_HARMLESS_METHODS: Final = frozenset(("requires_grad_", "clip_grad_norm_", "clip_grad_value_"))


class _Alias(NamedTuple):
    """A name of the optimizer."""

    file: str
    """File that contains the variable; "" for an attribute, which any file may access."""
    name: str

    def matches(self, file: str, node: ast.AST) -> bool:
        """Return True if a node reads this name."""
        kind = ast.Name if self.file else ast.Attribute
        return (
            isinstance(node, kind)
            and _last_name(node) == self.name
            and isinstance(node.ctx, ast.Load)
            and (self.file in ("", file))
        )


_SCHEDULER_ALIAS: Final = _Alias("", "optimizer")
"""The attribute in which a PyTorch scheduler stores its optimizer."""


class OptimizerUses(NamedTuple):
    """What source files do with an optimizer that they cannot step."""

    cleared: bool
    """Whether ``zero_grad`` is called."""
    uncalled_steps: tuple[tuple[str, ast.Attribute], ...]
    """Statements that consist of ``optimizer.step`` without a call, each with its file."""
    is_attribute: bool
    """Whether an object stores the optimizer as an attribute, which unknown code may read."""


def find_assigned_target(tree: ast.Module, line: int, kind: str) -> ast.expr | None:
    """Return the name or attribute to which a new optimizer is assigned; None unless there is exactly one.

    Args:
        tree: syntax tree of the file.
        line: line that creates the optimizer.
        kind: class name of the optimizer.
    """
    for each in nodes_in(tree, ast.Assign, ast.AnnAssign):
        if not isinstance(each.value, ast.Call):
            continue
        if each.lineno <= line <= (each.end_lineno or line) and _last_name(each.value.func) == kind:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            return targets[0] if len(targets) == 1 and _last_name(targets[0]) else None
    return None


def find_uses(trees: Trees, file: str, target: ast.expr, *, is_complete: bool = True) -> OptimizerUses | None:
    """Return what source files do with an optimizer under any of its names; None if they may step it.

    Args:
        trees: all files in which the optimizer may be used.
        file: file that contains the name.
        target: the name or attribute to which the optimizer is assigned.
        is_complete: whether these are all files of the program, so that any undefined function may step it.
    """
    nodes = [(each, node) for each, tree in trees.items() for node in walk(tree)]
    parents = {id(child): node for _, node in nodes for child in _children(node)}
    aliases = [_make_alias(file, target)]
    cleared = False
    uncalled: list[tuple[str, ast.Attribute]] = []
    for alias in aliases:
        if any(
            _is_dynamic_access(node, alias) for node_file, node in nodes if alias.file in ("", node_file)
        ) or _is_imported_elsewhere(trees, alias):
            return None
        for node_file, node in nodes:
            if not alias.matches(node_file, node):
                continue
            parent = parents.get(id(node))
            if isinstance(parent, ast.Attribute):
                if parent.attr == "step" and isinstance(parents.get(id(parent)), ast.Expr):
                    uncalled.append((node_file, parent))
                elif parent.attr not in _HARMLESS_ATTRIBUTES:
                    return None
                cleared |= parent.attr == "zero_grad"
                continue
            more = _names_passed_to(node_file, node, parents, nodes)
            if more is None and (is_complete or not isinstance(parent, ast.Call | ast.keyword)):
                return None
            aliases += [each for each in more or () if each not in aliases]
    is_attribute = any(not alias.file and alias != _SCHEDULER_ALIAS for alias in aliases)
    return OptimizerUses(cleared, tuple(uncalled), is_attribute)


def find_step_lines(trees: Trees) -> Iterator[tuple[str, int]]:
    """Yield the file and line of each expression that may step an optimizer or scheduler."""
    defined = {each.name for tree in trees.values() for each in nodes_in(tree, ast.FunctionDef)}
    for file, tree in trees.items():
        for node in walk(tree):
            for each in _children(node):
                if isinstance(each, ast.Attribute) and each.attr == "step" and isinstance(each.ctx, ast.Load):
                    if not isinstance(node, ast.Expr):
                        yield file, each.lineno
                elif isinstance(each, ast.Call):
                    name = _last_name(each.func)
                    dynamic = name in _DYNAMIC_IMPORT or (isinstance(each.func, ast.Name) and name in _DYNAMIC_ACCESS)
                    if dynamic or ("step" in name and name != "step" and name not in defined):
                        yield file, each.lineno


def changes_weights(tree: ast.Module) -> bool:
    """Return True if a source file may change weights in another way than by stepping an optimizer."""
    loop_variables = {name for node in walk(tree) for name in loop_variables_of_parameters(node)}
    for node in walk(tree):
        if isinstance(node, ast.Call):
            name = _last_name(node.func)
            if name == "vector_to_parameters" or name.startswith("_foreach_"):
                return True
            if name.endswith("_") and name not in _HARMLESS_METHODS and _first_name(node.func) in loop_variables:
                return True
        stored = node.target if isinstance(node, ast.AugAssign) else node
        changes = stored is not node or isinstance(node, ast.Attribute)  # a plain name is the loop's own target
        if changes and isinstance(getattr(stored, "ctx", None), ast.Store) and _first_name(stored) in loop_variables:
            return True
    return False


def _first_name(node: Any) -> str:
    """Return the variable at the start of an expression: "p" for ``p.data.add_``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _names_passed_to(file: str, node: ast.AST, parents: dict[int, ast.AST], nodes: Nodes) -> set[_Alias] | None:
    """Return the new names that the optimizer gets at a node; None if they are unknown."""
    parent = parents.get(id(node))
    if isinstance(parent, ast.Compare | ast.FormattedValue | ast.Expr):
        return set()
    if isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is node:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return {_make_alias(file, each) for each in targets} if all(map(_last_name, targets)) else None
    call = parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or node is call.func:
        return None
    callee = _last_name(call.func)
    if callee in _HARMLESS_FUNCTIONS:
        return set()
    if _is_scheduler(call.func, [each for node_file, each in nodes if node_file == file]):
        return {_SCHEDULER_ALIAS}
    keyword = parent.arg if isinstance(parent, ast.keyword) else None
    index = next((n for n, each in enumerate(call.args) if each is node or isinstance(each, ast.Starred)), -1)
    found = [(of, each) for of, each in nodes if getattr(each, "name", None) == callee and _defines(each)]
    same_file = [(of, each) for of, each in found if of == file]
    starred = index >= 0 and isinstance(call.args[index], ast.Starred)
    names = [(of, "" if starred else _parameter_name(each, index, keyword, nodes)) for of, each in same_file or found]
    return {_Alias(of, name) for of, name in names} if names and all(name for _, name in names) else None


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _parameter_name(node: Any, index: int, keyword: str | None, nodes: Nodes) -> str:
    """Return the name of the parameter that a function or class gives to an argument; "" if unknown."""
    method = any(isinstance(each, ast.ClassDef) and node in each.body for _, each in nodes)
    if isinstance(node, ast.ClassDef):
        node = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
        method = True
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    plain = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if keyword is not None:
        return keyword if keyword in (*plain, *(each.arg for each in node.args.kwonlyargs)) else ""
    index += method and all(_last_name(each) != "staticmethod" for each in node.decorator_list)
    return plain[index] if 0 <= index < len(plain) else ""


def _is_scheduler(function: ast.expr, nodes: list[ast.AST]) -> bool:
    """Return True if an expression names a class of ``torch.optim.lr_scheduler``."""
    if isinstance(function, ast.Attribute):
        return _last_name(function.value) == "lr_scheduler"
    imports = [each for each in nodes if isinstance(each, ast.ImportFrom) and each.module]
    return any(
        str(each.module).endswith("optim.lr_scheduler")
        and _last_name(function) in {alias.asname or alias.name for alias in each.names}
        for each in imports
    )


def _is_dynamic_access(node: ast.AST, alias: _Alias) -> bool:
    """Return True if a node may access an alias by a string that contains the alias's name."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args) if name in _DYNAMIC_ACCESS or (name == "vars" and not args):
            return bool(alias.file)
        case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=value), *_]):
            return value == alias.name and not isinstance(of, ast.Call)
        case ast.Call(func=ast.Name(id="getattr" | "vars"), args=[ast.Name(id="self"), *_]):
            return not alias.file
        case ast.Attribute(attr="__dict__"):
            return not alias.file
        case _:
            return False


def _is_imported_elsewhere(trees: Trees, alias: _Alias) -> bool:
    """Return True if another file may import the variable from this module."""
    tree = trees.get(alias.file)
    if tree is None or not any(alias.name in _bound_names(each) for each in tree.body):
        return False
    path = "/" + PurePath(alias.file).with_suffix("").as_posix()
    return any(
        file != alias.file
        and any(
            each == "__main__" or path.endswith("/" + each.replace(".", "/"))
            for each in imported_modules(other)
            if each
        )
        and (alias.name in ast.dump(other))
        for file, other in trees.items()
    )


def _bound_names(statement: ast.stmt) -> set[str]:
    """Return the module variables that a statement binds; for a function, those it declares global."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {name for each in nodes_in(statement, ast.Global) for name in each.names}
    return {each.id for each in nodes_in(statement, ast.Name) if isinstance(each.ctx, ast.Store)}


def _make_alias(file: str, target: Any) -> _Alias:
    return _Alias("" if isinstance(target, ast.Attribute) else file, _last_name(target))


def _last_name(node: Any) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _children(node: ast.AST) -> Iterator[Any]:
    return ast.iter_child_nodes(node)
