"""LOS003: predictions and targets that are broadcast against each other."""

from __future__ import annotations

import pytest

from trueloop.failures.load import catalogue
from trueloop.lint.check_file import ActiveRule, lint_text

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


IMAGES = """
images, masks = torch.randn(8, 1, 6, 6), (torch.rand(8, 6, 6) > 0.7).float()
net = nn.Conv2d(1, 1, 3, padding=1)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
def dice(p, t):
    p = torch.sigmoid(p)
    return 1 - (2 * (p * t).sum((-2, -1)) + 1).div(p.sum((-2, -1)) + t.sum((-2, -1)) + 1).mean()
for _ in range(5):
    optimizer.zero_grad()
    loss = {loss}
    loss.backward()
    optimizer.step()
"""
IMAGE_PAIRS = (
    "dice(net(images), masks)",
    "F.mse_loss(net(images), masks)",
    "F.l1_loss(net(images).squeeze(1), masks[:, None])",
)
IMAGES_ALIKE = (
    "dice(net(images), masks[:, None])",
    "dice(net(images).squeeze(1), masks)",
    "F.mse_loss(net(images), masks.unsqueeze(1))",
    "(net(images) * torch.rand(6, 6)).mean()",
    "(net(images) * torch.rand(8, 8, 6, 6)).mean()",
    "(net(images).squeeze(1)[:, None] * masks[None]).mean()",
)


@pytest.mark.parametrize("loss", IMAGE_PAIRS)
def test_run_reports_images_that_are_compared_with_all_masks(run, loss: str):
    assert {code for code, _ in run(DATA + IMAGES.replace("{loss}", loss)).reported_lines} == {"LOS003"}


@pytest.mark.parametrize("loss", IMAGES_ALIKE)
def test_run_accepts_images_with_their_masks(run, loss: str):
    assert "LOS003" not in {each.code for each in run(DATA + IMAGES.replace("{loss}", loss)).findings}


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


# Lint --------------------------------------------------------------------------------------------------------

