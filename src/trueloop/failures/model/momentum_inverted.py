"""Batch normalisation has another framework's momentum, so that its running statistics are those of the last batch.

What you see
    Training looks well; in eval mode the model is much worse, and differently so after each epoch, whichever batch came
    last. With small batches the validation loss jumps about.

Why it happens
    In torch ``momentum`` is the weight of the new batch: ``running = (1 - momentum) * running + momentum * batch``, 0.1
    if nothing is said. In TensorFlow, Keras and Caffe it is that of the old value, 0.99. Both lie between 0 and 1.

Fix
    Take one minus it: ``momentum=0.01`` for 0.99 of TensorFlow.

When this is fine
    ``momentum=None``, the mean over all batches so far; ``momentum=1.0``, which takes the latest batch on purpose; the
    momentum of an optimizer, or of a teacher's moving average; layers without running statistics; ``1 - 0.99`` as
    converters write it; layers in eval mode. A test-time adaptation that wants to forget at once may use 0.9: hence a
    warning. At run time models that are trained are looked at, when they are first called.

References
    pytorch/vision#8250, "MaxVIT Model - BatchNorm momentum is incorrect", 0.99 in a model of torchvision's,
    https://github.com/pytorch/vision/issues/8250
    eriklindernoren/PyTorch-YOLOv3#230, "only 10% of the previous trained weight is kept",
    https://github.com/eriklindernoren/PyTorch-YOLOv3/issues/230
    kazuto1011/deeplab-pytorch#79, 0.999, https://github.com/kazuto1011/deeplab-pytorch/issues/79
    r9y9/tacotron_pytorch#19, https://github.com/r9y9/tacotron_pytorch/issues/19
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import ClassVar

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.layer_arguments import BATCH_NORMS, place_of_epsilon, value_of, written
from trueloop.analysis.source_file import Hit, Source
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Rule, Severity
from trueloop.tracing.events import BatchNormTrained, Event, StatisticsForgotten

LARGE = 0.9  # torch's own 0.1, taken the other way


class Detector(failure.Detector):
    """Passes on what the source has seen."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StatisticsForgotten, BatchNormTrained)

    def observe(self, event: StatisticsForgotten | BatchNormTrained) -> Evidence | None:
        """Return evidence for each momentum of a model."""
        if isinstance(event, BatchNormTrained):
            return None
        several = f" and {event.layers - 1} more" if event.layers > 1 else ""
        return Evidence(
            message=f"{event.module.kind}{several} of {event.model.name} with momentum {event.momentum:g}: "
            f"{event.momentum:.0%} of the running statistics are those of the latest batch.",
            location=event.place,
            fix=f"Give them momentum={1 - event.momentum:.6g}: in torch it is the weight of the new batch.",
            about=(event.model, event.momentum),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the batch normalisations that are made with a momentum from 0.9 to below 1."""
    made = {id(each.node): each for each in source.acts(OpKind.MADE)}
    for call in source.calls(*BATCH_NORMS):
        place = place_of_epsilon(source, call) + 1
        momentum, tracked = written(call, "momentum", place), written(call, "track_running_stats", place + 2)
        if tracked is not None and not (isinstance(tracked, ast.Constant) and tracked.value):
            continue  # without running statistics the momentum is of nothing
        value = value_of(momentum, made.get(id(call)), "momentum", place)
        if not isinstance(value, float) or not LARGE <= value < 1:
            continue
        edit = source.text.replace(momentum, f"{1 - value:.6g}") if isinstance(momentum, ast.Constant) else None
        yield Hit(
            message=f"momentum={value:g} is the weight of the new batch here: the running statistics are nearly those "
            "of the latest one.",
            node=call,
            fix=Fix((edit,), safe=False, words="Take one minus it") if edit else None,
        )


RULE = Rule(words=("BatchNorm1d|BatchNorm2d|BatchNorm3d|SyncBatchNorm",), find=find)

FAILURE = Failure(
    code="MDL005",
    title="Batch normalisation has another framework's momentum",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.99), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    x = torch.randn(200, 8)
    print(nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item())
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.01), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    x = torch.randn(200, 8)
    print(nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).item())
""",
    fix="Give batch normalisation one minus that momentum: 0.01 for 0.99.",
    rule=RULE,
    detector=Detector,
)
