"""LOS003: predictions and targets that are broadcast against each other."""

from __future__ import annotations

import pytest

DATA = """
import warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
warnings.filterwarnings("ignore")
x = torch.randn(60, 6)
y = x.sum(1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
DQN = """
target_model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
q = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(q.parameters(), lr=0.01)
for _ in range(3):
    actions, rewards, dones = torch.randint(0, 2, (60, 1)), torch.randn(60, 1), (torch.rand(60, 1) < 0.2).float()
    with torch.no_grad():
        following = target_model(x)
    %s
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FAULTY = {
    "rewards_in_a_column_and_values_in_a_row": DQN
    % """
    targets = rewards + 0.99 * following.max(1)[0] * (1 - dones)
    loss = F.smooth_l1_loss(q(x).gather(1, actions), targets)  # <- LOS003
""",
    "rewards_in_a_row_and_values_in_a_column": DQN
    % """
    targets = rewards.squeeze(1) + 0.99 * following.amax(1, keepdim=True) * (1 - dones.squeeze(1))
    loss = F.mse_loss(q(x).gather(1, actions).squeeze(1), targets)  # <- LOS003
""",
    "column_against_row": """
for _ in range(3):
    loss = F.mse_loss(model(x), y)  # <- LOS003
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "loader_and_class": """
class Fit:
    criterion = nn.SmoothL1Loss()
    def step(self, a, b):
        optimizer.zero_grad()
        loss = self.criterion(model(a), b)  # <- LOS003
        loss.backward()
        optimizer.step()
fit = Fit()
for a, b in DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True):
    fit.step(a, b)
""",
    "row_against_column": """
targets = y[:, None]
for _ in range(2):
    optimizer.zero_grad()
    loss = nn.HuberLoss()(model(x).squeeze(-1), targets)  # <- LOS003
    loss.backward()
    optimizer.step()
""",
    "absolute": """
from torch.nn.functional import l1_loss
def loss_of(a, b):
    return l1_loss(a, b)  # <- LOS003
for i in range(4):
    part = slice(15 * i, 15 * i + 15)
    (loss_of(model(x[part]), y[part]) / 2).backward()
    if i % 2:
        optimizer.step()
        optimizer.zero_grad()
""",
    "by_hand_and_bfloat16": """
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = ((out.float() - y) ** 2).mean()
    loss.backward()  # <- LOS003
    optimizer.step()
""",
    "target_first": """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = model
    def forward(self, x):
        return self.net(x), x
net = Two()
for _ in range(2):
    optimizer.zero_grad()
    loss = F.mse_loss(y, net(x)[0])  # <- LOS003
    loss.backward()
    optimizer.step()
""",
}
BY_HAND_LOOP = """
for _ in range(4):
    optimizer.zero_grad()
    loss = loss_of(model(x))
    loss.backward()  # <- LOS003
    optimizer.step()
"""
FAULTY_BY_HAND = {
    "huber": """
def loss_of(p, delta=1.0):
    r = (p - y).abs()
    quadratic = torch.clamp(r, max=delta)
    return (0.5 * quadratic ** 2 + delta * (r - quadratic)).mean()
""",
    "pinball": """
def loss_of(p, q=0.9):
    error = y - p
    return torch.max(q * error, (q - 1) * error).mean()
""",
    "log cosh": "loss_of = lambda p: torch.log(torch.cosh(p - y)).mean()",
    "charbonnier": "loss_of = lambda p: torch.sqrt((p - y) ** 2 + 1e-6).mean()",
    "advantages in a row": """
def loss_of(p):
    log_probability = F.logsigmoid(p)
    return -(log_probability * (y - y.mean())).mean()
""",
    "weights in a row": """
weight = torch.rand(60)
loss_of = lambda p: (weight * (p - y[:, None]).abs()).sum() / weight.sum()
""",
    "where": """
def loss_of(p):
    r = p - y
    return torch.where(r.abs() < 1, 0.5 * r ** 2, r.abs() - 0.5).mean()
""",
}
LOOP = """
for _ in range(3):
    optimizer.zero_grad()
    loss_of(model(x)).backward()
    optimizer.step()
"""
BY_HAND = {"by_hand_and_bfloat16"}
CORRECT = {
    "as_many_raters": "ratings = y[:, None] + torch.randn(60, 60)\nloss_of = lambda p: F.mse_loss(p, ratings)" + LOOP,
    "rated_once": "ratings = torch.zeros(60, 60)\nratings[3] = y\nloss_of = lambda p: F.mse_loss(p, ratings)" + LOOP,
    "all_targets_equal": "loss_of = lambda p: F.mse_loss(p, torch.ones(60, 60))" + LOOP,
    "columns_of_a_step": DQN
    % """
    targets = rewards + 0.99 * following.max(1)[0].unsqueeze(1) * (1 - dones)
    loss = F.smooth_l1_loss(q(x).gather(1, actions), targets)
