"""Finds what source files do with one optimizer, and whether they may step it, by following its names."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from trueloop.core.source_text import encloses
from trueloop.tracing.program_text.freezing import loop_variables_of_parameters

Texts = Mapping[str, ast.Module]
"""File -> its syntax tree."""
Nodes = list[tuple[str, ast.AST]]
"""All syntax nodes, each with its file."""

_HARMLESS_ATTRIBUTES: Final = frozenset((
    "zero_grad", "state_dict", "load_state_dict", "param_groups", "add_param_group", "state", "defaults",
))  # fmt: skip
"""Optimizer attributes that do not step."""
_HARMLESS_FUNCTIONS: Final = frozenset(("print", "len", "isinstance", "type", "id", "str", "repr", "unscale_"))
"""Functions that do not step an optimizer passed to them."""
_DYNAMIC_ACCESS: Final = frozenset(("globals", "locals", "eval", "exec"))
"""Functions that access names which do not appear in the source."""
_DYNAMIC_IMPORT: Final = frozenset(("import_module", "__import__", "instantiate", "locate"))
"""Functions that load code without an import statement."""
_GRADIENTS: Final = frozenset(("grad", "grad_sample", "grad_batch", "main_grad"))
"""Attributes in which PyTorch and other libraries store gradients."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_HARMLESS_METHODS: Final = frozenset(("requires_grad_", "clip_grad_norm_", "clip_grad_value_"))
_CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_norm", "get_total_norm"))
_HOOKS: Final = ("register_hook", "register_full_backward", "register_post_acc", "register_backward", "register_multi")


class _Alias(NamedTuple):
    """A name of the optimizer."""

    file: str
    """File of a variable; "" for an attribute, which any file may access."""
    word: str

    def matches(self, file: str, node: ast.AST) -> bool:
        """Return True if a node reads this name."""
        kind = ast.Name if self.file else ast.Attribute
        return (
            isinstance(node, kind)
            and _last_name(node) == self.word
            and isinstance(node.ctx, ast.Load)
            and (self.file in ("", file))
        )


_SCHEDULER_ALIAS: Final = _Alias("", "optimizer")
"""The attribute in which a PyTorch scheduler stores its optimizer."""


class OptimizerUses(NamedTuple):
    """What source files do with an optimizer that they cannot step."""

    cleared: bool
    """``zero_grad`` is called."""
    uncalled_steps: tuple[tuple[str, ast.Attribute], ...]
    """Statements that name ``step`` without calling it, each with its file."""
    is_attribute: bool
    """An object stores it as an attribute, which unknown code may read."""


def find_assigned_target(tree: ast.Module, line: int, kind: str) -> ast.expr | None:
    """Return the name or attribute that a new optimizer is assigned to; None if it is not exactly one.

    Args:
        tree: syntax tree of the file.
        line: where the optimizer is created.
        kind: its class name.
    """
    for each in ast.walk(tree):
        if not isinstance(each, ast.Assign | ast.AnnAssign) or not isinstance(each.value, ast.Call):
            continue
        if each.lineno <= line <= (each.end_lineno or line) and _last_name(each.value.func) == kind:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            return targets[0] if len(targets) == 1 and _last_name(targets[0]) else None
    return None


def find_uses(texts: Texts, file: str, target: ast.expr, *, is_complete: bool = True) -> OptimizerUses | None:
    """Return what source files do with an optimizer under all of its names; None if they may step it.

    Args:
        texts: all files in which it may be used.
        file: file of the name.
        target: the name or attribute.
        is_complete: these are all files, so an undefined function may step as well.
    """
    nodes = [(each, node) for each, tree in texts.items() for node in ast.walk(tree)]
    parents = {id(child): node for _, node in nodes for child in _children(node)}
    aliases = [_make_alias(file, target)]
    cleared = False
    named: list[tuple[str, ast.Attribute]] = []
    for alias in aliases:
        if any(
            _is_dynamic_access(node, alias) for where, node in nodes if alias.file in ("", where)
        ) or _is_imported_elsewhere(texts, alias):
            return None
        for where, node in nodes:
            if not alias.matches(where, node):
                continue
            parent = parents.get(id(node))
            if isinstance(parent, ast.Attribute):
                if parent.attr == "step" and isinstance(parents.get(id(parent)), ast.Expr):
                    named.append((where, parent))
                elif parent.attr not in _HARMLESS_ATTRIBUTES:
                    return None
                cleared |= parent.attr == "zero_grad"
                continue
            more = _names_passed_to(where, node, parents, nodes)
            if more is None and (is_complete or not isinstance(parent, ast.Call | ast.keyword)):
                return None
            aliases += [each for each in more or () if each not in aliases]
    return OptimizerUses(cleared, tuple(named), any(not alias.file and alias != _SCHEDULER_ALIAS for alias in aliases))


