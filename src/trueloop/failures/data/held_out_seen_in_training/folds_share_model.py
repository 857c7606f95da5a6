"""Finds a model that is trained on in each fold of a cross-validation, or with a new split in each epoch."""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.abstract_value import AbstractValue, ValueKind
from trueloop.analysis.operations import Loop, Op, OpKind
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.held_out_names import is_held_out
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.method_chains import without_calls
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in

_FOLDS: Final = re.compile(
    r"K?Fold(?!er)|ShuffleSplit|LeaveOneOut|LeaveOneGroupOut|(?<![a-z])(s?kf|skfold|cv)(?![a-z])"
)
_FOLD_WORDS: Final = frozenset(("fold", "folds", "kfold", "kfolds"))
_IN_ORDER: Final = re.compile(r"[Tt]ime_?[Ss]er|[Pp]urged|[Rr]olling|[Ww]alk_?[Ff]orward|[Ee]xpanding|[Oo]rdered")
_JOINING: Final = frozenset(("cat", "concatenate", "concat", "hstack", "vstack", "sum", "ConcatDataset"))
_TRANSPARENT: Final = frozenset(("enumerate", "tqdm", "list"))
_SEED: Final = re.compile(r"seed\w*\(|set_rng_state")
_RESET: Final = re.compile(r"deepcopy|load_state|load_weights|restore|reset|init|\.apply\(")


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each loop whose folds or splits train one model."""
    yield from _splits_in_epochs(source)
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


def _splits_in_epochs(source: SourceFile) -> Iterator[Hit]:
    """Yield each random split within a loop that goes on to train the same model."""
    for statement in source.nodes_of(ast.Assign):
        match statement:
            case ast.Assign(targets=[ast.Tuple(elts=parts)], value=ast.Call() as call) if last_name(call.func) in (
                "random_split",
                "train_test_split",
            ):
                pass
            case _:
                continue
        loop = next((each for each in enclosing_nodes(source, statement) if isinstance(each, ast.For)), None)
        is_fixed = any(each.arg in ("generator", "random_state") for each in call.keywords)
        held_out = [each for each in parts if is_held_out(each)]
        if loop is None or is_fixed or not held_out or not _reads(loop, held_out[0]) or _sets(loop, call.args):
            continue
        step = None if _SEED.search(ast.unparse(loop)) else _shared_step(source, loop)
        if step is not None:
            yield Hit(
                message="The data is split at random again in every iteration of this loop, which trains one model: "
                f"it has been trained on most samples of `{ast.unparse(held_out[0])}` before. Split before the loop.",
                node=call,
                related=((step.node, "trained here"),),
            )


def _sets(loop: ast.For, data: list[ast.expr]) -> bool:
    """Return True if each iteration of a loop has data of its own."""
    used = {dotted_name(each) for array in data for each in nodes_in(array, ast.Name, ast.Attribute)}
    assigned = {dotted_name(target) for each in nodes_in(loop, ast.Assign) for target in each.targets}
    return not used.isdisjoint(stored_names(loop) | assigned)


def _reads(loop: ast.For, part: ast.expr) -> bool:
    """Return True if a loop reads a part of a split."""
    names = [each for each in nodes_in(loop, ast.Name, ast.Attribute) if dotted_name(each) == dotted_name(part)]
    return any(isinstance(each.ctx, ast.Load) for each in names)


def _iterates_folds(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop over the folds of a cross-validation whose training and held-out indices are both used."""
    splits = [
        each
        for each in nodes_in(loop.iter, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr == "split"
    ]
    if not splits:
        return _iterates_own_folds(source, loop)
    owner: Any = splits[0].func.value  # type: ignore[attr-defined]
    text = ast.unparse(owner)
    values = [
        ast.unparse(each.value)
        for each in source.nodes_of(ast.Assign)
        if any(ast.unparse(target) == text for target in each.targets)
    ]
    text = " ".join([text, *values])
    return bool(_FOLDS.search(text)) and not _IN_ORDER.search(text) and _uses_both_parts(loop)


def _uses_both_parts(loop: ast.For) -> bool:
    """Return True if the body of a loop reads both of the last two variables of the loop."""
    parts = [each.id for each in nodes_in(loop.target, ast.Name)][-2:]
    return len(parts) == 2 and set(parts) <= {e.id for body in loop.body for e in nodes_in(body, ast.Name)}


def _iterates_own_folds(source: SourceFile, loop: ast.For) -> bool:
    """Return True for a loop over folds that the program makes itself: all parts of the data but one, and this one."""
    iterable = without_calls(loop.iter, _TRANSPARENT)
    if last_name(getattr(iterable, "func", None)) in ("range", "trange") and isinstance(loop.target, ast.Name):
        is_named = bool(name_words(loop.target.id) & _FOLD_WORDS)
        return is_named or (_leaves_one_out(loop, loop.target.id) and _evaluates(source, loop))
    made = [each for each in origins(source, iterable) if isinstance(each, ast.Call)]
    called = [called_function(source, each) for each in made]
    is_own = any(each is not None and _leaves_one_out(each) for each in called)
    names = [last_name(each.func) for each in made]
    is_own = is_own or any(name_words(each) & _FOLD_WORDS and not _IN_ORDER.search(each) for each in names)
    return is_own and _uses_both_parts(loop) and _evaluates(source, loop)


def _leaves_one_out(where: ast.AST, own: str = "") -> bool:
    """Return True if a function or loop joins all parts of a list but one.

    As ``parts[:i] + parts[i + 1 :]``, or in a call such as ``cat([parts[j] for j in range(k) if j != i])``.
    """
    for each in nodes_in(where, ast.BinOp, ast.Call):
        match each:
            case ast.BinOp(
                left=ast.Subscript(value=first, slice=ast.Slice(lower=None, upper=ast.Name(id=left))),
                op=ast.Add(),
                right=ast.Subscript(value=second, slice=ast.Slice(lower=ast.BinOp(left=ast.Name(id=right)))),
            ) if ast.unparse(first) == ast.unparse(second) and left == right:
                names = {left}
            case ast.Call(
                func=func,
                args=[
                    ast.ListComp(generators=[*_, ast.comprehension(ifs=[ast.Compare(ops=[ast.NotEq()]) as condition])]),
                    *_,
                ],
            ) if last_name(func) in _JOINING:
                names = {part.id for part in nodes_in(condition, ast.Name)}
            case _:
                continue
        if not own or own in names:
            return True
    return False


def _evaluates(source: SourceFile, loop: ast.For) -> bool:
    """Return True if a loop calls a model without gradients."""
    return any(each.grad is False for each in source.ops_in_loop(Loop(loop, None), OpKind.MODEL_CALL))


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
