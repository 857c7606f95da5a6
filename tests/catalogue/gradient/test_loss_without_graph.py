"""GRD009: backward from a tensor with nothing behind it."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

GUILTY = {
    "made anew": """
for _ in range(3):
    optimizer.zero_grad()
    loss = torch.tensor(mse(model(x), y).item(), requires_grad=True)
    loss.backward()  # <- GRD009
    optimizer.step()
""",
    "detached": """
def update():
    loss = mse(model(x).detach(), y)
    loss.requires_grad_()
    loss.backward()  # <- GRD009
    optimizer.step()
for _ in range(3):
    update()
""",
    "through numpy": """
class Learner:
    def loss(self):
        error = model(x).detach().numpy() - y.numpy()
        return torch.tensor((error ** 2).mean(), requires_grad=True)
    def learn(self):
        optimizer.zero_grad()
        self.loss().backward()  # <- GRD009
        optimizer.step()
for _ in range(3):
    Learner().learn()
""",
    "without gradients": """
for _ in range(3):
    with torch.no_grad():
        loss = mse(model(x), y)
    loss.requires_grad = True
    torch.autograd.backward(loss)  # <- GRD009
    optimizer.step()
""",
}

QUIET = {
    "plain": "for _ in range(3):\n    optimizer.zero_grad(); mse(model(x), y).backward(); optimizer.step()\n",
    "gradients given to parameters": """
for _ in range(3):
    optimizer.zero_grad()
    grads = torch.autograd.grad(mse(model(x), y), list(model.parameters()))
    for p, g in zip(model.parameters(), grads):
        p.backward(g)
    optimizer.step()
""",
    "an optimised number": """
temperature = torch.tensor(2.0, requires_grad=True)
other = torch.optim.SGD([temperature], lr=0.1)
for _ in range(3):
    other.zero_grad()
    temperature.backward()
    other.step()
""",
    "an adversarial input": """
for _ in range(3):
    inputs = x.clone().requires_grad_()
    mse(model(inputs), y).backward()
    optimizer.zero_grad()
    mse(model(x + 0.1 * inputs.grad.sign()), y).backward()
    optimizer.step()
    optimizer.zero_grad()
""",
}


@pytest.mark.parametrize("script", GUILTY.values(), ids=GUILTY)
def test_it_is_found(guilty, script):
    guilty(HEAD + script)


@pytest.mark.parametrize("script", QUIET.values(), ids=QUIET)
def test_look_alikes_are_left_alone(quiet, script):
    quiet(HEAD + script)
