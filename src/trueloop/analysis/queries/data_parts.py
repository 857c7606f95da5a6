"""Tells for which part of the data, training or held-out, a call makes samples or a loader."""

import ast
import re
from collections.abc import Iterator, Set
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import assigned_pairs
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import SourceFile
from trueloop.core.source_text import nodes_in

_MAKING: Final = re.compile(r"load|set|data|transform|batch|split", re.IGNORECASE)


def part_of_call(source: SourceFile, call: ast.Call, parameter: str = "") -> str:
    """Return the part of the data that a call makes: "train", "held out", both with a bar between them, or "".

    Args:
        source: the file.
        call: the call that makes data, a transform or a loader.
        parameter: an argument that does not tell the part.
    """
    for words in _words_around(source, call):
        part = _part_of(words)
        if part:
            return part
    values = [*call.args, *(each.value for each in call.keywords if each.arg != parameter)]
    words = {word for each in values for word in data_words(each) | _text_words(each)}
    for each in call.keywords:
        if each.arg == "train" != parameter and isinstance(each.value, ast.Constant):
            words |= {"train"} if each.value.value else {"test"}
    part = _part_of(words)
    return part if "|" not in part else ""


def _part_of(words: Set[str]) -> str:
    parts = ("train", words & TRAINING), ("held out", words & HELD_OUT)
    return "|".join(name for name, found in parts if found)


def _text_words(node: ast.AST) -> set[str]:
    texts = [each.value for each in nodes_in(node, ast.Constant) if isinstance(each.value, str)]
    return {word for text in texts for word in name_words(text)}


def _words_around(source: SourceFile, call: ast.Call) -> Iterator[Set[str]]:
    """Yield the words of what gets the result of a call: a variable, a keyword, the key of a dictionary, a function."""
    child: Any = call
    parent: Any = source.parents.get(id(call))
    while parent is not None:
        match parent:
            case ast.keyword(arg=str(name)):
                yield name_words(name)
            case ast.Dict(keys=keys, values=values):
                yield {
                    word for key, e in zip(keys, values, strict=True) if e is child and key for word in _text_words(key)
                }
            case ast.Assign():
                yield {
                    word
                    for target, value in assigned_pairs(parent)
                    if not isinstance(target, ast.Tuple) and call in nodes_in(value, ast.Call)
                    for word in _target_words(target)
                }
            case ast.AnnAssign(target=target):
                yield _target_words(target)
            case ast.DictComp(generators=generators) | ast.ListComp(generators=generators):
                yield _item_words(source, generators[0].iter)
            case ast.For(iter=iterable) if child is not iterable:
                yield _item_words(source, iterable)
            case ast.FunctionDef(name=name):
                kept = (
                    stored_names(source.statement_of(call)) if isinstance(source.statement_of(call), ast.Assign) else ()
                )
                is_result = any(
                    call in nodes_in(each, ast.Call) or getattr(each.value, "id", "") in kept
                    for each in nodes_in(parent, ast.Return)
                )
                yield name_words(name) if is_result and _MAKING.search(name) else set()
                return
            case ast.Call(func=func) if func is child:  # the method of a class that the result has
                return
            case _:
                pass
        child, parent = parent, source.parents.get(id(parent))


def _target_words(target: ast.AST) -> set[str]:
    return data_words(target) | (_text_words(target) if isinstance(target, ast.Subscript) else set())


def _item_words(source: SourceFile, iterable: ast.expr) -> set[str]:
    """Return the words of the names and texts through which a loop goes, if both parts are among them."""
    while isinstance(iterable, ast.Call) and isinstance(iterable.func, ast.Attribute) and not iterable.args:
        iterable = iterable.func.value  # parts.items()
    words = {word for each in origins(source, iterable) for word in data_words(each) | _text_words(each)}
    return words if words & TRAINING and words & HELD_OUT else set()
