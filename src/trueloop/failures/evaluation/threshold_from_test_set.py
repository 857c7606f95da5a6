"""The decision threshold is chosen by the score on the test set, and that score is reported.

What you see
    F1 or accuracy on the test set is better than on the next batch of new data, the more so the smaller the test set is
    and the more thresholds are tried.

Why it happens
    The largest of a hundred scores is partly luck: the threshold fits the samples on which it was chosen. Nothing tells
    a search on test samples from one on validation samples.

Fix
    Choose the threshold on validation samples, and apply it to the test set once.

        best = max(thresholds, key=lambda t: f1_score(y_val, p_val > t))
        print(f1_score(y_test, p_test > best))

When this is fine
    - The scores of all thresholds are shown, as in a precision-recall curve, and none is chosen.
    - The part that is called test is a validation set, and another one is scored at the end.

How it is detected
    Only the linter finds it: a loop or comprehension over ``arange``, ``linspace`` or values called thresholds compares
    outputs with each, scores the result with something that is called test data, and the largest score is kept, by
    ``max``, ``argmax`` or a comparison with the best one.

References
    Lipton et al., 2014, "Optimal Thresholding of Classifiers to Maximize F1 Measure", arXiv:1402.1892
"""

import ast
import re
from collections.abc import Iterator
from typing import Any, Final

from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.held_out_names import data_words
from trueloop.analysis.queries.loop_variables import stored_names
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.source_text import encloses, nodes_in
from trueloop.failures.failure import Failure, Rule, Severity, changed

_TEST: Final = frozenset(("test", "tst", "testing"))
_VALIDATION: Final = frozenset(("val", "valid", "validation", "dev", "vali", "train", "calibration", "cal"))
_GRIDS: Final = frozenset(("arange", "linspace", "logspace"))
_THRESHOLD: Final = re.compile(r"thr|cut|(^|_)(t|th|tau)s?(_|$)", re.IGNORECASE)
_SCORE: Final = re.compile(r"f1|score|acc|precision|recall|mcc|jaccard|kappa|iou|dice|metric", re.IGNORECASE)


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each search for a threshold by a score on test data."""
    for loop in source.nodes_of(ast.For, ast.ListComp, ast.GeneratorExp, ast.Call):
        searched = _search(source, loop)
        if searched is None:
            continue
        threshold, body = searched
        score = next((each for each in nodes_in(body, ast.Call) if _scores_test_data(each, threshold, body)), None)
        if score is not None and _keeps_best(source, loop):
            yield Hit(
                message=f"The threshold `{threshold}` is chosen by `{ast.unparse(score)}`, on test data: the score is "
                "the best of many on the same samples. Choose it on validation data.",
                node=score,
            )


def _search(source: SourceFile, node: Any) -> tuple[str, ast.AST] | None:
    """Return the variable and the body of a search over thresholds; None for other loops and calls."""
    match node:
        case ast.For(target=ast.Name(id=name), iter=values):
            body: ast.AST = node
        case ast.ListComp(elt=body, generators=[ast.comprehension(target=ast.Name(id=name), iter=values)]):
            pass
        case ast.GeneratorExp(elt=body, generators=[ast.comprehension(target=ast.Name(id=name), iter=values)]):
            pass
        case ast.Call(
            func=ast.Name(id="max"),
            args=[values],
            keywords=[
                ast.keyword(arg="key", value=ast.Lambda(args=ast.arguments(args=[ast.arg(arg=name)]), body=body))
            ],
        ):
            pass
        case _:
            return None
    is_grid = any(last_name(c.func) in _GRIDS for each in origins(source, values, 2) for c in nodes_in(each, ast.Call))
    return (name, body) if is_grid or _THRESHOLD.search(last_name(values)) else None


def _scores_test_data(call: ast.Call, threshold: str, body: ast.AST) -> bool:
    """Return True for a metric of test data and of a comparison with a threshold, perhaps through a variable."""
    if not _SCORE.search(last_name(call.func)):
        return False
    given: list[ast.AST] = [*call.args, *(each.value for each in call.keywords)]
    names = {each.id for part in given for each in nodes_in(part, ast.Name)}
    assigned = [e for e in nodes_in(body, ast.Assign) if names & {getattr(t, "id", "") for t in e.targets}]
    given += [each.value for each in assigned]
    words = {word for part in given for word in data_words(part)}
    compared = [each for part in given for each in nodes_in(part, ast.Compare)]
    uses = any(name.id == threshold for each in compared for name in nodes_in(each, ast.Name))
    return uses and bool(words & _TEST) and not words & _VALIDATION


def _keeps_best(source: SourceFile, loop: ast.AST) -> bool:
    """Return True if the largest of the scores is kept."""
    if isinstance(loop, ast.Call):
        return True
    if isinstance(loop, ast.For):
        tests = [each.test for each in nodes_in(loop, ast.If)]
        if any("best" in ast.unparse(each) or "max" in ast.unparse(each) for each in tests):
            return True
    statement = source.statement_of(loop)
    largest = [each for each in nodes_in(statement, ast.Call) if last_name(each.func) in ("max", "argmax")]
    if any(encloses(each, loop) for each in largest):
        return True
    names = stored_names(statement)
    names |= {
        last_name(getattr(each.func, "value", None))
        for each in nodes_in(loop, ast.Call)
        if last_name(each.func) == "append"
    }
    return any(
        last_name(each.func) in ("max", "argmax") and names & {name.id for name in nodes_in(each, ast.Name)}
        for each in nodes_in(function_of(source, loop), ast.Call)
    )


RULE: Final = Rule(required_words=("test", "arange|linspace|logspace|thr", "best|max", "torch", "> |>= |< "), find=find)

BAD = """
import numpy as np
import torch
from sklearn.metrics import f1_score
from torch import nn

torch.manual_seed(0)
x = torch.randn(500, 8)
y = (x[:, 0] + torch.randn(500) > 1).float()
x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:], y[400:]
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for step in range(40):
    optimizer.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(x_train).squeeze(1), y_train).backward()
    optimizer.step()
with torch.no_grad():
    p_test = torch.sigmoid(model(x_test)).squeeze(1).numpy()
best_f1, best_threshold = 0.0, 0.5
for threshold in np.arange(0.05, 0.95, 0.01):
    f1 = f1_score(y_test.numpy(), p_test > threshold)
    if f1 > best_f1:
        best_f1, best_threshold = f1, threshold
print("test F1", best_f1, "at", best_threshold)
"""

FAILURE = Failure(
    code="EVL031",
    title="The threshold is chosen on the test set",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(
        BAD,
        {
            "x_train, y_train, x_test, y_test = x[:400], y[:400], x[400:], y[400:]": (
                "x_train, y_train, x_val, y_val = x[:400], y[:400], x[400:], y[400:]"
            ),
            "p_test = torch.sigmoid(model(x_test))": "p_val = torch.sigmoid(model(x_val))",
            "f1_score(y_test.numpy(), p_test > threshold)": "f1_score(y_val.numpy(), p_val > threshold)",
            'print("test F1", best_f1': 'print("validation F1", best_f1',
        },
    ),
    fix="Choose the threshold on validation samples, and apply it to the test set once.",
    rule=RULE,
)
