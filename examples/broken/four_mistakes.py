"""A training script that runs, learns, and is wrong in four places. See what `trueloop run` says of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 16)
y = (x[:, :4].sum(1) > 0).long()
train = DataLoader(TensorDataset(x[:512], y[:512]), batch_size=32, shuffle=True)
val = DataLoader(TensorDataset(x[512:], y[512:]), batch_size=32)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
losses = []
for epoch in range(8):
    for inputs, targets in train:
        loss = nn.functional.cross_entropy(model(inputs).softmax(1), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss)
    with torch.no_grad():
        right = sum((model(a).argmax(1) == b).sum().item() for a, b in val)
    print(f"epoch {epoch}: accuracy {right / 128:.3f}")
