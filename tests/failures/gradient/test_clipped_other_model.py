"""GRD027: the gradients of another model are clipped."""

import pytest

HEAD = """
import torch
from torch import nn
gen = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_g = torch.optim.SGD(gen.parameters(), lr=0.01)
opt_c = torch.optim.SGD(critic.parameters(), lr=0.01)
bce = nn.BCEWithLogitsLoss()
clip = nn.utils.clip_grad_norm_
def loss_c(fake):
    real = bce(critic(torch.randn(32, 2) + 1), torch.ones(32, 1))
    return real + bce(critic(fake.detach()), torch.zeros(32, 1))
def loss_g(fake):
    return bce(critic(fake), torch.ones(32, 1))
"""
FAULTY = {
    "in the step of the generator": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    loss_c(fake).backward()
    opt_c.step()
    opt_g.zero_grad()
    loss_g(fake).backward()
    clip(critic.parameters(), 0.1)  # <- GRD027
    opt_g.step()
""",
    "by value, cleared by the model": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    critic.zero_grad()
    loss_c(fake).backward()
    opt_c.step()
    gen.zero_grad()
    loss_g(fake).backward()
    nn.utils.clip_grad_value_(critic.parameters(), 0.01)  # <- GRD027
    opt_g.step()
""",
    "in functions": """
def train_generator(net, other, optimizer):
    optimizer.zero_grad()
    loss_g(net(torch.randn(32, 4))).backward()
    clip(other.parameters(), 0.1)  # <- GRD027
    optimizer.step()
def train_critic():
    opt_c.zero_grad()
    loss_c(gen(torch.randn(32, 4))).backward()
    opt_c.step()
for step in range(8):
    train_critic()
    train_generator(gen, critic, opt_g)
""",
}
CORRECT = {
    "each its own": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    loss_c(fake).backward()
    clip(critic.parameters(), 0.1)
    opt_c.step()
    opt_g.zero_grad()
    loss_g(fake).backward()
    clip(gen.parameters(), 0.1)
    opt_g.step()
""",
    "both before both": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    opt_g.zero_grad()
    (loss_c(fake) + loss_g(fake)).backward()
    clip(gen.parameters(), 0.1)
    clip(critic.parameters(), 0.1)
    opt_c.step()
    opt_g.step()
""",
    "one of both, which steps later": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    opt_g.zero_grad()
    (loss_c(fake) + loss_g(fake)).backward()
    clip(gen.parameters(), 0.1)
    opt_c.step()
    opt_g.step()
""",
    "measured": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    loss_c(fake).backward()
    opt_c.step()
    opt_g.zero_grad()
    loss_g(fake).backward()
    norm = clip(critic.parameters(), float("inf"))
    opt_g.step()
""",
    "all parameters": """
for step in range(8):
    fake = gen(torch.randn(32, 4))
    opt_c.zero_grad()
    loss_c(fake).backward()
    clip([*gen.parameters(), *critic.parameters()], 0.1)
    opt_c.step()
    opt_g.zero_grad()
    loss_g(fake).backward()
    clip([*gen.parameters(), *critic.parameters()], 0.1)
    opt_g.step()
""",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_run_and_lint_report_the_clipping(run_reports, lint_reports, script):
    run_reports(HEAD + script)
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_correct_programs_are_not_reported(run_is_clean, lint_is_clean, script):
    run_is_clean(HEAD + script)
    lint_is_clean(HEAD + script, "GRD027")
