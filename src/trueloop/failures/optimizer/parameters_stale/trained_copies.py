"""Finds losses that reach a copy of the model only, which is discarded, while the optimizer steps another one."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import COPY, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, encloses, nodes_in

_LOSS: Final = re.compile(
    r"loss|criteri|objective|^(to|cuda|cpu|float|double|long|view|reshape|squeeze|mean|sum|pow|abs|log|exp|deepcopy)$",
    re.IGNORECASE,
)
"""Names of calls that have no weights."""
_MODES: Final = frozenset(("train", "eval", "to", "cuda", "zero_grad", "float", "double", "requires_grad_"))
"""Methods of a copy after which its gradients are still read by nothing."""
_TRAINING: Final = re.compile(r"(^|_)(train|fit)(_|$)")


class CopyTrained(NamedTuple):
    """A backward pass whose gradients are those of a copy, and a step of the original's optimizer."""

    backward: Op
    copy: ast.Call
    step: ast.Call


def trained_copies(source: SourceFile) -> Iterator[CopyTrained]:
    """Yield the backward passes that reach nothing but a new copy whose parameters nothing reads."""
    if "deepcopy" not in source.text.source:
        return
    for backward in source.ops(OpKind.BACKWARD):
        models = _models(backward.subject)
        copies = {id(each.node): each.node for each in models if COPY in each.facts}
        if len(copies) != 1 or not all(map(_is_copy, models)):
            continue
        copy: Any = next(iter(copies.values()))
        function = function_of(source, copy)
        scopes = [each.node for each in reversed(backward.loops)]
        scopes += [function] if isinstance(function, ast.FunctionDef) else []
        scope = next((each for each in scopes if encloses(each, copy)), None)
        name = _variable(source, copy)
        step = None if scope is None or not name else _step(source, scope, copy, name)
        if step is not None and not _computes_more(source, backward.subject, name):
            yield CopyTrained(backward, copy, step)


class QuantizedCopy(NamedTuple):
    """A copy that ``prepare_qat`` returns and that is trained by an optimizer which was built for the original."""

    call: ast.Call
    built: ast.expr
    used: ast.Call


def quantized_copies(source: SourceFile) -> Iterator[QuantizedCopy]:
    """Yield each ``prepare_qat(model)``, which copies the model, if the old optimizer is used after it."""
    for call in source.all_calls:
        if last_name(call.func) != "prepare_qat" or not call.args or any(e.arg == "inplace" for e in call.keywords):
            continue
        if not isinstance(source.parents.get(id(call)), ast.Assign):
            continue
        model, function = _original(call.args[0]), function_of(source, call)
        built = [
            (ast.unparse(target), value)
            for target, value in _assigned(source, function, model)
            if f"{model}.parameters()" in ast.unparse(value)
        ]
        later = [each for each in nodes_in(function, ast.Call) if each.lineno > call.lineno]
        if any(last_name(each.func) in ("parameters", "add_param_group") for each in later):
            continue  # a new optimizer
        for optimizer, value in built[:1]:
            used = next((each for each in later if _goes_on(each, optimizer)), None)
            if used is not None:
                yield QuantizedCopy(call, value, used)


def _original(node: ast.expr) -> str:
    """Return the model of ``model.train()`` and ``model.to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MODES:
        node = node.func.value
    return dotted_name(node)


def _assigned(source: SourceFile, function: Any, model: str) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the assignments of a function, and for a model of ``self`` those of the file."""
    for scope in source.nodes_of(ast.FunctionDef) if model.startswith("self.") else [function]:
        yield from single_assignments(scope)


def _goes_on(call: ast.Call, optimizer: str) -> bool:
    """Return True for a step of an optimizer, a call that gets it, and a method that trains by its name."""
    name, owner = last_name(call.func), ast.unparse(getattr(call.func, "value", call.func))
    is_passed = optimizer in [ast.unparse(each) for each in (*call.args, *(e.value for e in call.keywords))]
    is_method = owner == "self" and optimizer.startswith("self.") and bool(_TRAINING.search(name))
    is_scheduler = "LR" in name or "sched" in name.lower()
    return (owner == optimizer and name == "step") or (is_passed and not is_scheduler) or is_method


def _models(loss: AbstractValue) -> list[AbstractValue]:
    """Return the models, and the copies of unknown objects, through which a backward pass goes."""
    kinds = (ValueKind.MODEL, ValueKind.UNKNOWN)
    return [e for e in loss.autograd_graph() if e.kind is ValueKind.MODEL or (COPY in e.facts and e.kind in kinds)]


def _is_copy(model: AbstractValue) -> bool:
    """Return True for a copy, and for a copy on another device: ``copy.deepcopy(model).to(device)``."""
    return COPY in model.facts or any(COPY in each.facts for each in model.sources)


def _variable(source: SourceFile, copy: ast.Call) -> str:
    """Return the variable that gets a copy, or the copy on another device; "" for other uses."""
    node, parent = copy, source.parents.get(id(copy))
    while isinstance(parent, ast.Attribute | ast.Call) and (isinstance(parent, ast.Attribute) or parent.func is node):
        if isinstance(parent, ast.Attribute) and parent.attr not in _MODES:
            return ""
        node, parent = parent, source.parents.get(id(parent))
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _step(source: SourceFile, scope: ast.AST, copy: ast.Call, name: str) -> ast.Call | None:
    """Return a step of an optimizer in the loop or function that makes a copy, if nothing can read its gradients."""
    original = dotted_name(copy.args[0]) if copy.args else ""
    for each in nodes_in(function_of(source, copy), ast.Name):
        parent = source.parents.get(id(each))
        if each.id != name or isinstance(each.ctx, ast.Store):
            continue
        is_called = isinstance(parent, ast.Call) and parent.func is each
        is_mode = isinstance(parent, ast.Attribute) and parent.attr in _MODES
        if not is_called and not is_mode:
            return None
    calls = list(nodes_in(scope, ast.Call))
    if not original or any(dotted_name(each.func) == original for each in calls):
        return None  # the loss of the original, and its copy as a teacher
    steps = [each for each in calls if last_name(each.func) == "step" and not each.args]
    return next((each for each in steps if "sched" not in ast.unparse(each.func).lower()), None)


def _computes_more(source: SourceFile, loss: AbstractValue, name: str) -> bool:
    """Return True if a loss also comes from a call whose result may have other weights: ``copy(make(z))``."""
    for each in loss.autograd_graph():
        function = each.node.func if isinstance(each.node, ast.Call) else None
        if each.kind is not ValueKind.UNKNOWN or function is None or COPY in each.facts:
            continue
        called = last_name(function)
        if called != name and not source.qualified_name(function) and not _LOSS.search(called):
            return True
    return False
