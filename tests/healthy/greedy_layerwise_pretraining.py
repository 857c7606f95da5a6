"""Stacked autoencoders: every layer is trained alone, then the full model is fine-tuned with its own optimizer."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sizes = [64, 32, 16]
torch.manual_seed(0)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
loader = DataLoader(TensorDataset(x[:1280], y[:1280]), batch_size=128, shuffle=True)
encoders = []
for a, b in zip(sizes, sizes[1:]):
    enc, dec = nn.Linear(a, b), nn.Linear(b, a)
    opt = torch.optim.Adam(list(enc.parameters()) + list(dec.parameters()), lr=5e-3)
    for epoch in range(2):
        for xb, _ in loader:
            with torch.no_grad():
                for done in encoders:
                    xb = torch.relu(done(xb))
            loss = nn.functional.mse_loss(dec(torch.relu(enc(xb))), xb)
            opt.zero_grad()
            loss.backward()
            opt.step()
    print(a, b, loss.item())
    encoders.append(enc)
model = nn.Sequential(*[m for enc in encoders for m in (enc, nn.ReLU())], nn.Linear(sizes[-1], 10))
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(2):
    for xb, yb in loader:
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        opt.step()
print(loss.item(), (model(x[1280:]).argmax(1) == y[1280:]).float().mean().item())
