"""A binary cross-entropy loss gets the labels as its input and the predictions as its target.

What you see
    With ``binary_cross_entropy_with_logits`` the loss falls below zero, towards minus infinity. With
    ``binary_cross_entropy`` the gradient is infinite in the first update, and then all weights are NaN.

Why it happens
    ``binary_cross_entropy(input, target)`` takes two tensors of the same shape and computes gradients for both, so
    swapping them raises no error. Other libraries use the opposite order: ``f(y_true, y_pred)``.

Fix
    Pass the prediction first and the target second, or name them ``input=`` and ``target=``.

        loss = binary_cross_entropy_with_logits(labels, model(x))  # wrong
        loss = binary_cross_entropy_with_logits(model(x), labels)  # right

When this is fine
    - The loss is symmetric, such as MSE or Huber.
    - You use ``kl_div`` and train the target on purpose (reverse divergence).
    - The input comes from a fixed teacher, and the target from the student that you train.
    - Two networks learn from each other.

How it is detected
    In a run, the sanitizer reports a loss whose target was computed by a model with gradients and whose input was not,
    if the input consists of zeros and ones or the target has values outside 0 to 1. It does not read values on a GPU.
    The linter reports the same if the labels are created in the file, also as a list of zeros and ones, or if the
    target is the raw output of a model.
    Or a function of the program, such as a quantile loss, has parameters that are called prediction and target, and a
    call passes what a model returned as the second one.

References
    torch.nn.functional.binary_cross_entropy_with_logits,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.binary_cross_entropy_with_logits.html
    autonomousvision/sledge#4, "The arguments of binary_cross_entropy_with_logits may need to be swapped",
    https://github.com/autonomousvision/sledge/issues/4
    pytorch/pytorch#3933, "I pass the parameters in wrong order", https://github.com/pytorch/pytorch/issues/3933
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Final

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue, ValueKind
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import SIGMOID, VIEWS, is_affine
from trueloop.analysis.queries.batch_loops import is_label, without_conversions
from trueloop.analysis.queries.class_instances import definitions
from trueloop.analysis.queries.possible_values import computed_from, origins
from trueloop.analysis.source_file import Hit, SourceFile, last_name
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, walk
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import LossArgumentsSwapped

LOSSES: Final = frozenset(
    (
        "torch.nn.BCELoss",
        "torch.nn.BCEWithLogitsLoss",
        "torch.nn.functional.binary_cross_entropy",
        "torch.nn.functional.binary_cross_entropy_with_logits",
    )
)
LABELS: Final = frozenset(
    (
        "compare",
        "eq",
        "ne",
        "torch.ones",
        "torch.ones_like",
        "torch.nn.functional.one_hot",
        "torch.Tensor.bool",
        *(f"{owner}.{word}" for owner in ("torch", "torch.Tensor") for word in ("eq", "ne", "gt", "ge", "lt", "le")),
    )
)
_CREATING: Final = frozenset(("torch.tensor", "torch.FloatTensor"))
NAMED: Final = frozenset((
    "torch.nn.CrossEntropyLoss", "torch.nn.NLLLoss", "torch.nn.functional.cross_entropy",
    "torch.nn.functional.nll_loss",
))  # fmt: skip
"""Other losses, whose arguments are judged by their names."""
_OUTPUT: Final = re.compile(
    r"^(out|output|outputs|logits?|preds?|predictions?|y_?hat|y_pred|scores)\d?$|_(logits|preds?|outputs?)$"
)
_PREDICTED: Final = re.compile(r"^(y_)?(pred\w*|estimates?\w*|outputs?|forecasts?|logits|hat|probs)$|_hat$|^q_hat")
_OBSERVED: Final = re.compile(r"^(y|y_true|true|targets?|labels?|observed|actual|truth|gt|ground_truth|y_target)$")
_ASYMMETRIC: Final = re.compile(r"log|where|relu|clamp|max|entropy|kl_div|nll|sigmoid|>|<")
"""Parameters of losses, and signs of a loss that is another one for exchanged arguments."""
CASTS: Final = VIEWS | {f"torch.Tensor.{word}" for word in ("float", "double", "half", "int", "long", "to", "type")}


class Detector(BaseDetector):
    """Checks the values of each binary cross-entropy whose target has a graph and whose input has none."""

    def __init__(self) -> None:
        self._unread = False

    def on_loss_arguments_swapped(self, event: LossArgumentsSwapped) -> Evidence | None:
        """Return evidence if the input cannot be a prediction, or the target cannot be a probability."""
        self._unread |= event.input_is_binary is None
        if not event.input_is_binary and not event.target_outside_unit_interval:
            return None
        reason = (
            "its input consists of zeros and ones" if event.input_is_binary else "its target has values outside 0 to 1"
        )
        return Evidence(
            message=f"`{event.function}` got prediction and target swapped: only its target was computed with "
            f"gradients, and {reason}.",
            location=event.location,
        )

    def inconclusive(self) -> str:
        """Return a reason if values were not read."""
        return "the arguments of a loss are on a GPU and are not read" if self._unread else ""


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the losses whose target is a model's output, and whose input certainly is not."""
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in LOSSES or len(loss.inputs) < 2 or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        first, target = loss.inputs[:2]
        if (
            _is_trained(target)
            and _has_no_graph(first)
            and (_is_labels(first) or (_is_raw_output(target) and _is_data(first)))
        ):
            yield Hit(
                message=f"`{ast.unparse(loss.node.func)}` gets the prediction as its target: pass it first.",
                node=loss.node,
                related=((target.node, "the prediction"),),
                fix=None if _has_sigmoid_too_many(loss, target) else _swap_arguments(source, loss),
            )


