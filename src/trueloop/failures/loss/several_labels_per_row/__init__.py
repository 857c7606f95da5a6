"""A loss with a softmax gets targets with several labels per sample, or with none.

What you see
    The loss falls for a while and stops far above 0: with three labels per sample it cannot go below 3.3. The scores
    of one label fall when another one rises, a sample without labels teaches nothing, and a threshold of 0.5 on the
    outputs finds at most one label.

Why it happens
    ``CrossEntropyLoss`` takes targets of floating-point numbers as probabilities of classes, of which only one is
    right, and does not check that each row sums to 1. The softmax makes all scores of a sample sum to 1.

Fix
    Judge each label for itself:

        criterion = nn.BCEWithLogitsLoss()  # and torch.sigmoid(logits) > 0.5 to predict

    For a model with a softmax at the end, remove the softmax.

When this is fine
    - Each row sums to 1: one-hot vectors, smoothed or mixed labels, the outputs of a teacher.
    - A row of zeros excludes a sample, and all other rows sum to 1.
    - Each label gets an equal share, ``labels / labels.sum(1, keepdim=True)``.
    - The target marks the positives of a contrastive loss, among the samples of the batch.
    - Counts of a multinomial model, such as the clicks of a user, are compared with a softmax over all items.

How it is detected
    In a run, the sanitizer reads the targets of ``cross_entropy``, and those of a binary cross-entropy or squared
    error of the output of a softmax. It reports a line where all targets are 0 or 1, and a tenth of 32 or more
    rows have several ones. A square matrix of targets is left out. The linter reports a cross-entropy for a model whose
    classes the same program finds with ``torch.sigmoid(model(x)) > 0.5``, and nowhere as the largest output, if it has
    no binary loss.

References
    torch.nn.CrossEntropyLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.possible_values import origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.formatting import format_percent
from trueloop.core.source_text import dotted_name, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import Event

MIN_ROWS: Final = 32
MIN_SHARE: Final = 0.1  # of rows with several labels
MAX_LINES: Final = 16
_LOSSES: Final = frozenset(("torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy"))


@dataclass(slots=True, kw_only=True, eq=False)
class LabelRowsRead(Event):
    """The targets of a loss with a softmax were read."""

    loss: str
    """The loss: "cross_entropy"; or that of the output of a softmax: "binary_cross_entropy", "mse_loss"."""
    called_at: CodePosition | None
    rows: int
    several: int
    """Number of rows with several ones; -1 = some targets are neither 0 nor 1."""


@dataclass(slots=True)
class _Rows:
    rows: int = 0
    several: int = 0
    is_judged: bool = False


class Detector(BaseDetector):
    """Counts the rows with several labels of each line."""

    def __init__(self) -> None:
        self._lines = dict[CodePosition | None, _Rows]()

    def on_label_rows_read(self, event: LabelRowsRead) -> Evidence | None:
        """Return evidence when enough targets of a line were read."""
        location = event.called_at or event.location
        if location not in self._lines and len(self._lines) >= MAX_LINES:
            return None
        known = self._lines.setdefault(location, _Rows())
        known.rows += event.rows
        known.several += event.several
        known.is_judged |= event.several < 0
        if known.is_judged or known.rows < MIN_ROWS or known.several < MIN_SHARE * known.rows:
            return None
        known.is_judged = True
        share = format_percent(known.several / known.rows)
        loss = "`cross_entropy`" if event.loss == "cross_entropy" else f"`{event.loss}` of the output of a softmax"
        return Evidence(
            message=f"{loss} gets targets of 0 and 1 with several ones in {share} of {known.rows} rows, but a softmax "
            "lets only one class be right: use a sigmoid and a binary cross-entropy for each label.",
            location=location,
        )

    def inconclusive(self) -> str:
        """Return a reason if no such targets were read."""
        return "" if self._lines else "no loss with a softmax had targets of several columns"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each cross-entropy of a model whose labels are found with a sigmoid and a threshold."""
    if "BCE" in source.text.source or "binary_cross_entropy" in source.text.source:
        return
    thresholds = {model: node for node in source.nodes_of(ast.Compare) for model in _thresholded(source, node)}
    for model in _classes_of_largest(source) if thresholds else ():
        thresholds.pop(model, None)
    for loss in source.ops(OpKind.LOSS) if thresholds else ():
        if loss.name not in _LOSSES or not isinstance(loss.node, ast.Call) or not loss.node.args:
            continue
        models = {dotted_name(each.func) for each in origins(source, loss.node.args[0]) if isinstance(each, ast.Call)}
        for model in models & thresholds.keys():
            yield Hit(
                message=f"`{ast.unparse(loss.node.func)}` applies a softmax to the outputs of `{model}`, of which only "
                "one can be near 1, but each label is found with a sigmoid and a threshold.",
                node=loss.node,
                related=((thresholds[model], "found here"),),
            )


def _thresholded(source: SourceFile, test: ast.Compare) -> Iterator[str]:
    """Yield the model in ``torch.sigmoid(model(x)) > 0.5``."""
    if not isinstance(test.ops[0], ast.Gt | ast.GtE) or not nodes_in(test.comparators[0], ast.Constant, ast.Name):
        return
    for value in origins(source, test.left):
        match value:
            case ast.Call(func=ast.Attribute(attr="sigmoid", value=ast.Name(id="torch")), args=[inner]):
                pass
            case ast.Call(func=ast.Attribute(attr="sigmoid", value=inner), args=[]):
                pass
            case _:
                continue
        for each in origins(source, inner):
            if isinstance(each, ast.Call) and dotted_name(each.func) and last_name(each.func) != "sigmoid":
                yield dotted_name(each.func)


def _classes_of_largest(source: SourceFile) -> Iterator[str]:
    """Yield each model of whose outputs the program also takes the largest: ``model(x).argmax(1)``."""
    for call in source.all_calls:
        if last_name(call.func) not in ("argmax", "max", "topk", "softmax", "log_softmax"):
            continue
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        given = [*([owner] if owner is not None else []), *call.args[:1]]
        for each in (value for one in given for value in origins(source, one)):
            if isinstance(each, ast.Call) and dotted_name(each.func):
                yield dotted_name(each.func)


RULE = Rule(required_words=("cross_entropy|CrossEntropyLoss", "sigmoid(", ">"), find=find)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 12)
labels = (x[:, :5] > 0).float()
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for rows in torch.randperm(256).split(32):
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), labels[rows])
        loss.backward()
        optimizer.step()
with torch.no_grad():
    predicted = torch.sigmoid(model(x)) > 0.5
print((predicted == labels.bool()).float().mean())
"""

FAILURE = Failure(
    code="LOS040",
    title="A softmax loss gets several labels per sample",
    severity=Severity.WARNING,
    bad=BAD,
    good=changed(BAD, {"nn.CrossEntropyLoss()": "nn.BCEWithLogitsLoss()"}),
    fix="Use nn.BCEWithLogitsLoss for samples with several labels.",
    rule=RULE,
    detector=Detector,
)
