"""GRD013: an optimizer that steps without any backward."""

import pytest

HEAD = """
import torch
from torch import nn

x = torch.randn(96, 6)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mse = nn.functional.mse_loss
"""

CORRECT = {
    "a schedule that is plotted": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
rates = []
for _ in range(20):
    optimizer.step()
    schedule.step()
    rates.append(optimizer.param_groups[0]["lr"])
""",
    "a schedule that is plotted during an evaluation": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for _ in range(20):
    with torch.no_grad():
        loss = mse(model(x), y)
    optimizer.step()
    schedule.step()
""",
    "a schedule that is resumed": """
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for _ in range(20):
    optimizer.step()
    schedule.step()
for _ in range(20):
    optimizer.zero_grad()
    mse(model(x), y).backward()
    optimizer.step()
""",
    "gradients of torch.autograd.grad": """
for _ in range(20):
    loss = mse(model(x), y)
    for p, gradient in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()))):
        p.grad = gradient
    optimizer.step()
""",
    "gradients of torch.func.grad": """
names = dict(model.named_parameters())
def loss_of(parameters):
    return mse(torch.func.functional_call(model, parameters, (x,)), y)
for _ in range(20):
    model(x)
    found = torch.func.grad(loss_of)({name: p.detach() for name, p in names.items()})
    for name, p in names.items():
        p.grad = found[name]
    optimizer.step()
""",
    "a closure": """
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    lbfgs.zero_grad()
    loss = mse(model(x), y)
    loss.backward()
    return loss
for _ in range(8):
    lbfgs.step(closure)
""",
    "a part that is trained later": """
head = nn.Linear(6, 1)
first = torch.optim.SGD(head.parameters(), lr=0.01)
for number in range(20):
    first.zero_grad()
    optimizer.zero_grad()
    loss = mse(head(x), y) + (mse(model(x), y) if number > 50 else 0)
    loss.backward()
    first.step()
    optimizer.step()
""",
    "a random search optimizer": """
class Trying(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {"scale": 0.01})
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(torch.randn_like(p), alpha=group["scale"])
trying = Trying(model.parameters())
for _ in range(20):
    loss = mse(model(x), y)
    trying.step()
""",
    "weights changed by hand, with a leftover step": """
for _ in range(20):
    loss = mse(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for p, gradient in zip(model.parameters(), gradients):
        p.data.add_(gradient, alpha=-0.01)
    optimizer.step()
""",
    "first batches skipped": """
for number in range(20):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    if number > 4:
        loss.backward()
    optimizer.step()
""",
    "a few steps": """
for _ in range(3):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    if loss > 1e9:
        loss.backward()
    optimizer.step()
""",
    "an evaluation": """
for _ in range(20):
    loss = mse(model(x), y)
""",
}

FAULTY = {
    "the line is missing": """
for _ in range(20):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    optimizer.step()  # <- GRD013
""",
    "the line is a comment": """
for _ in range(20):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    # loss.backward()
    optimizer.step()  # <- GRD013
""",
    "in a function": """
def train(network, with_this):
    total = 0.0
    for part in x.split(24):
        with_this.zero_grad()
        loss = nn.functional.mse_loss(network(part), part.sum(1, keepdim=True))
        with_this.step()  # <- GRD013
        total += loss.item()
    return total
for epoch in range(4):
    train(model, optimizer)
""",
    "in a class": """
class Learner:
    def __init__(self):
        self.net = nn.Linear(6, 1)
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.criterion = nn.MSELoss()
    def fit(self, iterations):
        for _ in range(iterations):
            self.opt.zero_grad()
            loss = self.criterion(self.net(x), y)
            self.opt.step()  # <- GRD013
Learner().fit(20)
""",
    "accumulated": """
for number in range(40):
    loss = mse(model(x), y) / 4
    if (number + 1) % 4 == 0:
        optimizer.step()  # <- GRD013
        optimizer.zero_grad()
""",
    "two losses": """
criterion = nn.L1Loss()
for _ in range(20):
    output = model(x)
    loss = criterion(output, y) + 0.1 * mse(output, y)
    optimizer.zero_grad()
    optimizer.step()  # <- GRD013
    if _ % 10 == 0:
        print(f"loss {loss.item()}")
""",
}
UNCALLED = """
for _ in range(20):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    loss.backward
    optimizer.step()
"""
RUN_ONLY = {
    "a custom loss function": """
for _ in range(20):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    optimizer.step()  # <- GRD013
""",
    "a run that ends early": """
for _ in range(5):
    optimizer.zero_grad()
    loss = mse(model(x), y)
    if loss > 1e9:
        loss.backward()
    optimizer.step()  # <- GRD013
""",
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_and_lint_accept_correct_scripts(run, lint_is_clean, script):
    assert not [each.message for each in run(HEAD + script).findings if each.code == "GRD013"]
    lint_is_clean(HEAD + script, "GRD013")


@pytest.mark.parametrize("script", [*FAULTY.values(), *RUN_ONLY.values()], ids=[*FAULTY, *RUN_ONLY])
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_lint_reports_faulty_scripts(lint_reports, script):
    lint_reports(HEAD + script)


def test_backward_without_parentheses_is_reported(run_reports, lint_reports):
    run_reports(HEAD + UNCALLED.replace("optimizer.step()", "optimizer.step()  # <- GRD013"))
    lint_reports(HEAD + UNCALLED.replace("loss.backward", "loss.backward  # <- GRD013"), fixes=True)


def test_lint_trusts_a_helper_in_another_file(run, lint_is_clean, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "losses_of_it.py").write_text("def learn(loss):\n    return loss.item()\n")
    script = (
        HEAD
        + """
from losses_of_it import learn
for _ in range(20):
    optimizer.zero_grad()
    learn(mse(model(x), y))
    optimizer.step()
"""
    )
    assert [each.code for each in run(script).findings] == ["GRD013"]
    lint_is_clean(script)  # it may run backward


def test_finding_is_reported_after_eight_steps(run):
    (found,) = run(HEAD + FAULTY["the line is missing"]).findings
    assert "8 times" in found.message
