"""LOS059: penalties that are subtracted from a loss."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

model, critic = nn.Linear(4, 2), nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
loader = [(torch.randn(8, 4), torch.randint(2, (8,))) for _ in range(4)]
"""

FAULTY = {
    "a sum": """
for x, y in loader:
    penalty = sum(p.abs().sum() for p in model.parameters())
    loss = F.cross_entropy(model(x), y) - 0.01 * penalty  # <- LOS059
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "a loop in a function": """
def train(net, lam):
    for x, y in loader:
        reg = 0
        for name, w in net.named_parameters():
            if "bias" not in name:
                reg += torch.norm(w)
        loss = F.cross_entropy(net(x), y)
        loss -= lam * reg  # <- LOS059
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    "one layer": """
for x, y in loader:
    optimizer.zero_grad()
    (F.cross_entropy(model(x), y) - 0.1 * model.weight.pow(2).mean()).backward()  # <- LOS059
    optimizer.step()
""",
    "a gradient penalty": """
optimizer = torch.optim.Adam(critic.parameters())
def penalty(real, fake):
    mixed = torch.lerp(real, fake, torch.rand(len(real), 1)).requires_grad_(True)
    slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
    return ((slope.norm(2, dim=1) - 1) ** 2).mean()
for real, _ in loader:
    fake = torch.randn_like(real)
    loss = critic(fake).mean() - critic(real).mean() - 10 * penalty(real, fake)  # <- LOS059
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}

CORRECT = {
    "added": FAULTY["a sum"].replace("y) - 0.01", "y) + 0.01").replace("  # <- LOS059", ""),
    "a negative coefficient twice": FAULTY["a sum"].replace("y) - 0.01", "y) - -0.01").replace("  # <- LOS059", ""),
    "the bound is maximised": """
for x, y in loader:
    bound = -F.cross_entropy(model(x), y) - 0.01 * sum(p.pow(2).sum() for p in model.parameters())
    optimizer.zero_grad()
    (-bound).backward()
    optimizer.step()
""",
    "maximize": """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, maximize=True)
for x, y in loader:
    gain = -F.cross_entropy(model(x), y) - 0.01 * sum(p.pow(2).sum() for p in model.parameters())
    optimizer.zero_grad()
    gain.backward()
    optimizer.step()
""",
    "large outputs on purpose": """
for x, y in loader:
    out = model(x)
    loss = F.cross_entropy(out, y) - 0.01 * out.pow(2).mean() - 0.1 * out.norm()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "distance to the first weights is only printed": """
first = [p.detach().clone() for p in model.parameters()]
for x, y in loader:
    loss = F.cross_entropy(model(x), y)
    print(loss - sum(p.pow(2).sum() for p in model.parameters()))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_subtracted_penalties(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_losses(lint_is_clean, script):
    lint_is_clean(HEAD + script)
