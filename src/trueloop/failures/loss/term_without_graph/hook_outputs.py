"""Finds forward hooks that store detached outputs of a trained model, from which the program computes its loss."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.batch_loops import function_of, is_loss_call
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.minimised_values import minimised
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses, nodes_in

_REGISTER: Final = ("register_forward_hook", "register_module_forward_hook")
_FROZEN: Final = re.compile(r"teacher|frozen|target|vgg|ema|momentum|pretrained|reference|(^|_)ref(_|$)", re.IGNORECASE)
_MAX_DEPTH: Final = 4


class _Store(NamedTuple):
    """A detached output that a hook stores."""

    value: ast.expr
    container: ast.expr
    """The dictionary, list or attribute that gets it."""
    hook: Any


def detached_hook_outputs(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``.detach()`` in a forward hook of a trained model whose stored result the loss contains."""
    seen: set[int] = set()
    for name in _REGISTER:
        for call in definitions(source).calls.get(name, ()):
            hook = _hook_of(source, call.args[0]) if call.args and isinstance(call.func, ast.Attribute) else None
            store = _store(hook) if hook is not None else None
            if store is None or id(store.value) in seen or not _is_trained(source, call):
                continue
            read = _read_by_loss(source, store)
            if read is not None:
                seen.add(id(store.value))
                yield Hit(
                    message=f"The hook stores `{ast.unparse(store.value)}`, which has no graph, and the loss is "
                    f"computed from `{ast.unparse(read)}`: this part of the loss trains nothing below the hook.",
                    node=store.value,
                    related=((read, "the loss reads it here"), (call, "the hook is registered here")),
                    fix=_fix(source, store.value),
                )


def _hook_of(source: SourceFile, node: ast.expr) -> Any:
    """Return the function or lambda that a registration gets, also from a function that defines it."""
    functions = definitions(source).functions
    match node:
        case ast.Lambda():
            return node
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return functions.get(name)
        case ast.Call(func=func):
            maker = functions.get(last_name(func))
            if last_name(func) == "partial" and node.args:
                return functions.get(last_name(node.args[0]))
            inner = nodes_in(maker, ast.FunctionDef, ast.Lambda) if maker is not None else []
            found = [each for each in inner if each is not maker]
            return found[0] if len(found) == 1 else None
        case _:
            return None


def _store(hook: Any) -> _Store | None:
    """Return what a hook stores of its output; None unless all that it stores is detached."""
    names = [each.arg for each in hook.args.args]
    output = names[-1] if names else ""
    found: list[_Store] = []
    for each in nodes_in(hook, ast.Assign, ast.Call):
        match each:
            case ast.Assign(targets=[ast.Subscript(value=container)], value=value):
                found.append(_Store(value, container, hook))
            case ast.Assign(targets=[ast.Attribute() as container], value=value):
                found.append(_Store(value, container, hook))
            case ast.Call(func=ast.Attribute(attr="append" | "__setitem__", value=container), args=[*_, value]):
                found.append(_Store(value, container, hook))
            case _:
                pass
    own = [each for each in found if any(e.id == output for e in nodes_in(each.value, ast.Name))]
    return own[0] if own and all(_is_detached(each.value, output) for each in own) else None


def _is_detached(node: ast.expr, output: str) -> bool:
    """Return True for ``output.detach()``, ``output.data`` and ``output.clone().detach()``."""
    cut = False
    while True:
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=attr)):
                cut |= attr == "detach"
                node = inner
            case ast.Attribute(value=inner, attr="data"):
                cut, node = True, inner
            case ast.Subscript(value=inner):
                node = inner
            case ast.Name(id=name):
                return cut and name == output
            case _:
                return False


def _is_trained(source: SourceFile, registration: ast.Call) -> bool:
    """Return True if an optimizer gets the parameters of the module with the hook, or of a model that contains it."""
    root: Any = registration.func
    while True:
        match root:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)):
                root = inner
            case ast.Call(args=[inner, *_]):
                root = inner
            case _:
                break
    if not isinstance(root, ast.Name) or _FROZEN.search(last_name(root)):
        return False
    own = {id(each) for each in origins(source, root, _MAX_DEPTH)} | {dotted_name(root)}
    for call in definitions(source).calls.get("parameters", ()):
        if isinstance(call.func, ast.Attribute):
            trained = list(origins(source, call.func.value, _MAX_DEPTH))
            if own & {id(each) for each in trained} or (dotted_name(root) == dotted_name(call.func.value)):
                return True
    around = source.parents.get(id(function_of(source, registration)))  # a module that wraps the model
    return isinstance(around, ast.ClassDef) and "requires_grad" not in source.text.source


def _read_by_loss(source: SourceFile, store: _Store) -> ast.expr | None:
    """Return an expression that reads what a hook stored, and from which the minimised value is computed."""
    name, kind = last_name(store.container), type(store.container)
    wanted = minimised(source)
    for node in source.nodes_of(ast.Name, ast.Attribute):
        if not isinstance(node, kind) or last_name(node) != name or id(node) not in wanted:
            continue
        is_read = isinstance(node.ctx, ast.Load) and not encloses(store.hook, node)
        if is_read and _is_same(source, store, node) and not _is_target(source, node, name):
            return node
    return None


def _is_same(source: SourceFile, store: _Store, node: ast.expr) -> bool:
    """Return True for an attribute, and a variable of the function around the hook, or one that gets its result."""
    if not isinstance(node, ast.Name):
        return True
    scope: Any = function_of(source, store.hook)
    while not isinstance(scope, ast.Module) and not _is_bound(scope, node.id):
        scope = function_of(source, scope)
    if isinstance(scope, ast.Module) or encloses(scope, node):
        return True
    name = getattr(scope, "name", "")
    return any(last_name(each.func) == name for each in origins(source, node, 2) if isinstance(each, ast.Call))


def _is_bound(function: Any, name: str) -> bool:
    """Return True for a parameter or a variable of a function."""
    names = (e.id for e in nodes_in(function, ast.Name) if isinstance(e.ctx, ast.Store))
    return name in names or any(each.arg == name for each in nodes_in(function.args, ast.arg))


def _is_target(source: SourceFile, node: ast.expr, name: str) -> bool:
    """Return True for an argument of a loss whose other argument does not come from the same hooks."""
    child: Any = node
    parent = source.parents.get(id(node))
    while isinstance(parent, ast.expr | ast.keyword):
        if isinstance(parent, ast.Call) and child is not parent.func and is_loss_call(source, parent):
            others = [each for each in parent.args if each is not child]
            return any(name not in ast.unparse(each) for each in others)
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub):
            other = parent.right if child is parent.left else parent.left
            return name not in ast.unparse(other)
        child, parent = parent, source.parents.get(id(parent))
    return False


def _fix(source: SourceFile, value: ast.expr) -> Fix | None:
    match value:
        case ast.Call(func=ast.Attribute(attr="detach", value=inner), args=[]):
            edit = source.text.replace(value, source.text.segment(inner))
            return Fix((edit,), safe=False, description="Keep the graph")
        case _:
            return None
