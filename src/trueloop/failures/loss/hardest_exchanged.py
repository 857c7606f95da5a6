"""Batch-hard triplet mining takes the nearest positive and the farthest negative, or a pair that is left out.

What you see
    The triplet loss is 0 after a few steps, while the retrieval accuracy hardly rises: all triplets are easy ones.

Why it happens
    The hardest positive is the one with the largest distance, the hardest negative the one with the smallest. With
    ``min`` and ``max`` exchanged, the loss has the same shape and falls even faster. And a mask that multiplies the
    distances sets those of the pairs it leaves out to 0, which ``min`` then always takes.

Fix
    Take the maximum over the positives and the minimum over the negatives; for similarities the other way round.

        hardest_positive = distance.masked_fill(~same, -float("inf")).max(1).values
        hardest_negative = distance.masked_fill(same, float("inf")).min(1).values
        loss = F.relu(hardest_positive - hardest_negative + margin).mean()

When this is fine
    - The nearest positive is compared with the nearest negative ("easy positive" mining).
    - The values are similarities: the hardest positive is the least similar one.

How it is detected
    Only the linter finds it. A value that is minimised contains the minimum of masked distances minus the maximum of
    masked distances, directly, in a hinge, ``softplus`` or ``margin_ranking_loss``; for similarities, the same
    difference. Or a value that is called the hardest positive is a minimum of distances, or one called the hardest
    negative a maximum, also as indices; for similarities the opposite. The same holds for several pairs that ``topk``,
    ``argsort`` or ``argpartition`` selects within something called hard. And it finds a minimum of distances that are
    multiplied by the result of a comparison. Distances are recognised by ``cdist``, a norm
    or their name, similarities by ``@``, ``matmul``, ``cosine_similarity`` or their name.

References
    Hermans et al., 2017, "In Defense of the Triplet Loss for Person Re-Identification", arXiv:1703.07737
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from trueloop.analysis.queries.assignments import enclosing_definition
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import computed_from, origins, unpacked_call, without_cycles
from trueloop.analysis.queries.reductions import reduction
from trueloop.analysis.queries.signed_terms import Term, may_ascend, minimised_terms, signed_terms
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_SMALLEST: Final = frozenset(("min", "amin", "argmin"))
_LARGEST: Final = frozenset(("max", "amax", "argmax"))
_HARD: Final = frozenset(("hard", "hardest"))
_POSITIVE: Final = frozenset(("pos", "positive", "positives", "ap", "p"))
_NEGATIVE: Final = frozenset(("neg", "negs", "negative", "negatives", "an", "n"))
_RANKINGS: Final = frozenset(("argpartition", "partition", "argsort", "sort", "sorted"))
_LIBRARIES: Final = frozenset(("torch", "np", "numpy"))
_DISTANCES: Final = frozenset(("cdist", "pairwise_distance", "norm", "pdist", "sqrt", "PairwiseDistance"))
_DISTANCE_NAME: Final = re.compile(r"dist|(^|_)d(_|$)", re.IGNORECASE)
_SIMILARITY_NAME: Final = re.compile(r"sim|cos(ine)?(_|$)|score", re.IGNORECASE)
_PRODUCTS: Final = frozenset(("matmul", "mm", "einsum", "cosine_similarity"))


class _Extremum(NamedTuple):
    """The smallest or largest of some values that a mask selects."""

    call: ast.expr
    is_largest: bool
    kind: str
    """ "distance" or "similarity". """


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each selection of the easiest instead of the hardest pair, or of a pair that is left out."""
    yield from _zeroed(source)
    reported = set[int]()
    for extremum, is_positive, name in _named(source):
        if extremum.is_largest is (is_positive is (extremum.kind == "similarity")):
            reported.add(id(extremum.call))
            yield _hit(extremum, f"the hardest {'positive' if is_positive else 'negative'}", name)
    for selected, is_positive, name in _selected(source):
        if selected.is_largest is (is_positive is (selected.kind == "similarity")):
            yield _hit(selected, f"the hardest {'positives' if is_positive else 'negatives'}", name)
    if may_ascend(source):
        return
    for terms in (*minimised_terms(source), *_ranked(source)):
        all_terms = (*terms, *_clamped(source, terms))
        found = [(term.sign, each) for term in all_terms if (each := _extremum(source, term.node)) is not None]
        added = [each for sign, each in found if sign == 1]
        subtracted = [each for sign, each in found if sign == -1]
        if not added or not subtracted or any(e.is_largest for e in added) or not all(e.is_largest for e in subtracted):
            continue
        kinds = {each.kind for each in (*added, *subtracted)}
        wrong = added[0] if kinds == {"distance"} else subtracted[0]
        if len(kinds) == 1 and id(wrong.call) not in reported:
            reported |= {id(each.call) for each in (*added, *subtracted)}
            yield _hit(wrong, "the hardest positive", ast.unparse(terms[0].node))


