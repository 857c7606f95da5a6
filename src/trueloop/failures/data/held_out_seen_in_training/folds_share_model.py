"""Finds a model that is trained on in each fold of a cross-validation, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in

_FOLDS: Final = re.compile(
    r"K?Fold(?!er)|ShuffleSplit|LeaveOneOut|LeaveOneGroupOut|(?<![a-z])(s?kf|skfold|cv)(?![a-z])"
)
_IN_ORDER: Final = re.compile(r"TimeSeries|[Pp]urged|[Rr]olling|[Ww]alk_?[Ff]orward")
_RESET: Final = re.compile(r"deepcopy|load_state|load_weights|restore|reset|init|\.apply\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each model that all folds train, at its creation."""
    for loop in source.nodes_of(ast.For):
        if _iterates_folds(source, loop):
            step = _shared_step(source, loop)
            created = step and next((each for each in _created(source, step) if each.node is not None), None)
            if step is not None and created is not None:
                yield Hit(
                    message="The folds train one model: from the second fold on, it has been trained on the samples "
                    "that it is evaluated on. Create the model and the optimizer in each fold.",
                    node=loop,
                    related=((created.node, "created once, before the folds"), (step.node, "trained here")),
                )


def _iterates_folds(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop over the folds of a cross-validation whose training and held-out indices are both used."""
    splits = [
        each
        for each in nodes_in(loop.iter, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr == "split"
    ]
    if not splits:
        words = name_words(" ".join(each.id for each in nodes_in(loop.target, ast.Name)))
        is_counted = isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) in ("range", "trange")
        return is_counted and bool(words & {"fold", "kfold"}) and isinstance(loop.target, ast.Name)
    owner: Any = splits[0].func.value  # type: ignore[attr-defined]
    text = ast.unparse(owner)
    values = [
        ast.unparse(each.value)
        for each in source.nodes_of(ast.Assign)
        if any(ast.unparse(target) == text for target in each.targets)
    ]
    text = " ".join([text, *values])
    indices = [each.id for each in nodes_in(loop.target, ast.Name)][-2:]
    used = {each.id for statement in loop.body for each in nodes_in(statement, ast.Name)}
    return bool(_FOLDS.search(text)) and not _IN_ORDER.search(text) and len(indices) == 2 and set(indices) <= used


def _shared_step(source: SourceFile, loop: ast.For) -> Op | None:
    """Return the step of an optimizer in a loop that neither creates nor resets the optimizer or its model."""
    around = Loop(loop, None)
    if around.runs_at_most_once() or _RESET.search(ast.unparse(loop)):
        return None
    inside = source.ops_in_loop(around)
    for step in inside:
        optimizer = step.subject
        created = _creation(source, optimizer)
        is_outside = created is not None and not created.is_inside(around)
        if step.kind is not OpKind.STEP or optimizer.kind is not ValueKind.OPTIMIZER:
            continue
        if not optimizer.models() and not is_outside:
            continue
        texts = [ast.unparse(each) for each in step.functions]
        is_new = any(
            each.kind in (OpKind.CREATE, OpKind.LOAD_STATE_DICT)
            and each.subject.kind is ValueKind.MODEL
            and (each.subject.covers(optimizer) or optimizer.covers(each.subject))
            for each in inside
        )
        if not is_new and not any(_RESET.search(each) for each in texts):
            return step
    return None


def _created(source: SourceFile, step: Op) -> Iterator[Op]:
    """Yield the creation of the models that a step trains, then that of the optimizer."""
    for each in source.ops(OpKind.CREATE):
        if any(each.subject is model for model in step.subject.models()):
            yield each
    own = _creation(source, step.subject)
    if own is not None:
        yield own


def _creation(source: SourceFile, value: AbstractValue) -> Op | None:
    """Return the operation that creates a value; None if there is none."""
    return next((each for each in source.ops(OpKind.CREATE) if each.subject is value), None)
