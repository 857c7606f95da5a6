"""Whether anything in the text of a program can step one optimizer, by the names that it goes by; else what it does."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Final, NamedTuple

from trueloop.core.source_text import encloses
from trueloop.tracing.program_text.freezing import loop_variables_of_parameters

Texts = Mapping[str, ast.Module]
"""File -> its tree."""
Nodes = list[tuple[str, ast.AST]]
"""All there are, each with its file."""

_QUIET: Final = frozenset((
    "zero_grad", "state_dict", "load_state_dict", "param_groups", "add_param_group", "state", "defaults",
))  # fmt: skip
"""What may be asked of an optimizer, and makes no step."""
_TAKERS: Final = frozenset(("print", "len", "isinstance", "type", "id", "str", "repr", "unscale_"))
"""What it may be handed to."""
_BY_NAME: Final = frozenset(("globals", "locals", "eval", "exec"))
"""With these a text gets at things whose names do not stand in it."""
_LOADING: Final = frozenset(("import_module", "__import__", "instantiate", "locate"))
"""These bring in code that no import names."""
_GRADIENTS: Final = frozenset(("grad", "grad_sample", "grad_batch", "main_grad"))
"""Where torch, and libraries beside it, leave them."""
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_HARMLESS: Final = frozenset(("requires_grad_", "clip_grad_norm_", "clip_grad_value_"))
_CLIPPING: Final = frozenset(("clip_grad_norm_", "clip_grad_norm", "get_total_norm"))
_HOOKS: Final = ("register_hook", "register_full_backward", "register_post_acc", "register_backward", "register_multi")


class _Alias(NamedTuple):
    """A name that a thing goes by."""

    file: str
    """Of a variable; "" for an attribute, which may be asked for anywhere."""
    word: str

    def stands(self, file: str, node: ast.AST) -> bool:
        """True where a node asks for what has this name."""
        kind = ast.Name if self.file else ast.Attribute
        return (
            isinstance(node, kind)
            and _last(node) == self.word
            and isinstance(node.ctx, ast.Load)
            and (self.file in ("", file))
        )


_SCHEDULED: Final = _Alias("", "optimizer")
"""How a schedule of torch's holds its own."""


class OptimizerUses(NamedTuple):
    """What a text does with an optimizer that nothing in it can step."""

    cleared: bool
    """Its ``zero_grad`` is called."""
    uncalled_steps: tuple[tuple[str, ast.Attribute], ...]
    """Where its ``step`` is named as a statement, in which file, and not called."""
    is_attribute: bool
    """An object holds it as an attribute, which code that is not shown may look at."""


def find_assigned_target(tree: ast.Module, line: int, kind: str) -> ast.expr | None:
    """Return the one name or attribute that an optimizer gets where it is built; None where that is not so plain.

    Args:
        tree: of the file.
        line: in which it is built.
        kind: the name of its class.
    """
    for each in ast.walk(tree):
        if not isinstance(each, ast.Assign | ast.AnnAssign) or not isinstance(each.value, ast.Call):
            continue
        if each.lineno <= line <= (each.end_lineno or line) and _last(each.value.func) == kind:
            targets = each.targets if isinstance(each, ast.Assign) else [each.target]
            return targets[0] if len(targets) == 1 and _last(targets[0]) else None
    return None