def _zeroed(source: SourceFile) -> Iterator[Hit]:
    """Yield each minimum of distances times a mask: the pairs that the mask leaves out have the distance 0."""
    for call in source.all_calls:
        found = reduction(call, _SMALLEST)
        for product in origins(source, found.operand, 3) if found is not None else ():
            match product:
                case ast.BinOp(op=ast.Mult(), left=left, right=right):
                    pass
                case _:
                    continue
            for mask, values in ((left, right), (right, left)):
                if _is_mask(source, mask) and not _is_mask(source, values) and _kind(source, values) == "distance":
                    yield Hit(
                        message=f"`{ast.unparse(call)}` takes a pair that `{ast.unparse(mask)}` leaves out: its "
                        "distance is set to 0, and no other one is smaller.",
                        node=call,
                    )


@without_cycles(False)
def _is_mask(source: SourceFile, node: ast.expr) -> bool:
    """Return True for the result of a comparison, also inverted, combined with another one or as numbers."""
    for each in origins(source, node, 3):
        match each:
            case ast.Compare() | ast.UnaryOp(op=ast.Invert()) | ast.BinOp(op=ast.BitAnd() | ast.BitOr()):
                return True
            case ast.Call(func=ast.Attribute(attr="eq" | "ne" | "logical_not" | "logical_and" | "bool")):
                return True
            case ast.Call(func=ast.Attribute(attr="float" | "int" | "long" | "to" | "type_as", value=inner)):
                return _is_mask(source, inner)
            case ast.BinOp(op=ast.Sub(), left=ast.Constant(value=1), right=inner):
                return _is_mask(source, inner) or last_name(getattr(inner, "func", None)) == "eye"
            case _:
                pass
    return False


def _hit(extremum: _Extremum, role: str, where: str) -> Hit:
    nearest = extremum.is_largest is (extremum.kind == "similarity")
    return Hit(
        message=f"`{ast.unparse(extremum.call)}` takes the {'nearest' if nearest else 'farthest'} "
        f"{'samples' if role.endswith('s') else 'sample'} for {role} in `{where}`: that is the easiest choice.",
        node=extremum.call,
    )


def _named(source: SourceFile) -> Iterator[tuple[_Extremum, bool, str]]:
    """Yield each extremum that is stored as the hardest pair, whether a positive one, and the name."""
    for statement in source.nodes_of(ast.Assign):
        target: Any = statement.targets[0]
        target = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
        words = name_words(last_name(target))
        is_positive, is_negative = bool(words & _POSITIVE), bool(words & _NEGATIVE)
        if not words & _HARD or "semi" in words or is_positive is is_negative:
            continue
        extremum = _extremum_of(source, statement.value)
        if extremum is not None:
            yield extremum, is_positive, last_name(target)


def _selected(source: SourceFile) -> Iterator[tuple[_Extremum, bool, str]]:
    """Yield each selection of several smallest or largest values of hard pairs, and whether they are positive."""
    for node in source.nodes_of(ast.Call, ast.Subscript):
        found = _several(node)
        if found is None:
            continue
        operand, is_largest = found
        words = {word for each in nodes_in(operand, ast.Name, ast.Attribute) for word in name_words(last_name(each))}
        is_positive, is_negative = bool(words & _POSITIVE), bool(words & _NEGATIVE)
        name = _named_hard(source, node) if is_positive is not is_negative else ""
        kind = _kind(source, operand) if name else ""
        if kind and not any(map(_is_negated, origins(source, operand, 3))):
            yield _Extremum(node, is_largest, kind), is_positive, name


