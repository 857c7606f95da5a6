"""AdamW gets the full model with a frozen backbone, whose weights get no gradient and no decay and do not change."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
d = load_digits()
loader = DataLoader(
    TensorDataset(torch.tensor(d.data[:1500], dtype=torch.float32) / 16, torch.tensor(d.target[:1500])), 100, True
)


class Pretrained(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.backbone(x))


model = Pretrained()
model.backbone.requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
before = [p.clone() for p in model.backbone.parameters()]
for epoch in range(2):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
assert all(torch.equal(a, b) for a, b in zip(before, model.backbone.parameters()))
print(loss.item())
