"""The two programs of page "operations": the page shows and runs the same source code."""

from dataclasses import dataclass
from typing import Final, Literal

Example = Literal["worked_example", "irises"]
Optimizer = Literal["sgd", "momentum", "adam"]

SIX: Final = ("forward", "loss", "backward", "update", "zero grad", "schedule")
AFTER: Final = ("second backward", "forward again", "loss again")
MARKS: Final = ("built", "batch", *SIX, *AFTER)

SPECIES: Final = ("setosa", "versicolor", "virginica")
FLOWERS: Final = (
    ((1.4, 0.2), (4.7, 1.4), (6.0, 2.5)),
    ((1.4, 0.2), (4.5, 1.5), (5.1, 1.9)),
    ((1.3, 0.2), (4.9, 1.5), (5.9, 2.1)),
    ((1.5, 0.2), (4.0, 1.3), (5.6, 1.8)),
)
"""Length and width of the petal in cm, of the first four flowers of each species. Source: Fisher, 1936."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SixOperations:
    """Settings of the program: six operations on one of two examples."""

    example: Example = "worked_example"
    optimizer: Optimizer = "sgd"
    lr: float = 0.01
    gamma: float = 0.9
    """Factor that multiplies the learning rate after every update."""
    updates: int = 1
    hidden: int = 4
    """Number of hidden units; the worked example has none."""
    seed: int = 2
    """Seed of the initial weights; the worked example has fixed weights. With 2, two of the four default hidden units
    are active for all flowers, one for some, one for none."""


_OPTIMIZERS: Final = {
    "sgd": "torch.optim.SGD(model.parameters(), lr={lr})",
    "momentum": "torch.optim.SGD(model.parameters(), lr={lr}, momentum=0.9)",
    "adam": "torch.optim.Adam(model.parameters(), lr={lr})",
}

_WORKED: Final = """\
import torch
from torch import nn

inputs = torch.tensor([[1.0, 2.0]])
targets = torch.tensor([[1.0, 0.0]])

model = nn.Linear(2, 2)
with torch.no_grad():
    model.weight.copy_(torch.tensor([[0.5, -0.3], [0.2, 0.8]]))
    model.bias.zero_()

loss_fn = nn.MSELoss()
optimizer = {optimizer}
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma={gamma})  # built

for _ in range({updates}):
    outputs = model(inputs)  # forward
    outputs.retain_grad()  # to show dL/dy; training does not need it
    loss = loss_fn(outputs, targets)  # loss
    loss.backward()  # backward
    optimizer.step()  # update
    optimizer.zero_grad()  # zero grad
    schedule.step()  # schedule
{after}"""

_IRISES: Final = """\
import torch
from torch import nn

# Irises from Fisher (1936): length and width of the petal in cm, one flower of each species per batch.
batches = torch.tensor(
    [
{flowers}
    ]
)
targets = torch.tensor([0, 1, 2])  # setosa, versicolor, virginica

torch.manual_seed({seed})
first, second = nn.Linear(2, {hidden}), nn.Linear({hidden}, 3)
model = nn.Sequential(first, nn.ReLU(), second)

loss_fn = nn.CrossEntropyLoss()
optimizer = {optimizer}
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma={gamma})  # built

for number in range({updates}):
    inputs = batches[number % len(batches)]  # batch
    before = first(inputs)  # forward: model(inputs), layer by layer
    hidden = torch.relu(before)  # forward
    outputs = second(hidden)  # forward
    for each in (before, hidden, outputs):
        each.retain_grad()  # to show the gradient; training does not need it
    loss = loss_fn(outputs, targets)  # loss
    loss.backward()  # backward
    optimizer.step()  # update
    optimizer.zero_grad()  # zero grad
    schedule.step()  # schedule
{after}"""

_AFTER: Final = """
try:
    loss.backward()  # the same graph once more
except RuntimeError as error:
    refused = str(error)  # second backward

with torch.no_grad():
    again = model(inputs)  # forward again
    loss_again = loss_fn(again, targets)  # loss again

print(f"loss {loss.item():.4f}, and after the update {loss_again.item():.4f}")
"""


def program(settings: SixOperations) -> str:
    """Return the program, which runs unchanged as a file."""
    optimizer = _OPTIMIZERS[settings.optimizer].format(lr=repr(settings.lr))
    values = {"optimizer": optimizer, "gamma": repr(settings.gamma), "updates": settings.updates, "after": _AFTER}
    if settings.example == "worked_example":
        return _WORKED.format(**values)
    flowers = "\n".join(f"        {[list(flower) for flower in batch]}," for batch in FLOWERS)
    return _IRISES.format(**values, flowers=flowers, seed=settings.seed, hidden=settings.hidden)
