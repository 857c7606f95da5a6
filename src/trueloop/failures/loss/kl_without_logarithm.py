"""``kl_div`` gets probabilities where it expects log-probabilities, or log-probabilities as its target.

What you see
    The loss falls below zero, or it falls although the two distributions become more different. If the input is the
    result of a softmax, the trained model becomes certain of one class, whatever the target says. If the target is a
    logarithm, the loss is NaN or negative, and the gradient pushes the model away from the target.

Why it happens
    ``kl_div(input, target)`` computes ``target * (log(target) - input)`` for each element and accepts any numbers as
    ``input``. Only the documentation says that ``input`` must be logarithms, while ``target`` must be probabilities,
    unless ``log_target=True``.

Fix
    Pass ``log_softmax`` of the trained model's output as input, and probabilities as target. Use
    ``reduction="batchmean"``, because "mean" also divides by the number of classes.

        kl_div(softmax(z, dim=1), targets, reduction="batchmean")  # wrong
        kl_div(log_softmax(z, dim=1), targets, reduction="batchmean")  # right

When this is fine
    - The input is the result of ``log_softmax`` or ``log()``, and the target consists of probabilities.
    - You pass ``log_target=True`` and logarithms for both arguments.
    - You use ``torch.distributions.kl_divergence``.
    - You use ``cross_entropy`` with probabilities as targets, which expects logits.

How it is detected
    In a run, the sanitizer reports a ``kl_div`` whose input is the direct result of a softmax, sigmoid, ReLU, linear
    layer or convolution; reshaping and changes of the dtype in between do not matter. The linter reports the same if
    this layer or function is in the same file, and a target that comes directly from a log-softmax or logarithm without
    ``log_target=True``, or from a softmax or sigmoid with it. It also reports the logarithm of a logarithm as input.

References
    torch.nn.KLDivLoss, https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html
    sebastian-hofstaetter/matchmaker#18, "self.kl(scores.softmax(-1),labels.softmax(-1)) # is this a typo?",
    https://github.com/sebastian-hofstaetter/matchmaker/issues/18
    pytorch/pytorch#5282, "Possible bug in KL divergence", https://github.com/pytorch/pytorch/issues/5282
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import NO_GRAPH, AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.activations import (
    LOG,
    LOG_SOFTMAX,
    RELU,
    SIGMOID,
    SOFTMAX,
    VIEWS,
    is_affine,
    is_logarithm_twice,
)
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.tracing.events import BackwardLosses

LOSSES = frozenset(("torch.nn.KLDivLoss", "torch.nn.functional.kl_div"))
LOGARITHMS = LOG | {"torch.nn.functional.logsigmoid", "torch.nn.LogSigmoid"}
LINEAR = frozenset(("addmm", "linear", "convolution", "mkldnn_convolution", "cudnn_convolution"))
NEVER_NEGATIVE = frozenset(("softmax", "softmax_elsewhere", "sigmoid", "relu", "exp"))


class Detector(BaseDetector):
    """Checks which operation produced the input of each ``kl_div``."""

    def __init__(self) -> None:
        self._checked = False

    def on_backward_losses(self, event: BackwardLosses) -> Iterator[Evidence]:
        """Return evidence for each ``kl_div`` whose input is not a logarithm."""
        for loss in event.losses:
            if loss.kind != "kl_div" or loss.location is None:  # a sum of products has the same graph
                continue
            self._checked = True
            operation = loss.input_operations[0] if loss.input_operations else ""
            if operation in LINEAR or operation in NEVER_NEGATIVE:
                yield Evidence(
                    message=_message("a linear layer" if operation in LINEAR else f"a {operation.partition('_')[0]}"),
                    location=loss.location,
                    related=((event.location, "`backward()`"),) if event.location else (),
                )

    def inconclusive(self) -> str:
        """Return a reason if no KL divergence was found."""
        return "" if self._checked else "no kl_div was found in a graph"


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each KL divergence whose input comes directly from an activation or layer without a logarithm."""
    for loss in source.ops(OpKind.LOSS):
        if loss.name not in LOSSES or not loss.inputs:
            continue
        origin = loss.inputs[0].origin(VIEWS)
        if origin is not None and is_logarithm_twice(origin):
            yield Hit(
                message="The input of `kl_div` is the logarithm of a logarithm, which is NaN for every probability.",
                node=loss.node,
                related=((origin.node, "the second logarithm"), (origin.sources[0].node, "the first one")),
            )
            continue
        if loss.result and NO_GRAPH in loss.result.facts:
            continue
        if origin is None or not (origin.name in SOFTMAX | SIGMOID | RELU or is_affine(origin)):
            yield from _wrong_target(source, loss)
            continue
        producer = "a linear layer" if is_affine(origin) else f"a {origin.name.rpartition('.')[2].lower()}"
        fix = _use_log_softmax(source, origin) if origin.name in SOFTMAX else None
        yield Hit(message=_message(producer), node=loss.node, related=((origin.node, "the input"),), fix=fix)


