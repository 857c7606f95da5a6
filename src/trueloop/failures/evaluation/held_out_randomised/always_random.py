"""Finds datasets, loading functions and inference scripts that change each sample at random, whatever it is for."""

import ast
import re
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs, function_of
from trueloop.analysis.queries.held_out_names import TRAINING, data_words
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import enclosing_nodes
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.evaluation.held_out_randomised.augmentation_switches import (
    RANDOM,
    READING,
    Switch,
    is_random_transform,
)

_FLIPS: Final = frozenset(("hflip", "vflip", "fliplr", "flipud", "flip", "rotate", "rot90"))
_LOADING: Final = re.compile(r"(Data)?Loader|ImageFolder|\w*Dataset|CIFAR\w+|MNIST|FashionMNIST|SVHN|STL10")
_INFERENCE: Final = re.compile(r"(^|_)(infer|inference|predict|prediction|demo)(_|\.|$)", re.IGNORECASE)
_TASK: Final = re.compile(r"Erasing|Mask|Choice|Apply|Order|Sampl|Nois|Select|State|Seed", re.IGNORECASE)
"""Random transforms that may be the task itself, or that apply others."""


def always_random(source: SourceFile) -> Iterator[Switch]:
    """Yield the datasets and the functions returning loaders that change samples at random without any condition."""
    methods: set[int] = set()
    for definition in source.nodes_of(ast.ClassDef):
        own = {each.name: each for each in definition.body if isinstance(each, ast.FunctionDef)}
        methods |= {id(each) for each in own.values()}
        reader = next((own[name] for name in sorted(READING & own.keys())), None)
        found = _applied_by(source, reader, own) if reader is not None and "__init__" in own else None
        if found is not None:
            yield Switch(definition.name, own["__init__"], "", found)
    for function in source.nodes_of(ast.FunctionDef):
        calls = nodes_in(function, ast.Call) if id(function) not in methods and function.args.args else ()
        if not any(_LOADING.fullmatch(last_name(each.func)) for each in calls) or nodes_in(function, ast.If, ast.IfExp):
            continue
        transforms = [each for each in calls if last_name(each.func) == "Compose"]
        if transforms and all(_is_augmentation(each) for each in transforms):
            yield Switch(function.name, function, "", transforms[0])


def random_inference(source: SourceFile) -> Iterator[Hit]:
    """Yield the random transforms of a script that only loads a trained model and runs it."""
    module = source.modules[0]
    if not _INFERENCE.search(PurePath(module.path).stem) or "Compose" not in module.text.source:
        return
    if "load_state_dict" not in module.text.source or "backward(" in module.text.source:
        return
    for call in module.nodes_of(ast.Call):
        parent: Any = source.parents.get(id(call))
        words = name_words(getattr(function_of(source, call), "name", "")) | data_words(parent)
        if last_name(call.func) == "Compose" and _is_augmentation(call) and not words & TRAINING:
            yield Hit(
                message=f"`{_random_name(call)}` changes the inputs of the trained model at random: each run has "
                "another result, and the model gets other inputs than those that are asked for.",
                node=call,
            )


def _is_augmentation(call: ast.Call) -> bool:
    return is_random_transform(call) and not _TASK.search(_random_name(call))


def _random_name(call: ast.AST) -> str:
    return next((n for each in nodes_in(call, ast.Call) if RANDOM.fullmatch(n := last_name(each.func))), "")


def _applied_by(source: SourceFile, reader: ast.FunctionDef, methods: dict[str, ast.FunctionDef]) -> ast.AST | None:
    """Return the random transform that a method which reads a sample applies in any case."""
    stored = {
        dotted_name(target): value
        for method in methods.values()
        for each in nodes_in(method, ast.Assign)
        if not _is_conditional(source, each)
        for target, value in assigned_pairs(each)
        if isinstance(value, ast.Call)
    }
    written = [dotted_name(t) for m in methods.values() for each in nodes_in(m, ast.Assign) for t in each.targets]
    for call in nodes_in(reader, ast.Call):
        name = dotted_name(call.func)
        made = stored.get(name) if written.count(name) == 1 else None
        transform = made or (call.func if isinstance(call.func, ast.Call) else None)
        is_applied = isinstance(transform, ast.Call) and _is_augmentation(transform)
        if (is_applied and not _is_conditional(source, call)) or _is_coin_flip(source, call):
            return call
    return None


def _is_conditional(source: SourceFile, node: ast.AST) -> bool:
    return any(isinstance(each, ast.If | ast.IfExp | ast.BoolOp | ast.Try) for each in enclosing_nodes(source, node))


def _is_coin_flip(source: SourceFile, call: ast.Call) -> bool:
    """Return True for ``if random.random() < 0.5: image = hflip(image)`` without another condition around it."""
    around = [each for each in enclosing_nodes(source, call) if isinstance(each, ast.If | ast.IfExp)]
    if last_name(call.func) not in _FLIPS or len(around) != 1:
        return False
    test = around[0].test
    names = {each.id for each in nodes_in(test, ast.Name)} - {"random", "np", "numpy", "torch"}
    return isinstance(test, ast.Compare) and "rand" in ast.unparse(test) and not names
