"""GRD032: roots of squared distances that can be zero, and correct programs that look like it."""

import pytest

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(net.parameters())
x, other, y = torch.rand(16, 4), torch.rand(16, 4), torch.randint(2, (16,))
"""
STEP = """
for _ in range(3):
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BROKEN = {
    "a function": "def distance(a, b):\n    return torch.sqrt(((a - b) ** 2).sum(dim=1))  # T\n"
    + STEP.format(loss="distance(net(x), net(other)).mean()"),
    "in steps": STEP.replace("    loss = {loss}\n", "{body}").format(
        body="    left, right = net(x), net(other)\n    diff = left - right\n    squared = diff.pow(2)\n"
        "    total = squared.sum(-1)\n    loss = total.sqrt().mean()  # T\n"
    ),
    "a power": STEP.format(loss="F.relu(1 - ((net(x) - net(other)).square().sum(1) ** 0.5)).mean()  # T"),
    "all pairs": "def pairwise(z):\n    d2 = ((z[:, None] - z[None, :]) ** 2).sum(-1)\n    return d2.sqrt()  # T\n"
    + STEP.format(loss="pairwise(net(x)).mean()"),
    "all pairs, normalised": "def pairwise(z):\n    delta = z.unsqueeze(0) - z.unsqueeze(1)\n"
    "    return torch.sum(delta * delta, dim=2).sqrt()  # T\n"
    + STEP.format(loss="pairwise(F.normalize(net(x))).mean()"),
    "a siamese module": """
class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Linear(4, 3)
    def forward(self, a, b):
        e1 = self.tower(a)
        e2 = self.tower(b)
        return torch.sqrt(torch.sum(torch.pow(e1 - e2, 2), 1))  # T
model = Siamese()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(x, other).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
""",
    "a loss module": """
class Triplet(nn.Module):
    def forward(self, a, p, n):
        near = (a - p).pow(2).sum(1).sqrt()  # T
        far = (a - n).pow(2).sum(1).sqrt()  # T
        return F.relu(near - far + 0.2).mean()
criterion = Triplet()
"""
    + STEP.format(loss="criterion(net(x), net(other), net(x + other))"),
}
CORRECT = {
    "an epsilon": STEP.format(loss="(((net(x) - net(other)) ** 2).sum(1) + 1e-8).sqrt().mean()"),
    "an epsilon in the difference": STEP.format(loss="((net(x) - net(other) + 1e-6) ** 2).sum(1).sqrt().mean()"),
    "clamped": STEP.format(loss="((net(x) - net(other)) ** 2).sum(1).clamp(min=1e-12).sqrt().mean()"),
    "torch.where": "def distance(a, b):\n    s = ((a - b) ** 2).sum(1)\n"
    "    return torch.where(s > 0, s, torch.ones_like(s)).sqrt() * (s > 0)\n"
    + STEP.format(loss="distance(net(x), net(other)).mean()"),
    "pairwise_distance": STEP.format(loss="F.pairwise_distance(net(x), net(other)).mean()"),
    "cdist": STEP.format(loss="torch.cdist(net(x), net(x)).mean()"),
    "a distance in several steps, for an evaluation only": "def distance(a, b):\n    squared = (a - b) ** 2\n"
    "    total = squared.sum(1)\n    return total.sqrt()\n"
    "def judge(net, pairs):\n    with torch.no_grad():\n        for a, b in pairs:\n"
    "            print(distance(net(a), net(b)) < 3)\n"
    + STEP.format(loss="F.cross_entropy(net(x), y)")
    + "judge(net, [(x, other)])\n",
    "a norm": STEP.format(loss="(net(x) - net(other)).norm(dim=1).mean()"),
    "no_grad": "@torch.no_grad()\ndef distance(a, b):\n    return ((a - b) ** 2).sum(1).sqrt()\n"
    "print(distance(net(x), net(other)))\n" + STEP.format(loss="F.cross_entropy(net(x), y)"),
    "an evaluation only": "def distance(a, b):\n    return ((a - b) ** 2).sum(1).sqrt()\n"
    + STEP.format(loss="F.cross_entropy(net(x), y)")
    + "with torch.no_grad():\n    print(distance(net(x), net(other)).mean())\n",
    "a root mean squared error": "target = torch.rand(16, 2)\n"
    + STEP.format(loss="torch.sqrt(((net(x) - target) ** 2).mean())"),
    "a distance to targets": "target = torch.rand(16, 2)\n"
    + STEP.format(loss="((net(x) - target) ** 2).sum(1).sqrt().mean()"),
    "a squared distance": STEP.format(loss="((net(x) - net(other)) ** 2).sum(1).mean()"),
    "ranked": STEP.format(loss="F.cross_entropy(net(x), y)")
    + "z = net(x)\nprint(((z[:, None] - z[None]) ** 2).sum(2).sqrt().argsort(1))\n",
    "a deviation": STEP.format(loss="((net(x) - net(x).mean(0)) ** 2).mean(0).add(1e-4).sqrt().mean()"),
    "positions of the data": "def lengths(p):\n    return ((p[1:] - p[:-1]) ** 2).sum(1).sqrt()\n"
    + STEP.format(loss="(net(x)[1:, 0] - lengths(x)).square().mean()"),
}


@pytest.mark.parametrize("script", BROKEN.values(), ids=BROKEN)
def test_lint_reports_roots_of_distances(lint_reports, script):
    lint_reports(HEAD + script.replace("# T", "# <- GRD032"))


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script, "GRD032")
