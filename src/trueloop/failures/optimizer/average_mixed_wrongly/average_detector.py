"""The base of the detectors that judge averages of the trained weights."""

from trueloop.failures.failure import BaseDetector


class AverageDetector(BaseDetector):
    """Judges the averages of the trained weights that a program keeps; a subclass notes that it has seen one."""

    def __init__(self) -> None:
        self._seen = False

    def inconclusive(self) -> str:
        """Return a reason if the program keeps no average."""
        return "" if self._seen else "no average of the trained weights was found"


SCRIPT = """
import copy
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(240, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(6):
    for start in range(0, 200, 40):
        loss = nn.functional.mse_loss(model(x[start : start + 40]), y[start : start + 40])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters()):
                slow.mul_(0.99).add_(fast, alpha=0.01)
    with torch.no_grad():
        print(nn.functional.mse_loss(average(x[200:]), y[200:]).item())
"""
"""A correct program, which the pages on averages break in different ways."""
