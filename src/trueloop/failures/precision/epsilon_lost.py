"""The weights are float16, and the optimizer's epsilon rounds to zero in that type.

What you see
    The loss is infinite or NaN after the first update or a few, whatever the learning rate and the data.

Why it happens
    ``model.half()`` makes Adam's averages float16, too. The square of a gradient below 0.0055, times 1 - beta2, rounds
    to zero there, and so does eps = 1e-8, as the smallest positive float16 is 6e-8: what is divided by is zero.

Fix
    Keep the weights in float32, and run the forward under ``torch.autocast``, with a GradScaler where it is float16.

When this is fine
    Weights in float32 under autocast to float16, which is what mixed precision means; weights in bfloat16, whose
    smallest number is that of float32; an ``eps`` of 1e-7 or more; float16 copies of weights that an optimizer keeps
    in float32; a fused optimizer, which divides in float32. Certain for Adam, AdamW, NAdam and RMSprop of torch, from
    their settings and the type of what they step. A text seldom tells that type, so it is found at run time.

References
    torch.optim.Adam, https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    pytorch/pytorch#8860, "NaN loss when using half precision", solved by "setting eps=1e-4" and clamping,
    https://github.com/pytorch/pytorch/issues/8860
    afiaka87/glide-finetune#5: "after just the first iteration I was running into nan values", though "my gradients and
    input values/images were all normal", https://github.com/afiaka87/glide-finetune/issues/5
    jinxixiang/magic_animate_unofficial#6, "FP16 causes NAN after optimizer.step",
    https://github.com/jinxixiang/magic_animate_unofficial/issues/6
"""

from __future__ import annotations

from typing import ClassVar

from trueloop.core.findings import Evidence
from trueloop.failures import failure
from trueloop.failures.failure import Failure, Severity
from trueloop.tracing.events import Event, StepTaken


class Detector(failure.Detector):
    """Every step tells whether an epsilon is lost in it."""

    subscribes_to: ClassVar[tuple[type[Event], ...]] = (StepTaken,)

    def observe(self, event: StepTaken) -> Evidence | None:
        """Return evidence where one is."""
        if event.underflowing_eps is None:
            return None
        return Evidence(
            message=f"{event.optimizer.kind} steps float16 weights with eps = {event.underflowing_eps:g}, which rounds to "
            "zero in float16: it divides by zero where a gradient is small.",
            location=event.location,
        )


FAILURE = Failure(
    code="PRC007",
    title="Epsilon is lost in float16",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8).half()
y = 50 * x.sum(1, keepdim=True)
model = nn.Linear(8, 1).half()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(4):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = 50 * x.sum(1, keepdim=True)
model = nn.Linear(8, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
for step in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        outputs = model(x)
    loss = nn.functional.mse_loss(outputs.float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
    fix="Keep the weights in float32, and run the forward under autocast.",
    detector=Detector,
)
