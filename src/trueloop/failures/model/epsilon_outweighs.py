"""A number that was meant for something else is batch normalisation's epsilon, so that it hardly normalises.

What you see
    None by itself: layers behind it get features that are smaller than they should be, the more so where activations
    are small, and the network trains as if it were normalised by halves. Deep ones and GANs become unstable.

Why it happens
    The second positional parameter of ``BatchNorm2d`` is ``eps``, which is added to the variance; ``momentum`` is the
    third. Any number will do: ``BatchNorm2d(128, 0.8)`` divides features of variance 1 by 1.34, and those of variance
    0.01 by 0.9, not by 0.1.

Fix
    Name the parameter: ``BatchNorm2d(128, momentum=0.2)`` for Keras's 0.8, or leave the number out.

When this is fine
    An epsilon of up to a hundredth, as TensorFlow's 1e-3; an epsilon that is computed; LayerNorm and GroupNorm, whose
    epsilon some set on purpose; normalisations of other libraries; layers in eval mode. Told from 0.1 on, ten thousand
    times torch's own: a regulariser of that strength is possible, hence a warning. At run time models that are trained
    and keep running statistics are looked at, when they are first called.

References
    eriklindernoren/PyTorch-GAN#116, "Infogan batchnorm2d layers have eps=0.8 ?",
    https://github.com/eriklindernoren/PyTorch-GAN/issues/116
    weiaicunzai/pytorch-cifar100#98, a number of channels in its place,
    https://github.com/weiaicunzai/pytorch-cifar100/pull/98
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
from trueloop.tracing.events import BatchNormTrained, EpsilonOutweighs, Event

LAYERS = BATCH_NORMS + tuple(f"torch.nn.{lazy}InstanceNorm{n}d" for lazy in ("", "Lazy") for n in (1, 2, 3))
LARGE = 0.1  # of a variance of about 1; torch's own is 1e-5


class Detector(failure.Detector):
    """Passes on what the source has seen."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (EpsilonOutweighs, BatchNormTrained)

    def observe(self, event: EpsilonOutweighs | BatchNormTrained) -> Evidence | None:
        """Return evidence for each epsilon of a model."""
        if isinstance(event, BatchNormTrained):
            return None
        several = f" and {event.layers - 1} more" if event.layers > 1 else ""
        by = (1 + event.epsilon) ** 0.5
        return Evidence(
            message=f"{event.module.kind}{several} of {event.model.name} with eps={event.epsilon:g}: features of "
            f"variance 1 are divided by {by:.3g}, and those of variance 0.01 by {(0.01 + event.epsilon) ** 0.5:.3g}.",
            location=event.place,
            about=(event.model, event.epsilon),
        )


def find(source: Source) -> Iterator[Hit]:
    """Yield the normalisations that are made with an epsilon of 0.1 or more."""
    made = {id(each.node): each for each in source.acts(OpKind.MADE)}
    for call in source.calls(*LAYERS):
        place = place_of_epsilon(source, call)
        epsilon = written(call, "eps", place)
        value = value_of(epsilon, made.get(id(call)), "eps", place)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < LARGE:
            continue
        free = value < 1 and all(each.arg != "momentum" for each in call.keywords)
        last = isinstance(epsilon, ast.Constant) and epsilon in call.args[-1:]
        edit = source.text.replace(epsilon, f"momentum={1 - value:.6g}") if free and last else None
        yield Hit(
            message=f"{value:g} is the epsilon here, which is added to the variance; momentum comes behind it.",
            node=call,
            fix=Fix((edit,), safe=False, words="Give it as torch's momentum, one minus Keras's") if edit else None,
        )


RULE = Rule(words=("Norm1d|Norm2d|Norm3d|SyncBatchNorm",), find=find)

FAILURE = Failure(
    code="MDL007",
    title="A number stands in the place of batch normalisation's epsilon",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, 0.8), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
    good="""
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.2), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    x = torch.randn(8, 8)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
    fix="Name the parameter that was meant (momentum=), or leave the number out.",
    rule=RULE,
    detector=Detector,
)