def find_all(source: SourceFile) -> Iterator[Hit]:
    """Yield the same as `find`, and each loss whose first argument is called labels and whose second an output."""
    found = list(find(source))
    yield from found
    for loss in source.ops(OpKind.LOSS):
        call = loss.node
        is_known = loss.name in LOSSES | NAMED and isinstance(call, ast.Call) and len(call.args) > 1
        if not is_known or any(each.node is call for each in found) or (loss.result and NO_GRAPH in loss.result.facts):
            continue
        first, second = call.args[:2]
        if is_label(first) and _is_called_output(source, second) and not _is_called_output(source, first):
            yield Hit(
                message=f"`{ast.unparse(call)}` gets `{ast.unparse(first)}` as the prediction, by its name: pass "
                f"`{ast.unparse(second)}` first.",
                node=call,
                fix=_swap_arguments(source, loss),
                severity=Severity.WARNING,
            )
    yield from _own_losses(source)


def _own_losses(source: SourceFile) -> Iterator[Hit]:
    """Yield each call of a function of the program whose parameters are named in the opposite order of its arguments.

    Only of a function whose value differs for exchanged arguments, as a quantile loss does.
    """
    for name, function in definitions(source).functions.items():
        names = [each.arg for each in function.args.args if each.arg not in ("self", "cls")]
        if len(names) < 2 or not _PREDICTED.search(names[0]) or not _OBSERVED.search(names[1]):
            continue
        if not _ASYMMETRIC.search("".join(map(ast.unparse, function.body[bool(ast.get_docstring(function)) :]))):
            continue
        for call in definitions(source).calls.get(name, ()):
            if len(call.args) < 2 or any(isinstance(each, ast.Starred) for each in call.args[:2]):
                continue
            first, second = call.args[:2]
            if any(map(_is_called_model(source), origins(source, second))) and not any(
                map(_is_called_model(source), computed_from(source, first))
            ):
                yield Hit(
                    message=f"`{name}` expects `{names[0]}` first and `{names[1]}` second, but gets "
                    f"`{ast.unparse(first)}` and the prediction `{ast.unparse(second)}`: the arguments are swapped.",
                    node=call,
                    severity=Severity.WARNING,
                )