def find_uses(texts: Texts, file: str, target: ast.expr, *, is_complete: bool = True) -> OptimizerUses | None:
    """Return what texts do with what a name stands for, and all that it is handed on to; None if they may step it.

    Args:
        texts: all there are in which it may be used.
        file: where the name is.
        target: the name, or the attribute.
        is_complete: there is no other text: a function that none defines may step, too.
    """
    nodes = [(each, node) for each, tree in texts.items() for node in ast.walk(tree)]
    parents = {id(child): node for _, node in nodes for child in _children(node)}
    aliases = [_alias(file, target)]
    cleared = False
    named: list[tuple[str, ast.Attribute]] = []
    for alias in aliases:
        if any(_by_name(node, alias) for where, node in nodes if alias.file in ("", where)) or _taken(texts, alias):
            return None
        for where, node in nodes:
            if not alias.stands(where, node):
                continue
            parent = parents.get(id(node))
            if isinstance(parent, ast.Attribute):
                if parent.attr == "step" and isinstance(parents.get(id(parent)), ast.Expr):
                    named.append((where, parent))
                elif parent.attr not in _QUIET:
                    return None
                cleared |= parent.attr == "zero_grad"
                continue
            more = _passed(where, node, parents, nodes)
            if more is None and (is_complete or not isinstance(parent, ast.Call | ast.keyword)):
                return None
            aliases += [each for each in more or () if each not in aliases]
    return OptimizerUses(cleared, tuple(named), any(not alias.file and alias != _SCHEDULED for alias in aliases))


