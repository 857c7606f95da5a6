"""LOS064: Poisson losses that get a rate for its logarithm, or the reverse."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

x, y = torch.rand(64, 4), torch.poisson(5 * torch.ones(64))
body = nn.Linear(4, 1)
optimizer = torch.optim.Adam(body.parameters(), lr=0.01)
"""

FAULTY = {
    "softplus in forward": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, x):
        return F.softplus(self.fc(x)).squeeze(1)
net, criterion = Net(), nn.PoissonNLLLoss()
loss = criterion(net(x), y)  # <- LOS064
loss.backward()
""",
    "exp, a function": """
rate = torch.exp(body(x)).squeeze(1)
loss = F.poisson_nll_loss(rate, y, full=True)  # <- LOS064
loss.backward()
""",
    "a linear layer as a rate": """
loss = F.poisson_nll_loss(body(x).squeeze(1), y, log_input=False)  # <- LOS064
loss.backward()
""",
}
FAULTY |= {
    "a small number added in forward, in a class": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, x):
        return F.softplus(self.fc(x)).squeeze(-1) + 1e-6
class Counts:
    def __init__(self):
        self.net = Net()
        self.criterion = nn.PoissonNLLLoss()
    def fit(self, x, y):
        rate = self.net(x)
        loss = self.criterion(rate, y)  # <- LOS064
        loss.backward()
Counts().fit(x, y)
""",
    "a ReLU at the end": """
net = nn.Sequential(body, nn.ReLU())
loss = nn.PoissonNLLLoss(reduction="sum")(net(x).flatten(), y)  # <- LOS064
loss.backward()
""",
    "a sigmoid": """
loss = F.poisson_nll_loss(torch.sigmoid(body(x)).squeeze(1), y)  # <- LOS064
loss.backward()
""",
}

CORRECT = {
    "a rate": """
loss = F.poisson_nll_loss(F.softplus(body(x)).squeeze(1), y, log_input=False)
loss.backward()
""",
    "a logarithm": """
criterion = nn.PoissonNLLLoss()
loss = criterion(body(x).squeeze(1), y)
loss.backward()
""",
    "a setting": """
def fit(log_input):
    criterion = nn.PoissonNLLLoss(log_input=log_input)
    loss = criterion(body(x).exp().squeeze(1), y)
    loss.backward()
""",
    "the logarithm of a rate": """
rate = torch.exp(body(x)).squeeze(1)
loss = F.poisson_nll_loss(rate.log(), y)
loss.backward()
""",
    "a linear layer, made positive": """
loss = F.poisson_nll_loss(body(x).squeeze(1).clamp(min=1e-6), y, log_input=False)
loss.backward()
""",
    "the logarithm of an exposure added": """
exposure = torch.rand(64) + 1
loss = F.poisson_nll_loss(body(x).squeeze(1) + exposure.log(), y)
loss.backward()
""",
    "a bounded logarithm": """
loss = F.poisson_nll_loss(3 * torch.tanh(body(x)).squeeze(1) + 1, y)
loss.backward()
""",
    "an evaluation without gradients": """
with torch.no_grad():
    print(F.poisson_nll_loss(body(x).exp().squeeze(1), y, log_input=False))
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_other_meaning(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_what_the_loss_expects(lint_is_clean, script):
    lint_is_clean(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_the_other_meaning(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_what_the_loss_expects(run_is_clean, script):
    run_is_clean(HEAD + script)
