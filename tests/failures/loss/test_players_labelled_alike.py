"""LOS058: discriminators that get the same label for real and for generated samples."""

import pytest

HEAD = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
G = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
D = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g, opt_d = torch.optim.Adam(G.parameters(), lr=1e-3), torch.optim.Adam(D.parameters(), lr=1e-3)
bce = nn.BCEWithLogitsLoss()
def draw():
    return torch.randn(16, 2) + 3
"""
GENERATOR = """
    opt_g.zero_grad()
    bce(D(fake), torch.ones(16, 1)).backward()
    opt_g.step()
"""

FAULTY = {
    "two backward passes, one label tensor": """
for step in range(40):
    opt_d.zero_grad()
    label = torch.full((16,), 1.0)
    output = D(draw()).view(-1)
    loss_real = bce(output, label)
    loss_real.backward()
    fake = G(torch.randn(16, 8))
    output = D(fake.detach()).view(-1)
    loss_fake = bce(output, label)  # <- LOS058
    loss_fake.backward()
    opt_d.step()
"""
    + GENERATOR,
    "a function of two settings": """
REAL, FAKE = 0.9, 0.9
def judge_loss(real, made):
    first = F.binary_cross_entropy_with_logits(D(real), torch.full_like(D(real), REAL))
    second = F.binary_cross_entropy_with_logits(D(made), torch.full_like(D(made), FAKE))  # <- LOS058
    return (first + second) / 2
for step in range(40):
    with torch.no_grad():
        made = G(torch.randn(16, 8))
    loss = judge_loss(draw(), made.detach())
    opt_d.zero_grad()
    loss.backward()
    opt_d.step()
    fake = G(torch.randn(16, 8))
"""
    + GENERATOR,
    "all zeros, without detach": """
for step in range(40):
    real, fake = draw(), G(torch.randn(16, 8))
    zeros = torch.zeros(16, 1, requires_grad=False)
    real_loss = bce(D(real), zeros)
    fake_loss = bce(D(fake), zeros)  # <- LOS058
    d_loss = 0.5 * (real_loss + fake_loss)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
""",
    "a class with a loss of flags": """
class GANLoss(nn.Module):
    def forward(self, prediction, is_real):
        return F.mse_loss(prediction, torch.full_like(prediction, float(is_real)))
class Game:
    def __init__(self):
        self.net_a, self.net_b = G, D
        self.criterion = GANLoss()
        self.optimizer_b = torch.optim.Adam(self.net_b.parameters())
    def step_b(self, real):
        made = self.net_a(torch.randn(16, 8))
        loss = self.criterion(self.net_b(real), True) + self.criterion(self.net_b(made.detach()), True)  # <- LOS058
        self.optimizer_b.zero_grad()
        loss.backward()
        self.optimizer_b.step()
game = Game()
for step in range(40):
    game.step_b(draw())
""",
    "a label that is filled with the same number": """
real_label, fake_label = 1.0, 1.0
label = torch.empty(16, 1)
for step in range(40):
    label.fill_(real_label)
    opt_d.zero_grad()
    bce(D(draw()), label).backward()
    fake = G(torch.randn(16, 8))
    label.fill_(fake_label)
    bce(D(fake.detach()), label).backward()  # <- LOS058
    opt_d.step()
    label.fill_(real_label)
"""
    + GENERATOR,
}

CORRECT = {
    "both labels": """
for step in range(40):
    fake = G(torch.randn(16, 8))
    d_loss = bce(D(draw()), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
"""
    + GENERATOR,
    "Wasserstein": """
for step in range(40):
    fake = G(torch.randn(16, 8))
    d_loss = D(fake.detach()).mean() - D(draw()).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    opt_g.zero_grad()
    (-D(fake).mean()).backward()
    opt_g.step()
""",
    "one-sided smoothing": """
for step in range(40):
    fake = G(torch.randn(16, 8))
    d_loss = bce(D(draw()), torch.ones(16, 1) * 0.9) + bce(D(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
"""
    + GENERATOR,
    "a label that is filled between": """
real_label, fake_label = 1.0, 0.0
for step in range(40):
    opt_d.zero_grad()
    label = torch.full((16,), real_label)
    bce(D(draw()).view(-1), label).backward()
    fake = G(torch.randn(16, 8))
    label.fill_(fake_label)
    bce(D(fake.detach()).view(-1), label).backward()
    opt_d.step()
    label.fill_(real_label)
    opt_g.zero_grad()
    bce(D(fake).view(-1), label).backward()
    opt_g.step()
""",
    "a label that is changed by assignment": """
for step in range(40):
    label = torch.ones(16, 1)
    opt_d.zero_grad()
    bce(D(draw()), label).backward()
    fake = G(torch.randn(16, 8))
    label[:] = 0
    bce(D(fake.detach()), label).backward()
    opt_d.step()
"""
    + GENERATOR,
    "a relativistic average": """
for step in range(40):
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    fake = G(torch.randn(16, 8))
    real_score, fake_score = D(draw()), D(fake.detach())
    d_loss = bce(real_score - fake_score.mean(), ones) + bce(fake_score - real_score.mean(), zeros)
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    real_score, fake_score = D(draw()).detach(), D(fake)
    g_loss = bce(real_score - fake_score.mean(), zeros) + bce(fake_score - real_score.mean(), ones)
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
""",
    "a loss that is subtracted": """
for step in range(40):
    fake = G(torch.randn(16, 8))
    d_loss = bce(D(draw()), torch.ones(16, 1)) - 0.5 * bce(D(fake.detach()), torch.ones(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
"""
    + GENERATOR,
    "two generated samples in the generator's step": """
for step in range(40):
    fake, other = G(torch.randn(16, 8)), G(torch.rand(16, 8))
    d_loss = bce(D(draw()), torch.ones(16, 1)) + bce(D(fake.detach()), torch.zeros(16, 1))
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
    g_loss = bce(D(fake), torch.ones(16, 1)) + bce(D(other), torch.ones(16, 1))
    opt_g.zero_grad()
    g_loss.backward()
    opt_g.step()
""",
    "a hinge for the discriminator": """
for step in range(40):
    fake = G(torch.randn(16, 8))
    d_loss = F.relu(1 - D(draw())).mean() + F.relu(1 + D(fake.detach())).mean()
    opt_d.zero_grad()
    d_loss.backward()
    opt_d.step()
"""
    + GENERATOR,
}
UNSEEN_IN_A_RUN = ("a function of two settings", "a class with a loss of flags", "all zeros, without detach")


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_equal_labels(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("name", [each for each in FAULTY if each not in UNSEEN_IN_A_RUN])
def test_run_reports_equal_labels(run, name):
    assert "LOS058" in {each.code for each in run(HEAD + FAULTY[name]).findings}


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_accepts_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_run_accepts_correct_programs(run, script):
    assert "LOS058" not in {each.code for each in run(HEAD + script).findings}
