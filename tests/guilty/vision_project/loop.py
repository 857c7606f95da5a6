"""One epoch of training and one pass of validation."""

import torch
import torch.nn.functional as F


def fit(model, loader, optimizer):
    model.train()
    total = 0.0
    for images, targets in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(images), targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(targets)
    return total / len(loader.dataset)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    correct = 0
    for images, targets in loader:
        correct += (model(images).argmax(1) == targets).sum().item()
    return correct / len(loader.dataset)
