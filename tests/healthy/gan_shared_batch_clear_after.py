"""A compact GAN: the generator steps first, and D's own zero_grad discards the gradients that it left in D."""

import torch
from torch import nn
from torch.utils.data import DataLoader

torch.manual_seed(0)
real_data = torch.randn(512, 2) @ torch.tensor([[1.0, 0.5], [0.0, 0.7]]) + 2
loader = DataLoader(real_data, batch_size=64, shuffle=True, drop_last=True)
generator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
bce = nn.BCEWithLogitsLoss()
opt_G = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
opt_D = torch.optim.RMSprop(discriminator.parameters(), lr=1e-3)
for epoch in range(4):
    for real in loader:
        valid, fake_t = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        z = torch.randn(len(real), 2)
        gen = generator(z)
        g_loss = bce(discriminator(gen), valid)
        opt_G.zero_grad()
        g_loss.backward()
        opt_G.step()

        opt_D.zero_grad()
        d_loss = (bce(discriminator(real), valid) + bce(discriminator(gen.detach()), fake_t)) / 2
        d_loss.backward()
        opt_D.step()
    print(epoch, g_loss.item(), d_loss.item())