def _is_called_model(source: SourceFile) -> Callable[[ast.AST], bool]:
    """Return a function that returns True for the call of something whose parameters the program reads."""
    models = set(re.findall(r"(\w+)\.parameters\(", source.text.source))
    return lambda node: isinstance(node, ast.Call) and last_name(node.func) in models


def _is_called_output(source: SourceFile, node: ast.expr) -> bool:
    """Return True for a variable that is called an output or prediction, and not labels."""
    node = without_conversions(node)
    name = last_name(node)
    return bool(_OUTPUT.search(name)) and not is_label(node) and isinstance(node, ast.Name | ast.Attribute)


def _is_trained(value: AbstractValue) -> bool:
    return all(any(each.kind is ValueKind.MODEL for each in option.autograd_graph()) for option in value.alternatives())


def _has_no_graph(value: AbstractValue) -> bool:
    return all(option.kind is ValueKind.TENSOR and NO_GRAPH in option.facts for option in value.alternatives())


def _is_data(value: AbstractValue) -> bool:
    """Return True for a value that no model has computed, not even a teacher."""
    return all(each.kind not in (ValueKind.MODEL, ValueKind.PARAMETERS) for each in value.ancestors())


def _is_labels(value: AbstractValue) -> bool:
    while value.sources and not value.union and (value.name in CASTS or isinstance(value.node, ast.Subscript)):
        value = value.sources[0]
    return value.name in LABELS or (value.name in _CREATING and _is_binary(value.node))


def _is_binary(node: ast.AST) -> bool:
    """Return True for a call with a list of zeros and ones, in which both occur: ``torch.tensor([[1., 0.]])``."""
    data = node.args[0] if isinstance(node, ast.Call) and node.args else None
    if not isinstance(data, ast.List | ast.Tuple):
        return False
    parts = [each for each in walk(data) if not isinstance(each, ast.List | ast.Tuple | ast.expr_context)]
    return {each.value if isinstance(each, ast.Constant) else None for each in parts} == {0, 1}


def _has_sigmoid_too_many(loss: Op, target: AbstractValue) -> bool:
    """Return True if the loss also applies a sigmoid to a prediction that has one, so that swapping is not enough."""
    origin = target.origin(VIEWS)
    return "ogits" in loss.name and origin is not None and origin.name in SIGMOID


def _is_raw_output(value: AbstractValue) -> bool:
    origin = value.origin(VIEWS, items=True)
    return origin is not None and is_affine(origin)


def _swap_arguments(source: SourceFile, loss: Op) -> Fix | None:
    """Return the fix that swaps the first two arguments; None if they are named or unpacked."""
    call = loss.node
    if not isinstance(call, ast.Call) or len(call.args) < 2 or any(isinstance(a, ast.Starred) for a in call.args[:2]):
        return None
    first, second = call.args[:2]
    edits = (
        source.text.replace(first, source.text.segment(second)),
        source.text.replace(second, source.text.segment(first)),
    )
    return Fix(edits, safe=False, description="Pass the prediction first")


WORDS = "BCELoss|BCEWithLogitsLoss|binary_cross_entropy|CrossEntropyLoss|cross_entropy|NLLLoss|nll_loss"
RULE = Rule(required_words=(f"{WORDS}|(pred|(y_pred|(output|(logits|(estimate|(forecast|_hat,",), find=find_all)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(256, 8)
labels = (inputs.sum(dim=1, keepdim=True) > 0).float()
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    loss = F.binary_cross_entropy_with_logits(labels, model(inputs))
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS008",
    title="Prediction and target are swapped",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            "loss = F.binary_cross_entropy_with_logits(labels, model(inputs))": (
                "loss = F.binary_cross_entropy_with_logits(model(inputs), labels)"
            )
        },
    ),
    fix="Pass the prediction first and the target second.",
    rule=RULE,
    detector=Detector,
)
