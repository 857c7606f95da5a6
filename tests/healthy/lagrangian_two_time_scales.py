"""A constrained problem by dual ascent: primal descends, the multiplier ascends at another rate (maximize=True)."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 4)
y = x @ torch.tensor([[2.0], [-1.0], [0.5], [0.0]]) + 0.1 * torch.randn(256, 1)
model = nn.Linear(4, 1)
lam = nn.Parameter(torch.zeros(()))
primal = torch.optim.SGD(model.parameters(), lr=0.05)
dual = torch.optim.SGD([lam], lr=0.5, maximize=True)
for step in range(60):
    primal.zero_grad()
    dual.zero_grad()
    objective = nn.functional.mse_loss(model(x), y)
    violation = model.weight.abs().sum() - 2.0
    (objective + lam * violation).backward()
    primal.step()
    if step % 3 == 2:
        dual.step()
        with torch.no_grad():
            lam.clamp_(min=0.0)
print(objective.item(), violation.item(), lam.item())
