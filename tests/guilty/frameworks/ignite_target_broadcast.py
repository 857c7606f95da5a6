"""Ignite: create_supervised_trainer, (B, 1) against (B,)."""

import torch
from ignite.engine import create_supervised_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(640, 8)
train = DataLoader(TensorDataset(x, x.sum(1)), 32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
trainer = create_supervised_trainer(model, torch.optim.Adam(model.parameters(), 1e-2), nn.MSELoss())
trainer.run(train, max_epochs=2)  # <- LOS003
