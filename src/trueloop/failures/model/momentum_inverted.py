"""BatchNorm gets the momentum of another framework, so its running statistics are almost those of the last batch.

What you see
    Training looks good, but in eval mode the model is much worse, and the validation loss is very noisy.

Why it happens
    In PyTorch ``momentum`` is the weight of the new batch, 0.1 by default: ``running = (1 - momentum) * running +
    momentum * batch``. In TensorFlow, Keras and Caffe it is the weight of the old value, 0.99.

Fix
    Pass one minus the value of the other framework:

        nn.BatchNorm2d(64, momentum=0.99)  # wrong: copied from TensorFlow
        nn.BatchNorm2d(64, momentum=0.01)  # right

When this is fine
    - You pass ``momentum=None`` (mean of all batches so far) or ``momentum=1.0`` (only the latest batch).
    - The momentum belongs to an optimizer or to the moving average of a teacher.
    - The layer has no running statistics, or is in eval mode.
    - Your program computes ``1 - 0.99``.

How it is detected
    The linter and, in a run, the sanitizer report a momentum from 0.9 to below 1. The sanitizer checks trained models
    when they are first called. Test-time adaptation may use 0.9 on purpose, so this is a warning.

References
    pytorch/vision#8250, "MaxVIT Model - BatchNorm momentum is incorrect", 0.99 in a torchvision model,
    https://github.com/pytorch/vision/issues/8250
    eriklindernoren/PyTorch-YOLOv3#230, "only 10% of the previous trained weight is kept",
    https://github.com/eriklindernoren/PyTorch-YOLOv3/issues/230
    kazuto1011/deeplab-pytorch#79, 0.999, https://github.com/kazuto1011/deeplab-pytorch/issues/79
    r9y9/tacotron_pytorch#19, https://github.com/r9y9/tacotron_pytorch/issues/19
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.layer_arguments import BATCH_NORMS, argument_node, argument_value, epsilon_position
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.trackers.batchnorm_layers import BatchNormTrained

MIN_MOMENTUM = 0.9  # 1 - 0.1, the default of PyTorch


class Detector(BaseDetector):
    """Reports each large momentum of a model that is trained."""

    def on_batch_norm_trained(self, event: BatchNormTrained) -> list[Evidence]:
        """Return evidence for each large momentum of a model."""
        kinds: dict[float, list[str]] = {}
        for layer in event.layers:
            tracks = layer.track_running_stats and isinstance(layer.momentum, float)
            if tracks and MIN_MOMENTUM <= layer.momentum < 1:
                kinds.setdefault(layer.momentum, []).append(type(layer).__name__)
        return [
            Evidence(
                message=f"{first}{f' and {len(more)} more' if more else ''} in {event.model.name} with "
                f"momentum={momentum:g}: the latest batch makes up {momentum:.0%} of the running statistics.",
                location=event.location,
                fix=f"Pass momentum={1 - momentum:.6g}: in PyTorch, momentum is the weight of the new batch.",
                dedup_key=(event.model, momentum),
            )
            for momentum, (first, *more) in kinds.items()
        ]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the BatchNorm layers with a momentum from 0.9 to below 1."""
    created = {id(each.node): each for each in source.ops(OpKind.CREATE)}
    for call in source.calls_of(*BATCH_NORMS):
        position = epsilon_position(source, call) + 1
        momentum, tracked = (
            argument_node(call, "momentum", position),
            argument_node(call, "track_running_stats", position + 2),
        )
        if tracked is not None and not (isinstance(tracked, ast.Constant) and tracked.value):
            continue  # without running statistics the momentum has no effect
        value = argument_value(momentum, created.get(id(call)), "momentum", position)
        if not isinstance(value, float) or not MIN_MOMENTUM <= value < 1:
            continue
        edit = source.text.replace(momentum, f"{1 - value:.6g}") if isinstance(momentum, ast.Constant) else None
        yield Hit(
            message=f"In PyTorch, momentum is the weight of the new batch: with momentum={value:g}, the running "
            f"statistics of `{source.text.segment(call.func)}` are almost those of the latest batch.",
            node=call,
            fix=Fix((edit,), safe=False, description="Use one minus this momentum") if edit else None,
        )


RULE = Rule(required_words=("BatchNorm1d|BatchNorm2d|BatchNorm3d|SyncBatchNorm",), find=find)

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum={momentum}), nn.ReLU(), nn.Linear(16, 1))
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
"""

FAILURE = Failure(
    code="MDL005",
    title="BatchNorm momentum follows TensorFlow's convention",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{momentum}", "0.99"),
    good=SCRIPT.replace("{momentum}", "0.01"),
    fix="Pass one minus this momentum to BatchNorm, such as 0.01 instead of 0.99.",
    rule=RULE,
    detector=Detector,
)
