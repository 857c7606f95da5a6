"""CycleGAN: one optimizer over two generators by itertools.chain, image pools, linear decay of the rate to zero at the end."""

import itertools
import random

import torch
from torch import nn


class ImagePool:
    def __init__(self, size):
        self.size, self.images = size, []

    def query(self, images):
        out = []
        for image in images.detach().unsqueeze(1):
            if len(self.images) < self.size:
                self.images.append(image)
                out.append(image)
            elif random.uniform(0, 1) > 0.5:
                k = random.randrange(self.size)
                out.append(self.images[k].clone())
                self.images[k] = image
            else:
                out.append(image)
        return torch.cat(out)


def net(o):
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, o))


random.seed(0)
torch.manual_seed(0)
G_A, G_B, D_A, D_B = net(2), net(2), net(1), net(1)
pool_A, pool_B = ImagePool(20), ImagePool(20)
gan, cycle = nn.MSELoss(), nn.L1Loss()
opt_G = torch.optim.Adam(itertools.chain(G_A.parameters(), G_B.parameters()), lr=2e-3, betas=(0.5, 0.999))
opt_D = torch.optim.Adam(itertools.chain(D_A.parameters(), D_B.parameters()), lr=2e-3, betas=(0.5, 0.999))
epochs, decay_from = 6, 3
schedulers = [
    torch.optim.lr_scheduler.LambdaLR(o, lambda e: 1.0 - max(0, e + 1 - decay_from) / (epochs - decay_from + 1))
    for o in (opt_G, opt_D)
]


def d_loss(D, real, fake):
    r, f = D(real), D(fake.detach())
    loss = (gan(r, torch.ones_like(r)) + gan(f, torch.zeros_like(f))) * 0.5
    loss.backward()
    return loss


for epoch in range(epochs):
    for _ in range(5):
        a, b = torch.randn(16, 2), torch.randn(16, 2) * 0.5 + 2
        D_A.requires_grad_(False), D_B.requires_grad_(False)
        opt_G.zero_grad()
        fake_b, fake_a = G_A(a), G_B(b)
        p, q = D_A(fake_b), D_B(fake_a)
        g_loss = (
            gan(p, torch.ones_like(p))
            + gan(q, torch.ones_like(q))
            + 10 * (cycle(G_B(fake_b), a) + cycle(G_A(fake_a), b))
        )
        g_loss.backward()
        opt_G.step()
        D_A.requires_grad_(True), D_B.requires_grad_(True)
        opt_D.zero_grad()
        la, lb = d_loss(D_A, b, pool_A.query(fake_b)), d_loss(D_B, a, pool_B.query(fake_a))
        opt_D.step()
    for s in schedulers:
        s.step()
print(g_loss.item(), la.item(), lb.item(), opt_G.param_groups[0]["lr"])
