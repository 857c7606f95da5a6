"""BatchNorm or InstanceNorm gets an ``eps`` that was meant for another parameter, so it hardly normalises.

What you see
    The network trains as if it had almost no BatchNorm layers: their outputs are too small, above all where activations
    are small. Deep networks and GANs become unstable.

Why it happens
    The second positional parameter of ``BatchNorm2d`` is ``eps``, which is added to the variance; ``momentum`` is the
    third. PyTorch accepts any number: ``BatchNorm2d(128, 0.8)`` divides features with variance 1 by 1.34 instead of 1,
    and features with variance 0.01 by 0.9 instead of 0.1.

Fix
    Pass the number by name, or leave it out:

        nn.BatchNorm2d(128, 0.8)  # wrong: this is eps
        nn.BatchNorm2d(128, momentum=0.2)  # right: momentum=0.8 in Keras is 1 - 0.8 here

When this is fine
    - ``eps`` is below 0.1, such as TensorFlow's 1e-3.
    - The layer is a LayerNorm or GroupNorm, or comes from another library.
    - The layer is in eval mode.

How it is detected
    The linter and, in a run, the sanitizer report an ``eps`` of 0.1 or more, ten thousand times PyTorch's default. The
    sanitizer checks each model with running statistics at its first call in training; the linter leaves out an ``eps``
    that the program computes. A large ``eps`` may be intended
    as a regularisation, so this is a warning.

References
    eriklindernoren/PyTorch-GAN#116, "Infogan batchnorm2d layers have eps=0.8 ?",
    https://github.com/eriklindernoren/PyTorch-GAN/issues/116
    weiaicunzai/pytorch-cifar100#98, the number of channels as eps,
    https://github.com/weiaicunzai/pytorch-cifar100/pull/98
    torch.nn.BatchNorm2d, https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm2d.html
"""

import ast
from collections.abc import Iterator

from trueloop.analysis.operations import OpKind
from trueloop.analysis.queries.batch_loops import function_of
from trueloop.analysis.queries.layer_arguments import BATCH_NORMS, argument_node, argument_value, epsilon_position
from trueloop.analysis.source_file import Hit, SourceFile
from trueloop.core.findings import Evidence
from trueloop.core.source_text import Fix, nodes_in
from trueloop.failures.failure import BaseDetector, Failure, Rule, Severity
from trueloop.tracing.trackers.batchnorm_layers import BatchNormTrained

LAYERS = BATCH_NORMS + tuple(f"torch.nn.{lazy}InstanceNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3))
MIN_EPSILON = 0.1  # a tenth of a typical variance of 1; PyTorch's default is 1e-5


class Detector(BaseDetector):
    """Reports each large epsilon of a model that is trained."""

    def on_batch_norm_trained(self, event: BatchNormTrained) -> list[Evidence]:
        """Return evidence for each large epsilon of a model."""
        kinds: dict[float, list[str]] = {}
        for layer in event.layers:
            if layer.eps >= MIN_EPSILON:
                kinds.setdefault(float(layer.eps), []).append(type(layer).__name__)
        return [
            Evidence(
                message=f"{first}{f' and {len(more)} more' if more else ''} in {event.model.name} hardly normalises "
                f"with eps={epsilon:g}: features with variance 1 are divided by {(1 + epsilon) ** 0.5:.3g} instead of "
                f"1, and features with variance 0.01 by {(0.01 + epsilon) ** 0.5:.3g} instead of 0.1.",
                location=event.location,
                dedup_key=(event.model, epsilon),
            )
            for epsilon, (first, *more) in kinds.items()
        ]


def find(source: SourceFile) -> Iterator[Hit]:
    """Yield the normalisations with an epsilon of 0.1 or more."""
    created = {id(each.node): each for each in source.ops(OpKind.CREATE)}
    for call in source.calls_of(*LAYERS):
        position = epsilon_position(source, call)
        epsilon = argument_node(call, "eps", position)
        value = argument_value(epsilon, created.get(id(call)), "eps", position)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or value < MIN_EPSILON or _may_be_of_program(source, call):
            continue
        is_free = value < 1 and all(each.arg != "momentum" for each in call.keywords)
        is_last = isinstance(epsilon, ast.Constant) and epsilon in call.args[-1:]
        edit = source.text.replace(epsilon, f"momentum={1 - value:.6g}") if is_free and is_last else None
        yield Hit(
            message=f"`{source.text.segment(call.func)}` hardly normalises: it gets {value:g} as `eps`, which is added "
            "to the variance; `momentum` is the next parameter.",
            node=call,
            fix=Fix((edit,), safe=False, description="Pass one minus the number as momentum") if edit else None,
        )


def _may_be_of_program(source: SourceFile, call: ast.Call) -> bool:
    """Return True for a layer that is a parameter, ``norm_layer=None``: its class may have other arguments."""
    function = function_of(source, call)
    return isinstance(call.func, ast.Name) and any(
        each.arg == call.func.id for each in nodes_in(getattr(function, "args", call), ast.arg)
    )


RULE = Rule(required_words=("Norm1d|Norm2d|Norm3d|SyncBatchNorm",), find=find)

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, {argument}), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    print(loss.item())
"""

FAILURE = Failure(
    code="MDL007",
    title="BatchNorm gets a large number as eps",
    severity=Severity.WARNING,
    bad=SCRIPT.replace("{argument}", "0.8"),
    good=SCRIPT.replace("{argument}", "momentum=0.2"),
    fix="Pass the number by name (momentum=), or leave it out.",
    rule=RULE,
    detector=Detector,
)