def _several(node: ast.AST) -> tuple[ast.expr, bool] | None:
    """Return what ``topk(x, k)``, ``argsort(x)[:k]`` or ``argpartition(x, k)[:k]`` selects from, and if the largest."""
    match node:
        case ast.Call(func=ast.Attribute(attr="topk")):
            return _ranked_operand(node, is_largest=not _is_set(node, "largest", value=False))
        case ast.Subscript(value=inner, slice=ast.Slice(lower=lower, upper=upper, step=None)):
            is_last = isinstance(lower, ast.UnaryOp) and upper is None
            is_first = lower is None and upper is not None and not isinstance(upper, ast.UnaryOp)
        case _:
            return None
    is_reversed = isinstance(inner, ast.Subscript) and ast.unparse(inner.slice) == "::-1"
    ranked = inner.value if is_reversed and isinstance(inner, ast.Subscript) else inner
    if is_last is is_first or not isinstance(ranked, ast.Call) or last_name(ranked.func) not in _RANKINGS:
        return None
    is_descending = is_reversed is not _is_set(ranked, "descending", value=True)
    return _ranked_operand(ranked, is_largest=is_first is is_descending)


def _ranked_operand(call: ast.Call, *, is_largest: bool) -> tuple[ast.expr, bool] | None:
    """Return what a call ranks, and the direction, which a minus in front of the values inverts."""
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    operand = owner if owner is not None and last_name(owner) not in _LIBRARIES else next(iter(call.args), None)
    if isinstance(operand, ast.UnaryOp) and isinstance(operand.op, ast.USub):
        return operand.operand, not is_largest
    return None if operand is None else (operand, is_largest)


def _is_set(call: ast.Call, name: str, *, value: bool) -> bool:
    """Return True for a call with ``name=value``."""
    return any(each.arg == name and getattr(each.value, "value", None) is value for each in call.keywords)


def _named_hard(source: SourceFile, node: ast.AST) -> str:
    """Return the variable, function or class around a selection that is called hard; "" if there is none."""
    statement = source.statement_of(node)
    names = [last_name(each) for each in getattr(statement, "targets", ())]
    names += [getattr(enclosing_definition(source, node, kind), "name", "") for kind in (ast.FunctionDef, ast.ClassDef)]
    hard = [each for each in names if name_words(each) & _HARD]
    return hard[0] if hard and not any(name_words(each) & {"semi", "semihard", "easy"} for each in names) else ""


def _ranked(source: SourceFile) -> Iterator[tuple[Term, ...]]:
    """Yield the terms of ``margin_ranking_loss(negative, positive, ones)``, which is the hinge of their difference."""
    for call in source.all_calls:
        made = [each for each in origins(source, call.func, 2) if isinstance(each, ast.Call)]
        names = {last_name(each.func) for each in (call, *made)}
        if names & {"margin_ranking_loss", "MarginRankingLoss"} and len(call.args) == 3:
            first, second, label = call.args
            if any(re.search(r"\bones", ast.unparse(each)) for each in origins(source, label, 2)):
                lower = [term._replace(sign=-term.sign) for term in signed_terms(source, first)]
                yield (*signed_terms(source, second), *lower)


def _clamped(source: SourceFile, terms: tuple[Term, ...]) -> Iterator[Term]:
    """Yield the terms of what one of some terms clamps from below: those of x for ``torch.clamp(x, min=0)``."""
    for term in terms:
        match term.node:
            case ast.Call(func=ast.Attribute(attr="clamp" | "clamp_min" | "clip", value=owner), args=args):
                inner = args[0] if last_name(owner) == "torch" and args else owner
                yield from (each._replace(sign=each.sign * term.sign) for each in signed_terms(source, inner))
            case _:
                pass


