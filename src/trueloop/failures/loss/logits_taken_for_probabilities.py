"""A loss gets logits where it expects (log-)probabilities, or probabilities where it expects logits.

What you see
    If ``NLLLoss`` gets logits, the loss falls below zero towards minus infinity, and the weights grow. If
    ``BCEWithLogitsLoss`` gets the result of a sigmoid or softmax, the loss stays above 0.31 and the model learns
    slowly. If ``BCELoss`` gets logits, it raises an error as soon as one is outside 0 to 1. If ``CTCLoss`` gets logits,
    the loss may fall below zero, and its gradients are wrong: they assume that the probabilities add up to 1.

Why it happens
    All these losses accept floating-point numbers of the right shape. They do not check whether these are logits,
    probabilities or logarithms of probabilities.

Fix
    Pass each loss the kind of input that it expects. Losses on logits are also more exact.

        cross_entropy(logits, targets)
        nll_loss(log_softmax(logits, dim=1), targets)
        binary_cross_entropy_with_logits(logits, targets)
        binary_cross_entropy(sigmoid(logits), targets)
        ctc_loss(log_softmax(logits, dim=-1), targets, input_lengths, target_lengths)

When this is fine
    - ``NLLLoss`` gets the result of ``logsigmoid``, or other logarithms of probabilities that you compute yourself.
    - ``BCELoss`` gets a product, mean or clamp of probabilities, or a column of a softmax.
    - ``BCEWithLogitsLoss`` gets a scaled similarity.
    - The (log-)probabilities are multiplied by a matrix before the loss.

How it is detected
    In a run, the sanitizer finds the operation whose direct result is the input of the loss; reshaping and changes of
    the dtype in between do not matter. It reports ``NLLLoss``, ``CTCLoss`` and ``BCELoss`` after a linear layer with a
    bias or a convolution, ``NLLLoss`` and ``CTCLoss`` after a softmax, sigmoid, exp or ReLU, and ``BCEWithLogitsLoss``
    after a sigmoid or softmax. It reports a ``CTCLoss`` if the probabilities of fewer than one in ten frames add up to
    1. It also reports an ``NLLLoss`` that got values above 0 three times, and a ``BCEWithLogitsLoss`` whose first 256
    values were all between 0 and 1. The linter finds the operation if the layer, the model and the loss are in one
    program, and reports the logarithm of a logarithm before ``NLLLoss`` and ``CTCLoss``. If a file creates one loss on
    logits and one model that ends in a sigmoid or softmax, and calls neither, it reports a warning.

References
    torch.nn.NLLLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
    torch.nn.BCEWithLogitsLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html
    torch.nn.BCELoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.BCELoss.html
    torch.nn.CTCLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html
"""

import ast
import math
from collections.abc import Iterator
from dataclasses import dataclass

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import (
    RELU,
    SIGMOID,
    SOFTMAX,
    VIEWS,
    is_affine,
    is_logarithm_twice,
    remove_activation_fix,
)
from trueloop.analysis.queries.uncalled_losses import uncalled_loss
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import CodePosition, Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, replacement_injector
from trueloop.tracing.events import BackwardLosses, LossRecord

LOG_SOFTMAX_FIX = "Apply `log_softmax` over the classes first."
FIXES = {
    "nll": "Use `cross_entropy` on these outputs, or apply `log_softmax` to them first.",
    "bce_with_logits": "Remove the sigmoid, and apply one only where you need probabilities.",
}
LOGARITHMIC = {"nll": ("nll_loss", FIXES["nll"]), "ctc": ("ctc_loss", LOG_SOFTMAX_FIX)}
"""Losses of log-probabilities: name of the function, and the fix."""
TOLERANCE = 1e-4
MIN_NORMALISED = 0.1  # of the frames of a CTC loss
MIN_POSITIVE = 3  # losses of a line whose input has values above 0
MIN_LOSSES = 8
MIN_VALUES = 256
MIN_SPREAD = 0.3  # of the values
MAX_LINES = 64
AFFINE = frozenset({"addmm", "linear", "convolution", "mkldnn_convolution", "cudnn_convolution"})
MATRIX_PRODUCTS = AFFINE | {"mm", "bmm", "baddbmm", "mv", "dot"}  # of any sign, so few values prove nothing
NEVER_NEGATIVE = frozenset({"exp", "softmax", "sigmoid", "relu"})
KINDS = {
    "torch.nn.NLLLoss": "nll",
    "torch.nn.functional.nll_loss": "nll",
    "torch.nn.CTCLoss": "ctc",
    "torch.nn.functional.ctc_loss": "ctc",
    "torch.ctc_loss": "ctc",
    "torch.nn.BCELoss": "bce",
    "torch.nn.functional.binary_cross_entropy": "bce",
    "torch.nn.BCEWithLogitsLoss": "bce_with_logits",
    "torch.nn.functional.binary_cross_entropy_with_logits": "bce_with_logits",
}
ON_LOGITS = frozenset(name for name, kind in KINDS.items() if kind == "bce_with_logits")
CROSS_ENTROPY = frozenset(("torch.nn.CrossEntropyLoss", "torch.nn.functional.cross_entropy"))
EXP = frozenset({"torch.exp", "torch.Tensor.exp"})
FOR_LOGITS = {
    "NLLLoss": "CrossEntropyLoss",
    "nll_loss": "cross_entropy",
    "BCELoss": "BCEWithLogitsLoss",
    "binary_cross_entropy": "binary_cross_entropy_with_logits",
}


