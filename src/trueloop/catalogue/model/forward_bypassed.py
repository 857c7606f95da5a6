"""The method ``forward`` is called instead of the model, so that hooks and wrappers are left out.

Symptom
    Forward hooks never run: activations are not recorded, a weight reparametrised by a hook keeps its old value.
    Behind ``DistributedDataParallel`` a call of ``model.module.forward`` trains each process by itself.

Why nothing raises
    ``forward`` is a method like any other. What runs the hooks is ``__call__``, around it.

Look-alikes
    ``super().forward(x)`` in a subclass, a method of the model that calls its own ``forward``, and code that leaves
    hooks out on purpose. Without a hook or a wrapper there is no difference at all. A call of ``forward`` leaves no
    trace while a program runs, so no running program is accused of it: it shows in the text only.

Fix
    Call the module: ``model(x)``.

References
    torch.nn.Module.forward and its note, https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html
    DistributedDataParallel,
    https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from trueloop.ground.failure import Failure, Severity

FAILURE = Failure(
    code="MDL002",
    title="The forward method is called instead of the model",
    severity=Severity.WARNING,
    doc=__doc__ or "",
    bad="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model.forward(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    good="""
import torch
from torch import nn

x = torch.randn(128, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
seen = []
model.register_forward_hook(lambda module, inputs, output: seen.append(output.detach().mean()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
print(len(seen))
""",
    fix="Call model(x), not model.forward(x).",
)