def find_step_lines(texts: Texts) -> Iterator[tuple[str, int]]:
    """Yield the lines that call or pass on something that may step an optimizer or scheduler."""
    defined = {each.name for tree in texts.values() for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    for file, tree in texts.items():
        for node in ast.walk(tree):
            for each in _children(node):
                if isinstance(each, ast.Attribute) and each.attr == "step" and isinstance(each.ctx, ast.Load):
                    if not isinstance(node, ast.Expr):
                        yield file, each.lineno
                elif isinstance(each, ast.Call):
                    word = _last_name(each.func)
                    unseen = word in _DYNAMIC_IMPORT or (isinstance(each.func, ast.Name) and word in _DYNAMIC_ACCESS)
                    if unseen or ("step" in word and word != "step" and word not in defined):
                        yield file, each.lineno


def uses_gradients(texts: Texts) -> bool:
    """Return True if source files may use gradients other than in a step."""
    for tree in texts.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (node.attr in _GRADIENTS or node.attr.startswith(_HOOKS)):
                return True
            if isinstance(node, ast.Constant) and node.value == "grad":
                return True
            if any(_uses_norm(tree, node, each) for each in _children(node)):
                return True
    return False


def changes_weights(tree: ast.Module) -> bool:
    """Return True if a source may change weights other than by a step."""
    each_one = {name for node in ast.walk(tree) for name in loop_variables_of_parameters(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            word = _last_name(node.func)
            if word == "vector_to_parameters" or word.startswith("_foreach_"):
                return True
            if word.endswith("_") and word not in _HARMLESS_METHODS and _first_name(node.func) in each_one:
                return True
        stored = node.target if isinstance(node, ast.AugAssign) else node
        changes = stored is not node or isinstance(node, ast.Attribute)  # but not the loop's own target
        if changes and isinstance(getattr(stored, "ctx", None), ast.Store) and _first_name(stored) in each_one:
            return True
    return False


def _first_name(node: Any) -> str:
    """Return the variable at the start of an expression: "p" for ``p.data.add_``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _uses_norm(tree: ast.Module, parent: Any, node: ast.AST) -> bool:
    """Return True if the norm that clipping returns is used, other than in a variable that is never read."""
    if not isinstance(node, ast.Call) or _last_name(node.func) not in _CLIPPING or isinstance(parent, ast.Expr):
        return False
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    around = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS) and encloses(each, parent)]
    scope = max(around, key=lambda each: each.lineno) if around else tree
    return not isinstance(target, ast.Name) or _reads(scope, target.id)


def _reads(scope: ast.AST, name: str) -> bool:
    """Return True if a variable is read in a function or module; inner functions may have their own of that name."""
    for each in _children(scope):
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load):
            return True
        own = isinstance(each, _FUNCTIONS) and any(
            (isinstance(inner, ast.Name) and inner.id == name and isinstance(inner.ctx, ast.Store))
            or (isinstance(inner, ast.arg) and inner.arg == name)
            for inner in ast.walk(each)
        )
        if not own and _reads(each, name):
            return True
    return False


def _names_passed_to(file: str, node: ast.AST, parents: dict[int, ast.AST], nodes: Nodes) -> set[_Alias] | None:
    """Return the further names that the optimizer gets at a node; None if that is unknown."""
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
    if _is_scheduler(call.func, [each for where, each in nodes if where == file]):
        return {_SCHEDULER_ALIAS}
    word = parent.arg if isinstance(parent, ast.keyword) else None
    place = next((n for n, each in enumerate(call.args) if each is node or isinstance(each, ast.Starred)), -1)
    found = [(where, each) for where, each in nodes if getattr(each, "name", None) == callee and _defines(each)]
    own = [(where, each) for where, each in found if where == file]
    starred = place >= 0 and isinstance(call.args[place], ast.Starred)
    given = [(where, "" if starred else _parameter_name(each, place, word, nodes)) for where, each in own or found]
    return {_Alias(where, name) for where, name in given} if given and all(name for _, name in given) else None


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _parameter_name(node: Any, place: int, word: str | None, nodes: Nodes) -> str:
    """Return the parameter name of an argument of a function or class; "" if unknown."""
    method = any(isinstance(each, ast.ClassDef) and node in each.body for _, each in nodes)
    if isinstance(node, ast.ClassDef):
        node = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
        method = True
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    plain = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if word is not None:
        return word if word in (*plain, *(each.arg for each in node.args.kwonlyargs)) else ""
    place += method and all(_last_name(each) != "staticmethod" for each in node.decorator_list)
    return plain[place] if 0 <= place < len(plain) else ""


def _is_scheduler(function: ast.expr, nodes: list[ast.AST]) -> bool:
    """Return True for the constructor of a PyTorch scheduler."""
    if isinstance(function, ast.Attribute):
        return _last_name(function.value) == "lr_scheduler"
    imports = [each for each in nodes if isinstance(each, ast.ImportFrom) and each.module]
    return any(
        str(each.module).endswith("optim.lr_scheduler")
        and _last_name(function) in {alias.asname or alias.name for alias in each.names}
        for each in imports
    )


def _is_dynamic_access(node: ast.AST, alias: _Alias) -> bool:
    """Return True if a node may access the name as a string."""
    match node:
        case ast.Call(func=ast.Name(id=word), args=args) if word in _DYNAMIC_ACCESS or (word == "vars" and not args):
            return bool(alias.file)
        case ast.Call(func=ast.Name(id="getattr"), args=[of, ast.Constant(value=value), *_]):
            return value == alias.word and not isinstance(of, ast.Call)
        case ast.Call(func=ast.Name(id="getattr" | "vars"), args=[ast.Name(id="self"), *_]):
            return not alias.file
        case ast.Attribute(attr="__dict__"):
            return not alias.file
        case _:
            return False


def imported_modules(tree: ast.Module, name: str = "") -> set[str]:
    """Return the modules that a source imports, including names that may be modules.

    Args:
        tree: the syntax tree.
        name: its own module name, for relative imports.
    """
    found: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Import):
            found |= {alias.name for alias in each.names}
        elif isinstance(each, ast.ImportFrom):
            above = name.split(".")[: -each.level] if each.level else []
            module = ".".join((*above, *filter(None, [each.module])))
            found |= {module, *(f"{module}.{alias.name}".strip(".") for alias in each.names)}
    return found


def _is_imported_elsewhere(texts: Texts, alias: _Alias) -> bool:
    """Return True if another file may import the variable from this module."""
    tree = texts.get(alias.file)
    if tree is None or not any(alias.word in _bound_names(each) for each in tree.body):
        return False
    path = "/" + PurePath(alias.file).with_suffix("").as_posix()
    return any(
        file != alias.file
        and any(
            each == "__main__" or path.endswith("/" + each.replace(".", "/"))
            for each in imported_modules(other)
            if each
        )
        and (alias.word in ast.dump(other))
        for file, other in texts.items()
    )


def _bound_names(statement: ast.stmt) -> set[str]:
    """Return the module variables that a statement binds; of a function only its globals."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {name for each in ast.walk(statement) if isinstance(each, ast.Global) for name in each.names}
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _make_alias(file: str, target: Any) -> _Alias:
    return _Alias("" if isinstance(target, ast.Attribute) else file, _last_name(target))


def _last_name(node: Any) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _children(node: ast.AST) -> Iterator[Any]:
    return ast.iter_child_nodes(node)
