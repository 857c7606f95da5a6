"""Monte Carlo dropout with model.train() and many passes over the test set; the model has no BatchNorm."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
x, y = torch.tensor(d.data, dtype=torch.float32) / 16, torch.tensor(d.target)
train_loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=70, shuffle=True)
test_loader = DataLoader(TensorDataset(x[1400:], y[1400:]), batch_size=100)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(2):
    model.train()
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(xb), yb)
        loss.backward()
        optimizer.step()


def one_pass():
    with torch.no_grad():
        return torch.cat([model(xb).softmax(-1) for xb, _ in test_loader])


model.eval()
plain = one_pass()
model.train()  # dropout is the source of the samples
samples = torch.stack([one_pass() for _ in range(12)])
entropy = -(samples.mean(0) * samples.mean(0).log()).sum(-1)
accuracies = [(p.argmax(-1) == y[1400:]).float().mean().item() for p in (plain, samples.mean(0))]
print(accuracies, entropy.mean().item())
