"""A denoising convolutional autoencoder; the target is the clean input."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Noisy(Dataset):
    def __init__(self, images, sigma):
        self.images, self.sigma = images, sigma

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        clean = self.images[i]
        return (clean + self.sigma * torch.randn_like(clean)).clamp(0, 1), clean


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        self.dec = nn.Sequential(
            nn.ConvTranspose2d(8, 8, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return self.dec(self.enc(x))


torch.manual_seed(0)
images = torch.tensor(load_digits().images[:640], dtype=torch.float32).unsqueeze(1) / 16
loader = DataLoader(Noisy(images, 0.2), batch_size=64, shuffle=True)
model = AutoEncoder()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(3):
    for noisy, clean in loader:
        loss = nn.functional.mse_loss(model(noisy), clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