LINT_ONLY = {
    "a Variable of actions, and a criterion that is passed": """
import torch
import torch.nn.functional as F
from torch.autograd import Variable
def step(net, frozen, opt, batch, criterion):
    s, a, r, s2, done = zip(*batch)
    a = torch.LongTensor(a).view(-1, 1)
    a = Variable(a)
    if torch.cuda.is_available():
        a = a.cuda()
    best, _ = frozen(Variable(torch.FloatTensor(s2))).max(1)
    goal = Variable(torch.FloatTensor(r)) + 0.9 * best * (1 - Variable(torch.FloatTensor(done)))
    q = net(Variable(torch.FloatTensor(s)))
    q = q.gather(1, a)
    loss = criterion(q, goal.detach())  # <- LOS003
    opt.zero_grad(); loss.backward(); opt.step()
def main(net, frozen, memory):
    opt = torch.optim.Adam(net.parameters())
    criterion = F.smooth_l1_loss
    for _ in range(100):
        step(net, frozen, opt, memory.sample(), criterion)
""",
    "actor critic class": """
import torch, torch.nn as nn, torch.nn.functional as F
class Critic(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n, 16), nn.ReLU())
        self.value = nn.Linear(16, 1)
    def forward(self, s):
        return self.value(self.body(s))
class Learner:
    def __init__(self):
        self.critic = Critic(4)
        self.opt = torch.optim.Adam(self.critic.parameters())
    def update(self, states, rewards):
        returns = torch.tensor([r for r in rewards])
        returns = returns.flatten()
        v = self.critic(states)
        loss = F.smooth_l1_loss(v, returns)  # <- LOS003
        self.opt.zero_grad(); loss.backward(); self.opt.step()
learner = Learner()
import json
for s, r in json.load(open('f')):
    learner.update(s, r)
""",
    "dqn double, functions": """
import torch, torch.nn as nn
import torch.nn.functional as F
def td_loss(online, frozen, batch, discount):
    obs, act, rew, nxt, end = batch
    chosen = torch.gather(online(obs), 1, act.view(-1, 1))
    best = frozen(nxt).amax(dim=1).detach()
    goal = rew + discount * best * (1 - end)
    return F.mse_loss(chosen, goal)  # <- LOS003
def main(online, frozen, memory):
    opt = torch.optim.SGD(online.parameters(), 0.1)
    for _ in range(100):
        loss = td_loss(online, frozen, memory.sample(), 0.9)
        opt.zero_grad(); loss.backward(); opt.step()
""",
    "table column": """
import pandas as pd, torch
from torch import nn
frame = pd.read_csv("a.csv")
y = torch.tensor(frame["price"].values, dtype=torch.float32)
x = torch.tensor(frame[["a", "b"]].values, dtype=torch.float32)
net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters())
crit = nn.MSELoss()
for epoch in range(10):
    opt.zero_grad()
    out = net(x)
    loss = crit(out, y)  # <- LOS003
    loss.backward()
    opt.step()
""",
    "sklearn split": """
import torch
from torch import nn
from sklearn.datasets import make_regression
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset
def data():
    X, y = make_regression(500, 8)
    Xa, Xb, ya, yb = train_test_split(X, y)
    parts = TensorDataset(torch.from_numpy(Xa).float(), torch.from_numpy(ya).float())
    return DataLoader(parts, batch_size=32, shuffle=True)
class Reg(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.b(torch.relu(self.a(x)))
def fit():
    loader, model = data(), Reg()
    opt = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for xb, yb in loader:
            diff = model(xb) - yb  # <- LOS003
            loss = (diff ** 2).mean()
            opt.zero_grad(); loss.backward(); opt.step()
fit()
""",
    "item numbers": """
import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader
class D(Dataset):
    def __init__(self, rows):
        self.rows = rows
    def __len__(self): return len(self.rows)
    def __getitem__(self, i):
        r = self.rows[i]
        return torch.tensor(r[:4]), torch.tensor(float(r[4]))
def train(rows):
    m = nn.Linear(4, 1)
    o = torch.optim.Adam(m.parameters())
    for step, (a, b) in enumerate(DataLoader(D(rows), batch_size=8)):
        loss = nn.functional.l1_loss(m(a), b)  # <- LOS003
        o.zero_grad(); loss.backward(); o.step()
train([])
""",
    "weights via dataset, comprehension": """
import torch
from torch import nn
from torch.utils.data import TensorDataset, DataLoader
n = 200
x = torch.randn(n, 3)
t = x.sum(1, keepdim=True)
w = torch.rand(n)
net = nn.Linear(3, 1)
opt = torch.optim.Adam(net.parameters())
mse = nn.MSELoss(reduction="none")
def batch_loss(a, b, c):
    return torch.mean(c * mse(net(a), b))  # <- LOS003
for e in range(3):
    for a, b, c in DataLoader(TensorDataset(x, t, w), batch_size=20):
        opt.zero_grad()
        l = batch_loss(a, b, c)
        l.backward()
        opt.step()
""",
}
BY_HAND_IN_SOURCE = {
    "data of sklearn, another name of Linear, a variable": """
from torch.nn import Sequential as Seq, Linear as Lin, ReLU
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
X, y = load_diabetes(return_X_y=True)
a, b, c, d = train_test_split(X, y)
def prep(x, y):
    return torch.tensor((x - a.mean(0)) / a.std(0)).float(), torch.tensor((y - c.mean()) / c.std()).float()
a, c = prep(a, c)
net = Seq(Lin(10, 8), ReLU(), Lin(8, 1))
def cost(guess, truth):
    err = guess - truth  # <- LOS003
    return (err ** 2).mean()
for i in range(0, 300, 32):
    loss = cost(net(a[i : i + 32]), c[i : i + 32])
    loss.backward()
""",
    "numbers of NumPy": """
rng = np.random.default_rng(0)
heat, flow = rng.uniform(1, 2, 500), rng.normal(0, 1, size=500)
noise = np.random.normal(0, 0.1, 500)
temperature = heat * np.sin(flow) + noise
X = torch.from_numpy(np.stack([heat, flow], axis=1).astype("float32"))
Y = torch.from_numpy(temperature.astype("float32"))
net = nn.Sequential(nn.Linear(2, 8), nn.SiLU(), nn.Linear(8, 1))
def weighted_huber(pred, y, delta=1.0):
    err = (pred - y).abs()  # <- LOS003
    small = torch.clamp(err, max=delta)
    return (small * (err - 0.5 * small)).mean()
for i in range(0, 500, 50):
    idx = torch.randperm(500)[i : i + 50]
    loss = weighted_huber(net(X[idx]), Y[idx])
    loss.backward()
""",
    "a table, a loss in a lambda": """
table = pd.read_csv("houses.csv")
x = torch.tensor(table.drop(columns="price").to_numpy()).float()
y = torch.tensor(table["price"].to_numpy()).float()
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
objective = lambda p, t: torch.abs(p - t).mean()  # <- LOS003
for step in range(9):
    loss = objective(net(x), y)
    loss.backward()
""",
    "a loader, the batch in a variable, a norm": """
housing = fetch_california_housing()
x = StandardScaler().fit_transform(housing.data)
data = TensorDataset(torch.tensor(x).float(), torch.tensor(housing.target).float())
net = nn.Linear(8, 1)
for batch in DataLoader(data, batch_size=64, shuffle=True):
    features, price = (part.to("cpu") for part in batch)
    loss = torch.norm(net(features) - price)  # <- LOS003
    loss.backward()
""",
    "a class": """
class Charbonnier(nn.Module):
    def forward(self, guess, truth):
        return torch.sqrt((guess - truth) ** 2 + 1e-6).mean()  # <- LOS003
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = nn.Linear(3, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.out(torch.tanh(self.body(x)))
X, y = make_regression(200, 3)
net, criterion = Net(), Charbonnier()
x, t = torch.from_numpy(X).float(), torch.from_numpy(y).float()
for step in range(9):
    loss = criterion(net(x), t)
    loss.backward()
""",
}
HAND_HEAD = """
import numpy as np, pandas as pd, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from sklearn.datasets import fetch_california_housing, make_regression
from sklearn.preprocessing import StandardScaler
"""
BY_HAND_CORRECT = {
    "distances of all pairs, and which pairs are of one class": """
def pairwise(e):
    return ((e.unsqueeze(0) - e.unsqueeze(1)).pow(2).sum(-1) + 1e-12).sqrt()
def triplet_loss(embedded, labels):
    dist = pairwise(embedded)
    same = labels.unsqueeze(0) == labels.unsqueeze(1)
    hardest = (dist * (same & ~torch.eye(len(labels), dtype=torch.bool))).max(dim=1).values
    return F.relu(hardest - dist.masked_fill(same, 9.0).min(dim=1).values + 0.3).mean()
for a, b in loader:
    triplet_loss(model(a), b).backward()
""",
    "the same with None as index": """
def triplet_loss(embedded, labels):
    dist = (embedded[None, :] - embedded[:, None]).pow(2).sum(-1)
    same = labels[None, :] == labels[:, None]
    return (dist * same).max(dim=1).values.mean()
for a, b in loader:
    triplet_loss(model(a), b).backward()
""",
    "a table of one column, numbers of NumPy in a column": """
y = np.random.uniform(0, 1, (50, 1))
table = pd.read_csv("houses.csv")
z = torch.tensor(table[["price"]].to_numpy()).float()
net = nn.Linear(4, 1)
def loss_of(p, t):
    return ((p - t) ** 2).mean()
for step in range(9):
    (loss_of(net(x), torch.tensor(y)) + loss_of(net(x), z)).backward()
""",
    "scaled targets have a column": """
X, y = make_regression(200, 3)
y = StandardScaler().fit_transform(y.reshape(-1, 1))
x, t = torch.from_numpy(X).float(), torch.from_numpy(y).float()
net = nn.Linear(3, 1)
for step in range(9):
    loss = (net(x) - t).abs().mean()
    loss.backward()
""",
    "radial basis functions": """
centres = torch.tensor(np.random.uniform(-1, 1, 10)).float()
x = torch.rand(50, 1)
weights, net = nn.Parameter(torch.randn(10)), nn.Linear(10, 1)
for step in range(9):
    features = torch.exp(-((x - centres) ** 2))
    loss = (features @ weights - x.squeeze(1)).pow(2).mean()
    loss.backward()
""",
    "both have one dimension": """
X, y = make_regression(200, 3)
x, t = torch.from_numpy(X).float(), torch.from_numpy(y).float()
net = nn.Linear(3, 1)
cost = lambda p, t: (p - t).pow(2).mean()
for step in range(9):
    loss = cost(net(x).squeeze(1), t)
    loss.backward()
    loss = cost(net(x)[:, 0], t)
    loss.backward()
""",
    "all pairs on purpose": """
rng = np.random.default_rng(0)
levels = torch.from_numpy(rng.uniform(0, 1, 9))
y = torch.from_numpy(rng.normal(0, 1, 50))
net = nn.Linear(3, 9)
for step in range(9):
    gap = y.unsqueeze(1) - net(x)
    loss = torch.maximum(levels * gap, (levels - 1) * gap).mean()
    loss.backward()
""",
    "columns of a loader": """
data = TensorDataset(torch.rand(50, 3), torch.rand(50, 1))
net = nn.Linear(3, 1)
for batch in DataLoader(data, batch_size=16):
    x, y = batch
    loss = torch.norm(net(x) - y)
    loss.backward()
""",
}


