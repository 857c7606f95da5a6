"""A metric is computed by a wrong formula: recall and precision swapped, IoU without its intersection, and the like.

What you see
    The metric differs from that of a library for the same predictions, or a random model has a good score.

Why it happens
    The formulas look alike. Precision divides by what was predicted, true and false positives, and recall by what is
    there, true positives and false negatives. The union of two sets counts their intersection once. R2 divides the
    squared errors by the variance, not the reverse. The predicted class has the largest output, not the smallest.

Fix
    Compare with the definition, or use torchmetrics or scikit-learn.

        precision, recall = tp / (tp + fp), tp / (tp + fn)
        iou = intersection / (a + b - intersection)
        r2 = 1 - residual_sum / total_sum
        predicted = logits.argmax(1)

When this is fine
    - The variables are not called what the formula says, such as ``fp`` for correct predictions.
    - The outputs are distances or errors, so that the smallest is the best.

How it is detected
    Only the linter finds it, from the names of variables and functions: ``recall`` and ``precision`` from ``tp``,
    ``fp`` and ``fn``; an accuracy that ``//`` rounds down; ``iou`` over a sum of two sums; the intersection of boxes
    without a limit at 0; ``r2`` with the total sum of squares in the numerator; a ``nanmean`` over quotients of which
    ``np.maximum`` or a small constant keeps the divisor above 0; the p-value of SciPy under the name of a
    correlation; and ``argmin`` or ``topk(largest=False)`` of the outputs of a model trained with a cross-entropy,
    compared with labels.

References
    scikit-learn, "Metrics and scoring", https://scikit-learn.org/stable/modules/model_evaluation.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.metric_names import name_words
from trueloop.analysis.queries.possible_values import origins, possible_values
from trueloop.analysis.queries.td_targets import without_views
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import integer, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_FALSE: Final = {"precision": "fn", "recall": "fp", "sensitivity": "fp"}
"""Metric -> the count that does not belong into its denominator."""
_COUNTS: Final = {
    "tp": re.compile(r"(^|_)tps?(_|$)|true_?pos", re.IGNORECASE),
    "fp": re.compile(r"(^|_)fps?(_|$)|false_?pos", re.IGNORECASE),
    "fn": re.compile(r"(^|_)fns?(_|$)|false_?neg", re.IGNORECASE),
}
_TOTAL: Final = re.compile(r"(^|_)(ss_?t(ot)?|sst|tss|total_sum|ss_?total|tot)(_|$)", re.IGNORECASE)
_RESIDUAL: Final = re.compile(r"(^|_)(ss_?r(es)?|sse|rss|residual_sum|ss_?residual|res)(_|$)", re.IGNORECASE)
MAX_PARTS: Final = 12
_LIMITING: Final = frozenset(
    ("clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "relu", "where", "zeros_like", "zeros")
)
_CROSS_ENTROPY: Final = re.compile(r"cross_?entropy|nll_?loss", re.IGNORECASE)
_OVERLAP: Final = re.compile(r"inter", re.IGNORECASE)
_CORRELATIONS: Final = frozenset(("spearmanr", "pearsonr", "kendalltau"))
_CORRELATION: Final = re.compile(r"corr|spearman|pearson|kendall|rho\b|[spk][lr]cc\b", re.IGNORECASE)
_P_VALUE: Final = re.compile(r"(\b|_)p(\b|_)|p_?val|signif", re.IGNORECASE)
_HITS: Final = re.compile(r"diag|inter|(^|_)tps?\b|true_?pos", re.IGNORECASE)
_SETS_NAN: Final = re.compile(r"np\.nan\b(?!mean)|torch\.nan\b|[\"']nan[\"']|np\.NaN|math\.nan|numpy\.nan\b")
_AT_LEAST: Final = frozenset(("maximum", "clamp", "clamp_min", "clip", "max"))
_EPSILON: Final = re.compile(r"\d*\.?\d*e-\d+|\beps|smooth|0\.0*1$", re.IGNORECASE)
_LOGITS: Final = re.compile(r"logit|out|pred|prob|score|^(model|net|self\.model|self\.net)$", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each metric that is computed by a wrong formula."""
    for name, value in _named_values(source):
        wrong = _wrong(source, name, value)
        if wrong:
            yield Hit(message=f"`{ast.unparse(value)}` is not the {wrong}.", node=value)
    yield from _absent_classes(source)
    yield from _p_values(source)
    if source.mentions(_CROSS_ENTROPY):
        yield from _smallest_outputs(source)


