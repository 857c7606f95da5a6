"""A generative adversarial network that learns to write the digits of scikit-learn, 8x8 pixels each.

python gan.py --epochs 40
"""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--batch-size", type=int, default=64)
parser.add_argument("--nz", type=int, default=32, help="size of the latent vector")
opt = parser.parse_args()
torch.manual_seed(0)

images = torch.tensor(load_digits().images, dtype=torch.float32).unsqueeze(1) / 8 - 1
dataloader = DataLoader(TensorDataset(images), batch_size=opt.batch_size, shuffle=True, drop_last=True)


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.02)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)


netG = nn.Sequential(
    nn.ConvTranspose2d(opt.nz, 64, 2, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(True),
    nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(True),
    nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
    nn.Tanh(),
).apply(weights_init)
netD = nn.Sequential(
    nn.Conv2d(1, 32, 4, stride=2, padding=1),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Conv2d(32, 64, 4, stride=2, padding=1, bias=False),
    nn.BatchNorm2d(64),
    nn.LeakyReLU(0.2, inplace=True),
    nn.Flatten(),
    nn.Linear(64 * 2 * 2, 1),
).apply(weights_init)

criterion = nn.BCEWithLogitsLoss()
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
real_label, fake_label = torch.ones(opt.batch_size, 1), torch.zeros(opt.batch_size, 1)
D_losses, G_losses = [], []

for epoch in range(1, opt.epochs + 1):
    for (real,) in dataloader:
        # Update D: tell real from fake
        optimizerD.zero_grad()
        errD_real = criterion(netD(real), real_label)
        errD_real.backward()
        fake = netG(torch.randn(opt.batch_size, opt.nz, 1, 1))
        errD_fake = criterion(netD(fake.detach()), fake_label)
        errD_fake.backward()
        optimizerD.step()

        # Update G: have the fakes taken for real
        optimizerG.zero_grad()
        output = netD(fake)
        errG = criterion(output, real_label)
        errG.backward()
        optimizerG.step()

        D_losses.append((errD_real + errD_fake).item())
        G_losses.append(errG)
    if epoch % 5 == 0 or epoch == opt.epochs:
        batches = len(dataloader)
        loss_d, loss_g = sum(D_losses[-batches:]) / batches, sum(G_losses[-batches:]) / batches
        print(f"epoch {epoch:2}  D loss {loss_d:.3f}  G loss {loss_g:.3f}")
