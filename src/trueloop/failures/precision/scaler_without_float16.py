"""GradScaler scales the loss of a model that runs in bfloat16.

What you see
    Nothing at first. Some updates are skipped, the scale changes, and training is a little slower.

Why it happens
    GradScaler prevents small gradients from becoming zero in float16. bfloat16 has the same range as float32, so small
    gradients do not become zero, and scaling has no benefit.

Fix
    Disable the scaler unless the dtype is float16.

        scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)

When this is fine
    - The scaler is disabled (``enabled=False``), so that the same code works for all dtypes.

How it is detected
    In a run, the sanitizer reports an enabled scaler that scaled a loss whose model ran under autocast with bfloat16.
    The linter reports a scaler without ``enabled`` if the models are called only under an autocast with bfloat16. The
    gradients are right in the end, so this is a note.

References
    PyTorch documentation "Automatic Mixed Precision package", section on gradient scaling,
    https://docs.pytorch.org/docs/stable/amp.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.abstract_value import AbstractValue
from trueloop.analysis.operations import Op, OpKind
from trueloop.analysis.queries.clipping import is_enabled_scaler
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Edit, Fix, SourceText
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity, changed
from trueloop.failures.teaching_script import Piece, TeachingLoop
from trueloop.tracing.events import LossScaled


class Detector(BaseDetector):
    """Checks in which dtype the model of each scaled loss ran."""

    def on_loss_scaled(self, event: LossScaled) -> Evidence | None:
        """Return evidence if the model ran in bfloat16."""
        if event.autocast != "bfloat16":
            return None
        factor = f" by {event.scale:g}" if event.scale else ""
        return Evidence(
            message=f"GradScaler multiplies the loss{factor}, but the model ran in bfloat16, which has the same range "
            "as float32 and needs no scaling.",
            location=event.location,
        )


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield each scaling, by a scaler that is always enabled, of a loss computed in bfloat16."""
    scalings = [each for each in source.ops(OpKind.SCALE_LOSS) if is_enabled_scaler(each.subject)]
    bfloat16_calls = {id(each): _bfloat16_call(source, each) for each in scalings}
    for scaling in scalings:
        call = bfloat16_calls[id(scaling)]
        if call is None:
            continue
        others = [each for each in scalings if each.subject is scaling.subject]
        all_bfloat16 = all(bfloat16_calls[id(each)] is not None for each in others)
        yield Hit(
            message="GradScaler multiplies a loss whose model runs in bfloat16, which has the same range as float32 "
            "and needs no scaling.",
            node=scaling.node,
            related=((call.node, "runs under autocast with bfloat16"),),
            fix=_disable_scaler(source.text, scaling.subject) if all_bfloat16 else None,
        )


def _bfloat16_call(source: SourceFile, scaling: Op) -> Op | None:
    """Return a bfloat16 call of a model that the loss depends on, if no call used another dtype."""
    call: Op | None = None
    for value in scaling.inputs[0].autograd_graph() if scaling.inputs else ():
        producer = source.created_by.get(id(value))
        if producer is None or producer.kind not in (OpKind.MODEL_CALL, OpKind.FORWARD_CALL):
            continue
        if producer.autocast not in (None, "torch.bfloat16"):
            return None
        call = producer if producer.autocast else call
    return call


def _disable_scaler(text: SourceText, scaler: AbstractValue) -> Fix | None:
    """Return the fix that passes ``enabled=False``, which leaves the rest of the program unchanged."""
    call = scaler.node
    if not isinstance(call, ast.Call) or any(each.arg is None for each in call.keywords):
        return None
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    enabled = next((each.value for each in call.keywords if each.arg == "enabled"), None)
    if enabled is not None:
        return Fix((text.replace(enabled, "False"),), safe=True, description="Disable the scaler")
    arguments = [*call.args, *(each.value for each in call.keywords)]
    if not arguments:
        _, end = text.span(call)
        empty = Edit(end - 1, end - 1, "enabled=False")
        return Fix((empty,), safe=True, description="Disable the scaler") if text.segment(call).endswith("()") else None
    _, end = text.span(max(arguments, key=lambda each: text.span(each)[1]))
    if text.content[end : end + 1] not in (b")", b","):
        return None  # inside parentheses of its own
    return Fix((Edit(end, end, ", enabled=False"),), safe=True, description="Disable the scaler")


RULE = Rule(required_words=("GradScaler", "autocast", "scale"), find=find)


def inject(loop: TeachingLoop) -> None:
    """Inject this failure into the teaching loop."""
    loop.require(loop.settings["precision"] == "float16", "There is no GradScaler.", precision="float16")
    loop.replace(Piece.FORWARD, "torch.float16", "torch.bfloat16")


BAD = """
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(8):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""

FAILURE = Failure(
    code="PRC002",
    title="GradScaler is used with bfloat16",
    severity=Severity.NOTE,
    bad=BAD,
    good=changed(BAD, {'scaler = torch.amp.GradScaler("cpu")': 'scaler = torch.amp.GradScaler("cpu", enabled=False)'}),
    fix="Remove the GradScaler, or disable it, when the model runs in bfloat16.",
    rule=RULE,
    detector=Detector,
    inject=inject,
)