def _p_values(source: SourceFile) -> Iterator[Hit]:
    """Yield each p-value of ``spearmanr(a, b)`` whose variable, function or class is called a correlation."""
    for name, value in _named_values(source) if definitions(source).calls.keys() & _CORRELATIONS else ():
        read = without_views(value)
        is_second = isinstance(read, ast.Subscript) and integer(read.slice) == 1
        owner = getattr(read, "value", None) if is_second or getattr(read, "attr", "") == "pvalue" else None
        results = origins(source, owner, 2) if owner is not None else ()
        made = {last_name(each.func) for each in results if isinstance(each, ast.Call)}
        around = getattr(source.parents.get(id(function_of(source, value))), "name", "")
        called = f"{around} {name}" if isinstance(source.parents.get(id(value)), ast.Return) else name
        if made & _CORRELATIONS and _CORRELATION.search(called) and not _P_VALUE.search(called):
            yield Hit(message=f"`{ast.unparse(read)}` is the p-value, and not the correlation.", node=value)


def _absent_classes(source: SourceFile) -> Iterator[Hit]:
    """Yield each quotient of which ``nanmean`` skips the classes that do not occur, but that is 0 for these."""
    calls, seen = definitions(source).calls.get("nanmean", []), set[int]()
    for call in calls if calls and not source.mentions(_SETS_NAN) else ():
        for each in origins(source, call.args[0]) if call.args else ():
            match each:
                case ast.BinOp(left=top, op=ast.Div(), right=bottom) if _HITS.search(ast.unparse(top)):
                    parts = {last_name(c.func) for c in nodes_in(bottom, ast.Call)} & _AT_LEAST
                    added = [e.right for e in nodes_in(bottom, ast.BinOp) if isinstance(e.op, ast.Add)]
                    is_shifted = any(_EPSILON.search(ast.unparse(e)) for e in added)
                    if (parts or is_shifted) and not _EPSILON.search(ast.unparse(top)) and id(each) not in seen:
                        seen.add(id(each))
                        yield Hit(
                            message=f"`{ast.unparse(each)}` is 0 for a class that does not occur, and not NaN: "
                            f"`{ast.unparse(call.func)}` counts it instead of skipping it, so the mean is too low.",
                            node=each,
                            related=((call, "averaged here"),),
                        )
                case _:
                    pass


def _named_values(source: SourceFile) -> Iterator[tuple[str, ast.expr]]:
    """Yield what is assigned to each name, and what each function returns."""
    for node in source.nodes_of(ast.Assign, ast.Return):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from ((last_name(each), value) for each, value in zip(target.elts, node.value.elts, strict=False))
        elif node.value is not None:
            yield (
                last_name(target) if target is not None else getattr(function_of(source, node), "name", ""),
                node.value,
            )


def _wrong(source: SourceFile, name: str, value: ast.expr) -> str:
    """Return what a value is not, and how that is computed; "" if it is right or unknown."""
    words = name_words(name)
    divisions = [each for each in nodes_in(value, ast.BinOp) if isinstance(each.op, ast.Div)]
    if words & {"acc", "accuracy"} and _is_rounded_down(source, value):
        return "accuracy: `//` rounds it down to 0 unless all predictions are right"
    for metric, count in _FALSE.items():
        if metric in words and len(words & _FALSE.keys()) == 1 and len(divisions) == 1:
            top, bottom = _counted(divisions[0].left), _counted(divisions[0].right)
            if top == {"tp"} and bottom == {"tp", count}:
                return f"{metric}: that divides by tp + {'fp' if count == 'fn' else 'fn'}"
    if words & {"iou", "jaccard"} and len(divisions) == 1 and _OVERLAP.search(ast.unparse(divisions[0].left)):
        union = _union(source, divisions[0].right)
        if union is not None:
            return f"intersection over union: `{ast.unparse(union)}` counts the intersection twice"
    if words & {"inter", "intersection", "overlap"} and _may_be_negative(source, value):
        return "area of the intersection: boxes apart have a negative width and height; clamp both to 0"
    if "r2" in words and len(divisions) == 1:
        top, bottom = ast.unparse(divisions[0].left), ast.unparse(divisions[0].right)
        if _TOTAL.search(top) and _RESIDUAL.search(bottom) and not _TOTAL.search(bottom):
            return "R2: that is 1 minus the squared errors over the total sum of squares"
    return ""


def _may_be_negative(source: SourceFile, value: ast.expr) -> bool:
    """Return True for ``(x2 - x1) * (y2 - y1)`` of the smaller right and larger left borders, without a limit at 0."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    for side in (value.left, value.right):
        found = [
            each for each in origins(source, side, 1) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Sub)
        ]
        if len(found) != 1:
            return False
        borders = [
            {last_name(call.func) for each in origins(source, border, 2) for call in nodes_in(each, ast.Call)}
            for border in (found[0].left, found[0].right)
        ]
        if not borders[0] & {"min", "minimum"} or not borders[1] & {"max", "maximum"}:
            return False
    function = function_of(source, value)
    is_limited = any(
        last_name(each.func) in _LIMITING or any(getattr(given, "value", None) == 0 for given in each.args)
        for each in nodes_in(function, ast.Call)
    )
    return not is_limited and not nodes_in(function, ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def _is_rounded_down(source: SourceFile, value: ast.expr) -> bool:
    """Return True for ``correct // total``, but not for ``100 * correct // total``."""
    for each in nodes_in(value, ast.BinOp):
        if isinstance(each.op, ast.FloorDiv) and not nodes_in(each.left, ast.Mult, ast.Pow):
            is_count = re.search(r"len\(|total|num|\bn\b|count|size|shape", ast.unparse(each.right))
            parent = source.parents.get(id(each))
            if is_count and not (isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.FloorDiv)):
                return True
    return False


