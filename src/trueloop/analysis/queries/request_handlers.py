"""Finds the request handlers of web frameworks, and the models that they call."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import dotted_name, nodes_in

FRAMEWORKS: Final = frozenset((
    "fastapi.FastAPI", "fastapi.APIRouter", "flask.Flask", "flask.Blueprint", "quart.Quart", "sanic.Sanic",
    "starlette.applications.Starlette", "litestar.Litestar",
))  # fmt: skip
ROUTE_METHODS: Final = frozenset(("get", "post", "put", "patch", "route", "api_route", "websocket"))
NO_GRAD_CONTEXTS: Final = frozenset((
    "torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad", "torch.autograd.inference_mode",
    "torch.set_grad_enabled", "torch.autograd.set_grad_enabled", "torch.autograd.grad_mode.no_grad",
    "torch.autograd.grad_mode.inference_mode", "torch.autograd.grad_mode.set_grad_enabled",
))  # fmt: skip
_MAX_DEPTH: Final = 4
Function = ast.FunctionDef | ast.AsyncFunctionDef


class FileNames(NamedTuple):
    """What the names of a file refer to, and the functions that were visited so far."""

    imported_names: dict[str, str]
    """Imported name -> qualified name."""
    models: dict[str, AbstractValue]
    functions: dict[str, Function]
    visited: dict[tuple[int, bool], int]
    """Id of a visited function, and whether gradients may be off in it -> smallest number of calls that led to it."""


class CallPath(NamedTuple):
    """The calls from a handler to a function."""

    depth: int = 0
    grad_may_be_off: bool = False
    """Whether one of the calls may be made with gradients off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCall:
    """A call of a global model for a request."""

    model: AbstractValue
    call: ast.Call
    statement: ast.stmt
    grad: bool
    """Whether gradients are certainly on, judging by the functions on the call path."""


def handler_calls(source: SourceFile) -> Iterator[HandlerCall]:
    """Yield the model calls in request handlers, and in functions of the file that the handlers call.

    Only global models are considered: those that the file creates at its top level, in a variable that is assigned
    once.
    """
    functions = {each.name: each for each in source.tree.body if isinstance(each, Function)}
    decorators = [decorator for each in functions.values() for decorator in each.decorator_list]
    models = _global_models(source) if any(isinstance(each, ast.Call) for each in decorators) else {}
    if not models:
        return
    names, seen = FileNames(imported_names(source.tree), models, functions, {}), set[int]()
    for handler in functions.values():
        if any(_is_route(source.tree, each, names.imported_names) for each in handler.decorator_list):
            for each in _calls_in(handler, names, CallPath()):
                if id(each.call) not in seen:
                    seen.add(id(each.call))
                    yield each


def _global_models(source: SourceFile) -> dict[str, AbstractValue]:
    """Return the models in global variables that are assigned once, by the names of the variables."""
    created = {
        id(each.node): each.subject for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.MODEL
    }
    assignments: dict[str, list[Any]] = {}
    for node in source.nodes_of(ast.Name):
        if isinstance(node.ctx, ast.Store):
            assignments.setdefault(node.id, []).append(node)
    found: dict[str, AbstractValue] = {}
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, model = statement.targets[0], created.get(id(_receiver(statement.value)))
            if isinstance(target, ast.Name) and model is not None and len(assignments[target.id]) == 1:
                found[target.id] = model
    return found


def _receiver(value: ast.expr) -> ast.expr:
    """Return the object at the start of a chain of method calls: ``Net()`` of ``Net().to(device).eval()``."""
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        if value.func.attr not in ("to", "eval", "train", "cuda", "cpu", "half", "float", "requires_grad_"):
            break
        value = value.func.value
    return value


def _is_route(tree: ast.Module, decorator: ast.expr, names: dict[str, str]) -> bool:
    if not isinstance(decorator, ast.Call) or not isinstance(decorator.func, ast.Attribute):
        return False
    application = decorator.func.value
    if decorator.func.attr not in ROUTE_METHODS or not isinstance(application, ast.Name):
        return False
    return any(
        isinstance(each, ast.Assign)
        and isinstance(each.value, ast.Call)
        and qualified_name(each.value, names) in FRAMEWORKS
        and any(isinstance(target, ast.Name) and target.id == application.id for target in each.targets)
        for each in tree.body
    )


def _calls_in(function: Function, names: FileNames, path: CallPath) -> Iterator[HandlerCall]:
    """Yield the model calls in a function, and in functions that it calls unless an equally short path visited them."""
    if path.depth >= names.visited.get((id(function), path.grad_may_be_off), _MAX_DEPTH + 1):
        return
    names.visited[id(function), path.grad_may_be_off] = path.depth
    grad_may_be_off = path.grad_may_be_off or any(
        qualified_name(each, names.imported_names) in NO_GRAD_CONTEXTS for each in function.decorator_list
    )
    local = {each.arg for each in nodes_in(function.args, ast.arg)}
    for statement, no_grad in _statements(function.body, names.imported_names, no_grad=False):
        for call in _own_calls(statement):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            if name in local:
                continue
            if name in names.models:
                yield HandlerCall(
                    model=names.models[name], call=call, statement=statement, grad=not grad_may_be_off and not no_grad
                )
            elif name in names.functions and names.functions[name] is not function:
                yield from _calls_in(names.functions[name], names, CallPath(path.depth + 1, grad_may_be_off or no_grad))


def _statements(body: list[Any], names: dict[str, str], *, no_grad: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """Yield the statements of a function, and whether gradients may be off around each."""
    for statement in body:
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            no_grad |= qualified_name(statement.value, names) in NO_GRAD_CONTEXTS  # torch.set_grad_enabled(False)
        yield statement, no_grad
        inner = no_grad
        if isinstance(statement, ast.With | ast.AsyncWith):
            inner = True  # any context manager may switch gradients off
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(statement, Function | ast.ClassDef):
                yield from _statements(getattr(statement, part, None) or [], names, no_grad=inner)
        for except_clause in getattr(statement, "handlers", ()):
            yield from _statements(except_clause.body, names, no_grad=inner)


def _own_calls(statement: ast.stmt) -> Iterator[ast.Call]:
    """Yield the calls in the expressions of a statement, but not those in nested statements."""
    queue: list[ast.AST] = [statement]
    while queue:
        node = queue.pop()
        if isinstance(node, ast.Call):
            yield node
        queue += [
            each
            for each in ast.iter_child_nodes(node)
            if not isinstance(each, ast.stmt | ast.excepthandler | ast.Lambda)
        ]


def imported_names(tree: ast.Module) -> dict[str, str]:
    """Return the qualified name of each imported name, {"nn": "torch.nn"}, without interpreting the file."""
    found: dict[str, str] = {}
    for node in nodes_in(tree, ast.Import, ast.ImportFrom):
        if isinstance(node, ast.Import):
            for each in node.names:
                package = each.name.partition(".")[0]
                found[each.asname or package] = each.name if each.asname else package
        elif node.module and not node.level:
            found |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    return found


def qualified_name(expression: ast.expr, names: dict[str, str]) -> str:
    """Return the qualified name of an expression, or of the function that it calls; "" if not imported."""
    head, dot, rest = dotted_name(expression.func if isinstance(expression, ast.Call) else expression).partition(".")
    return f"{names[head]}{dot}{rest}" if head in names else ""
