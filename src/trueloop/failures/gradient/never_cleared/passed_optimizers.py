"""Finds steps of optimizers that come from outside the file, if nothing in the program clears gradients.

A function ``train(model, loader, optimizer)``, a class that gets its optimizer, or a fragment of a notebook does not
show what the optimizer is. It is recognised by its name and its use.
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import ValueKind
from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import loops_around, possible_values
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk

_OPTIMIZER: Final = re.compile(r"(^|_|\b)(optim|optimi[sz]er|opt|solver)s?\d*($|_|\b)|optimi[sz]er", re.IGNORECASE)
_OTHER: Final = re.compile(r"sched|scaler|plateau|warmup|env|pool|engine|accelerator|ema|meta", re.IGNORECASE)
"""Names of objects whose ``step()`` is no update, or clears the gradients itself."""
_ITEMS: Final = frozenset(("values", "items"))
_CLEARING: Final = re.compile(
    "zero_grad|^zero_$|clear_?grad|reset_grad|^grad$|set_to_none|deepspeed|horovod|fairscale|apex|colossal|pyro|"
    "dist_autograd|register_step"
)
"""Words of programs that clear gradients somewhere, or whose libraries do it."""


class PassedStep(NamedTuple):
    """A step of an optimizer that the file does not build."""

    step: ast.Call
    backward: ast.Call


def steps_without_clearing(source: SourceFile) -> Iterator[PassedStep]:
    """Yield the steps that follow a ``backward()`` in the same function, in a program that never clears gradients."""
    if any(map(_may_clear, chain(source.nodes_of(ast.Attribute), source.nodes))):  # most clear by a method
        return
    known = {id(each.node) for each in source.ops(OpKind.STEP) if each.subject.kind is ValueKind.OPTIMIZER}
    defined = {each.name for each in source.nodes_of(ast.FunctionDef, ast.ClassDef)}
    for scope in (source.tree, *source.nodes_of(ast.FunctionDef)):
        calls = sorted(_own_calls(scope), key=lambda each: (each.lineno, each.col_offset))
        backward = next((each for each in calls if _method(each) == "backward"), None)
        for call in calls:
            is_later = backward is not None and call.lineno >= backward.lineno and id(call) not in known
            if backward is None or not is_later or not _is_step(call) or not _is_repeated(scope, call):
                continue
            if not any(_passes_on(each, call, defined) for each in source.all_calls):
                yield PassedStep(call, backward)


def steps_of_uncleared_items(source: SourceFile) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Yield each step of all optimizers in a list or dictionary of which only some are cleared, and such a call.

    As in ``for each in optimizers.values(): each.step()`` with ``optimizers["encoder"].zero_grad()``.
    """
    calls = definitions(source).calls
    cleared = {id(each.func): each for each in calls.get("zero_grad", ())}
    owners = [each.func.value for each in cleared.values() if isinstance(each.func, ast.Attribute)]
    items = [each for each in owners if isinstance(each, ast.Subscript) and not nodes_in(each.slice, ast.Name)]
    if not items or len(items) < len(cleared) or "backward" not in calls:
        return
    own_nodes = {id(part) for call in cleared.values() for part in walk(call)}
    for step in calls.get("step", ()):
        for loop in loops_around(source, step) if isinstance(step.func, ast.Attribute) else ():
            names = [each.id for each in nodes_in(loop.target, ast.Name)][-1:]
            container = loop.iter.func.value if last_name(getattr(loop.iter, "func", None)) in _ITEMS else loop.iter  # type: ignore[attr-defined]
            own = [each for each in items if dotted_name(each.value) == dotted_name(container) != ""]
            is_item = dotted_name(step.func.value) in names  # type: ignore[attr-defined]
            is_part = is_item and bool(own) and _are_part_of(source, own, container)
            if is_part and not any(id(each) not in own_nodes and _may_clear(each) for each in source.nodes):
                yield step, cleared[id(source.parents[id(own[0])])]


def _are_part_of(source: SourceFile, items: list[ast.Subscript], container: ast.expr) -> bool:
    """Return True if a list or dictionary has other items too; one that is not written out has more than one."""
    made = [getattr(each, "elts", getattr(each, "values", [])) for each in possible_values(source, container)]
    number = max((len(each) for each in made if isinstance(each, list)), default=0)
    return len({ast.unparse(each.slice) for each in items}) < (number or 2)


def _may_clear(node: ast.AST) -> bool:
    words = (getattr(node, field, None) for field in ("id", "attr", "arg", "name", "module", "value"))
    names = (word for word in words if isinstance(word, str) and word.replace(".", "_").isidentifier())
    return any(_CLEARING.search(name) is not None for name in names)


def _own_calls(scope: Any) -> Iterator[ast.Call]:
    """Yield the calls in a function or module, without those in functions inside it."""
    stack = list(ast.iter_child_nodes(scope))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            stack += ast.iter_child_nodes(node)


def _method(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _is_step(call: ast.Call) -> bool:
    """Return True for ``optimizer.step()`` without a closure, and for ``scaler.step(optimizer)``."""
    if _method(call) != "step" or call.keywords or not isinstance(call.func, ast.Attribute):
        return False
    receiver = dotted_name(call.func.value).rpartition(".")[2]
    if call.args:
        optimizer = dotted_name(call.args[0]).rpartition(".")[2] if len(call.args) == 1 else ""
        return "scaler" in receiver and _OPTIMIZER.search(optimizer) is not None
    return _OPTIMIZER.search(receiver) is not None and _OTHER.search(receiver) is None


def _passes_on(call: ast.Call, step: ast.Call, defined: set[str]) -> bool:
    """Return True if a call passes the optimizer of a step to a function of another file."""
    owner = step.args[0] if step.args else getattr(step.func, "value", None)
    name = dotted_name(owner).rpartition(".")[2] if owner is not None else ""
    passed = [*call.args, *(each.value for each in call.keywords)]
    function = dotted_name(call.func).rpartition(".")[2]
    is_here = function in defined or function in ("step", "unscale_") or function.endswith(("LR", "Plateau"))
    return not is_here and any(dotted_name(each).rpartition(".")[2] == name for each in passed)


def _is_repeated(scope: Any, call: ast.Call) -> bool:
    """Return True if a loop of the scope contains a call, or the scope is a function that gets a batch."""
    loops = list(nodes_in(scope, ast.For, ast.While))
    return any(call in walk(loop) for loop in loops) or isinstance(scope, ast.FunctionDef)