def _counted(node: ast.expr) -> set[str]:
    """Return which of tp, fp and fn an expression contains; nothing if it contains another variable."""
    names = {last_name(each) for each in nodes_in(node, ast.Name, ast.Attribute)} - {"self"}
    kinds = {name: {kind for kind, pattern in _COUNTS.items() if pattern.search(name)} for name in names}
    counted = {kind for found in kinds.values() for kind in found}
    unknown = [name for name, found in kinds.items() if len(found) != 1 and not re.search(r"eps|max|sum|float", name)]
    return set() if unknown else counted


def _union(source: SourceFile, node: ast.expr) -> ast.expr | None:
    """Return the sum of two sums that an expression is, besides a small constant; None if something is subtracted."""
    parts, summed = [node], list[ast.expr]()
    for part in parts:  # grows
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Add):
            parts += [part.left, part.right]
        elif isinstance(part, ast.Call) and last_name(part.func) in ("sum", "count_nonzero"):
            summed.append(part)
        elif isinstance(part, ast.Name) and not re.search("eps|smooth", part.id, re.IGNORECASE):
            values = possible_values(source, part)
            if len(values) != 1 or len(parts) > MAX_PARTS:
                return None
            parts += values
        elif not isinstance(part, ast.Constant | ast.Name):
            return None
    return node if len(summed) == 2 and not any("|" in ast.unparse(each) for each in summed) else None


def _smallest_outputs(source: SourceFile) -> Iterator[Hit]:
    """Yield each comparison of labels with the class of the smallest output."""
    for comparison in source.nodes_of(ast.Compare):
        if not isinstance(comparison.ops[0], ast.Eq):
            continue
        for side in (comparison.left, comparison.comparators[0]):
            for value in origins(source, side, 2):
                for call in nodes_in(value, ast.Call):
                    owner = _judged(source, call)
                    if owner is not None and not _is_distance(source, call, owner):
                        yield Hit(
                            message=f"`{ast.unparse(call)}` takes the class with the smallest output, but a "
                            "cross-entropy gives the right class the largest one.",
                            node=call,
                        )


def _judged(source: SourceFile, call: ast.Call) -> ast.expr | None:
    """Return x of ``x.argmin(1)``, ``torch.argmin(x, 1)`` and ``x.topk(k, largest=False)``."""
    name = last_name(call.func)
    is_smallest = any(
        each.arg == "largest" and isinstance(each.value, ast.Constant) and each.value.value is False
        for each in call.keywords
    )
    if not isinstance(call.func, ast.Attribute) or not (name == "argmin" or (name == "topk" and is_smallest)):
        return None
    owner = call.func.value
    return call.args[0] if last_name(owner) in ("torch", "np") and call.args else owner


def _is_distance(source: SourceFile, call: ast.Call, owner: ast.expr) -> bool:
    """Return True unless the values are called logits, outputs, predictions or the like, or are those of a model."""
    names = {last_name(each.func if isinstance(each, ast.Call) else each) for each in origins(source, owner, 2)}
    text = (
        ast.unparse(function_of(source, call)) if function_of(source, call) is not source.tree else ast.unparse(owner)
    )
    return not any(_LOGITS.search(each) for each in names) or re.search(r"dist|err|cdist|norm\(", text) is not None


RULE = Rule(
    required_words=(
        "recall|precision|sensitivity|iou|jaccard|inter_|inter =|intersection|r2|argmin|largest|//|nanmean|"
        + "|".join(_CORRELATIONS),
        "torch",
    ),
    find=find,
)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(200, 8)
y = (x[:, 0] + x[:, 1] > 1).float()
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(20):
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(x[:150]).squeeze(1), y[:150]).backward()
    optimizer.step()
with torch.no_grad():
    predicted = model(x[150:]).squeeze(1) > 0
true = y[150:] > 0.5
tp, fp, fn = (predicted & true).sum(), (predicted & ~true).sum(), (~predicted & true).sum()
precision = tp / (tp + fn)
recall = tp / (tp + fn)
print(precision.item(), recall.item())
"""

FAILURE = Failure(
    code="EVL027",
    title="A metric is computed by a wrong formula",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"precision = tp / (tp + fn)": "precision = tp / (tp + fp)"}),
    fix="Compare the formula with the definition of the metric, or use torchmetrics or scikit-learn.",
    rule=RULE,
)
