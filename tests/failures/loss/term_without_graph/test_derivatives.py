"""LOS009: derivatives in the loss that torch.autograd.grad computes without a graph."""

import pytest

HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import autograd

net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
data = torch.randn(64, 2)
"""

FAULTY = {
    "second derivative of a physics-informed network, in a function": """
def residual(net, x):
    x = x.clone().requires_grad_(True)
    u = net(x)
    u_x = torch.autograd.grad(u, x, grad_outputs=torch.ones_like(u), create_graph=True)[0]
    u_xx = torch.autograd.grad(u_x, x, torch.ones_like(u_x), retain_graph=True)[0]  # <- LOS009
    return u_xx + u ** 3
for it in range(10):
    pde = residual(net, data).pow(2).mean()
    loss = pde + 50 * net(data).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "gradient penalty of a class": """
class Trainer:
    def __init__(self, critic):
        self.D = critic
        self.opt = torch.optim.Adam(self.D.parameters(), lr=1e-4)

    def penalty(self, real, fake):
        alpha = torch.rand(real.size(0), 1)
        mixed = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        scores = self.D(mixed)
        grads = autograd.grad(outputs=scores, inputs=mixed, grad_outputs=torch.ones_like(scores),  # <- LOS009
                              create_graph=False, retain_graph=True, only_inputs=True)[0]
        grads = grads.view(grads.size(0), -1)
        return ((grads.norm(2, dim=1) - 1) ** 2).mean()

    def step(self, real, fake):
        d_loss = self.D(fake).mean() - self.D(real).mean() + 10.0 * self.penalty(real, fake)
        self.opt.zero_grad()
        d_loss.backward()
        self.opt.step()

trainer = Trainer(net)
for step in range(10):
    trainer.step(data, torch.randn(64, 2))
""",
    "forces inside forward": """
class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, positions):
        positions.requires_grad_(True)
        energy = self.net(positions).sum(1)
        forces = -torch.autograd.grad(energy.sum(), positions, retain_graph=True)[0]  # <- LOS009
        return energy, forces

model = Potential()
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(5):
    energy, forces = model(data)
    loss = F.mse_loss(energy, data[:, 0]) + 0.1 * F.mse_loss(forces, data)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}

OUTPUTS = """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(2, 16), nn.Tanh()), nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.body(x)
        return hidden, self.head(hidden)

def slopes_of(outputs, inputs):
    slopes, *_ = torch.autograd.grad(outputs, inputs, torch.ones_like(outputs), retain_graph=True)  #
    return slopes.flatten(1)

model = Classifier()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
labels = torch.randint(3, (64,))
for epoch in range(10):
    hidden, logits = model(data)
    gap = logits.softmax(1).gather(1, labels[:, None])[:, 0] - logits.softmax(1).max(1).values
    slopes = slopes_of(gap, hidden)
TERM
    opt.zero_grad()
    total.backward()
    opt.step()
"""
CONSTANTS = {
    "a distance, which is divided by the slope": """
    distance = gap / (torch.norm(slopes, dim=1) + 1e-8)
    total = F.relu(1.0 - distance).square().mean()
""",
    "a distance that branches change": """
    distance = gap[:, None] / (slopes.norm(dim=1, keepdim=True) + 1e-8)
    if epoch > 5:
        distance, _ = distance.min(dim=1)
    elif epoch > 3:
        distance = distance.mean(dim=1)
    total = torch.cat([distance.flatten(), gap]).square().mean()
""",
    "a distance, divided by torch.div": """
    distance = torch.div(gap, slopes.norm(dim=1) + 1e-8)
    total = (distance - 1).pow(2).mean()
""",
    "a distance for each class, stacked": """
    size = torch.stack([slopes_of(logits[:, k], hidden) for k in range(3)], dim=1).norm(dim=2)
    total = torch.cat([(logits[:, k] / (size[:, k] + 1e-6)).square() for k in range(3)]).mean()
""",
    "a quotient of the raw slopes": """
    newton = hidden / slopes
    total = (newton ** 2).mean()
""",
    "weights of samples": """
    weights = slopes.norm(dim=1) / slopes.norm(dim=1).sum()
    total = (weights * gap.square()).sum()
