"""Finds scores that are called validation or test scores and are computed over the training loader, in the source."""

import ast
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import BatchLoop, batch_loops, is_loader
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, is_held_out, is_training
from trueloop.analysis.queries.metric_names import WORDS, name_words
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import dotted_name, nodes_in, walk

_SCORES: Final = WORDS["max"] | WORDS["min"] | {"score", "scores", "metric", "metrics", "hits", "right"}
_SUMS: Final = _SCORES | {"total", "sum", "running", "preds", "predictions"}
_EVALUATING: Final = frozenset((
    "eval", "evaluate", "evaluation", "val", "validate", "validation", "test", "accuracy", "score", "metrics", "check",
    "infer", "predict",
))  # fmt: skip
_SPLITTING: Final = frozenset(("cross", "fold", "folds", "kfold", "cv"))
"""Words of functions that split the training data themselves."""
_COLLECTING: Final = frozenset(("append", "extend", "update"))
_VALIDATING: Final = frozenset(("val", "validate", "validation"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the loops over a training loader, and the calls with one, whose result is called a held-out score."""
    loops = list(batch_loops(source))
    trained = {(each.function, ast.unparse(each.loader)) for each in loops if _trains(each.node)}
    for loop in loops:
        name = _held_out_score(source, loop)
        is_training_loader = is_training(loop.loader) or (loop.function, ast.unparse(loop.loader)) in trained
        is_other = _trains(loop.node) or is_held_out(loop.loader) or _selects_held_out(loop.node)
        if name and is_training_loader and not is_other:
            yield _hit(loop.node.iter, name, loop.loader)
    for call in source.all_calls:
        loader, target = _evaluated(call), _target(source, call)
        if loader is None:
            continue
        if target is not None and _is_held_out_score(target, _SCORES):
            yield _hit(call, ast.unparse(target), loader)
        elif _is_called_held_out(source, call) and (unread := _unread_loader(source)):
            yield Hit(
                message=f"`{ast.unparse(call)}` validates on `{ast.unparse(loader)}`, the data of the training, and "
                f"nothing reads `{unread.id}`.",
                node=call,
                related=((unread, f"`{unread.id}` is created here"),),
            )


def _is_called_held_out(source: SourceFile, call: ast.Call) -> bool:
    """Return True if the function or a text around a call says that it validates, and no word means training data."""
    statement = source.statement_of(call)
    texts = [each.value for each in nodes_in(statement, ast.Constant) if isinstance(each.value, str)]
    targets = [each.id for each in nodes_in(statement, ast.Name) if isinstance(each.ctx, ast.Store)]
    words = {word for each in (*texts, *targets) for word in name_words(each)}
    said = words & HELD_OUT or name_words(last_name(call.func)) & _VALIDATING
    return bool(said) and not words & TRAINING


def _unread_loader(source: SourceFile) -> ast.Name | None:
    """Return a held-out loader that the program creates; None if it reads one, or may do so elsewhere."""
    loaders = [each for each in source.nodes_of(ast.Name) if is_held_out(each) and is_loader(source, each)]
    others = [
        ast.Name(each.arg if isinstance(each, ast.arg) else each.attr)
        for each in source.nodes_of(ast.Attribute, ast.arg)
    ]
    is_read = any(isinstance(each.ctx, ast.Load) for each in loaders)
    is_read |= any(is_held_out(each) and is_loader(source, each) for each in others)
    is_read |= any(last_name(each.func) in ("globals", "locals") for each in source.all_calls)
    return None if is_read or not loaders else loaders[0]


def _evaluated(call: ast.Call) -> ast.expr | None:
    """Return the training loader that a call evaluates a model on; None if it also gets held-out data."""
    words, arguments = name_words(last_name(call.func)), [*call.args, *(each.value for each in call.keywords)]
    if not words & _EVALUATING or words & (TRAINING | _SPLITTING) or any(map(is_held_out, arguments)):
        return None
    loaders = (each for each in arguments if is_training(each) and name_words(last_name(each)) & {"loader", "dl"})
    return next(loaders, None)


def _hit(node: Any, name: str, loader: ast.expr) -> Hit:
    return Hit(
        message=f"`{name}` is computed over `{ast.unparse(loader)}`: the score that is called held out is that of "
        "training samples.",
        node=node,
    )


def _trains(node: ast.AST) -> bool:
    """Return True if a loop computes gradients, or passes its batches to code that may do so."""
    calls = list(nodes_in(node, ast.Call))
    names = {last_name(each.func) for each in calls}
    return bool(names & {"backward", "step", "zero_grad", "minimize"}) or any(
        name_words(name) & {"train", "fit", "update"} for name in names - {"train", "eval", "update"}
    )


def _selects_held_out(loop: ast.AST) -> bool:
    """Return True if a loop takes the held-out part of each batch, such as the nodes of a graph: ``out[val_mask]``."""
    subscripts = (each for each in ast.walk(loop) if isinstance(each, ast.Subscript))
    indices = (each.slice for each in subscripts if isinstance(each.ctx, ast.Load))
    return any(
        name_words(last_name(each)) & (HELD_OUT | {"mask"})
        for each in indices
        if isinstance(each, ast.Name | ast.Attribute)
    )


def _is_held_out_score(node: ast.AST, words: frozenset[str] | set[str]) -> bool:
    own = name_words(dotted_name(node))
    scores = words if own & (HELD_OUT - {"valid", "ts", "te", "va"}) else _SCORES  # "valid_total" counts valid pixels
    return is_held_out(node) and bool(own & scores)


def _held_out_score(source: SourceFile, loop: BatchLoop) -> str:
    """Return the held-out score that a loop adds up, or the function that validates with it; "" if there is none."""
    added = [each.target for each in nodes_in(loop.node, ast.AugAssign)]
    lists = [
        each.func.value
        for each in nodes_in(loop.node, ast.Call)
        if isinstance(each.func, ast.Attribute) and each.func.attr in _COLLECTING
    ]
    sums = {dotted_name(each) for each in added} - {""}
    results: list[ast.expr] = []
    block: list[Any] = source.block(loop.node)
    for after in block[block.index(loop.node) + 1 :] if loop.node in block else ():
        if isinstance(after, ast.For | ast.While | ast.With):
            break
        if isinstance(after, ast.Assign) and any(dotted_name(each) in sums for each in walk(after.value)):
            results.append(after.targets[0])
    found = [each for each in (*added, *lists) if _is_held_out_score(each, _SUMS)]
    found += [each for each in results if _is_held_out_score(each, _SCORES)]
    return dotted_name(found[0]) if found else _validating_function(loop)


def _validating_function(loop: BatchLoop) -> str:
    """Return the name of the function around a loop if it validates, has no held-out data, and gets no loader."""
    function = loop.function
    if not isinstance(function, ast.FunctionDef) or not name_words(function.name) & _VALIDATING:
        return ""
    owner = dotted_name(loop.loader).split(".")[0]
    is_passed = owner != "self" and any(each.arg == owner for each in nodes_in(function.args, ast.arg))
    names = {dotted_name(each) for each in nodes_in(function, ast.Name, ast.Attribute)}
    data = [each for each in names if name_words(each) & HELD_OUT and name_words(each) & {"loader", "dl", "data"}]
    return "" if is_passed or data or name_words(function.name) & TRAINING else f"{function.name}()"


def _target(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return the variable or list that gets the result of a call; of several variables, the first."""
    match source.parents.get(id(call)):
        case ast.Assign(targets=[ast.Tuple(elts=[target, *_]) | target]):
            pass
        case ast.Call(func=ast.Attribute(attr="append", value=target)):
            pass
        case _:
            return None
    match target:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return ast.Name(key, ast.Store())  # history["val_acc"]
        case _:
            return target
