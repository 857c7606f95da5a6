"""Adam's epsilon rounds to zero, because the weights are float16.

What you see
    The loss is infinite or NaN after the first few updates, whatever the learning rate and the data.

Why it happens
    ``model.half()`` makes Adam's averages float16 too. The square of a gradient below 0.0055, times 1 - beta2,
    rounds to zero there, and so does eps = 1e-8, as the smallest positive float16 is 6e-8. Adam then divides by
    zero.

Fix
    Keep the weights in float32 and run the forward under ``torch.autocast``, with a GradScaler for float16.

        model = Net()  # not Net().half()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = loss_fn(model(inputs), targets)

When this is fine
    - Weights are float32 under autocast to float16, or bfloat16, which has the range of float32.
    - ``eps`` is 1e-7 or more, or the optimizer is fused and divides in float32.
    - The float16 weights are copies of float32 weights that the optimizer holds.

How it is detected
    At run time, from the settings and the parameter type of PyTorch's Adam, AdamW, NAdam and RMSprop. The text of a
    program rarely shows that type, so lint does not report it.

References
    torch.optim.Adam, https://docs.pytorch.org/docs/stable/generated/torch.optim.Adam.html
    pytorch/pytorch#8860, "NaN loss when using half precision", solved by "setting eps=1e-4" and clamping,
    https://github.com/pytorch/pytorch/issues/8860
    afiaka87/glide-finetune#5: "after just the first iteration I was running into nan values", though "my gradients and
    input values/images were all normal", https://github.com/afiaka87/glide-finetune/issues/5
    jinxixiang/magic_animate_unofficial#6, "FP16 causes NAN after optimizer.step",
    https://github.com/jinxixiang/magic_animate_unofficial/issues/6
"""

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity
from trueloop.tracing.events import StepTaken


class Detector(BaseDetector):
    """Checks at every step whether epsilon rounds to zero in the type of the weights."""

    subscribes_to = (StepTaken,)

    def observe(self, event: StepTaken) -> Evidence | None:
        """Return evidence where epsilon rounds to zero."""
        if event.underflowing_eps is None:
            return None
        return Evidence(
            message=f"{event.optimizer.kind} updates float16 weights with eps = {event.underflowing_eps:g}, which "
            "rounds to zero in float16: a small gradient leads to a division by zero.",
            location=event.location,
        )


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
    fix="Keep the weights in float32, and run the forward under autocast.",
    detector=Detector,
)
