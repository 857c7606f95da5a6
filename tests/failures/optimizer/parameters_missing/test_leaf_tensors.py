"""OPT001: a tensor that is to be optimised is in no optimizer."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
content, target = torch.rand(1, 3, 16, 16), torch.rand(1, 8, 16, 16)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 48))
generator.requires_grad_(False)
"""

FAULTY = {
    "an image": """
image = torch.rand(1, 3, 16, 16, requires_grad=True)  # <- OPT001
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    loss = F.mse_loss(net(image), target)
    loss.backward()
    optimizer.step()
torch.save(image.detach(), "image.pt")
""",
    "a latent code in a function": """
def invert(net, target, steps):
    latent = torch.randn(1, 8).requires_grad_()  # <- OPT001
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
    for _ in range(steps):
        loss = (net(latent) - target).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return latent
""",
    "a copy in the optimizer": """
canvas = content.clone()
canvas.requires_grad_(True)  # <- OPT001
optimizer = torch.optim.Adam([canvas.clone()], lr=0.01)
for step in range(100):
    loss = F.l1_loss(net(canvas), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        canvas.clamp_(0, 1)
""",
    "a perturbation, a closure": """
delta = torch.zeros(1, 3, 16, 16)
delta.requires_grad = True  # <- OPT001
optimizer = torch.optim.LBFGS(net.parameters())
for step in range(10):
    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(net(content + delta), target)
        loss.backward()
        return loss
    optimizer.step(closure)
""",
    "an inverse problem": """
operator, measured = torch.randn(20, 40), torch.randn(20)
offset = torch.zeros(20, requires_grad=True)
signal = torch.zeros(40, requires_grad=True)  # <- OPT001
optimizer = torch.optim.SGD([offset], lr=0.01)
for step in range(100):
    loss = (operator @ signal + offset - measured).square().sum() + 0.1 * signal.abs().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a parameter outside of modules": """
scale = nn.Parameter(torch.ones(1))  # <- OPT001
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    loss = F.mse_loss(net(content) * scale, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}

CORRECT = {
    "in the optimizer": """
image = torch.rand(1, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam([image], lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    F.mse_loss(net(image), target).backward()
    optimizer.step()
print((image - content).abs().mean())
""",
    "in the optimizer by a variable": """
image = torch.rand(1, 3, 16, 16, requires_grad=True)
params = [image]
optimizer = torch.optim.Adam(params, lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    F.mse_loss(net(image), target).backward()
    optimizer.step()
print((image - content).abs().mean())
""",
    "an update by hand": """
image = torch.rand(1, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    F.mse_loss(net(image), target).backward()
    optimizer.step()
    with torch.no_grad():
        image -= 0.1 * image.grad
        image.grad.zero_()
print((image - content).abs().mean())
""",
    "a saliency map": """
image = torch.rand(1, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    optimizer.zero_grad()
    F.mse_loss(net(image), target).backward()
    optimizer.step()
saliency = image.grad.abs().amax(1)
print((image - content).abs().mean())
""",
    "a physics-informed network": """
solution = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
x = torch.linspace(0, 1, 50)[:, None].requires_grad_()
optimizer = torch.optim.Adam(solution.parameters(), lr=0.01)
for step in range(100):
    u = solution(x)
    du = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    loss = ((du + u - x) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "inputs for checkpointing": """
from torch.utils.checkpoint import checkpoint
x = torch.rand(4, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    loss = (checkpoint(net, x, use_reentrant=True) - x.mean()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "data that need no gradient": """
import matplotlib.pyplot as plt
x = torch.linspace(-1, 1, 100)[:, None].requires_grad_()
model = nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    loss = F.mse_loss(model(x), 2 * torch.linspace(-1, 1, 100)[:, None])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
plt.plot(x.detach().numpy(), model(x).detach().numpy())
""",
    "an autoencoder": """
x = torch.rand(16, 48, requires_grad=True)
model = nn.Sequential(nn.Linear(48, 8), nn.Linear(8, 48))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(100):
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "two optimizers": """
delta = torch.zeros(1, 3, 16, 16, requires_grad=True)
first, second = torch.optim.SGD([delta], lr=0.1), torch.optim.Adam(net.parameters(), lr=0.01)
for step in range(100):
    loss = F.mse_loss(net(content + delta), target)
    first.zero_grad()
    second.zero_grad()
    loss.backward()
    first.step()
    second.step()
""",
    "a function that makes the optimizer": """
delta = torch.zeros(1, 3, 16, 16, requires_grad=True)
optimizer = make_optimizer(delta)
for step in range(100):
    loss = F.mse_loss(net(content + delta), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a group that is added": """
delta = torch.zeros(1, 3, 16, 16, requires_grad=True)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
optimizer.add_param_group({"params": delta})
for step in range(100):
    loss = F.mse_loss(net(content + delta), target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_tensors_that_no_optimizer_holds(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "OPT001")
