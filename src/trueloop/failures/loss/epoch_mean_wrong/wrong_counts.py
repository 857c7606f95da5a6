"""Finds totals that are divided by the wrong count, in the source."""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import (
    LOADER_WORDS,
    BatchLoop,
    assigned_in,
    batch_loops,
    compared_sides,
    created_loader,
    has_batches_of_one,
    is_label,
    is_loss_call,
    without_conversions,
)
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, encloses
from trueloop.failures.failure import Rule, Severity

_SIZE: Final = re.compile(r"\.size\(0\)|\.shape\[0\]|\blen\(|batch_?size|\bbs\b", re.IGNORECASE)
_OTHER_REDUCTION: Final = re.compile(r"reduction\s*=\s*[\"'](?:sum|none)|size_average\s*=\s*False|reduce\s*=\s*False")


class Term(Enum):
    """What is added to a total in each iteration."""

    COUNT = "counts the right predictions of all samples"
    MEAN = "adds up one mean per batch"
    SUM = "adds up the losses of all samples"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each division of a total by the number of something else than its terms."""
    for loop in batch_loops(source):
        for statement in ast.walk(loop.node):
            if not isinstance(statement, ast.AugAssign) or not isinstance(statement.op, ast.Add):
                continue
            name, term = dotted_name(statement.target), _term(source, loop, statement.value)
            if not name or term is None or _is_inner(loop, statement):
                continue
            for division, divisor in _divisions(source, loop, name):
                yield from _judge(source, loop, statement, term, division, divisor)


def _judge(
    source: SourceFile, loop: BatchLoop, statement: ast.AugAssign, term: Term, division: Any, divisor: ast.expr
) -> Iterator[Hit]:
    batches, samples = _counts_batches(loop, divisor), _counts_samples(loop, divisor)
    if samples and term is not Term.MEAN:
        yield from _judge_part(source, loop, division, divisor)
        return
    if has_batches_of_one(source, loop) or not (samples if term is Term.MEAN else batches):
        return
    what = "samples" if samples else "batches"
    is_plain = loop.is_length(divisor)
    text = f"len({ast.unparse(loop.loader)}.dataset)" if term is not Term.MEAN else f"len({ast.unparse(loop.loader)})"
    fix = Fix((source.text.replace(divisor, text),), safe=False, description=f"Divide by {text}")
    yield Hit(
        message=f"`{ast.unparse(division)}` divides by the number of {what}, but `{ast.unparse(statement)}` "
        f"{term.value}.",
        node=division,
        related=((statement, "added up here"),),
        fix=fix if is_plain or samples else None,
        severity=Severity.WARNING,
    )


def _judge_part(source: SourceFile, loop: BatchLoop, division: Any, divisor: ast.expr) -> Iterator[Hit]:
    """Yield a division by all samples of a dataset of which a sampler draws only some."""
    call, loader = created_loader(source, loop.loader), ast.unparse(loop.loader)
    samplers = [each.value for each in call.keywords if each.arg == "sampler"] if call is not None else []
    values = assigned_in(loop.function, samplers[0].id) if samplers and isinstance(samplers[0], ast.Name) else samplers
    if any(isinstance(each, ast.Call) and last_name(each.func) == "SubsetRandomSampler" for each in values):
        is_plain = isinstance(divisor, ast.Call)
        fix = Fix(
            (source.text.replace(divisor, f"len({loader}.sampler)"),), safe=False, description="Count the sampler"
        )
        yield Hit(
            message=f"`{ast.unparse(division)}` divides by all samples of the dataset, but the sampler of `{loader}` "
            f"draws only some of them: their number is `len({loader}.sampler)`.",
            node=division,
            related=((samplers[0], "the sampler"),),
            fix=fix if is_plain else None,
            severity=Severity.WARNING,
        )


def _term(source: SourceFile, loop: BatchLoop, value: ast.expr) -> Term | None:
    """Return what kind of number is added; None if it is unknown."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        for one, other in ((value.left, value.right), (value.right, value.left)):
            if _SIZE.search(ast.unparse(other)) and _is_mean_loss(source, loop, one):
                return Term.SUM
        return None
    inner = without_conversions(value)
    if _is_mean_loss(source, loop, value):
        return Term.MEAN
    if isinstance(inner, ast.Name):
        values = assigned_in(loop.node, inner.id)
        inner = without_conversions(values[0]) if len(values) == 1 else inner
    match inner:
        case ast.Call(func=ast.Attribute(attr="sum" | "mean" as how, value=of), args=args):
            compared = args[0] if dotted_name(of) in ("torch", "np", "numpy") and args else of
        case _:
            return None
    if not _is_check(loop, compared):
        return None
    return Term.COUNT if how == "sum" else Term.MEAN


