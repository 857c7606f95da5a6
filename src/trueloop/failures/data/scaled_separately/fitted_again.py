"""Finds scalers and encoders that are fitted again on held-out data, in the source."""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.held_out_names import HELD_OUT, TRAINING, data_words, is_held_out, is_training
from trueloop.analysis.queries.possible_values import enclosing_nodes, loops_around, possible_values
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Edit, Fix, encloses, nodes_in
from trueloop.failures.data.names_numbered_per_split.numbered_parts import ENCODERS
from trueloop.failures.data.scaled_separately import loaded_scaler, own_statistics
from trueloop.failures.data.scaled_separately.listed_parts import listed_parts
from trueloop.failures.failure import Rule

_TRANSFORMER: Final = re.compile(
    r"scal|enc(?!lo)|imput|normali[sz]er|vectori|pca|transformer|discreti|^(sc|ss|mms?|le)\d?$", re.IGNORECASE
)


_SELECTING: Final = frozenset(("drop", "to_numpy", "copy", "reshape", "astype", "dropna", "fillna", "filter", "numpy"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each fit on held-out data, or on the rest of the same array, in a file that also fits on other data."""
    fits = [
        (call, call.func)
        for call in source.all_calls
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("fit", "fit_transform") and call.args
    ]
    held_out = {
        call for call, _ in fits if _is_of_held_out(source, call.args[0]) or _is_rest(call, [each for each, _ in fits])
    }
    others = [call for call, _ in fits if call not in held_out]
    for call, method in fits:
        if method.attr != "fit_transform" or call not in held_out:
            continue
        compared = [each for each in others if _is_transformer(each) and not _is_of_each_sample(source, each, call)]
        if not compared:
            continue
        owner = _owner(method)
        if _TRANSFORMER.search(owner) and not isinstance(source.parents.get(id(call)), ast.Expr):
            end = source.text.span(method)[1]
            edit = Edit(end - len("fit_transform"), end, "transform")
            is_same = any(ast.unparse(each.func).startswith(f"{ast.unparse(method.value)}.") for each in compared)
            yield Hit(
                message=f"`{ast.unparse(call)}` fits `{owner}` on held-out data: it is transformed in another way than "
                "the training data. Use `transform`.",
                node=call,
                related=((compared[0], "fitted on other data here"),),
                fix=Fix((edit,), safe=False, description="Only transform") if is_same else None,
            )


def _owner(method: ast.Attribute) -> str:
    return last_name(method.value) or last_name(getattr(method.value, "func", method.value))


def _is_transformer(fit: ast.Call) -> bool:
    """Return False for ``model.fit(x)``."""
    method = fit.func
    return isinstance(method, ast.Attribute) and (method.attr != "fit" or bool(_TRANSFORMER.search(_owner(method))))


def _is_of_each_sample(source: SourceFile, fit: ast.Call, other: ast.Call) -> bool:
    """Return True for a fit in a loop, in which the other is not, to what each iteration reads: one sample."""
    used = {each.id for each in nodes_in(fit.args[0], ast.Name)}
    loops = [each for each in loops_around(source, fit) if not encloses(each, other)]
    names = [name for loop in loops for name in nodes_in(loop, ast.Name)]
    return any(each.id in used and isinstance(each.ctx, ast.Store) for each in names)


def _is_of_held_out(source: SourceFile, node: ast.expr) -> bool:
    """Return True for held-out data by its name, and for columns of such data under a name that says nothing."""
    while not data_words(node) & (HELD_OUT | TRAINING):
        values = possible_values(source, node) if isinstance(node, ast.Name) else []
        if len(values) != 1 or not isinstance(values[0], ast.Subscript | ast.Attribute | ast.Call):
            return False
        inner = values[0].func if isinstance(values[0], ast.Call) else values[0]
        if not isinstance(inner, ast.Subscript | ast.Attribute) or (
            isinstance(values[0], ast.Call) and last_name(inner) not in _SELECTING
        ):
            return False
        node = inner.value
    return is_held_out(node)


def _is_rest(fit: ast.Call, fits: list[ast.Call]) -> bool:
    """Return True for ``scaler.fit_transform(x[n:])`` if the same object is fitted on ``x[:n]``."""
    match fit:
        case ast.Call(func=func, args=[ast.Subscript(value=data, slice=ast.Slice(lower=bound, upper=None))]) if bound:
            first = ast.unparse(ast.Subscript(data, ast.Slice(None, bound)))
            same = [each for each in fits if ast.unparse(each.func.value) == ast.unparse(func.value)]  # type: ignore[attr-defined]
            return any(ast.unparse(each.args[0]) == first for each in same)
        case _:
            return False


def _in_functions(source: SourceFile) -> Iterator[Hit]:
    """Yield each ``fit_transform`` of a parameter or in a loop that gets training data and held-out data."""
    for fit in source.all_calls:
        method, function = fit.func, function_of(source, fit)
        if not isinstance(method, ast.Attribute) or method.attr != "fit_transform" or not fit.args:
            continue
        owner: ast.expr = method.value
        while isinstance(owner, ast.Subscript):
            owner = owner.value
        name = last_name(owner) or last_name(getattr(owner, "func", owner))
        if not _TRANSFORMER.search(name) or name in ENCODERS or _is_conditional(source, fit, function):
            continue  # a new encoder of names for each part is DAT026
        used = {each.id for each in nodes_in(fit.args[0], ast.Name)}
        passed, where = listed_parts(source, fit, used), "each iteration"
        if not passed and not isinstance(function, ast.Module):
            passed, where = list(_passed(source, function, used)), f"each call of `{function.name}`"
        training = next(filter(is_training, passed or ()), None)
        held_out = next(filter(is_held_out, passed or ()), None)
        if training is not None and held_out is not None:
            yield Hit(
                message=f"`{ast.unparse(fit)}` fits `{name}` in {where}, also on the held-out "
                "data: it is transformed in another way than the training data. Use `transform` for it.",
                node=fit,
                related=((training, "the training data"), (held_out, "the held-out data")),
            )


def _is_conditional(source: SourceFile, node: ast.AST, function: ast.AST) -> bool:
    """Return True if a condition in a function decides whether a node is evaluated."""
    if any(isinstance(each, ast.If | ast.IfExp | ast.Try | ast.While) for each in enclosing_nodes(source, node)):
        return True
    body: list[ast.stmt] = getattr(function, "body", [])
    return any(isinstance(each, ast.If) and bool(nodes_in(each, ast.Return)) for each in body)


def _passed(source: SourceFile, function: ast.FunctionDef, names: set[str]) -> Iterator[ast.expr]:
    """Yield what the calls of a function, or of the class of an ``__init__``, pass for some parameters."""
    parameters = [each.arg for each in function.args.args]
    parent = source.parents.get(id(function))
    is_method = isinstance(parent, ast.ClassDef)
    called = parent.name if isinstance(parent, ast.ClassDef) and function.name == "__init__" else function.name
    for call in source.all_calls:
        if last_name(call.func) == called:
            values = dict(zip(parameters[is_method:], call.args, strict=False))
            values |= {each.arg: each.value for each in call.keywords if each.arg}
            yield from (value for name, value in values.items() if name in names)


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, fits of scalers from files, and data standardised by hand with its own statistics."""
    yield from find(source)
    yield from _in_functions(source)
    yield from loaded_scaler.refitted(source)
    yield from own_statistics.find(source)


RULE = Rule(
    required_words=(
        "fit_transform(|zscore(|scale(|mean(|median(|min(",
        "fit_transform(|zscore(|scale(|std(|var(|max(|ptp(",
        "torch|keras|nn.",
    ),
    find=find_all,
)
