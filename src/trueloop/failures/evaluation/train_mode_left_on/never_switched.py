"""Finds evaluations in programs that train a model and set eval mode in none of their files."""

import ast
import re
from collections.abc import Iterator, Set
from typing import Final

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.batch_loops import (
    BatchLoop,
    batch_loops,
    is_label,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.loop_variables import derived_names, trains
from trueloop.analysis.queries.loops import always_run
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.modes import is_network_of_torchvision
from trueloop.analysis.queries.possible_values import arguments_of_calls, origins, parameters_of
from trueloop.analysis.source_file import SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.evaluation.train_mode_left_on.judged_outputs import JUDGING

_SWITCH: Final = re.compile(
    r"\.eval\b|\.train\((?!\)|True)|\.training\b|_mode\(|lightning|ignite|fastai|catalyst|skorch|transformers|mmcv|mmengine"
    r"|poutyne|composer|\bmc_|monte.?carlo|bayes",
    re.IGNORECASE,
)
"""Text of programs that may set eval mode, perhaps in a library, or sample with dropout."""
_NO_TEST: Final = re.compile(
    r"\.eval\(|backward|\.step\(|\.grad\b|loss_dict|\bmc|monte|dropout|uncertain|bayes|ensembl|stochastic|adapt|\bbn_|rcnn|yolo",
    re.IGNORECASE,
)
"""Text of functions that set eval mode too, train, sample with dropout, or need losses that only train mode returns."""
_TRAINING_STEP: Final = re.compile(r"\.backward\(")
_EVALUATION: Final = HELD_OUT | {"validate", "evaluate", "evaluating", "predict"}
_MODEL: Final = re.compile(
    r"model|net|coder|classifier|clf|solver|transformer|cnn|rnn|lstm|gru|vae|resnet|vgg|gen(erator)?$", re.IGNORECASE
)
_LAYERS: Final = re.compile(
    r"(Sync|Lazy)?BatchNorm\w*|(Feature)?(Alpha)?Dropout\w*|dropout[123]?d?|Transformer\w*Layer"
)
_NO_MODEL: Final = re.compile(r"Loss|Criterion|Dataset|Sampler", re.IGNORECASE)
_OF_LIBRARY: Final = re.compile(
    r"create_model|from_pretrained|from_name|^get_model|(res|dense|efficient|mobile|inception|convnext|u)_?net|vgg|\bvit|bert",
    re.IGNORECASE,
)
"""Names of functions and classes with networks of a library, which have such layers."""
_MAX_DEPTH: Final = 4


def never_switched(source: SourceFile) -> Iterator[ast.Call]:
    """Yield the calls that judge a model with dropout or BatchNorm on held-out batches, if nothing sets eval mode."""
    if source.mentions(_SWITCH) or not source.mentions(_TRAINING_STEP):
        return
    for loop in batch_loops(source):
        if trains(loop.node) or not _is_evaluation(source, loop) or not JUDGING.search(ast.unparse(loop.node)):
            continue
        batch = derived_names(loop)
        calls = (each for each in nodes_in(loop.node, ast.Call) if _is_model_call(source, each, batch))
        yield from [call for call in calls if _depends_on_mode(source, _called(call))][:1]


def train_mode_in_evaluation(source: SourceFile) -> Iterator[tuple[ast.Call, ast.Call]]:
    """Yield each ``model.train()`` in a function that only evaluates, with a call there that judges the model."""
    for loop in batch_loops(source):
        function, text = loop.function, ast.unparse(loop.node)
        words = name_words(getattr(function, "name", ""))
        if not words & _EVALUATION or words & TRAINING or not JUDGING.search(text):
            continue
        modes = [each for each in map(_train_mode, always_run(function.body)) if each is not None]
        if not modes or _NO_TEST.search(ast.unparse(function)):
            continue
        for call in nodes_in(loop.node, ast.Call):
            model = _called(call)
            is_set = ast.unparse(model) == ast.unparse(modes[0].func.value) and modes[0].lineno < call.lineno  # type: ignore[attr-defined]
            if is_set and not any(map(is_label, call.args)) and may_depend_on_mode(source, model):
                yield modes[0], call
                break


def _train_mode(statement: ast.stmt) -> ast.Call | None:
    """Return the call of ``model.train()`` and ``model = model.train()``."""
    call = getattr(statement, "value", None)
    match call:
        case ast.Call(func=ast.Attribute(attr="train"), args=[] | [ast.Constant(value=True)], keywords=[]):
            return call
        case _:
            return None


def may_depend_on_mode(source: SourceFile, model: ast.expr) -> bool:
    """Return True unless the program defines all of its models, without dropout or BatchNorm layers."""
    known = [e for n, e in definitions(source).classes.items() if _is_module(source, e) and not _NO_MODEL.search(n)]
    if _depends_on_mode(source, model) or not known or any(_has_layers(source, e, _MAX_DEPTH) for e in known):
        return True
    return any(_OF_LIBRARY.search(name) for name in definitions(source).calls)


def _called(call: ast.Call) -> ast.expr:
    """Return the model of a call: ``net`` of ``net(x)`` and of ``net.forward(x)``."""
    is_forward = isinstance(call.func, ast.Attribute) and call.func.attr == "forward"
    return call.func.value if is_forward and isinstance(call.func, ast.Attribute) else call.func


def _is_evaluation(source: SourceFile, loop: BatchLoop) -> bool:
    """Return True for a loop over held-out data, in a function that the program calls or outside of functions."""
    function, words = loop.function, data_words(loop.loader)
    name = getattr(function, "name", "")
    if name and not definitions(source).calls.get(name):
        return False
    if name and last_name(loop.loader) in {each.arg for each in parameters_of(function)}:
        for each in arguments_of_calls(source, function, last_name(loop.loader)):
            words |= data_words(each)
    if words & TRAINING and not words & HELD_OUT:
        return False
    return bool(words & HELD_OUT or name_words(name) & _EVALUATION) and not name_words(name) & TRAINING


def _is_model_call(source: SourceFile, call: ast.Call, batch: Set[str]) -> bool:
    model = _called(call)
    if not isinstance(model, ast.Name | ast.Attribute) or source.qualified_name(model) or is_loss_call(source, call):
        return False
    if last_name(model) in definitions(source).functions or not _MODEL.search(last_name(model)):
        return False
    return any(_read_names(each) & batch for each in call.args)


def _read_names(node: ast.expr) -> set[str]:
    """Return the variables that an argument reads."""
    return {each.id for each in nodes_in(without_conversions(node), ast.Name)}


def _depends_on_mode(source: SourceFile, model: ast.expr) -> bool:
    """Return True if a model, or each model of the program if its class is unknown, has dropout or BatchNorm layers."""
    known = definitions(source).classes
    values = [each for value in origins(source, model) for each in (value, *_stored(source, value))]
    created = {last_name(call.func) for each in values for call in nodes_in(each, ast.Call)}
    found = [known[each] for each in sorted(created & known.keys())]
    found = found or [
        each
        for name, each in known.items()
        if _is_module(source, each) and not _NO_MODEL.search(name) and not _is_layer(source, name)
    ]
    return bool(found) and all(_has_layers(source, each, _MAX_DEPTH) for each in found)


def _stored(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return what the program assigns to attributes of the same name, perhaps in a class that derives from this one."""
    if not isinstance(node, ast.Attribute):
        return []
    return [
        value
        for each in definitions(source).attributes.get(node.attr, [])
        if not isinstance(each.ctx, ast.Load) and (value := getattr(source.parents.get(id(each)), "value", None))
    ]


def _is_module(source: SourceFile, definition: ast.ClassDef) -> bool:
    bases = [last_name(each) for each in definition.bases]
    known = definitions(source).classes
    return "Module" in bases or any(e in known and e != definition.name and _is_module(source, known[e]) for e in bases)


def _is_layer(source: SourceFile, name: str) -> bool:
    """Return True for a class that a method of another module creates."""
    for call in definitions(source).calls.get(name, []):
        around = enclosing_definition(source, call, ast.ClassDef)
        if isinstance(around, ast.ClassDef) and _is_module(source, around):
            return True
    return False


def _has_layers(source: SourceFile, definition: ast.AST, depth: int) -> bool:
    """Return True if a class or function creates a layer that depends on the mode, perhaps in one that it calls."""
    known = definitions(source)
    bases = [known.classes.get(last_name(each)) for each in getattr(definition, "bases", ())]
    if depth and any(_has_layers(source, each, depth - 1) for each in bases if each is not None):
        return True
    for call in nodes_in(definition, ast.Call):
        name = last_name(call.func)
        rate = [*call.args[-1:], *(each.value for each in call.keywords if each.arg in ("p", "dropout"))]
        is_off = any(isinstance(each, ast.Constant) and each.value == 0 for each in rate)
        has_rate = any(each.arg == "dropout" for each in call.keywords)  # GATConv(8, 8, dropout=0.6)
        if ((has_rate or _LAYERS.fullmatch(name)) and not is_off) or is_network_of_torchvision(
            source.qualified_name(call.func)
        ):
            return True
        inner = known.classes.get(name) or known.functions.get(name)
        if depth and inner is not None and inner is not definition and _has_layers(source, inner, depth - 1):
            return True
    return False
