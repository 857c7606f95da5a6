"""GRD007: steps that use gradients which are not finite."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.rand(64, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

FAULTY = {
    "a NaN in the data": """
x[7, 2] = float("nan")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()  # <- GRD007
""",
    "every batch is skipped": """
x[:, 3] = float("nan")
for epoch in range(6):
    for rows in torch.randperm(64).split(8):
        loss = mse(model(x[rows]), y[rows])  # <- GRD007
        if torch.isnan(loss):
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "every step is skipped, in a class": """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 4)
    def forward(self, x):
        hidden = self.body(x)
        return {"mean": (hidden - hidden[:1]) / (hidden - hidden).norm(), "hidden": hidden}
class Learner:
    def __init__(self):
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters())
    def update(self, a, b):
        self.optimizer.zero_grad()
        loss = (self.net(a)["mean"] - b).square().mean()  # <- GRD007
        loss.backward()
        if all(p.grad.isfinite().all() for p in self.net.parameters()):
            self.optimizer.step()
learner = Learner()
for epoch in range(8):
    for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
        learner.update(a, b)
""",
    "log of zero": """
def loss_of(step):
    return -(model(x).sigmoid() * (step < 3)).log().mean()
for step in range(5):
    optimizer.zero_grad()
    loss = loss_of(step)
    loss.backward()
    optimizer.step()  # <- GRD007
""",
    "an empty mask, in a class": """
class Learner:
    def update(self, step):
        optimizer.zero_grad()
        mask = torch.zeros(64, 1) if step == 3 else torch.ones(64, 1)
        loss = ((model(x) - y).square() * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()  # <- GRD007
learner = Learner()
for step in range(5):
    learner.update(step)
""",
    "a learning rate that is far too high, with momentum": """
wild = torch.optim.SGD(model.parameters(), lr=1e18, momentum=0.9)
for step in range(12):
    wild.zero_grad()
    mse(model(x), y).backward()
    wild.step()  # <- GRD007
""",
    "a finite loss with an infinite gradient": """
for step in range(5):
    optimizer.zero_grad()
    out = model(x)
    hidden = (out * float(step < 3)).square().sum(1).sqrt()
    torch.nan_to_num(hidden).mean().backward()
    optimizer.step()  # <- GRD007
""",
    "a closure": """
state = {"step": 0}
def closure():
    optimizer.zero_grad()
    loss = (mse(model(x), y) * float(state["step"] < 3)).log()
    loss.backward()
    return loss
for state["step"] in range(5):
    optimizer.step(closure)  # <- GRD007
""",
    "late, during sampled tracing": """
for step in range(240):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    if step == 180:  # still in the first stretch of full tracing, whose cost is not limited
        loss = loss * float("inf")
    loss.backward()
    optimizer.step()  # <- GRD007
""",
}

CORRECT = {
    "the step is taken back": """
import copy
x[7, 2] = float("nan")
good = copy.deepcopy(model.state_dict())
for epoch in range(4):
    for rows in torch.randperm(64).split(4):
        optimizer.zero_grad()
        mse(model(x[rows]), y[rows]).backward()
        optimizer.step()
        if all(p.isfinite().all() for p in model.parameters()):
            good = copy.deepcopy(model.state_dict())
        else:
            model.load_state_dict(good)
""",
    "some batches are skipped": """
x[7, 2] = float("nan")
for epoch in range(4):
    for rows in torch.randperm(64).split(4):
        loss = mse(model(x[rows]), y[rows])
        if loss.isnan():
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    "the last forty batches are only evaluated, with NaN in some": """
for step in range(40):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
x[7, 2] = float("nan")
print([model(x[rows]).detach().sum().isnan().item() for rows in torch.arange(64).split(2)])
""",
    "batches that are skipped": """
x[7, 2] = float("nan")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    loss = mse(model(a), b)
    if not torch.isfinite(loss):
        continue
    loss.backward()
    optimizer.step()
""",
    "steps that are skipped by their norm": """
x[7, 2] = float("inf")
for a, b in DataLoader(TensorDataset(x, y), batch_size=8):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    if torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        optimizer.step()
""",
    "GradScaler skips the step of a fused optimizer": """
fused = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
for _ in range(6):
    fused.zero_grad()
    scaler.scale(mse(model(x), y) * 100).backward()
    scaler.step(fused)
    scaler.update()
""",
    "a line search with a huge step": """
search = torch.optim.LBFGS(model.parameters(), lr=1.0, line_search_fn="strong_wolfe")
def closure():
    search.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    return loss
for _ in range(6):
    search.step(closure)
""",
    "GradScaler skips the step": """
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**126)
for _ in range(6):
    optimizer.zero_grad()
    scaler.scale(mse(model(x), y) * 100).backward()
    scaler.step(optimizer)
    scaler.update()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.tail = Tail()
    def forward(self, x, scale):
        return self.tail(torch.relu(self.body(x)) * scale)

