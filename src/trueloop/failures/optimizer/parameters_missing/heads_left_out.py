"""Finds losses and heads with parameters that get the output of a trained model, and that no optimizer contains."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import FROZEN, MANAGED, SUBMODULE, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.late_layers import (
    accesses_weights,
    edits_param_groups,
    gradient_path,
    has_trainable_weights,
    is_trainable_parameter,
    may_add_parameters,
)
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in

_NEW: Final = frozenset((
    "randn", "rand", "empty", "zeros", "ones", "full", "tensor", "Tensor", "FloatTensor", "normal", "randn_like",
    "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "normal_", "uniform_",
))  # fmt: skip
_SHOWING: Final = frozenset(("detach", "item", "tolist", "shape", "size"))
_MAX_SIZES: Final = 3
"""Number of dimensions from which a parameter may be a filter."""


class LeftOutHead(NamedTuple):
    """A module behind a trained model whose parameters are in no optimizer."""

    module: AbstractValue
    call: Op
    built: Op
    """Creation of the optimizer that steps after the backward pass."""


def heads_left_out(source: SourceFile) -> Iterator[LeftOutHead]:
    """Yield the modules with parameters of their own that get gradients, and the outputs of an optimized model.

    Nothing is yielded if an optimizer may have parameters that are not known, or if parameters are added to it.
    """
    created = [each for each in source.ops(OpKind.CREATE) if each.subject.kind is ValueKind.OPTIMIZER]
    optimizers = [each.subject for each in created]
    if not created or edits_param_groups(source) or not all(map(_is_known, optimizers)):
        return
    if any(may_add_parameters(each, one) for each in source.operations for one in optimizers):
        return
    seen = set[int]()
    for backward in source.ops(OpKind.BACKWARD):
        run = source.ops_of_run(backward)
        steps = [each for each in run if each.kind is OpKind.STEP and each.index > backward.index]
        built = next((each for each in created if steps and each.subject is steps[0].subject), None)
        for call in _calls_behind(run, backward, built.subject) if built is not None else ():
            head = call.subject
            is_in_optimizer = any(one.covers(head) or head.covers(one) for one in optimizers)
            if built is not None and id(head) not in seen and not is_in_optimizer and _is_trained(source, head, run):
                seen.add(id(head))
                yield LeftOutHead(head, call, built)


def _calls_behind(run: list[Op], backward: Op, optimizer: AbstractValue) -> Iterator[Op]:
    """Yield the calls of modules with outputs of the optimizer's models that a backward pass reaches."""
    reached = {id(each) for each in gradient_path(backward.subject)}
    for call in run:
        is_before = call.kind is OpKind.MODEL_CALL and call.index < backward.index
        if is_before and _is_behind(call, optimizer) and _is_reached(call, reached):
            yield call


def _is_known(optimizer: AbstractValue) -> bool:
    """Return True for an optimizer that was built over all parameters of known models."""
    parts = [part for part in optimizer.sources if part.kind is ValueKind.PARAMETERS]
    models = [model for part in parts for model in part.models()]
    is_complete = bool(parts) and all(part.models() for part in parts) and MANAGED not in optimizer.facts
    return is_complete and not any(SUBMODULE in each.facts for each in models)


def _is_behind(call: Op, optimizer: AbstractValue) -> bool:
    """Return True if a call gets the output of a model that the optimizer trains, with its graph."""
    trained = {id(each) for model in optimizer.models() for each in (model, *_inner(model))}
    values = (each for value in call.inputs for each in gradient_path(value))
    return call.grad is not False and any(id(each) in trained for each in values)


def _inner(model: AbstractValue) -> list[AbstractValue]:
    """Return the modules in a module."""
    found = [model]
    for each in found:
        parts = (*each.sources, *each.attributes.values())
        found += [part for part in parts if part.kind is ValueKind.MODEL and all(part is not e for e in found)]
    return found[1:]


def _is_reached(call: Op, reached: set[int]) -> bool:
    """Return True if a backward pass reaches the result of a call, or a parameter of the called module."""
    own = [each for part in (call.subject, *_inner(call.subject)) for each in (part, *part.attributes.values())]
    results = [] if call.result is None else [call.result, *call.result.sources]
    return any(id(each) in reached for each in (*own, *results[:1]))


def _is_trained(source: SourceFile, head: AbstractValue, run: list[Op]) -> bool:
    """Return True for a module of the program that should be trained: not frozen, loaded or changed by hand."""
    definition = head.scope.node if isinstance(head.scope, AbstractValue) else None
    if definition is None or head.union or FROZEN in head.facts:
        return False
    own = [name for name, each in head.attributes.items() if _is_own(source, each)]
    networks = [e for e in _inner(head) if has_trainable_weights(e) and e.name != "torch.nn.Embedding"]
    if not own or networks or source.escapes(head, run) or any(accesses_weights(each, head) for each in run):
        return False
    changes = [each for each in source.ops(OpKind.SET_REQUIRES_GRAD) if each.value is not True]
    return not any(each.subject.covers(head) for each in changes) and not _is_changed_by_hand(source, definition, own)


def _is_own(source: SourceFile, value: AbstractValue) -> bool:
    """Return True for a parameter with new values, or an embedding; not for a constant, such as a filter."""
    if value.name == "torch.nn.Embedding":
        return True
    if not is_trainable_parameter(value):
        return False
    calls = nodes_in(value.node.args[0], ast.Call)
    new = [each for each in calls if last_name(each.func) in _NEW]
    has_values = any(nodes_in(each, ast.List) and nodes_in(each, ast.List)[0].elts for each in new)
    return bool(new) and not has_values and len(new[0].args) < _MAX_SIZES


def _is_only_shown(source: SourceFile, parameter: ast.Attribute) -> bool:
    """Return True for a read without gradient, such as ``loss.log_vars.detach().tolist()``, that changes nothing."""
    called: list[str] = []
    node: Any = source.parents.get(id(parameter))
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return False
        if isinstance(node, ast.Call) and last_name(node.func) not in called:
            break  # an argument of a call
        called += [node.attr] if isinstance(node, ast.Attribute) else []
        node = source.parents.get(id(node))
    is_changed = any(each.endswith("_") or each in ("data", "grad") for each in called)
    return bool(called) and called[0] in _SHOWING and not is_changed


def _is_changed_by_hand(source: SourceFile, definition: ast.ClassDef, names: list[str]) -> bool:
    """Return True if code outside of ``__init__`` writes to a parameter, or code outside of the class uses it."""
    for each in source.nodes_of(ast.Attribute):
        if each.attr in names and not encloses(definition, each) and not _is_only_shown(source, each):
            return True
    methods = [e for e in definition.body if isinstance(e, ast.FunctionDef)]
    used = [e for e in methods if e.name != "__init__" and not re.search("reset|init", e.name)]
    text = "\n".join(map(ast.unparse, used))
    return any(re.search(rf"self\.{name}(\.data|\.grad|\.\w+_\(|\[[^]]*\] [-+*]?=)", text) for name in names)