""",
    "squeezed": "loss_of = lambda p: F.mse_loss(p.squeeze(1), y)" + LOOP,
    "columns": "loss_of = lambda p: F.l1_loss(p, y[:, None])" + LOOP,
    "pairs_by_an_axis": "loss_of = lambda p: F.mse_loss(p.squeeze(1)[:, None], y[None, :])" + LOOP,
    "pairs_of_columns_and_rows": "loss_of = lambda p: F.mse_loss(p, y[None, :].expand(60, 60))" + LOOP,
    "expanded": "loss_of = lambda p: F.mse_loss(p.expand(-1, 5), y[:, None].expand(-1, 5))" + LOOP,
    "one_for_all": "loss_of = lambda p: F.mse_loss(p.mean(0), y)" + LOOP,
    "quantiles": """
quantiles = nn.Linear(6, 7)
optimizer = torch.optim.Adam(quantiles.parameters())
def loss_of(_):
    theta = quantiles(x)
    return F.smooth_l1_loss(theta.unsqueeze(-1), theta.detach().unsqueeze(1))
"""
    + LOOP,
    "quantiles_of_one_state": """
quantiles = nn.Linear(6, 7)
optimizer = torch.optim.Adam(quantiles.parameters())
def loss_of(_):
    theta = quantiles(x[:1])
    return F.huber_loss(theta.view(-1, 1), theta.detach().view(-1))
"""
    + LOOP,
    "matrix_of_targets_for_one_column": "square = torch.randn(60, 60)\nloss_of = lambda p: F.l1_loss(p, square)" + LOOP,
    "distances": "loss_of = lambda p: ((p - p.detach().squeeze(1)) ** 2).sum() / 3600" + LOOP,
    "all pairs of predictions": "loss_of = lambda p: F.relu(1 - (p - p.T)).mean()" + LOOP * 2,
    "kernel of pairs": "loss_of = lambda p: -torch.exp(-(p.unsqueeze(1) - y[None, :, None]) ** 2).mean()" + LOOP * 2,
    "anchors": "anchors = torch.linspace(0, 1, 10)\nloss_of = lambda p: (p - anchors).abs().amin(1).mean()" + LOOP * 2,
    "huber by hand": """
def loss_of(p):
    r = (p.squeeze(1) - y).abs()
    return torch.where(r < 1, 0.5 * r ** 2, r - 0.5).mean()
"""
    + LOOP * 2,
    "weights in a column": "weight = torch.rand(60, 1)\nloss_of = lambda p: (weight * (p - y[:, None]) ** 2).mean()"
    + LOOP * 2,
    "weights of columns": """
wide = nn.Linear(6, 60)
optimizer = torch.optim.Adam(wide.parameters())
columns = torch.rand(60)
loss_of = lambda p: (columns * (wide(x) - y[:, None]) ** 2).mean()
"""
    + LOOP * 2,
    "fitted_constant": """
mean = nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([mean], lr=0.1)
loss_of = lambda p: F.mse_loss(mean, y)
"""
    + LOOP,
}


@pytest.mark.parametrize(
    "script",
    [pytest.param(each, marks=[pytest.mark.reads_saved] * (name in BY_HAND)) for name, each in FAULTY.items()],
    ids=FAULTY,
)
def test_run_reports_faulty_scripts(run_reports, script: str):
    assert "pairs instead of" in run_reports(DATA + script).findings[0].message


@pytest.mark.parametrize("script", FAULTY_BY_HAND.values(), ids=FAULTY_BY_HAND)
def test_run_reports_losses_by_hand(run_reports, script: str):
    assert run_reports(DATA + script + BY_HAND_LOOP).findings[0].severity == "warning"


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script: str):
    run_is_clean(DATA + script)


EPISODES = """
policy = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
for episode in range(4):
    log_probabilities, length = [], 9 + episode
    for state in torch.randn(length, 1, 6):
        choice = torch.distributions.Categorical(logits=policy(state))
        log_probabilities.append(choice.log_prob(choice.sample()))
    log_probabilities = torch.cat(log_probabilities)
    returns = torch.rand(length).flip(0).cumsum(0).flip(0)%s
    optimizer.zero_grad()
    loss = -(log_probabilities * (returns - returns.mean())).sum()
    loss.backward()
    optimizer.step()
"""


def test_the_steps_of_an_episode_against_its_returns(run):
    found = run(DATA + EPISODES % "[:, None]").reported_lines
    assert {code for code, _ in found} == {"LOS003"}


def test_the_steps_of_an_episode_with_their_returns(run_is_clean):
    run_is_clean(DATA + EPISODES % "")