""",
    "weights of samples, multiplied by a method": """
    total = gap.square().mul(slopes.square().sum(1).sqrt()).mean()
""",
}
TERMS = {
    "added to a quotient": """
    total = (gap / 3).square().mean() + 0.1 * slopes.norm(dim=1).mean()
""",
    "the numerator of a quotient": """
    total = gap.mean() + (slopes.norm(dim=1) / (gap.abs() + 1)).mean()
""",
    "with a weight that has no graph": """
    total = gap.mean() + (gap.detach() * slopes.norm(dim=1)).mean()
""",
    "with a number": """
    weight = 1 / len(data)
    total = gap.mean() + weight * slopes.square().sum()
""",
    "a raw slope times the output, in a residual": """
    total = gap.mean() + (hidden * slopes - 1).square().mean()
""",
}
FAULTY |= {
    f"a slope, {name}": OUTPUTS.replace("  #\n", "  # <- LOS009\n").replace("TERM", term)
    for name, term in TERMS.items()
}

CORRECT = {
    **{name: OUTPUTS.replace("  #\n", "\n").replace("TERM", term) for name, term in CONSTANTS.items()},
    "with a graph": """
x = data.requires_grad_()
out = net(x)
g, = torch.autograd.grad(out.sum(), x, create_graph=True)
loss = out.mean() + g.pow(2).sum(1).mean()
loss.backward()
opt.step()
""",
    "adversarial samples": """
for step in range(10):
    x = data.clone().requires_grad_()
    loss = F.mse_loss(net(x), data[:, :1])
    g = torch.autograd.grad(loss, x)[0]
    adversarial = (data + 0.1 * g.sign()).detach()
    opt.zero_grad()
    F.mse_loss(net(adversarial), data[:, :1]).backward()
    opt.step()
""",
    "samples of an energy-based model": """
for step in range(10):
    x = torch.randn(64, 2)
    for _ in range(5):
        x = x.requires_grad_()
        force = torch.autograd.grad(net(x).sum(), x)[0]
        x = x - 0.1 * force
    opt.zero_grad()
    (net(data).mean() - net(x).pow(2).mean()).backward()
    opt.step()
""",
    "first-order MAML": """
from torch.func import functional_call
weights = dict(net.named_parameters())
for step in range(10):
    fast = {name: p.clone() for name, p in net.named_parameters()}
    loss = F.mse_loss(functional_call(net, fast, (data,)), data[:, :1])
    grads = torch.autograd.grad(loss, list(fast.values()))
    fast = {name: p - 0.1 * g for (name, p), g in zip(fast.items(), grads)}
    opt.zero_grad()
    F.mse_loss(functional_call(net, fast, (data,)), data[:, :1]).backward()
    opt.step()
""",
    "an adaptive weight of two losses": """
last = net[2].weight
for step in range(10):
    out = net(data)
    a, b = F.mse_loss(out, data[:, :1]), out.abs().mean()
    g_a = torch.autograd.grad(a, last, retain_graph=True)[0]
    g_b = torch.autograd.grad(b, last, retain_graph=True)[0]
    scale = (g_a.norm() / (g_b.norm() + 1e-4)).detach()
    opt.zero_grad()
    (a + scale * b).backward()
    opt.step()
""",
    "a deterministic policy gradient": """
actor = nn.Linear(2, 2)
actor_opt = torch.optim.Adam(actor.parameters())
for step in range(10):
    action = actor(data)
    leaf = action.detach().requires_grad_()
    slope = torch.autograd.grad(net(leaf).sum(), leaf)[0]
    actor_opt.zero_grad()
    (-(action * slope).sum(1).mean() + action.pow(2).mean()).backward()
    actor_opt.step()
""",
    "an evaluation": """
for step in range(10):
    opt.zero_grad()
    loss = F.mse_loss(net(data), data[:, :1])
    loss.backward()
    opt.step()
x = data.clone().requires_grad_()
error = (torch.autograd.grad(net(x).sum(), x)[0] - 1).pow(2).mean()
print(error.item())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports(lint_reports, script: str):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts(lint_is_clean, script: str):
    lint_is_clean(HEAD + script)
