"""WGAN-GP on a ring of Gaussians: n_critic critic steps per generator step, gradient penalty through create_graph."""

import math

import torch
from torch import autograd, nn


def mlp(i, o, hidden=32):
    return nn.Sequential(nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, o))


def ring(n):
    angle = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return torch.stack([angle.cos(), angle.sin()], 1) + 0.05 * torch.randn(n, 2)


def gradient_penalty(critic, real, fake):
    alpha = torch.rand(real.size(0), 1)
    mix = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
    score = critic(mix)
    (grads,) = autograd.grad(score, mix, grad_outputs=torch.ones_like(score), create_graph=True, retain_graph=True)
    return ((grads.norm(2, dim=1) - 1) ** 2).mean()


class Trainer:
    def __init__(self, n_critic=3, lam=10.0):
        self.G, self.C = mlp(4, 2), mlp(2, 1)
        self.opt_g = torch.optim.Adam(self.G.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.opt_c = torch.optim.Adam(self.C.parameters(), lr=1e-3, betas=(0.0, 0.9))
        self.n_critic, self.lam = n_critic, lam

    def critic_step(self, real):
        fake = self.G(torch.randn(real.size(0), 4)).detach()
        loss = self.C(fake).mean() - self.C(real).mean() + self.lam * gradient_penalty(self.C, real, fake)
        self.opt_c.zero_grad()
        loss.backward()
        self.opt_c.step()
        return loss.item()

    def generator_step(self, n):
        for p in self.C.parameters():
            p.requires_grad_(False)
        loss = -self.C(self.G(torch.randn(n, 4))).mean()
        self.opt_g.zero_grad()
        loss.backward()
        self.opt_g.step()
        for p in self.C.parameters():
            p.requires_grad_(True)
        return loss.item()

    def fit(self, steps):
        for step in range(steps):
            c = [self.critic_step(ring(64)) for _ in range(self.n_critic)]
            g = self.generator_step(64)
        return c[-1], g


if __name__ == "__main__":
    torch.manual_seed(3)
    print(*Trainer().fit(15))