class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(8, 1)
    def forward(self, h):
        return INNER  # here

x = torch.rand(16, 4) + 1
net = Net()
nn.init.ones_(net.body.weight)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
for step in range(6):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(net(x, float(step < 4)), torch.ones(16, 1))
    loss.backward()
    optimizer.step()  # <- GRD007
"""


@pytest.mark.parametrize(
    ("inner", "words"),
    [
        (
            "self.out(h.log())",
            "The first non-finite value came from log in tail (Tail), whose input was min 0, max 0, 128",
        ),
        (
            "self.out(h / h.sum(1, keepdim=True))",
            "came from div in tail (Tail), whose input was min 0, max 0, 128 of 128",
        ),
        ("self.out(torch.where(h > 0, h.log(), 0.0))", "did not reach the model's output"),
        ("self.out(h.square().sum(1, keepdim=True).sqrt() + h)", "gradient of sqrt in tail (Tail) is infinite"),
        ("self.out(torch.pow(h, 0.5))", "of pow in tail (Tail) is infinite, whose input was min 0, max 0, 128"),
        ("torch.nan_to_num(self.out(h.log()))", "did not reach the model's output"),
    ],
)
def test_message_names_the_operation(run_reports, inner, words):
    ran = run_reports(NET.replace("INNER", inner))
    (found,) = ran.findings
    assert words in found.message
    lines = ran.path.read_text().splitlines()
    assert any("# here" in lines[site.line - 1] for site, _ in found.related)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        pytest.param(
            "-(out.sigmoid() * (step < 3)).log().mean()",
            "log, whose input was min 0, max 0, 64 of 64 zero",
            marks=pytest.mark.reads_saved,
        ),
        pytest.param(
            "((out - y).square() * mask).sum() / mask.sum()",
            "div, whose input was a divisor of min 0, max 0, 1 of 1",
            marks=pytest.mark.reads_saved,
        ),
        ("mse(out, y) * (1.0 if step < 3 else float('nan'))", ""),
    ],
)
def test_message_blames_the_loss_if_the_model_output_is_finite(run_reports, loss, words):
    ran = run_reports(f"""{HEAD}
for step in range(5):
    optimizer.zero_grad()
    mask = torch.full((64, 1), float(step < 3))
    out = model(x)
    loss = {loss}
    loss.backward()  # here
    optimizer.step()  # <- GRD007
""")
    (found,) = ran.findings
    assert "The model's output was finite: the loss became " in found.message
    assert f"In the loss it came from {words}" in found.message if words else "In the loss" not in found.message
    lines = ran.path.read_text().splitlines()
    assert any("# here" in lines[site.line - 1] for site, _ in found.related)


def test_loss_of_a_skipped_batch_is_not_mentioned(run_reports):
    ran = run_reports(f"""{HEAD}
for step in range(9):
    optimizer.zero_grad()
    loss = mse(model(x), y) * (float("nan") if step in (2, 6) else 1.0)
    loss.backward()
    if step != 2:
        optimizer.step()  # <- GRD007
""")
    assert "already nan at update 2" not in ran.findings[0].message


def test_message_blames_a_nan_in_the_batch(run_reports):
    ran = run_reports(f"""{HEAD}
x[7, 2] = float("nan")
for a, b in DataLoader(TensorDataset(x, y), batch_size=16):
    optimizer.zero_grad()
    mse(model(a), b).backward()
    optimizer.step()  # <- GRD007
""")
    assert "The cause is the input: argument 1 of Sequential itself (min " in ran.findings[0].message
    assert "1 of 96 not finite" in ran.findings[0].message


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("contrast(model(x), model(z), same)", "The gradient of sqrt in Contrastive is infinite"),
        ("hidden_log(model(x))", "The model's output and the loss ("),
    ],
)
def test_message_explains_a_finite_loss_with_infinite_gradient(run_reports, loss, words):
    ran = run_reports(f"""{HEAD}
class Contrastive(nn.Module):
    def forward(self, a, b, same):
        distance = (a - b).square().sum(1).sqrt()
        return (same * distance + (1 - same) * (1 - distance).relu()).mean()

def hidden_log(out):
    log = (out.sigmoid() * float(step < 3)).log()
    return -torch.where(log.isfinite(), log, 0.0).mean() if step >= 3 else out.square().mean()

contrast, same = Contrastive(), torch.ones(64)
for step in range(5):
    z = torch.rand(64, 6)
    if step == 3:
        z[5] = x[5]
    optimizer.zero_grad()
    {loss}.backward()
    optimizer.step()  # <- GRD007
""")
    assert words in ran.findings[0].message