def _wrong_target(source: SourceFile, loss: Op) -> Iterator[Hit]:
    """Yield a KL divergence whose target is a logarithm without ``log_target=True``, or the other way round."""
    origin = loss.inputs[1].origin(VIEWS | {"detach"}) if len(loss.inputs) > 1 else None
    argument = loss.arguments.get("log_target") or loss.arguments.get("5")
    if any("log_target" in each.arguments for each in loss.subject.union):
        return  # one of several losses
    log_target = False if argument is None else argument.constant()
    if origin is None or not isinstance(log_target, bool):
        return
    is_logarithm = origin.name in LOG_SOFTMAX | LOGARITHMS
    if is_logarithm and not log_target:
        text = f"`{ast.unparse(origin.node)}` gives logarithms, and `log_target=True` is not set"
        created = loss.node if argument is None and isinstance(loss.node, ast.Call) else None
        is_function = created is not None and source.qualified_name(created.func) == "torch.nn.functional.kl_div"
        end = source.text.span(created)[1] - 1 if created is not None and is_function else 0
        edits = (Edit(end, end, ", log_target=True"),) if end else ()
    elif log_target and origin.name in SOFTMAX | SIGMOID:
        text = f"`{ast.unparse(origin.node)}` gives probabilities, but `log_target=True` expects logarithms"
        flag = next((each for each in getattr(loss.node, "keywords", ()) if each.arg == "log_target"), None)
        edits = (source.text.replace(flag.value, "False"),) if flag is not None else ()
    else:
        return
    yield Hit(
        message=f"The target of `kl_div` has the wrong form: {text}.",
        node=loss.node,
        related=((origin.node, "the target"),),
        fix=Fix(edits, safe=False, description="Say whether the target is a logarithm") if edits else None,
    )


def _message(producer: str) -> str:
    return f"`kl_div` expects log-probabilities as input, but its input comes directly from {producer}."


def _use_log_softmax(source: SourceFile, softmax: AbstractValue) -> Fix | None:
    """Return the fix that replaces ``softmax`` by ``log_softmax``; None if the name was imported."""
    call = softmax.node
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Call):  # nn.Softmax(dim=1)(x)
        call = call.func
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    new_name = {"softmax": "log_softmax", "Softmax": "LogSoftmax"}.get(call.func.attr)
    end = source.text.span(call.func)[1]
    edit = Edit(end - len(call.func.attr), end, new_name or "")
    return Fix((edit,), safe=False, description=f"Use `{new_name}`") if new_name else None


RULE = Rule(required_words=("KLDivLoss|kl_div",), find=find)

BAD = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(200, 6)
teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
with torch.no_grad():
    targets = F.softmax(teacher(inputs), dim=1)
for step in range(20):
    optimizer.zero_grad()
    loss = F.kl_div(F.softmax(student(inputs), dim=1), targets, reduction="batchmean")
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.3f}")
"""

FAILURE = Failure(
    code="LOS006",
    title="KL divergence gets probabilities for logarithms, or vice versa",
    severity=Severity.ERROR,
    bad=BAD,
    good=changed(
        BAD,
        {
            'loss = F.kl_div(F.softmax(student(inputs), dim=1), targets, reduction="batchmean")': (
                'loss = F.kl_div(F.log_softmax(student(inputs), dim=1), targets, reduction="batchmean")'
            )
        },
    ),
    fix='Pass log_softmax of the output as input, probabilities as target, and reduction="batchmean".',
    rule=RULE,
    detector=Detector,
)
