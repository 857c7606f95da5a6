"""Classifies digits; data, network and loop are in separate modules."""

import torch
from dataset import get_dataloaders
from loop import evaluate, fit
from net import ConvNet

torch.manual_seed(0)
train_loader, val_loader = get_dataloaders(batch_size=50)
model = ConvNet(num_classes=10)
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for epoch in range(2):
    loss = fit(model, train_loader, optimizer)
    print(f"epoch {epoch} loss {loss:.4f} val acc {evaluate(model, val_loader):.4f}")