def _is_check(loop: BatchLoop, node: ast.expr) -> bool:
    """Return True for a comparison of predictions with labels: ``predicted == labels``."""
    node = without_conversions(node)
    if isinstance(node, ast.Name):
        values = assigned_in(loop.node, node.id)
        node = without_conversions(values[0]) if len(values) == 1 else node
    sides = compared_sides(node)
    return any("pred" in ast.unparse(each) or is_label(each) for each in sides) and not any(map(_is_constant, sides))


def _is_mean_loss(source: SourceFile, loop: BatchLoop, value: ast.expr) -> bool:
    """Return True for a number that a loss function with the default reduction computes in the loop."""
    inner = without_conversions(value)
    if isinstance(inner, ast.Name):
        values = [without_conversions(each) for each in assigned_in(loop.node, inner.id)]
    else:
        values = [inner]
    is_loss = bool(values) and all(is_loss_call(source, each) for each in values)
    return is_loss and not _OTHER_REDUCTION.search(source.text.source)


def _is_inner(loop: BatchLoop, statement: ast.AST) -> bool:
    """Return True if an inner loop runs the statement several times per batch."""
    inner = [each for each in ast.walk(loop.node) if isinstance(each, ast.For | ast.While) and each is not loop.node]
    return any(encloses(each, statement) for each in inner)


def _divisions(source: SourceFile, loop: BatchLoop, name: str) -> Iterator[tuple[Any, ast.expr]]:
    """Yield each division of a variable after its loop or in it, with the divisor."""
    for node in ast.walk(loop.function):
        if getattr(node, "lineno", 0) < loop.node.lineno:
            continue
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div) and dotted_name(node.target) == name:
            yield node, node.value
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_only_factor(node.left, name):
            parent = source.parents.get(id(node))
            is_rest = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Div | ast.Mult)
            sides = (parent.left, parent.right) if isinstance(parent, ast.BinOp) else ()
            if not is_rest or all(each is node or _is_constant(each) for each in sides):
                yield node, node.right


def _is_only_factor(node: ast.expr, name: str) -> bool:
    """Return True for the variable, perhaps converted and times a constant."""
    node = without_conversions(node)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = (node.left, node.right)
        return any(_is_only_factor(one, name) and _is_constant(other) for one, other in (sides, sides[::-1]))
    return dotted_name(node) == name


def _is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def _counts_batches(loop: BatchLoop, divisor: ast.expr) -> bool:
    divisor = _resolved(loop, without_conversions(divisor))
    if isinstance(divisor, ast.BinOp) and isinstance(divisor.op, ast.Add) and _is_constant(divisor.right):
        return bool(loop.counter) and getattr(divisor.left, "id", "") == loop.counter  # i + 1
    return loop.is_length(divisor)


def _counts_samples(loop: BatchLoop, divisor: ast.expr) -> bool:
    divisor = _resolved(loop, without_conversions(divisor))
    match divisor:
        case ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(value=of, attr="dataset")]):
            return ast.unparse(of) == ast.unparse(loop.loader)
        case _:
            return False


def _resolved(loop: BatchLoop, node: ast.expr) -> ast.expr:
    """Return the value of a variable that the function assigns once, or the node itself."""
    values = assigned_in(loop.function, node.id) if isinstance(node, ast.Name) else []
    return values[0] if len(values) == 1 else node


RULE = Rule(required_words=("+=", "len(|enumerate(", LOADER_WORDS, "/", "oss|acc|correct|total|metric|err"), find=find)
