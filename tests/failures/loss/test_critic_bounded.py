"""LOS074: the critic of a Wasserstein GAN ends in a sigmoid."""

import pytest

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn, optim
"""
GRADIENT_PENALTY = """
def gradient_penalty(D, real, fake):
    t = torch.rand(len(real), 1).expand_as(real)
    mid = (t * real + (1 - t) * fake).requires_grad_()
    gradients = torch.autograd.grad(D(mid).sum(), mid, create_graph=True)[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()
"""
FAULTY = {
    "a class": """
class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2, 64),
            nn.ReLU(True),
            nn.Linear(64, 1),
            nn.Sigmoid(),  # <- LOS074
        )

    def forward(self, x):
        return self.net(x).view(-1)


def main():
    G, D = nn.Linear(2, 2), Discriminator()
    optim_D = optim.Adam(D.parameters(), lr=1e-4)
    for epoch in range(10):
        real = torch.randn(8, 2)
        predr = D(real)
        lossr = -(predr.mean())
        fake = G(torch.randn(8, 2)).detach()
        predf = D(fake)
        lossf = predf.mean()
        loss_D = lossr + lossf + 10 * gradient_penalty(D, real, fake)
        optim_D.zero_grad()
        loss_D.backward()
        optim_D.step()
"""
    + GRADIENT_PENALTY,
    "a function": """
class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 2)
        self.fc = nn.Linear(8, 1)

    def forward(self, x):
        x = F.leaky_relu(self.conv(x), 0.2).mean((2, 3))
        return torch.sigmoid(self.fc(x))  # <- LOS074


class WGAN:
    def __init__(self):
        self.netD, self.netG = Critic(), nn.Conv2d(3, 3, 1)
        self.optimizer = optim.RMSprop(self.netD.parameters(), lr=5e-5)

    def step(self, real, noise):
        self.netD.zero_grad()
        fake = self.netG(noise).detach()
        loss = -torch.mean(self.netD(real)) + torch.mean(self.netD(fake))
        loss.backward()
        self.optimizer.step()
        for p in self.netD.parameters():
            p.data.clamp_(-0.01, 0.01)
""",
    "two backward passes": """
netD = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid())  # <- LOS074
netG = nn.Linear(2, 2)
optimizer = optim.RMSprop(netD.parameters(), lr=5e-5)
one = torch.tensor(1.0)
for i in range(10):
    for p in netD.parameters():
        p.data.clamp_(-0.01, 0.01)
    netD.zero_grad()
    errD_real = netD(torch.randn(4, 2)).mean()
    errD_real.backward(-1 * one)
    errD_fake = netD(netG(torch.randn(4, 2)).detach()).mean()
    errD_fake.backward(one)
    optimizer.step()
""",
}
STEP = """
def train(G):
    D = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1){end})
    optimizer = optim.Adam(D.parameters(), lr=1e-4)
    for step in range(10):
        real, fake = torch.randn(8, 2), G(torch.randn(8, 2)).detach()
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CORRECT = {
    "no sigmoid": STEP.format(end="", loss="D(fake).mean() - D(real).mean() + gradient_penalty(D, real, fake)"),
    "logarithms": STEP.format(
        end=", nn.Sigmoid()",
        loss="-torch.log(D(real)).mean() - torch.log(1 - D(fake)).mean() + gradient_penalty(D, real, fake)",
    ),
    "binary cross-entropy": STEP.format(
        end=", nn.Sigmoid()",
        loss="F.binary_cross_entropy(D(real), torch.ones(8, 1)) + F.binary_cross_entropy(D(fake), torch.zeros(8, 1))"
        " + gradient_penalty(D, real, fake)",
    ),
    "least squares": STEP.format(
        end=", nn.Sigmoid()",
        loss="((D(real) - 1) ** 2).mean() + (D(fake) ** 2).mean() + gradient_penalty(D, real, fake)",
    ),
    "a sigmoid in the hidden layer": STEP.replace("nn.ReLU()", "nn.Sigmoid()").format(
        end="", loss="D(fake).mean() - D(real).mean() + gradient_penalty(D, real, fake)"
    ),
    "a sigmoid for the display": STEP.format(
        end="", loss="D(fake).mean() - D(real).mean() + gradient_penalty(D, real, fake)"
    )
    + "        print(torch.sigmoid(D(real)).mean())\n",
}


@pytest.mark.parametrize("script", FAULTY.values(), ids=FAULTY)
def test_lint_reports_the_sigmoid(lint_reports, script):
    lint_reports(HEAD + script)


@pytest.mark.parametrize("script", CORRECT.values(), ids=CORRECT)
def test_lint_ignores_correct_programs(lint_is_clean, script):
    lint_is_clean(HEAD + GRADIENT_PENALTY + script, "LOS074")