def find_step_lines(texts: Texts) -> Iterator[tuple[str, int]]:
    """Yield the lines where texts call, or hand on, whatever may make a step, of optimizers and schedules alike."""
    defined = {each.name for tree in texts.values() for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    for file, tree in texts.items():
        for node in ast.walk(tree):
            for each in _children(node):
                if isinstance(each, ast.Attribute) and each.attr == "step" and isinstance(each.ctx, ast.Load):
                    if not isinstance(node, ast.Expr):
                        yield file, each.lineno
                elif isinstance(each, ast.Call):
                    word = _last(each.func)
                    unseen = word in _LOADING or (isinstance(each.func, ast.Name) and word in _BY_NAME)
                    if unseen or ("step" in word and word != "step" and word not in defined):
                        yield file, each.lineno


def uses_gradients(texts: Texts) -> bool:
    """Return True where texts may do something with gradients other than to step on them."""
    for tree in texts.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and (node.attr in _GRADIENTS or node.attr.startswith(_HOOKS)):
                return True
            if isinstance(node, ast.Constant) and node.value == "grad":
                return True
            if any(_norm_used(tree, node, each) for each in _children(node)):
                return True
    return False


def changes_weights(tree: ast.Module) -> bool:
    """Return True where a text may change weights other than by stepping."""
    each_one = {name for node in ast.walk(tree) for name in loop_variables_of_parameters(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            word = _last(node.func)
            if word == "vector_to_parameters" or word.startswith("_foreach_"):
                return True
            if word.endswith("_") and word not in _HARMLESS and _first(node.func) in each_one:
                return True
        stored = node.target if isinstance(node, ast.AugAssign) else node
        changes = stored is not node or isinstance(node, ast.Attribute)  # and not the loop's own target
        if changes and isinstance(getattr(stored, "ctx", None), ast.Store) and _first(stored) in each_one:
            return True
    return False


def _first(node: Any) -> str:
    """Return the variable that an expression begins with: "p" for ``p.data.add_``."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _norm_used(tree: ast.Module, parent: Any, node: ast.AST) -> bool:
    """True where the norm that a clipping returns goes anywhere but into a variable that nobody reads."""
    if not isinstance(node, ast.Call) or _last(node.func) not in _CLIPPING or isinstance(parent, ast.Expr):
        return False
    target = parent.targets[0] if isinstance(parent, ast.Assign) else None
    around = [each for each in ast.walk(tree) if isinstance(each, _FUNCTIONS) and encloses(each, parent)]
    scope = max(around, key=lambda each: each.lineno) if around else tree
    return not isinstance(target, ast.Name) or _reads(scope, target.id)


def _reads(scope: ast.AST, name: str) -> bool:
    """True where a variable is read in a function or module; others of its name, in functions within, are not it."""
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


def _passed(file: str, node: ast.AST, parents: dict[int, ast.AST], nodes: Nodes) -> set[_Alias] | None:
    """Return the names that what stands at a node gets by being handed on there; None where nobody can say."""
    parent = parents.get(id(node))
    if isinstance(parent, ast.Compare | ast.FormattedValue | ast.Expr):
        return set()
    if isinstance(parent, ast.Assign | ast.AnnAssign) and parent.value is node:
        targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
        return {_alias(file, each) for each in targets} if all(map(_last, targets)) else None
    call = parents.get(id(parent)) if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or node is call.func:
        return None
    callee = _last(call.func)
    if callee in _TAKERS:
        return set()
    if _schedules(call.func, [each for where, each in nodes if where == file]):
        return {_SCHEDULED}
    word = parent.arg if isinstance(parent, ast.keyword) else None
    place = next((n for n, each in enumerate(call.args) if each is node or isinstance(each, ast.Starred)), -1)
    found = [(where, each) for where, each in nodes if getattr(each, "name", None) == callee and _defines(each)]
    own = [(where, each) for where, each in found if where == file]
    starred = place >= 0 and isinstance(call.args[place], ast.Starred)
    given = [(where, "" if starred else _argument(each, place, word, nodes)) for where, each in own or found]
    return {_Alias(where, name) for where, name in given} if given and all(name for _, name in given) else None


def _defines(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def _argument(node: Any, place: int, word: str | None, nodes: Nodes) -> str:
    """Return what a function, or the constructor of a class, calls an argument; "" where the text does not tell."""
    method = any(isinstance(each, ast.ClassDef) and node in each.body for _, each in nodes)
    if isinstance(node, ast.ClassDef):
        node = next((each for each in node.body if getattr(each, "name", "") == "__init__"), None)
        method = True
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return ""
    plain = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    if word is not None:
        return word if word in (*plain, *(each.arg for each in node.args.kwonlyargs)) else ""
    place += method and all(_last(each) != "staticmethod" for each in node.decorator_list)
    return plain[place] if 0 <= place < len(plain) else ""


def _schedules(function: ast.expr, nodes: list[ast.AST]) -> bool:
    """True for the constructor of a schedule of torch's."""
    if isinstance(function, ast.Attribute):
        return _last(function.value) == "lr_scheduler"
    imports = [each for each in nodes if isinstance(each, ast.ImportFrom) and each.module]
    return any(
        str(each.module).endswith("optim.lr_scheduler")
        and _last(function) in {alias.asname or alias.name for alias in each.names}
        for each in imports
    )


def _by_name(node: ast.AST, alias: _Alias) -> bool:
    """True where a text may get at a thing by its name as a string."""
    match node:
        case ast.Call(func=ast.Name(id=word), args=args) if word in _BY_NAME or (word == "vars" and not args):
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
    """Return the modules that a text imports, and whatever may be one.

    Args:
        tree: of the text.
        name: of its own module, which relative imports count from.
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


def _taken(texts: Texts, alias: _Alias) -> bool:
    """True where another file may have a variable of this one's module, which it imports."""
    tree = texts.get(alias.file)
    if tree is None or not any(alias.word in _stored(each) for each in tree.body):
        return False
    path = "/" + PurePath(alias.file).with_suffix("").as_posix()
    return any(
        file != alias.file
        and any(each == "__main__" or path.endswith("/" + each.replace(".", "/")) for each in imported_modules(other) if each)
        and (alias.word in ast.dump(other))
        for file, other in texts.items()
    )


def _stored(statement: ast.stmt) -> set[str]:
    """Return the variables that a statement of a module makes; those of a function are its own but for globals."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {name for each in ast.walk(statement) if isinstance(each, ast.Global) for name in each.names}
    return {each.id for each in ast.walk(statement) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}


def _alias(file: str, target: Any) -> _Alias:
    return _Alias("" if isinstance(target, ast.Attribute) else file, _last(target))


def _last(node: Any) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _children(node: ast.AST) -> Iterator[Any]:
    return ast.iter_child_nodes(node)