def _extremum(source: SourceFile, node: ast.expr) -> _Extremum | None:
    """Return the extremum that a term of a loss is; None if it is none."""
    call = unpacked_call(source, node) if isinstance(node, ast.Name) else None
    return _extremum_of(source, call or node)


def _extremum_of(source: SourceFile, node: ast.expr) -> _Extremum | None:
    """Return the extremum of masked values that ``x.max(1)[0]`` or ``x.max(1).values`` is; None for other values."""
    match node:
        case ast.Attribute(value=inner, attr="values" | "indices") | ast.Subscript(value=inner, slice=ast.Constant()):
            node = inner
        case _:
            pass
    found = reduction(node, _SMALLEST | _LARGEST)
    if found is None or not isinstance(node, ast.Call):
        return None
    operands = list(origins(source, found.operand, 3))
    kind = _kind(source, found.operand)
    is_known = any(map(_is_masked, operands)) and kind and not any(map(_is_negated, operands))
    return _Extremum(node, last_name(node.func) in _LARGEST, kind) if is_known else None


def _is_masked(node: ast.expr) -> bool:
    """Return True for values that a mask selects: by a product, ``masked_fill``, ``where`` or an index."""
    match node:
        case ast.Call(func=func):
            return last_name(func) in ("masked_fill", "where", "masked_select")
        case ast.Subscript(slice=index):
            return not isinstance(index, ast.Constant | ast.Slice)
        case ast.BinOp(op=ast.Mult() | ast.Add() | ast.Sub()):
            return True
        case _:
            return False


def _is_negated(node: ast.expr) -> bool:
    """Return True if an expression contains the negative of a variable, but not of infinity or a number."""
    return any(
        isinstance(each.op, ast.USub) and bool(nodes_in(each.operand, ast.Name)) and "inf" not in ast.unparse(each)
        for each in nodes_in(node, ast.UnaryOp)
    )


def _kind(source: SourceFile, node: ast.expr) -> str:
    """Return "distance" or "similarity" for what a value contains; "" if that is not known."""
    kinds = set[str]()
    is_product = False
    for each in computed_from(source, node, 4):
        name = last_name(each.func) if isinstance(each, ast.Call) else ""
        if name in _DISTANCES:
            return "distance"
        is_product = is_product or name in _PRODUCTS
        is_product = is_product or (isinstance(each, ast.BinOp) and isinstance(each.op, ast.MatMult))
        if isinstance(each, ast.Name | ast.Attribute):
            kinds |= {"distance"} if _DISTANCE_NAME.search(last_name(each)) else set()
            kinds |= {"similarity"} if _SIMILARITY_NAME.search(last_name(each)) else set()
    if len(kinds) == 1:
        return kinds.pop()
    return "similarity" if is_product and not kinds else ""


RULE: Final = Rule(
    required_words=(
        "max(&min(|topk(|argpartition(|argsort(",
        "margin|hard|Hard|relu|softplus",
        "cdist|dist|sim|norm|matmul|mm(|@",
        "torch",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(300, 8)
labels = (x[:, 0] > 0).long() + (x[:, 1] > 0).long() * 2
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(30):
    rows = torch.randperm(300)[:48]
    z = model(x[rows])
    distance = torch.cdist(z, z)
    same = labels[rows][:, None] == labels[rows]
    positive = distance.masked_fill(~same, 1e6).min(1).values
    negative = distance.masked_fill(same, -1e6).max(1).values
    loss = torch.relu(positive - negative + 0.3).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""

FAILURE = Failure(
    code="LOS067",
    title="Hardest positive and negative are not the hardest ones",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "masked_fill(~same, 1e6).min(1)": "masked_fill(~same, -1e6).max(1)",
            "masked_fill(same, -1e6).max(1)": "masked_fill(same, 1e6).min(1)",
        },
    ),
    fix="Take the largest distance of the positives and the smallest of the negatives; leave others out with "
    "`masked_fill`.",
    rule=RULE,
)