@dataclass(slots=True)
class _Inputs:
    """The values that a loss got in the backward passes of one line."""

    losses: int = 0
    values: int = 0
    low: float = math.inf
    high: float = -math.inf
    positive: int = 0
    """Number of losses with a value above 0."""
    is_reported: bool = False

    def add(self, limits: tuple[float, float], values: int) -> None:
        """Add the values of one loss."""
        self.losses, self.values = self.losses + 1, self.values + values
        self.low, self.high = min(self.low, limits[0]), max(self.high, limits[1])
        self.positive += limits[1] > TOLERANCE


class Detector(BaseDetector):
    """Checks which operation produced the input of each loss that expects a certain scale, and its values."""

    def __init__(self) -> None:
        self._checked = False
        self._inputs = dict[tuple[str, CodePosition | None], _Inputs]()
        """Kind of a loss and line of its backward pass -> the values of its inputs."""

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each loss whose input has the wrong scale."""
        for loss in event.losses:
            self._checked = True
            mismatch = _scale_mismatch_of(loss)
            made_by = loss.input_operations[:1]  # () = the input has no graph: it is the target, perhaps
            is_plain = loss.kind not in ("nll", "ctc") and (not made_by or made_by[0] in MATRIX_PRODUCTS)
            is_judged = not mismatch and not is_plain and len(self._inputs) <= MAX_LINES
            by_values = self._judge_values(event, loss) if is_judged else ""
            if by_values:
                mismatch = by_values, FIXES[loss.kind]
            if mismatch:
                yield Evidence(
                    message=mismatch[0],
                    location=loss.location or event.location,
                    related=((event.location, "`backward()`"),) if loss.location and event.location else (),
                    fix=mismatch[1],
                    dedup_key=loss.kind,
                    severity=Severity.WARNING if by_values else None,
                )

    def _judge_values(self, event: BackwardLosses, loss: LossRecord) -> str:
        """Return what is wrong with the values that a loss got so far; "" if they may be right."""
        inputs = self._inputs.setdefault((loss.kind, event.location), _Inputs())
        if loss.input_range is None or inputs.is_reported:
            return ""
        inputs.add(loss.input_range, math.prod(loss.shape or ()))
        if loss.kind == "nll" and inputs.positive == MIN_POSITIVE:
            inputs.is_reported = True
            return "`nll_loss` expects log-probabilities, which are never positive, but its input has values above 0."
        is_sure = inputs.losses >= MIN_LOSSES and inputs.values >= MIN_VALUES
        if loss.kind == "bce_with_logits" and is_sure and 0 <= inputs.low < inputs.high - MIN_SPREAD <= 1 - MIN_SPREAD:
            inputs.is_reported = True
            return (
                f"`binary_cross_entropy_with_logits` applies a sigmoid itself, but all {inputs.values} values that it "
                "got lie between 0 and 1: they look like probabilities."
            )
        return ""

    def inconclusive(self) -> str:
        """Return a reason if no PyTorch loss was found."""
        return "" if self._checked else "no PyTorch loss was found in a graph"


def _scale_mismatch_of(loss: LossRecord) -> tuple[str, str] | None:
    """Return the message and the fix for a loss whose input certainly has the wrong scale; None for other losses."""
    found = scale_mismatch(loss.kind, loss.input_operations[0] if loss.input_operations else "")
    share = loss.normalised_share
    if found is None and share is not None and share < MIN_NORMALISED:
        failing = f"the probabilities of {1 - share:.0%} of its frames do not add up to 1."
        return f"`ctc_loss` expects log-probabilities, but {failing}", LOG_SOFTMAX_FIX
    return found


def scale_mismatch(kind: str, operation: str) -> tuple[str, str] | None:
    """Return the message and the fix for a kind of loss and the operation that produced its input."""
    if kind in LOGARITHMIC:
        return _not_log_probabilities(kind, operation)
    if kind == "bce" and operation in AFFINE:
        return (
            "`binary_cross_entropy` expects probabilities, but its input comes directly from a linear layer.",
            "Use `binary_cross_entropy_with_logits` on these outputs.",
        )
    if kind == "bce_with_logits" and operation in ("sigmoid", "softmax"):
        return (
            f"`binary_cross_entropy_with_logits` applies a sigmoid itself, but its input comes from a {operation}.",
            f"Remove the {operation}, and apply a sigmoid only where you need probabilities.",
        )
    return None


def _not_log_probabilities(kind: str, operation: str) -> tuple[str, str] | None:
    function, other = LOGARITHMIC[kind]
    expected = f"`{function}` expects log-probabilities"
    if operation in AFFINE:
        return f"{expected}, but its input comes directly from a linear layer.", other
    if operation in NEVER_NEGATIVE:
        other = ", or `cross_entropy` without either." if kind == "nll" else "."
        return (
            f"{expected}, which are never positive, but its input comes from a {operation}.",
            f"Use `log_softmax` without {operation}{other}",
        )
    return None


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the losses whose input has the wrong scale."""
    for loss in source.ops(OpKind.LOSS):
        kind = KINDS.get(loss.name)
        if kind is None or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        origin = loss.inputs[0].origin(VIEWS, items=True)
        operation = "" if origin is None else _operation_name(origin)
        mismatch = scale_mismatch(kind, operation)
        if origin is not None and kind in LOGARITHMIC and is_logarithm_twice(origin):
            function, fix = LOGARITHMIC[kind]
            mismatch = f"`{function}` gets the logarithm of a logarithm, which is NaN for every probability.", fix
        if origin is not None and mismatch:
            has_extra_activation = kind == "bce_with_logits"
            yield Hit(
                message=mismatch[0],
                node=loss.node,
                related=((origin.node, "the input"),),
                fix=remove_activation_fix(source, origin, operation)
                if has_extra_activation
                else _use_logits_loss(source, loss, operation),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each cross-entropy whose input comes from a sigmoid."""
    yield from find(source)
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in CROSS_ENTROPY or not loss.inputs or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        origin = loss.inputs[0].origin(VIEWS, items=True)
        if origin is not None and origin.name in SIGMOID:
            yield Hit(
                message=f"`{ast.unparse(loss.node.func)}` expects logits, but its input comes from a sigmoid: with all "
                "outputs between 0 and 1, the softmax cannot become sure of a class.",
                node=loss.node,
                related=((origin.node, "the sigmoid"),),
                fix=remove_activation_fix(source, origin, "sigmoid"),
                severity=Severity.WARNING,
            )
    yield from _never_called(source)


def _never_called(source: SourceFile) -> Iterator[Hit]:
    """Yield the loss on logits that a file creates next to one model with probabilities as output, and never calls."""
    pair = uncalled_loss(source, ON_LOGITS | CROSS_ENTROPY)
    operation = "" if pair is None else _operation_name(pair.origin)
    if pair is None or operation not in ("sigmoid", "softmax"):
        return
    if pair.loss.name in CROSS_ENTROPY and operation == "softmax":
        return  # LOS001
    yield Hit(
        message=f"`{ast.unparse(pair.loss.node.func)}` expects logits, but the model of this file ends in a "
        f"{operation}.",
        node=pair.loss.node,
        related=((pair.origin.node, f"the {operation}"), (pair.model.node, "the model")),
        fix=remove_activation_fix(source, pair.origin, operation),
        severity=Severity.WARNING,
    )


def _operation_name(origin: AbstractValue) -> str:
    """Return the name that `scale_mismatch` uses for an operation or layer."""
    if is_affine(origin):
        return "linear"
    operations = ((SOFTMAX, "softmax"), (SIGMOID, "sigmoid"), (RELU, "relu"), (EXP, "exp"))
    return next((operation for names, operation in operations if origin.name in names), "")


def _use_logits_loss(source: SourceFile, loss: Op, operation: str) -> Fix | None:
    """Return the fix that uses the loss on logits; None unless the call is an attribute, as ``F.nll_loss`` is."""
    called = loss.node if source.qualified_name(loss.node.func) == loss.name else loss.subject.node
    function = getattr(called, "func", None)
    if operation != "linear" or not isinstance(function, ast.Attribute) or function.attr not in FOR_LOGITS:
        return None
    end = source.text.span(function)[1]
    edit = Edit(end - len(function.attr), end, FOR_LOGITS[function.attr])
    return Fix((edit,), safe=False, description=f"Use `{FOR_LOGITS[function.attr]}`")


WORDS = (
    "NLLLoss|nll_loss|BCELoss|BCEWithLogitsLoss|binary_cross_entropy|CrossEntropyLoss|cross_entropy|CTCLoss|ctc_loss"
)
RULE = Rule(required_words=(WORDS,), find=find_all)

BAD = """
import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid())
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = criterion(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS002",
    title="Loss gets logits instead of probabilities, or vice versa",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(BAD, {"criterion = nn.BCEWithLogitsLoss()": "criterion = nn.BCELoss()"}),
    fix="Pass each loss the kind of input that it expects: logits, probabilities or log-probabilities.",
    rule=RULE,
    detector=Detector,
    inject=replacement_injector(Piece.CRITERION, "nn.CrossEntropyLoss()", "nn.NLLLoss()"),
)
