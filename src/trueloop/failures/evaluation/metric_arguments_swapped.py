"""A metric of scikit-learn gets the predictions first, but expects the labels first.

What you see
    R2 is lower than the mean squared error suggests, or precision is what you expect of recall and the reverse. No
    error is raised: both arguments have the same shape.

Why it happens
    Most metrics are not symmetric. scikit-learn expects ``metric(y_true, y_pred)``, while the losses of PyTorch and the
    metrics of torchmetrics expect the predictions first. R2 then divides by the variance of the predictions, and the
    precision of one order is the recall of the other.

Fix
    Pass the labels first, or use keywords:

        r2 = r2_score(labels, predictions)
        precision = precision_score(y_true=labels, y_pred=predictions)

When this is fine
    - A confusion matrix is only shown, or its cells are named in the other order: ``tn, fn, fp, tp``.
    - The metric is symmetric: accuracy, a mean squared or absolute error, a correlation, or F1 without weights.
    - The function is one of torchmetrics, or one of the program whose parameters have this order.
    - The names suggest another order than the program means, such as ``labels`` for clusters that were found.

How it is detected
    Only the linter finds it, by names: the function comes from ``sklearn.metrics`` and is not symmetric, its first
    argument is a prediction (``preds``, ``outputs``, ``y_hat``, ``model(x)``, ``scores.argmax(1)``), and its second one
    the labels (``y_true``, ``labels``, ``targets``, ``y_test``). A variable like ``p`` has the names of its value, and
    a list those of what is appended to it. A function of the program that is called like such a metric is judged by the
    names of its parameters: ``def r2(y_true, y_pred)``. A confusion matrix counts if its cells are called ``fp`` and
    ``fn``, or its row sums give the recall.

References
    scikit-learn, "Metrics and scoring", https://scikit-learn.org/stable/modules/model_evaluation.html
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of, without_conversions
from trueloop.analysis.queries.class_instances import called_function
from trueloop.analysis.queries.possible_values import parameters_of, possible_values
from trueloop.analysis.queries.request_handlers import imported_names, qualified_name
from trueloop.analysis.queries.shuffled_loaders import passed_argument
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import Fix, dotted_name, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_ASYMMETRIC: Final = frozenset((
    "r2_score", "explained_variance_score", "mean_absolute_percentage_error", "d2_absolute_error_score",
    "mean_pinball_loss", "mean_gamma_deviance", "mean_poisson_deviance", "precision_score", "recall_score",
    "fbeta_score", "precision_recall_fscore_support", "precision_recall_curve", "roc_curve", "roc_auc_score",
    "average_precision_score", "log_loss", "brier_score_loss", "classification_report", "balanced_accuracy_score",
    "det_curve", "ndcg_score", "top_k_accuracy_score",
))  # fmt: skip
_OWN: Final = re.compile(
    r"(^|_)(r2|r_?squared?|mape|precision|recall|auc|auroc|roc|explained|nse|f_?beta|sensitivity|specificity|tpr|fpr"
    r"|ndcg|average_precision|log_?loss)(_|$)",
    re.IGNORECASE,
)
"""Names of the program's own metrics that have another value if their arguments are exchanged."""
_PREDICTION: Final = re.compile(
    r"(^|_)(y?preds?|predicted|predictions?|predict|outputs?|outs?|logits?|y?hats?|y?scores?|yhat|probs?|proba"
    r"|probabilities|estimates?|estimated|forecasts?|guess(es|ed)?|decoded|inferred|decisions?)(_|$|\d)",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(
    r"(^|_)(y?true|truths?|trues|targets?|labels?|gts?|actuals?|ground|gold|references?|expected|y|ys|y[tv]e?|ytest|yval"
    r"|answers?|real|wanted)(_|$|\d)",
    re.IGNORECASE,
)
_AMBIGUOUS: Final = re.compile(r"(^|_)(answers?|real|labels?)(_|$)", re.IGNORECASE)
"""Names of labels that also name what a model says."""
_COMPUTED: Final = frozenset(("argmax", "sigmoid", "softmax", "predict", "predict_proba", "round", "log_softmax"))


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of an asymmetric metric with a prediction where it expects the labels."""
    names = imported_names(source.tree)
    for each in nodes_in(source.tree, ast.FunctionDef):
        names.pop(each.name, None)  # the program's own function replaces the imported one
    for node in source.all_calls:
        labels, predictions = _of_library(source, node, names) or _of_own_function(source, node)
        if labels is None or predictions is None:
            continue
        first_values, second_values = _named(source, labels), _named(source, predictions)
        if not all(map(_is_prediction, first_values)) or not all(map(_is_label, second_values)):
            continue
        first, second = ast.unparse(labels), ast.unparse(predictions)
        is_first = (labels.lineno, labels.col_offset) < (predictions.lineno, predictions.col_offset)
        order = "labels first, then the predictions" if is_first else "predictions first, then the labels"
        yield Hit(
            message=f"`{last_name(node.func)}` expects the {order}: here `{first}` holds predictions and `{second}` "
            "labels.",
            node=node,
            fix=Fix(
                (source.text.replace(labels, second), source.text.replace(predictions, first)),
                safe=False,
                description=f"Pass the {order.partition(',')[0]}",
            ),
        )


def _of_library(
    source: SourceFile, node: ast.Call, names: dict[str, str]
) -> tuple[ast.expr | None, ast.expr | None] | None:
    """Return what a metric of scikit-learn takes for the labels and for the predictions; None for other calls."""
    module, _, function = qualified_name(node.func, names).rpartition(".")
    is_used = function == "confusion_matrix" and _names_its_cells(source, node)
    if module != "sklearn.metrics" or not (function in _ASYMMETRIC or is_used):
        return None
    given: dict[str, ast.expr] = {each.arg: each.value for each in node.keywords if each.arg is not None}
    predictions = next(
        (value for key, value in given.items() if key in ("y_pred", "y_score", "y_prob", "y_proba")),
        node.args[1] if len(node.args) > 1 else None,
    )
    return given.get("y_true") or (node.args[0] if node.args else None), predictions


def _of_own_function(source: SourceFile, node: ast.Call) -> tuple[ast.expr | None, ast.expr | None]:
    """Return the same for a metric of the program, by the names of its parameters."""
    function = called_function(source, node) if _OWN.search(last_name(node.func)) else None
    if function is None:
        return None, None
    names = [ast.Name(id=each.arg) for each in parameters_of(function)]
    found = [[each.id for each in names if is_of_kind(each)] for is_of_kind in (_is_label, _is_prediction)]
    passed = [passed_argument(source, function, node, each[0]) if len(each) == 1 else None for each in found]
    return passed[0], passed[1]


def _named(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return a value, or what the program puts into the list that it is, if that is known; see `_named_value`."""
    name = dotted_name(_base(node))
    collected = list(_collected(function_of(source, node), name)) if name else []
    values = [value for each in collected for value in _named_value(source, each)]
    is_known = bool(values) and (all(map(_is_prediction, values)) or all(map(_is_label, values)))
    return values if is_known else _named_value(source, node)


def _collected(function: Any, name: str) -> Iterator[ast.expr]:
    """Yield what a function appends to a list or an array."""
    for node in nodes_in(function, ast.Call, ast.AugAssign, ast.Assign):
        match node:
            case ast.Call(func=ast.Attribute(attr="append" | "extend", value=owner), args=[value]):
                yield from [value] if dotted_name(owner) == name else []
            case ast.AugAssign(target=owner, op=ast.Add(), value=value) if dotted_name(owner) == name:
                yield from value.elts if isinstance(value, ast.List) else [value]
            case ast.Assign(targets=[owner], value=ast.Call(args=[first, *rest], func=func)) if dotted_name(
                owner
            ) == name and last_name(func) in ("append", "concatenate", "cat", "hstack"):
                parts = [first, *rest] if last_name(func) == "append" else getattr(first, "elts", [])
                is_added = len(parts) > 1 and dotted_name(parts[0]) == name  # y_true = np.append(y_true, labels)
                yield from parts[1:2] if is_added else []
            case _:
                pass


def _named_value(source: SourceFile, node: ast.expr) -> list[ast.expr]:
    """Return a value, or what its variable may be if the name says nothing: ``p = np.concatenate(preds)``."""
    base = _base(node)
    if not isinstance(base, ast.Name):
        return [node]
    values = possible_values(source, base)
    if _AMBIGUOUS.search(base.id) and values and all(map(_is_computed, values)):
        return values
    return [node] if _PREDICTION.search(base.id) or _LABEL.search(base.id) else values or [node]


def _names_its_cells(source: SourceFile, matrix: ast.Call) -> bool:
    """Return True if the program reads false positives of a confusion matrix at row 0, or scores of its rows."""
    parent = source.parents.get(id(matrix))
    names = [ast.unparse(matrix)]
    if isinstance(parent, ast.Assign):
        names += map(ast.unparse, parent.targets)
    for each in nodes_in(function_of(source, matrix), ast.Assign):
        value, target = ast.unparse(each.value), each.targets[0]
        cells = [ast.unparse(part).lower() for part in target.elts] if isinstance(target, ast.Tuple) else []
        is_unpacked = any(value in (f"{name}.ravel()", f"{name}.flatten()", f"{name}.reshape(-1)") for name in names)
        if is_unpacked and len(cells) == 4 and cells[1].startswith(("fp", "false_p")):
            return True
        name = last_name(target).lower()
        position = {"fp": r"\[0(, |\]\[)1\]", "fn": r"\[1(, |\]\[)0\]"}.get(name)
        axis = next((number for word, number in (("recall", 1), ("precision", 0)) if word in name), None)
        patterns = [position] if position else [] if axis is None else [rf"\.sum\((axis=|dim=)?{axis}\)"]
        if any(re.search(re.escape(known) + pattern, value) for known in names for pattern in patterns):
            return True
    return False


def _is_prediction(node: ast.expr) -> bool:
    return bool(_PREDICTION.search(last_name(_base(node)))) or _is_computed(node)


def _is_label(node: ast.expr) -> bool:
    name = last_name(_base(node))
    return bool(_LABEL.search(name)) and not _PREDICTION.search(name) and not _is_computed(node)


def _is_computed(node: ast.expr) -> bool:
    """Return True if an expression calls what makes predictions of the outputs of a model."""
    return any(last_name(each.func) in _COMPUTED for each in nodes_in(node, ast.Call))


def _base(node: ast.expr) -> ast.expr:
    """Return the variable, attribute or call that a value is made from by conversions, indexing and thresholds."""
    while True:
        node = without_conversions(node)
        match node:
            case ast.Subscript(slice=ast.Constant(value=str(key))):
                return ast.Name(id=key)
            case ast.Subscript(value=inner) | ast.Compare(left=inner):
                node = inner
            case ast.Call(func=ast.Attribute(attr="ravel" | "flatten" | "reshape" | "squeeze" | "astype", value=inner)):
                node = inner
            case ast.Call(args=[inner], func=func) if last_name(func) in (
                "concatenate", "cat", "array", "asarray", "vstack", "hstack", "stack", "list", "squeeze", "ravel",
            ):  # fmt: skip
                node = inner
            case _:
                return node


_MENTIONED: Final = re.compile(rf"{'|'.join(sorted({*_ASYMMETRIC, 'confusion_matrix'}))}|def \w*?{_OWN.pattern}", re.I)
RULE = Rule(required_words=(_MENTIONED,), find=find)

BAD = """
import torch
from sklearn.metrics import r2_score
from torch import nn

torch.manual_seed(0)
x = torch.randn(400, 6)
y = x[:, :1] + 0.5 * torch.randn(400, 1)
model = nn.Linear(6, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for start in range(0, 300, 30):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[start : start + 30]), y[start : start + 30])
    loss.backward()
    optimizer.step()
model.eval()
with torch.inference_mode():
    predictions = model(x[300:])
print("R2", r2_score(predictions.numpy(), y[300:].numpy()))
"""

FAILURE = Failure(
    code="EVL020",
    title="The arguments of a metric are swapped",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(
        BAD, {"r2_score(predictions.numpy(), y[300:].numpy())": "r2_score(y[300:].numpy(), predictions.numpy())"}
    ),
    fix="Pass the labels first: `r2_score(labels, predictions)`.",
    rule=RULE,
)
