"""The two programs that the page on the six operations runs: one text each, shown and run as it stands."""

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
class Six:
    """What is computed."""

    example: Example = "worked_example"
    optimizer: Optimizer = "sgd"
    lr: float = 0.01
    gamma: float = 0.9
    """The learning rate is multiplied by this after every update."""
    updates: int = 1
    hidden: int = 4
    """Units between the two layers; the worked example has none."""
    seed: int = 2
    """Of the first weights; those of the worked example are given. With 2 each unit of the default's four behaves
    otherwise: two are open for all flowers, one for some, one for none."""


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
    outputs.retain_grad()  # so that dL/dy can be seen: training does without
    loss = loss_fn(outputs, targets)  # loss
    loss.backward()  # backward
    optimizer.step()  # update
    optimizer.zero_grad()  # zero grad
    schedule.step()  # schedule
{after}"""

_IRISES: Final = """\
import torch
from torch import nn

# Irises, as Fisher printed them in 1936: length and width of the petal in cm, one flower of each species per batch.
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
        each.retain_grad()  # so that it can be seen: training does without
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


def program(six: Six) -> str:
    """Return the program, runnable as it stands."""
    optimizer = _OPTIMIZERS[six.optimizer].format(lr=repr(six.lr))
    settings = {"optimizer": optimizer, "gamma": repr(six.gamma), "updates": six.updates, "after": _AFTER}
    if six.example == "worked_example":
        return _WORKED.format(**settings)
    flowers = "\n".join(f"        {[list(flower) for flower in batch]}," for batch in FLOWERS)
    return _IRISES.format(**settings, flowers=flowers, seed=six.seed, hidden=six.hidden)
