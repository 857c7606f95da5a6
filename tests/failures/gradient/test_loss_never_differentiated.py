"""GRD033: losses that no backward pass contains."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(320, 10)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1), x[:, :1] * 2), 32, shuffle=True)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(10, 32), nn.Linear(32, 3), nn.Linear(32, 1)
    def forward(self, x):
        h = self.body(x).relu()
        return self.first(h), self.second(h)

"""
MODULES = """
body, first, second = nn.Linear(10, 32), nn.Linear(32, 3), nn.Linear(32, 1)
optimizer = torch.optim.Adam([*body.parameters(), *first.parameters(), *second.parameters()])
criterion = nn.CrossEntropyLoss()
"""
NET = "net = Two()\noptimizer = torch.optim.Adam(net.parameters())\n"
FAULTY = {
    "printed": MODULES
    + """
for epoch in range(3):
    for x, y, z in loader:
        h = body(x)
        loss = criterion(first(h), y)
        loss_size = F.mse_loss(second(h), z)  # <- GRD033
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item(), loss_size.item())
""",
    "a model with two outputs": NET
    + """
for epoch in range(3):
    for x, y, z in loader:
        scores, size = net(x)
        main = F.cross_entropy(scores, y)
        other = F.smooth_l1_loss(size, z)  # <- GRD033
        optimizer.zero_grad()
        main.backward()
        optimizer.step()
    print(f"{main:.3f} {other:.3f}")
""",
    "a total that is only logged": NET
    + """
def train(net, optimizer):
    running = 0.0
    for x, y, z in loader:
        optimizer.zero_grad()
        scores, size = net(x)
        a = F.cross_entropy(scores, y)
        b = 0.5 * F.mse_loss(size, z)  # <- GRD033
        total = a + b
        a.backward()
        optimizer.step()
        running += total.item()
    return running
for epoch in range(3):
    print(train(net, optimizer))
""",
    "in a function of the losses": NET
    + """
def size_loss(prediction, target):
    return F.mse_loss(prediction, target)

def step(x, y, z):
    scores, size = net(x)
    l_class = F.cross_entropy(scores, y)
    l_size = size_loss(size, z)  # <- GRD033
    optimizer.zero_grad()
    l_class.backward()
    optimizer.step()
    return l_class.item(), l_size.item()

for epoch in range(3):
    for x, y, z in loader:
        print(step(x, y, z))
""",
    "a trainer": """
class Trainer:
    def __init__(self):
        self.net = Two()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.mse, self.ce, self.history = nn.MSELoss(), nn.CrossEntropyLoss(), []
    def fit(self):
        for epoch in range(3):
            for x, y, z in loader:
                scores, size = self.net(x)
                loss = self.ce(scores, y)
                aux = self.mse(size, z)  # <- GRD033
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.history.append(aux.item())
Trainer().fit()
""",
    "never used": NET
    + """
for x, y, z in loader:
    scores, size = net(x)
    optimizer.zero_grad()
    aux = F.mse_loss(size, z)  # <- GRD033
    F.cross_entropy(scores, y).backward()
    optimizer.step()
""",
}
CORRECT = {
    "the same prediction": NET
    + """
for x, y, z in loader:
    scores, size = net(x)
    loss = F.mse_loss(size, z) + F.cross_entropy(scores, y)
    watched = F.l1_loss(size, z)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(watched.item())
""",
    "without gradients": NET
    + """
for x, y, z in loader:
    scores, size = net(x)
    optimizer.zero_grad()
    F.cross_entropy(scores, y).backward()
    optimizer.step()
    with torch.no_grad():
        watched = F.mse_loss(net(x)[1], z)
    print(watched.item())
""",
    "stored and summed": NET
    + """
for x, y, z in loader:
    scores, size = net(x)
    losses = {"first": F.cross_entropy(scores, y)}
    second = F.mse_loss(size, z)
    losses["second"] = second
    optimizer.zero_grad()
    sum(losses.values()).backward()
    optimizer.step()
""",
    "returned": NET
    + """
def losses(x, y, z):
    scores, size = net(x)
    first = F.cross_entropy(scores, y)
    second = F.mse_loss(size, z)
    return first, second
for x, y, z in loader:
    first, second = losses(x, y, z)
    optimizer.zero_grad()
    (first + second).backward()
    optimizer.step()
""",
    "two optimizers": """
net, critic = nn.Linear(10, 3), nn.Linear(10, 1)
opt_a, opt_b = torch.optim.Adam(net.parameters()), torch.optim.Adam(critic.parameters())
for x, y, z in loader:
    first = F.cross_entropy(net(x), y)
    second = F.mse_loss(critic(x), z)
    opt_a.zero_grad()
    first.backward()
    opt_a.step()
    opt_b.zero_grad()
    second.backward()
    opt_b.step()
""",
    "switched off by a weight": NET
    + """
weight, use = 0.0, False
for x, y, z in loader:
    scores, size = net(x)
    loss = F.cross_entropy(scores, y)
    aux = F.mse_loss(size, z)
    if use:
        loss = loss + weight * aux
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(aux.item())
""",
    "in turns": MODULES
    + """
for epoch in range(4):
    for x, y, z in loader:
        h = body(x)
        a = F.cross_entropy(first(h), y)
        b = F.mse_loss(second(h), z)
        loss = a if epoch % 2 else b
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(a.item(), b.item())
""",
    "several backward passes": MODULES
    + """
for x, y, z in loader:
    h = body(x)
    a = F.cross_entropy(first(h), y)
    b = F.mse_loss(second(h), z)
    optimizer.zero_grad()
    for loss in (a, b):
        loss.backward(retain_graph=True)
    optimizer.step()
    print(a.item(), b.item())
""",
    "a frozen judge": """
net, judge = nn.Linear(10, 3), nn.Linear(10, 1)
optimizer = torch.optim.Adam(net.parameters())
for x, y, z in loader:
    loss = F.cross_entropy(net(x), y)
    watched = F.mse_loss(judge(x), z)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(watched.item())
""",
}


@pytest.mark.parametrize("name", FAULTY)
def test_lint_reports_losses_without_backward(lint_reports, name):
    lint_reports(HEAD + FAULTY[name])


@pytest.mark.parametrize("name", CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, name):
    lint_is_clean(HEAD + CORRECT[name], "GRD033")
