"""Finds `train()` calls that put a frozen part with BatchNorm layers, which an old task uses, into train mode."""

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.batch_loops import function_of, single_assignments
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.evaluation.frozen_statistics_drift.undone_by_train import (
    find_parts_undone,
    find_undone,
)
from trueloop.failures.failure import Rule

_MAX_DEPTH: Final = 6


class _Frozen(NamedTuple):
    """Parts of a model that are frozen."""

    operation: Op
    owners: tuple[ast.expr, ...]
    """The parts, as ``model.backbone`` in ``model.backbone.parameters()``."""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of ``train()`` between freezing and a second training, after which the old task is evaluated."""
    frozen = [each for op in source.operations if (each := _frozen(source, op)) is not None]
    is_changed = any(_sets_gradients(each, enabled=True) for each in source.operations)
    if not frozen or is_changed or _overrides_train(source):
        return
    seen = set[int]()
    for each in frozen:
        mode = _train_mode(source, each)
        part = next((owner for owner in each.owners if _has_batch_norm(source, owner)), None)
        if mode is None or part is None or id(mode.node) in seen:
            continue
        seen.add(id(mode.node))
        name = ast.unparse(part)
        yield Hit(
            message=f"`{ast.unparse(mode.node)}` puts `{name}` into train mode too, whose weights are frozen: its "
            "BatchNorm statistics change to those of the new data, and the old task, which is evaluated afterwards, "
            "gets worse.",
            node=mode.node,
            related=((each.operation.node, f"`{name}` is frozen here"),),
        )


def _sets_gradients(operation: Op, *, enabled: bool) -> bool:
    """Return True for an operation, or a loop over parameters, that sets ``requires_grad``."""
    if operation.kind is OpKind.SET_REQUIRES_GRAD:
        return operation.value is enabled
    if operation.kind is not OpKind.ITERATE or not isinstance(operation.node, ast.For):
        return False
    for each in nodes_in(operation.node, ast.Assign, ast.Call):
        value: Any = None
        if isinstance(each, ast.Assign) and last_name(each.targets[0]) == "requires_grad":
            value = each.value
        elif isinstance(each, ast.Call) and last_name(each.func) == "requires_grad_":
            value = each.args[0] if each.args else ast.Constant(True)
        if isinstance(value, ast.Constant) and value.value is enabled:
            return True
    return False


def _frozen(source: SourceFile, operation: Op) -> _Frozen | None:
    """Return the parts that an operation freezes; None if it freezes none that have a name."""
    if not _sets_gradients(operation, enabled=False):
        return None
    node = operation.node
    loop = next((e for e in (node, *enclosing_nodes(source, node)) if isinstance(e, ast.For)), None)
    if loop is None:
        owners = [node.func.value] if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else []
    else:
        calls = [each for each in computed_from(source, loop.iter) if isinstance(each, ast.Call)]
        owners = [e.func.value for e in calls if isinstance(e.func, ast.Attribute)
                  and e.func.attr in ("parameters", "named_parameters")]  # fmt: skip
    return _Frozen(operation, tuple(owners)) if owners else None


def _overrides_train(source: SourceFile) -> bool:
    """Return True if a class of the program has its own ``train``, which may keep a part in eval mode."""
    methods = [each for each in source.nodes_of(ast.FunctionDef) if each.name == "train" and each.args.args]
    return any(isinstance(source.parents.get(id(each)), ast.ClassDef) and "super()" in ast.unparse(each)
               for each in methods)  # fmt: skip


def _train_mode(source: SourceFile, frozen: _Frozen) -> Op | None:
    """Return the ``train()`` of the training after a part was frozen, if an old task is evaluated afterwards."""
    freeze = frozen.operation
    run = [each for each in source.operations if each.entry_point == freeze.entry_point]
    before = [each for each in run if each.index < freeze.index]
    after = [each for each in run if each.index > freeze.index]
    step = next((each for each in after if each.kind is OpKind.STEP and each.loops), None)
    if step is None or not any(each.kind is OpKind.STEP and each.loops for each in before):
        return None
    modes = [each for each in after if each.kind is OpKind.SET_MODE and each.index < step.index]
    if not modes or modes[-1].value is not True or _is_corrected(source, modes[-1]):
        return None
    calls = [each for each in run if each.kind is OpKind.MODEL_CALL]
    new = [each for each in calls if freeze.index < each.index < step.index and each.grad]
    old = [each for each in calls if each.index < freeze.index and each.grad and each.loops]
    judged = [each for each in calls if each.index > step.index and each.grad is False]
    is_inside = _contains(modes[-1].subject, freeze.subject, new)
    return modes[-1] if is_inside and any(_is_old_task(each, old, new) for each in judged) else None


def _contains(model: AbstractValue, frozen: AbstractValue, calls: list[Op]) -> bool:
    """Return True if a model that was put into train mode contains frozen parts, and calls them."""
    parts = [each for each in (frozen, *frozen.sources) if each.kind is ValueKind.MODEL and each is not model]
    is_called = any(each.subject.may_alias(model) for each in calls)
    inner = [*model.sources, *(each.subject for each in calls)]
    return is_called and any(part is each for part in parts for each in inner)


def _is_corrected(source: SourceFile, mode: Op) -> bool:
    """Return True if the function that calls ``train()`` puts something into eval mode afterwards."""
    calls = nodes_in(function_of(source, mode.node), ast.Call)
    return any(
        each.lineno > mode.node.lineno
        and (last_name(each.func) == "eval" or (last_name(each.func) == "train" and "False" in ast.unparse(each)))
        and "eval_" not in ast.unparse(each)
        for each in calls
        if isinstance(each.func, ast.Attribute) and id(each) != id(mode.node)
    ) or any(each.lineno > mode.node.lineno and last_name(each.func) == "apply" for each in calls)


def _is_old_task(evaluated: Op, old: list[Op], new: list[Op]) -> bool:
    """Return True for an evaluation of a model, head or named task that was trained before and not afterwards."""
    trained = [each for each in old if each.subject.may_alias(evaluated.subject)]
    retrained = [each for each in new if each.subject.may_alias(evaluated.subject)]
    if not trained or not retrained:
        return bool(trained)
    tasks = _texts(evaluated) - set[str]().union(*map(_texts, retrained))
    return any(tasks & _texts(each) for each in trained)


def _texts(operation: Op) -> set[str]:
    """Return the texts in the arguments that lead to a call of a model: the name of its task."""
    calls = [each for each in (*operation.calls, operation.node) if isinstance(each, ast.Call)]
    arguments = [e for call in calls for e in (*call.args, *(keyword.value for keyword in call.keywords))]
    return {each.value for each in arguments if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def _has_batch_norm(source: SourceFile, owner: ast.expr) -> bool:
    """Return True if a part of a model certainly contains BatchNorm layers that update their statistics."""
    created = list[ast.expr]()
    attributes = [pair for pair in single_assignments(source.tree) if isinstance(pair[0], ast.Attribute)]
    for each in origins(source, owner):
        created.append(each)
        if isinstance(each, ast.Attribute):
            created += [value for target, value in attributes if last_name(target) == each.attr]
    return any(_creates_batch_norm(source, each, set(), _MAX_DEPTH) for each in created)


def _creates_batch_norm(source: SourceFile, node: ast.AST, seen: set[str], depth: int) -> bool:
    known = definitions(source)
    for each in nodes_in(node, ast.Call):
        name = last_name(each.func)
        if name.lstrip("Lazy").startswith(("BatchNorm", "SyncBatchNorm")):
            settings = {keyword.arg: getattr(keyword.value, "value", 1) for keyword in each.keywords}
            return settings.get("momentum", 1) != 0 and settings.get("track_running_stats", 1) is not False
        definition = known.classes.get(name) or known.functions.get(name)
        if definition is not None and name not in seen and depth:
            seen.add(name)
            if _creates_batch_norm(source, definition, seen, depth - 1):
                return True
    return False


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each ``train()`` that undoes a function which freezes the statistics."""
    yield from find(source) if "requires_grad" in source.text.source else ()
    yield from find_undone(source)
    yield from () if _overrides_train(source) else find_parts_undone(source)


RULE: Final = Rule(
    required_words=("BatchNorm|bn|ropout|torchvision", "requires_grad|.eval()", ".train(", ".step("), find=find_all
)
