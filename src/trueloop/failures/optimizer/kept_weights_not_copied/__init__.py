"""The average or the old weights share memory with the model, so they are always its latest weights.

What you see
    The EMA model scores exactly like the trained one, or worse with each update. A penalty on the distance to the old
    weights, as in EWC or L2-SP, is 0 whatever its factor. The model trains badly when the average is switched on.

Why it happens
    ``p.detach()``, ``p.data`` and the values of ``state_dict()`` are views of the parameter, not copies. A dictionary
    or list of them changes with every update. Averaging it in place writes into the model: ``lerp_`` changes nothing,
    and ``mul_(decay).add_(p, alpha=1 - decay)`` makes the weights smaller in each update.

Fix
    Copy each tensor when you store it.

        self.shadow = {name: p.detach() for name, p in model.named_parameters()}          # wrong: views
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}  # right

When this is fine
    - Each tensor is cloned, or the whole model or ``state_dict()`` is deep-copied.
    - The average is assigned, not written in place: ``shadow[name] = decay * shadow[name] + (1 - decay) * p``.
    - The views are only read, or used to update the model by hand with its gradients.
    - The weights are swapped for an evaluation by assigning ``p.data``, and swapped back.

How it is detected
    The sanitizer searches the variables of the program for dictionaries, lists and buffers that share memory with
    trained parameters. If there are some, it watches the next 512 updates (24 if they are the parameters themselves, as
    in ``list(model.parameters())``) for lines of the program that mix a parameter with itself in place: ``lerp_`` or
    ``add_`` with the same memory, ``mul_`` and then ``add_`` of a multiple of itself, or ``copy_`` of an average that
    equals it. A difference of two expressions with the same memory is a warning.

    The linter reports a collection of a model's parameters without copies that is averaged in place with the
    parameters of the same model, or subtracted from them. Averages by ``torch._foreach_lerp_`` are found by the linter
    only.

References
    torch.Tensor.detach: "Returned Tensor shares the same storage with the original one",
    https://docs.pytorch.org/docs/stable/generated/torch.Tensor.detach.html
    Kirkpatrick et al., "Overcoming catastrophic forgetting in neural networks", 2017, arXiv:1612.00796
    torch.optim.swa_utils.AveragedModel, which copies the model, https://docs.pytorch.org/docs/stable/optim.html
"""

from dataclasses import dataclass

from trueloop.core.findings import Evidence
from trueloop.failures.failure import BaseDetector, Failure, Severity, changed
from trueloop.failures.optimizer.kept_weights_not_copied.rule import RULE
from trueloop.tracing.events import Event


@dataclass(slots=True, kw_only=True, eq=False)
class MixedWithItself(Event):
    """RARE. A line of the program mixed a parameter with a tensor that has its memory, or subtracted the two."""

    text: str
    """The expression; "" if its text is not known."""
    name: str
    """A variable of the program with tensors that share memory with the parameters: "ema.shadow"."""
    in_place: bool
    """Whether the parameter is changed; False = a difference, which is 0."""


class Detector(BaseDetector):
    """Reports each line that mixes parameters with themselves."""

    def on_mixed_with_itself(self, event: MixedWithItself) -> Evidence:
        """Return the evidence of one line."""
        shown = f"`{event.text}`" if event.text else "This line"
        what = "mixes a parameter of the model with itself" if event.in_place else "is always 0"
        message = f"{shown} {what}: `{event.name}` shares memory with the weights instead of holding copies of them."
        return Evidence(message=message, location=event.location, severity=None if event.in_place else Severity.WARNING)


BAD = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
shadow = {name: p.detach() for name, p in model.named_parameters()}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(6):
    for start in range(0, 200, 40):
        loss = nn.functional.mse_loss(model(x[start : start + 40]), y[start : start + 40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                shadow[name].lerp_(p, 0.05)
model.load_state_dict(shadow)
with torch.no_grad():
    print(nn.functional.mse_loss(model(x[200:]), y[200:]).item())
"""

FAILURE = Failure(
    code="OPT016",
    title="Average or old weights share memory with the model",
    severity=Severity.ERROR,
    doc=__doc__ or "",
    bad=BAD,
    good=changed(BAD, {"{name: p.detach() for": "{name: p.detach().clone() for"}),
    fix="Copy each tensor when it is stored: `p.detach().clone()`.",
    rule=RULE,
    detector=Detector,
)
