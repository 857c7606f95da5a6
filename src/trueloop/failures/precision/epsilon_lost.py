"""Adam's epsilon rounds to zero, because the weights are float16.

What you see
    The loss is infinite or NaN after the first few updates, with any learning rate.

Why it happens
    With ``model.half()``, Adam's running averages are float16 too. The smallest positive float16 number is 6e-8, so
    ``eps=1e-8`` rounds to zero. The average of the squared gradients also rounds to zero if the gradients are below
    0.0055. Adam then divides by zero.

Fix
    Keep the weights in float32 and run the forward pass under ``torch.autocast``, with a GradScaler for float16.

        model = Net()  # not Net().half()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets)

When this is fine
    - The weights are float32 under autocast, or bfloat16, which can represent 1e-8.
    - ``eps`` is 1e-7 or more, or the optimizer is fused, which divides in float32.
    - The optimizer updates float32 weights, and the float16 weights are copies of them.

How it is detected
    In a run, the sanitizer checks ``eps`` and the dtype of the parameters for PyTorch's Adam, AdamW, NAdam and RMSprop.
    The linter cannot detect it, because source code rarely shows the dtype.

References
    torch.optim.Adam, https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    pytorch/pytorch#8860, "NaN loss when using half precision", solved by "setting eps=1e-4" and clamping,
    https://github.com/pytorch/pytorch/issues/8860
    afiaka87/glide-finetune#5: "after just the first iteration I was running into nan values", though "my gradients and
    input values/images were all normal", https://github.com/afiaka87/glide-finetune/issues/5
    jinxixiang/magic_animate_unofficial#6, "FP16 causes NAN after optimizer.step",
    https://github.com/jinxixiang/magic_animate_unofficial/issues/6
"""

from typing import Final

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import StepStarted

DIVIDING: Final = frozenset(("Adam", "AdamW", "NAdam", "RMSprop"))  # optimizers that divide by a root plus epsilon
MIN_FLOAT16_EPS: Final = 2.0**-25  # half of the smallest float16; smaller values round to zero


class Detector(BaseDetector):
    """Checks at every step whether epsilon rounds to zero in the dtype of the weights."""

    def on_step_started(self, event: StepStarted) -> Evidence | None:
        """Return evidence if an optimizer that divides by a root plus epsilon has one that rounds to zero."""
        optimizer = event.live_optimizer
        if event.optimizer.kind not in DIVIDING or not type(optimizer).__module__.startswith("torch.optim"):
            return None
        for group in optimizer.param_groups:
            is_float16 = group["params"] and str(group["params"][0].dtype) == "torch.float16"
            if is_float16 and not group.get("fused") and 0 < group["eps"] < MIN_FLOAT16_EPS:
                return Evidence(
                    message=f"{event.optimizer.kind} updates float16 weights with eps={group['eps']:g}, which "
                    "rounds to zero in float16, so a small gradient leads to a division by zero.",
                    location=event.location,
                )
        return None


FAILURE = Failure(
    code="PRC007",
    title="Adam's epsilon rounds to zero in float16",
    severity=Severity.ERROR,
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
    fix="Keep the weights in float32, and run the forward pass under autocast.",
    detector=Detector,
)
