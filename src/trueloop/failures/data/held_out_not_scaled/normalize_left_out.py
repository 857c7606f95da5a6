"""Finds transforms of images that normalise the training images only, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in, walk

_TENSORS: Final = frozenset(("ToTensor", "PILToTensor", "ToImage", "ToTensorV2", "ToImageTensor"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each held-out transform without the ``Normalize`` that the training transform has."""
    parts = list(_parts(source))
    if any(not is_other and not _normalize(source, transform) for is_other, transform in parts):
        return  # one of several datasets
    for held_out, other in parts:
        if held_out or not (normalize := _normalize(source, other)):
            continue
        used = [each for each in source.nodes if _names_normalize(source, each)]
        inside = [each for of_held_out, each in parts if not of_held_out for each in _all_nodes(source, each)]
        if any(all(each is not node for node in inside) for each in used):
            return  # it may be applied to the others elsewhere
        for is_other, transform in parts:
            calls = [last_name(c.func) for c in _calls(source, transform)] if is_other else []
            if set(calls) & _TENSORS and not _normalize(source, transform):
                yield Hit(
                    message=f"`{ast.unparse(transform)[:60]}` has no `Normalize`, but the transform of the training "
                    "images has one: equal pixels mean something else in training and in evaluation.",
                    node=transform,
                    related=((normalize, "the training images are normalised here"),),
                )
                return


def _parts(source: SourceFile) -> Iterator[tuple[bool, Any]]:
    """Yield the transforms of training and of held-out images: (is held-out, transform)."""
    for node in source.nodes_of(ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            words = name_words(key.value) if isinstance(key, ast.Constant) and isinstance(key.value, str) else set()
            if words & (TRAINING | HELD_OUT) and isinstance(value, ast.Call | ast.Name):
                yield not words & TRAINING, value
    for call in source.all_calls:
        option = next((each.value for each in call.keywords if each.arg == "transform"), None)
        if option is not None and not isinstance(option, ast.Constant):
            part = _part_of(source, call)
            if part is not None:
                yield part, option


def _part_of(source: SourceFile, call: ast.Call) -> bool | None:
    """Return whether a dataset holds held-out samples; None if its call and its name do not tell."""
    options = {each.arg: each.value for each in call.keywords}
    train = options.get("train", next((e for e in call.args if isinstance(getattr(e, "value", None), bool)), None))
    if isinstance(train, ast.Constant) and isinstance(train.value, bool):
        return not train.value
    target = source.parents.get(id(call))
    names = [ast.unparse(each) for each in getattr(target, "targets", [])]
    others = [*call.args, *(value for key, value in options.items() if key not in ("transform", "target_transform"))]
    texts = [e.value for each in others for e in nodes_in(each, ast.Constant) if isinstance(e.value, str)]
    words = {word for text in (*names, *texts, *map(ast.unparse, others)) for word in name_words(text)}
    is_training, is_other = bool(words & TRAINING), bool(words & HELD_OUT)
    return is_other if is_training != is_other else None


def _all_nodes(source: SourceFile, transform: ast.expr) -> list[ast.AST]:
    return [node for each in origins(source, transform) for node in walk(each)]


def _calls(source: SourceFile, transform: ast.expr) -> list[ast.Call]:
    return [each for each in _all_nodes(source, transform) if isinstance(each, ast.Call)]


def _normalize(source: SourceFile, transform: ast.expr) -> ast.AST | None:
    """Return the ``Normalize`` in a transform, or the variable that holds one; None if there is none."""
    return next((each for each in _all_nodes(source, transform) if _names_normalize(source, each)), None)


def _names_normalize(source: SourceFile, node: ast.AST) -> bool:
    """Return True for ``transforms.Normalize(...)``, and for a variable or function whose name says the same."""
    name = node.func if isinstance(node, ast.Call) else node
    is_read = isinstance(getattr(name, "ctx", None), ast.Load) and isinstance(name, ast.Name | ast.Attribute)
    is_inner = isinstance(node, ast.Attribute) and isinstance(source.parents.get(id(node)), ast.Call)
    return is_read and not is_inner and bool({"normalize", "norm", "normalise"} & name_words(last_name(name)))
