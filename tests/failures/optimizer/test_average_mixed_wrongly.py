"""OPT010: averages mixed the wrong way round."""

import pytest

HEAD = """
import copy
import torch
from torch import nn

x = torch.randn(160, 8)
y = x.sum(1, keepdim=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
"""

FAULTY = {
    "lerp": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.995)  # <- OPT010
with torch.no_grad():
    print(average(x[:10]).mean())
""",
}

CORRECT = {
    "lerp": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.005)
with torch.no_grad():
    print(average(x[:10]).mean())
""",
    "a copy": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.copy_(fast)
with torch.no_grad():
    print(average(x[:10]).mean())
""",
    "a warm-up": """
average = copy.deepcopy(model)
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 1 - min(0.99, (1 + step) / (10 + step)))
with torch.no_grad():
    print(average(x[:10]).mean())
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY.keys())
def test_run_reports_faulty_scripts(run_reports, script):
    run_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT.keys())
def test_run_accepts_correct_scripts(run_is_clean, script):
    run_is_clean(HEAD + script)


LOOP = """
for step in range(30):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
"""
FOLDS = """
for fold in range(3):
    ema = copy.deepcopy(model)
    for step in range(30):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.data.mul_(0.99).add_(fast.data, alpha=0.01)
    print(ema(x[:10]).mean())
"""
MIXED = """
    with torch.no_grad():
        for slow, fast in zip(ema.parameters(), model.parameters()):
            slow.mul_(0.99).add_(fast, alpha=0.01)
"""
COPIED = "    ema = copy.deepcopy(model)  # <- OPT010\n"
SWA = """
    swa = torch.optim.swa_utils.AveragedModel(model)  # <- OPT010
    swa.update_parameters(model)
    swa.lerp_ = 1 - 0.01
"""


@pytest.mark.parametrize("script", [HEAD + LOOP + COPIED + MIXED, HEAD + LOOP + SWA], ids=["deepcopy", "SWA"])
def test_lint_reports_an_average_that_is_copied_anew(lint_reports, script):
    lint_reports(script)


@pytest.mark.parametrize(
    "script", [HEAD + "ema = copy.deepcopy(model)\n" + LOOP + MIXED, HEAD + FOLDS], ids=["copied once", "per fold"]
)
def test_lint_accepts_an_average_that_is_copied_once(lint_is_clean, script):
    lint_is_clean(script, "OPT010")


ADDED = {
    "add_ with alpha": "t.data.add_(p.data, alpha=tau)",
    "+=": "t.data += tau * p.data",
    "a sum": "t.data = t.data + p.data * 0.01",
    "copy_": "t.data.copy_(tau * p.data + t.data)",
}
KEPT = {
    "the difference": "t.data += tau * (p.data - t.data)",
    "both shares": "t.data.copy_(tau * p.data + (1 - tau) * t.data)",
    "a product before": "t.data.mul_(1 - tau); t.data.add_(p.data, alpha=tau)",
    "a gradient": "t.data += tau * p.grad",
    "a copy": "t.data.copy_(p.data)",
    "noise": "t.data += 0.01 * torch.randn(3)",
}
SHARES = """
import torch


def soft_update(source, target, tau):
    for target_p, p in zip(target.parameters(), source.parameters()):
        {}
"""


def _update(text):
    return SHARES.format(text.replace("t.data", "target_p.data"))


@pytest.mark.parametrize("text", ADDED.values(), ids=ADDED.keys())
def test_lint_reports_shares_that_are_only_added(lint_reports, text):
    lint_reports(_update(text + "  # <- OPT010"))


@pytest.mark.parametrize("text", KEPT.values(), ids=KEPT.keys())
def test_lint_accepts_shares_that_are_removed(lint_is_clean, text):
    lint_is_clean(_update(text))


def test_lint_reports_shares_of_a_state_dict(lint_reports):
    lint_reports("""
import torch

class Agent:
    def soft_update(self):
        weights = self.model.state_dict()
        for key, target_weights in self.target_model.state_dict().items():
            target_weights += self.target_model_update * weights[key]  # <- OPT010
""")


def test_lint_accepts_a_sum_of_clients(lint_is_clean):
    lint_is_clean("""
import torch

def aggregate(server, clients, shares):
    total = {key: torch.zeros_like(value) for key, value in server.state_dict().items()}
    for client, share in zip(clients, shares):
        for key, value in client.state_dict().items():
            total[key] += share * value
    server.load_state_dict(total)
""")