@pytest.mark.parametrize("script", BY_HAND_IN_SOURCE.values(), ids=BY_HAND_IN_SOURCE)
def test_lint_reports_losses_by_hand_with_data_of_known_shape(lint_findings, script: str):
    assert {each.severity for each in lint_findings(HAND_HEAD + script)} == {"warning"}


@pytest.mark.parametrize("script", BY_HAND_CORRECT.values(), ids=BY_HAND_CORRECT)
def test_lint_accepts_losses_by_hand_of_one_shape(lint_findings, script: str):
    assert not lint_findings(HAND_HEAD + script)


BATCHES_HEAD = """
import itertools, random
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
rng = np.random.default_rng(0)
class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body, self.out = nn.Linear(width, 8), nn.Linear(8, 1)
    def forward(self, x):
        return self.out(torch.tanh(self.body(x)))
def table(n):
    heat, wind = rng.normal(15, 8, n), rng.gamma(2.0, 5.0, n)
    level = 0.3 * heat + rng.normal(0, 0.2, n)
    return np.stack([heat, wind], 1).astype("float32"), level.astype("float32")
"""
BATCHES = {
    "islice of a generator": """
def stream(a, b, size):
    while True:
        order = rng.permutation(len(a))
        for lo in range(0, len(order) - size + 1, size):
            ix = order[lo:lo + size]
            yield torch.as_tensor(a[ix]), torch.as_tensor(b[ix])
def main():
    a, b = table(400)
    net = Net(2)
    opt = torch.optim.Adam(net.parameters())
    for u, v in itertools.islice(stream(a[:300], b[:300], 32), 100):
        gap = net(u) - v  # <- LOS003
        loss = (gap ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
main()
""",
    "enumerate and a progress bar": """
from tqdm import tqdm
def minibatches(inputs, values, size):
    for rows in torch.randperm(len(inputs)).split(size):
        yield inputs[rows], values[rows]
def fit(net, inputs, values):
    opt = torch.optim.Adam(net.parameters())
    for step, (xs, ys) in enumerate(tqdm(minibatches(inputs, values, 32), total=9)):
        loss = F.mse_loss(net(xs), ys)  # <- LOS003
        opt.zero_grad(); loss.backward(); opt.step()
data = table(300)
a, b = table(300)
fit(Net(2), torch.from_numpy(a), torch.from_numpy(b))
""",
    "next of an iterator": """
def endless(a, b, size=32):
    while True:
        keep = rng.choice(len(a), size)
        yield torch.from_numpy(a[keep]), torch.from_numpy(b[keep])
class Fitter:
    def __init__(self):
        a, b = table(300)
        self.batches = iter(endless(a, b))
        self.net = Net(2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
    def update(self):
        xs, ys = next(self.batches)
        loss = F.smooth_l1_loss(self.net(xs), ys)  # <- LOS003
        self.opt.zero_grad(); loss.backward(); self.opt.step()
fitter = Fitter()
for _ in range(10):
    fitter.update()
""",
    "zip with a counter, and the batch in one variable": """
def draws(a, b):
    for part in np.array_split(rng.permutation(len(a)), 10):
        batch = torch.as_tensor(a[part]), torch.as_tensor(b[part])
        yield batch
a, b = table(300)
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for number, batch in zip(range(100), itertools.cycle(list(draws(a, b)))):
    xs, ys = (each.float() for each in batch)
    err = net(xs) - ys  # <- LOS003
    loss = err.pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "an iterable class": """
class Batches:
    def __init__(self, a, b, size):
        self.a, self.b, self.size = torch.tensor(a), torch.tensor(b), size
    def __len__(self):
        return len(self.a) // self.size
    def __iter__(self):
        order = torch.randperm(len(self.a))
        for k in range(len(self)):
            rows = order[k * self.size:(k + 1) * self.size]
            yield self.a[rows], self.b[rows]
a, b = table(300)
train = Batches(a, b, 32)
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for epoch in range(3):
    for xs, ys in train:
        loss = F.l1_loss(net(xs), ys)  # <- LOS003
        opt.zero_grad(); loss.backward(); opt.step()
""",
    "a generator of indices, and one around another": """
def rows_of(n, size):
    order = rng.permutation(n)
    for lo in range(0, n, size):
        yield order[lo:lo + size]
def once(a, b):
    for rows in rows_of(len(a), 32):
        yield torch.as_tensor(a[rows]), torch.as_tensor(b[rows])
def forever(a, b):
    while True:
        yield from once(a, b)
a, b = table(300)
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for i, (xs, ys) in enumerate(forever(a, b)):
    loss = F.mse_loss(ys, net(xs))  # <- LOS003
    opt.zero_grad(); loss.backward(); opt.step()
    if i == 50:
        break
""",
    "parts of two tensors": """
a, b = map(torch.from_numpy, table(300))
a, b = torch.randn(300, 2), torch.randn(300)
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for xs, ys in zip(a.split(32), torch.split(b, 32)):
    loss = F.mse_loss(net(xs), ys)  # <- LOS003
    opt.zero_grad(); loss.backward(); opt.step()
""",
}
BATCHES_CORRECT = {
    "a column": """
def stream(a, b, size):
    for ix in np.array_split(rng.permutation(len(a)), 9):
        yield torch.as_tensor(a[ix]), torch.as_tensor(b[ix])[:, None]
def columns(a, b, size):
    for ix in torch.randperm(len(a)).split(size):
        yield a[ix], b[ix].unsqueeze(1)
a, b = table(300)
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for xs, ys in itertools.islice(stream(a, b, 32), 100):
    loss = F.mse_loss(net(xs), ys)
    opt.zero_grad(); loss.backward(); opt.step()
for xs, ys in columns(torch.tensor(a), torch.tensor(b), 32):
    loss = ((net(xs) - ys) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "squeezed": """
def stream(a, b):
    while True:
        ix = rng.choice(len(a), 32)
        yield torch.as_tensor(a[ix]), torch.as_tensor(b[ix])
a, b = table(300)
net, batches = Net(2), stream(a, b)
opt = torch.optim.Adam(net.parameters())
for _ in range(9):
    xs, ys = next(batches)
    loss = F.mse_loss(net(xs).squeeze(-1), ys)
    loss = loss + ((net(xs)[:, 0] - ys) ** 2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "targets of one column": """
def stream(a, b):
    for ix in np.array_split(rng.permutation(len(a)), 9):
        yield torch.as_tensor(a[ix]), torch.as_tensor(b[ix])
a, b = rng.normal(size=(300, 2)), rng.normal(size=(300, 1))
net = Net(2)
opt = torch.optim.Adam(net.parameters())
for xs, ys in stream(a, b):
    loss = F.mse_loss(net(xs), ys)
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "one sample after another": """
def samples(a, b):
    for i in rng.permutation(len(a)):
        yield torch.as_tensor(a[i]), torch.as_tensor(b[i])
a, b = table(300)
net = Net(2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for xs, ys in samples(a, b):
    loss = (net(xs) - ys).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "two generators that differ": """
def rows(a, b):
    yield torch.as_tensor(a[:10]), torch.as_tensor(b[:10])
def columns(a, b):
    yield torch.as_tensor(a[:10]), torch.as_tensor(b[:10])[:, None]
a, b = table(300)
net, flat = Net(2), False
opt = torch.optim.SGD(net.parameters(), lr=0.1)
source = rows if flat else columns
for xs, ys in source(a, b):
    loss = F.mse_loss(net(xs), ys)
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "the column is added in the loop": """
def stream(a, b):
    for ix in np.array_split(rng.permutation(len(a)), 9):
        yield torch.as_tensor(a[ix]), torch.as_tensor(b[ix])
a, b = table(300)
net = Net(2)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for step, (xs, ys) in enumerate(stream(a, b)):
    xs, ys = xs.float(), ys.float().view(-1, 1)
    loss = F.mse_loss(net(xs), ys)
    opt.zero_grad(); loss.backward(); opt.step()
""",
}


@pytest.mark.parametrize("script", BATCHES.values(), ids=BATCHES)
def test_lint_reports_targets_of_generators(lint_findings, script: str):
    assert lint_findings(BATCHES_HEAD + script)


@pytest.mark.parametrize("script", BATCHES_CORRECT.values(), ids=BATCHES_CORRECT)
def test_lint_accepts_targets_of_generators(lint_findings, script: str):
    assert not lint_findings(BATCHES_HEAD + script)


NOISY = """
import numpy as np
import torch
from torch import nn
x = torch.unsqueeze(torch.linspace(-1, 1, 100), dim=1)
def noise_of(shape):
    return torch.randn(shape)
%s
net = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Linear(8, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.2)
criterion = nn.MSELoss()
for _ in range(100):
    prediction = net(x)
    loss = criterion(prediction, y)  # @
    opt.zero_grad(); loss.backward(); opt.step()
"""
NOISE_OF_SAME_SHAPE = {
    "size": "y = x.pow(2) + 0.2 * torch.rand(x.size())",
    "shape": "y = x**3 + torch.randn(x.shape) * 0.1",
    "shape in a variable": "size = x.size()\ny = torch.sin(x) + 0.1 * torch.normal(torch.zeros(size), 1)",
    "unpacked": "y = x.pow(2) + torch.rand(*x.shape)",
    "numpy": "y = x + torch.from_numpy(np.random.normal(0, 1, x.shape)).float()",
    "function": "y = x + noise_of(x.shape)",
    "list": "y = x.pow(2) + torch.rand([100, 1])",
}
NOISE_OF_OTHER_SHAPE = {
    "length": "y = x.squeeze() + 0.2 * torch.rand(len(x))",
    "first size": "y = torch.rand(x.size(0))",
    "shape of a row": "y = torch.sin(x.squeeze(1)) + torch.randn(x.squeeze(1).shape)",
    "length in a variable": "n = len(x)\ny = torch.randn(n)",
}
LINT_CORRECT = {
    **{f"noise by {name}": NOISY % each for name, each in NOISE_OF_SAME_SHAPE.items()},
    "the mean of a difference": """
import torch
from torch import nn
net = nn.Linear(3, 5)
opt = torch.optim.Adam(net.parameters())
for x, action in []:
    q = net(x)
    chosen = q.gather(1, action.unsqueeze(1))
    gap = q.logsumexp(1) - chosen
    loss = (q.logsumexp(1) - chosen).mean() + 0.1 * gap.mean(); opt.zero_grad(); loss.backward(); opt.step()
""",
    "huber one state": """
import torch
from torch import nn
net = nn.Linear(3, 5)
opt = torch.optim.Adam(net.parameters())
def cox(model, x, time, event):
    risk = model(x)
    at_risk = time.view(-1, 1) <= time
    return ((risk.squeeze(1) - torch.log((at_risk * risk.exp()).sum(1))) * event).mean()
for x, time, event in []:
    loss = cox(net, x, time, event); opt.zero_grad(); loss.backward(); opt.step()
""",
    "single sample": """
import torch
from torch import nn
x, y = torch.randn(50, 3), torch.randn(50)
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for e in range(5):
    for i in range(50):
        loss = nn.functional.mse_loss(net(x[i]), y[i])
        opt.zero_grad(); loss.backward(); opt.step()
    for i in torch.randperm(50):
        loss = (net(x[i]) - y[i]).pow(2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
""",
    "margin ranking pairs": """
import torch
from torch import nn
x, y = torch.randn(50, 3), torch.randn(50)
net = nn.Linear(3, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for e in range(5):
    s = net(x)
    gaps = s - s.squeeze(1)
    signs = torch.sign(y.unsqueeze(1) - y)
    loss = torch.relu(1 - gaps * signs).mean()
    row = s.view(-1)
    loss = loss + (s - row).abs().mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
    "outer product features, dqn right": """
import torch
from torch import nn
import torch.nn.functional as F
class Q(nn.Module):
    def __init__(self):
        super().__init__()
        self.freq = nn.Parameter(torch.randn(16))
        self.v, self.a = nn.Linear(16, 1), nn.Linear(16, 4)
    def forward(self, s):
        h = torch.cos(s.unsqueeze(-1) * self.freq)
        return self.v(h) + self.a(h) - self.a(h).mean(1, keepdim=True)
q, t = Q(), Q()
opt = torch.optim.Adam(q.parameters())
for s, a, r, n, d in []:
    cur = q(s).gather(1, a.unsqueeze(1))
    nxt = t(n).max(1, keepdim=True)[0]
    loss = F.mse_loss(cur, r.unsqueeze(1) + 0.9 * nxt * (1 - d.unsqueeze(1)))
    opt.zero_grad(); loss.backward(); opt.step()
    cur = q(s).gather(1, a.unsqueeze(1)).view(-1)
    nxt = t(n).max(1)[0]
    loss = F.mse_loss(cur, r + 0.9 * nxt * (1 - d))
    opt.zero_grad(); loss.backward(); opt.step()
    best = t(n).argmax(1, keepdim=True)
    nxt = t(n).gather(1, best).squeeze(1)
    loss = (q(s).gather(1, a[:, None])[:, 0] - (r + nxt)).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
""",
}


@pytest.mark.parametrize("name", [*FAULTY, *LINT_ONLY])
def test_lint_reports_faulty_scripts(lint_findings, name: str):
    script = DATA + FAULTY[name] if name in FAULTY else LINT_ONLY[name]
    assert lint_findings(script), name


@pytest.mark.parametrize("noise", NOISE_OF_OTHER_SHAPE.values(), ids=NOISE_OF_OTHER_SHAPE)
def test_lint_reports_targets_with_noise_of_another_shape(lint_findings, noise: str):
    assert lint_findings(NOISY.replace("@", "<- LOS003") % noise)


@pytest.mark.parametrize("name", sorted(FAULTY_BY_HAND))
def test_lint_reports_losses_by_hand(lint_findings, name: str):
    assert {each.severity for each in lint_findings(DATA + FAULTY_BY_HAND[name] + BY_HAND_LOOP)} == {"warning"}


@pytest.mark.parametrize("name", [*CORRECT, *LINT_CORRECT])
def test_lint_accepts_correct_scripts(lint_findings, name: str):
    assert not lint_findings(DATA + CORRECT[name] if name in CORRECT else LINT_CORRECT[name])


@pytest.fixture
def lint_findings():
    """Return a function that returns the findings of LOS003 in a script; marked lines must be among them."""
    entry = catalogue()["LOS003"]

    def check(script: str):
        result = lint_text(script, "train.py", [ActiveRule(entry.failure, entry.slug, entry.failure.rule)])
        marked = {number for number, line in enumerate(script.splitlines(), 1) if "# <- LOS003" in line}
        found = {each.location.line for each in result.findings}
        assert not result.problem
        assert found == marked or "backward()  # <-" in script
        return result.findings

    return check


SIAMESE = """
import numpy as np, torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Pairs(Dataset):
    def __init__(self, rows):
        self.rows, self.label = rows, []
        for a, b in rows:
            self.label.append(float(a != b))
        self.label = torch.tensor(self.label)
    def __getitem__(self, i):
        a, b = self.rows[i]
        return a, b, %s
class ContrastiveLoss(nn.Module):
    def forward(self, first, second, label):
        distance = F.pairwise_distance(%s)
        return torch.mean(label * distance.pow(2) + (1 - label) * torch.clamp(2 - distance, min=0).pow(2))  %s
net, criterion = nn.Linear(3, 4), ContrastiveLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for a, b, label in DataLoader(Pairs(rows), 8, shuffle=True):
    optimizer.zero_grad()
    criterion(net(a), net(b), label).backward()
    optimizer.step()
"""
COLUMN_LABEL = "torch.from_numpy(np.array([int(a != b)], dtype=np.float32))"
KEEPING = "first, second, keepdim=True"


@pytest.mark.parametrize(("label", "arguments"), [("self.label[i]", KEEPING), (COLUMN_LABEL, "first, second")])
def test_lint_reports_distances_and_labels_of_different_shapes(lint_findings, label: str, arguments: str):
    assert lint_findings(SIAMESE % (label, arguments, "# <- LOS003"))


@pytest.mark.parametrize(
    ("label", "arguments"),
    [
        ("self.label[i]", "first, second"),
        (COLUMN_LABEL, KEEPING),
        (COLUMN_LABEL, "first.unsqueeze(1), second"),
        ("self.unknown[i]", KEEPING),
    ],
)
def test_lint_accepts_distances_and_labels_of_one_shape(lint_findings, label: str, arguments: str):
    assert not lint_findings(SIAMESE % (label, arguments, ""))
